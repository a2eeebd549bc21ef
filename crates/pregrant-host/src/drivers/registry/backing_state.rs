//! The backing of a device that is not connected: whether it is there, and when it is tried again.
//!
//! ```text
//!   state     its front                                when it is tried, with no front or for the one that waits
//!   Untried   is connected if the backing is there     at once: the device was found, or the toolstack names another backing
//!   Present   the same                                 never: its front's connect shows it
//!   Busy      waits; after ten seconds it is Missing   each 20 ms on (retry_interval)
//!   Missing   is not connected before the next try     after as long as the tries have failed: ten seconds at most
//! ```
//! The log has each reason once, and again after the device has connected.
//!
//! What a guest may do: connect again and again. It costs a try each ten seconds, and no line.

use super::retry_interval::retry_interval;
use std::time::{Duration, Instant};

/// The pause after the first failed try.
const PAUSE_LEAST: Duration = Duration::from_millis(500);
/// Longest pause: a repair is noticed within this time.
const PAUSE_MOST: Duration = Duration::from_secs(10);
/// The time that another process may use the backing before it counts as missing.
pub(super) const BUSY_MOST: Duration = Duration::from_secs(10);

/// The state of a device's backing as far as known, and the time of the next try. The default is
/// for a device that has just closed.
#[derive(Clone, Debug, Default)]
pub(super) struct BackingState {
    known: Known,
    /// Time of the first failed try since the device last connected.
    failing_since: Option<Instant>,
    /// The reason that was logged last.
    logged: Option<String>,
}

#[derive(Clone, Debug, Default)]
enum Known {
    /// The backing was not tried, or no try was conclusive. The time is that of the next try
    /// without a front; None: there will be none.
    Untried(Option<Instant>),
    /// The backing was available when it was last tried or used.
    #[default]
    Present,
    /// A front is there, and waits because another process uses the backing.
    Busy { who: String, since: Instant, next: Instant, was_tried: bool },
    /// The backing is unavailable, because it is missing or another process has it.
    Missing {
        why: String,
        /// The front is not connected before this time.
        until: Instant,
        /// Time of the next try without a front; None while a front waits.
        next: Option<Instant>,
        /// False if another process has the backing, so that it may exist.
        is_certain: bool,
    },
}

/// The decision for a front that is about to connect while another process has the backing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Busy {
    /// The front must wait from now on.
    Begins,
    /// The front, which waits already, must wait longer.
    GoesOn,
    /// The front has waited for too long.
    TooLong,
}

impl BackingState {
    /// Creates the state for a device that was just found.
    pub(super) fn found(now: Instant) -> Self {
        Self { known: Known::Untried(Some(now)), ..Self::default() }
    }

    /// Returns the reason why the front is not connected.
    pub(super) fn why(&self) -> Option<&str> {
        match &self.known {
            Known::Busy { who, .. } => Some(who),
            Known::Missing { why, .. } => Some(why),
            Known::Untried(_) | Known::Present => None,
        }
    }

    /// True if it is known whether the backing is available.
    pub(super) fn is_decided(&self) -> bool {
        match self.known {
            Known::Untried(_) | Known::Busy { .. } => false,
            Known::Present => true,
            Known::Missing { is_certain, .. } => is_certain,
        }
    }

    /// Returns true if a front that could be connected must wait.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        matches!(self.known, Known::Missing { until, .. } if now < until)
    }

    /// Called when the toolstack has named another backing: forgets what was known about the old
    /// one, and tries the new one at once.
    pub(super) fn changed(&mut self, now: Instant) {
        *self = Self { logged: self.logged.take(), ..Self::found(now) };
    }

    /// Called when the backing seems to be available, without a front. If it turns out to be
    /// unavailable for a front that connects now, the pauses continue where they were.
    pub(super) fn is_there(&mut self) {
        self.known = Known::Present;
    }

    /// Called when the backing is missing (`is_certain`), or another process uses it. It is tried
    /// again after a pause.
    pub(super) fn fails(&mut self, now: Instant, why: &str, is_certain: bool) {
        let since = *self.failing_since.get_or_insert(now);
        let pause = now.duration_since(since).clamp(PAUSE_LEAST, PAUSE_MOST);
        let until = now + pause;
        self.known = Known::Missing { why: why.into(), until, next: Some(until), is_certain };
    }

    /// Called when a front is about to connect, and another process has the backing.
    pub(super) fn is_busy(&mut self, now: Instant, who: &str) -> Busy {
        let (since, was_tried, busy) = match self.known {
            // That was logged before, and the front waits for the next try.
            Known::Missing { .. } => {
                self.fails(now, who, true);
                return Busy::GoesOn;
            }
            Known::Busy { since, was_tried, .. } => (since, was_tried, Busy::GoesOn),
            Known::Untried(_) => (now, false, Busy::Begins),
            Known::Present => (now, true, Busy::Begins),
        };
        if now.duration_since(since) >= BUSY_MOST {
            return Busy::TooLong;
        }
        let next = now + retry_interval(since, now);
        self.known = Known::Busy { who: who.into(), since, next, was_tried };
        busy
    }

    /// Called when the front that waited is gone.
    pub(super) fn end_busy(&mut self) {
        if let Known::Busy { was_tried, .. } = self.known {
            self.known = if was_tried { Known::Present } else { Known::Untried(None) };
        }
    }

    /// Returns the time at which the backing is tried again for a front that waits because another
    /// process uses it.
    pub(super) fn busy_check(&self) -> Option<Instant> {
        match self.known {
            Known::Busy { next, .. } => Some(next),
            Known::Untried(_) | Known::Present | Known::Missing { .. } => None,
        }
    }

    /// Asks whether the backing must be tried now without a front. Returns for how long it has been
    /// unavailable.
    pub(super) fn is_due(&mut self, now: Instant) -> Option<Duration> {
        self.next_mut()?.take_if(|at| *at <= now)?;
        Some(self.failing_since.map_or(Duration::ZERO, |since| now.duration_since(since)))
    }

    /// Returns the time at which the backing is tried without a front.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.known {
            Known::Untried(next) | Known::Missing { next, .. } => next,
            Known::Present | Known::Busy { .. } => None,
        }
    }

    fn next_mut(&mut self) -> Option<&mut Option<Instant>> {
        match &mut self.known {
            Known::Untried(next) | Known::Missing { next, .. } => Some(next),
            Known::Present | Known::Busy { .. } => None,
        }
    }

    /// True if this line must be logged: it is not the last one.
    pub(super) fn is_news(&mut self, line: &str) -> bool {
        let is_news = self.logged.as_deref() != Some(line);
        if is_news {
            self.logged = Some(line.into());
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn tries_come_later_and_later_and_each_reason_is_logged_once() {
        let begin = Instant::now();
        let (mut now, mut backing) = (begin, BackingState::found(begin));
        assert!(!backing.is_decided() && !backing.is_paused(now));
        assert_eq!(backing.is_due(now), Some(Duration::ZERO));
        assert_eq!(backing.is_due(now), None, "once");
        let mut pauses = Vec::new();
        while now < begin + Duration::from_secs(120) {
            backing.fails(now, "no such file", true);
            assert!(backing.is_decided() && backing.is_paused(now));
            assert_eq!(backing.is_news("no such file"), now == begin);
            let next = backing.due().unwrap();
            assert!(!backing.is_paused(next) && backing.is_due(next - MS).is_none());
            assert_eq!(backing.is_due(next), Some(next - begin));
            pauses.push(next - now);
            now = next;
        }
        assert!(pauses.is_sorted() && pauses[0] == PAUSE_LEAST && pauses.last() == Some(&PAUSE_MOST));
        assert!(pauses.len() < 20, "{pauses:?}");
        // A check finds the backing, but a front does not: the pauses continue where they were.
        backing.is_there();
        assert_eq!((backing.why(), backing.due(), backing.is_paused(now)), (None, None, false));
        backing.fails(now, "no such file", true);
        assert!(backing.is_paused(now + PAUSE_MOST - MS) && !backing.is_news("no such file"));
        assert!(backing.is_news("another reason"));
        // The device has connected, and its backing fails again.
        backing = BackingState::default();
        backing.fails(now, "no such file", true);
        assert!(!backing.is_paused(now + PAUSE_LEAST) && backing.is_news("no such file"));
        // The toolstack names another, which is tried at once.
        backing.changed(now);
        assert!(!backing.is_paused(now) && backing.is_due(now).is_some() && backing.why().is_none());
    }

    #[test]
    fn a_front_waits_for_another_for_ten_seconds_and_what_was_known_stays() {
        let begin = Instant::now();
        let mut backing = BackingState::found(begin);
        assert!(backing.is_due(begin).is_some());
        backing.is_there();
        assert_eq!(backing.is_busy(begin, "another"), Busy::Begins);
        assert_eq!((backing.why(), backing.is_decided(), backing.due()), (Some("another"), false, None));
        let mut now = begin;
        while now + Duration::from_secs(1) < begin + BUSY_MOST {
            now = backing.busy_check().expect("it is tried again");
            assert_eq!(backing.is_busy(now, "another"), Busy::GoesOn);
        }
        // The front goes away, and comes back.
        let mut left = backing.clone();
        left.end_busy();
        assert!(left.is_decided() && left.why().is_none() && left.busy_check().is_none());
        assert_eq!(left.is_busy(now, "another"), Busy::Begins);
        now = begin + BUSY_MOST;
        assert_eq!(backing.is_busy(now, "another"), Busy::TooLong);
        backing.fails(now, "another", true);
        assert_eq!(backing.is_busy(now, "another"), Busy::GoesOn, "it waits for the next try");
        assert!(backing.is_decided() && backing.busy_check().is_none() && backing.is_paused(now));
    }
}
