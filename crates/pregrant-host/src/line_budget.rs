//! Limits for repeated log lines: a burst is written, then one line per interval, which also states
//! how many were left out.
//!
//! ```text
//!   a line --LineRate--> fewer than `burst` since long: written
//!                        else: written if `each` has passed since the last one that was; if not, it is counted
//! ```
//! A budget refills with time, so an error that starts tomorrow is still logged. [`LineBudget`] is
//! for what a kernel or a library refuses, when no vif can be charged for the line. Lines about a
//! device go through the [log of that device](crate::drivers::device_log::DeviceLog), which is made
//! of the same [`Lines`].
//!
//! What a guest may do: cause any number of lines. In a time `t`, at most `burst + t / each` of a
//! kind are written.

use log::{Level, log};
use std::fmt::Arguments;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The rate to which log lines are limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineRate {
    /// Lines that may be written at once after a long silence.
    pub burst: u32,
    /// The interval at which one line may be written after the burst is used up.
    pub each: Duration,
}

/// A budget of log lines. Each line costs an amount of time, and time itself refills the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lines {
    /// Time that must pass until the budget is full again.
    spent: Duration,
    /// The moment at which `spent` was true, by any clock.
    at: Duration,
}

impl Lines {
    pub const fn new() -> Self {
        Self { spent: Duration::ZERO, at: Duration::ZERO }
    }

    fn fill(&mut self, now: Duration) {
        self.spent = self.spent.saturating_sub(now.saturating_sub(self.at));
        self.at = now;
    }

    /// Returns whether a line may be written.
    pub fn has_room(&mut self, rate: LineRate, now: Duration) -> bool {
        self.fill(now);
        self.spent + rate.each <= rate.each * rate.burst
    }

    /// Charges one line to the budget.
    pub fn spend(&mut self, rate: LineRate) {
        self.spent = (self.spent + rate.each).min(rate.each * rate.burst);
    }
}

/// The rate for one kind of line in the whole process.
pub const KIND: LineRate = LineRate { burst: 16, each: Duration::from_secs(60) };

#[derive(Debug)]
struct Kind {
    lines: Lines,
    /// Number of lines that were left out since the last written one.
    left_out: u64,
}

/// The budget of one kind of line, shared by the whole process.
#[derive(Debug)]
pub struct LineBudget(Mutex<Kind>);

impl LineBudget {
    pub const fn new() -> Self {
        Self(Mutex::new(Kind { lines: Lines::new(), left_out: 0 }))
    }

    /// Writes a line unless the budget is exhausted.
    pub fn say(&self, level: Level, text: Arguments<'_>) {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        match self.take(BEGAN.get_or_init(Instant::now).elapsed()) {
            None => {}
            Some(0) => log!(level, "{text}"),
            Some(n) => log!(level, "{text} ({n} more line(s) of this kind were left out before)"),
        }
    }

    pub fn error(&self, text: Arguments<'_>) {
        self.say(Level::Error, text);
    }

    pub fn warn(&self, text: Arguments<'_>) {
        self.say(Level::Warn, text);
    }

    /// Charges a line to the budget. Some(n): the line must be written, and n lines were left out
    /// before it.
    pub(crate) fn take(&self, now: Duration) -> Option<u64> {
        let mut kind = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kind.lines.has_room(KIND, now) {
            kind.lines.spend(KIND);
            return Some(std::mem::take(&mut kind.left_out));
        }
        kind.left_out += 1;
        None
    }
}

impl Default for LineBudget {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_million_lines_at_once_are_a_few_and_a_count() {
        let budget = LineBudget::new();
        let written = (0..1_000_000).filter_map(|_| budget.take(7 * SECOND)).collect::<Vec<_>>();
        assert_eq!(written, [0; KIND.burst as usize]);
        assert_eq!(budget.take(7 * SECOND + KIND.each), Some(1_000_000 - u64::from(KIND.burst)));
        assert_eq!(budget.take(7 * SECOND + KIND.each), None);
    }

    #[test]
    fn a_budget_is_never_used_up_for_good() {
        let budget = LineBudget::new();
        // One line per second for a week.
        let week: u64 = 7 * 24 * 3600;
        let written: Vec<_> = (0..week).filter_map(|s| budget.take(s as u32 * SECOND)).collect();
        let most = u64::from(KIND.burst) + week / KIND.each.as_secs();
        assert!((most - 1..=most).contains(&(written.len() as u64)), "{} of {most}", written.len());
        assert_eq!(written.last(), Some(&(KIND.each.as_secs() - 1)));
        // A line after an hour of silence is written at once.
        let later = (week as u32 + 3600) * SECOND;
        assert!((0..KIND.burst).all(|_| budget.take(later).is_some()));
        assert_eq!(budget.take(later), None);
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_gives_no_line() {
        let mut lines = Lines::new();
        for _ in 0..KIND.burst {
            assert!(lines.has_room(KIND, 1000 * SECOND));
            lines.spend(KIND);
        }
        assert!(!lines.has_room(KIND, 1000 * SECOND) && !lines.has_room(KIND, 3 * SECOND));
        assert!(lines.has_room(KIND, 3 * SECOND + KIND.each));
    }
}
