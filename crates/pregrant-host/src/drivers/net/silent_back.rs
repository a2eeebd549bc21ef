//! Detects a back that answers no requests. Its front learns in no other way that the back's
//! process was killed, or hangs, because the next process takes over the same rings.
//!
//! ```text
//!   each second: TX requests out, none answered, no frame came --5 s, 30 s, 120 s--> a warning
//!                an answer, or a frame                         ---------------------> a line that it answers again
//! ```
//! A front that sends nothing has nothing to wait for.
//!
//! What the back may do: stop and go on as often as it likes; the front's lines have a budget.

use crate::drivers::overdue::{News, Overdue};
use std::time::{Duration, Instant};

/// The interval between two checks.
pub(super) const EACH: Duration = Duration::from_secs(1);

/// A connected vif's traffic until now, of all queues.
#[derive(Clone, Copy, Default)]
pub(super) struct Traffic {
    /// Number of TX requests without an answer.
    pub out: u32,
    /// Number of frames that were sent, each by a request or more.
    pub sent: u64,
    /// Number of frames that arrived.
    pub came: u64,
}

/// Finds out whether the back has stopped answering requests.
#[derive(Default)]
pub(super) struct SilentBack {
    checked: Option<Instant>,
    last: Traffic,
    since: Option<Instant>,
    overdue: Overdue,
}

impl SilentBack {
    /// Returns true if the interval since the last check is over.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.checked.is_none_or(|at| now.saturating_duration_since(at) >= EACH)
    }

    /// Records the vif's current traffic, and checks whether the back answers. None: the vif is not
    /// connected.
    pub(super) fn check(&mut self, now: Instant, traffic: Option<Traffic>) -> Option<News> {
        let Some(traffic) = traffic else {
            *self = Self { checked: Some(now), ..Self::default() };
            return None;
        };
        let last = std::mem::replace(&mut self.last, traffic);
        self.checked = Some(now);
        // Requests of frames that were sent since are out as well, if none was answered.
        let sent = traffic.sent.saturating_sub(last.sent);
        let unanswered = u64::from(traffic.out) >= u64::from(last.out) + sent;
        let is_silent = traffic.out > 0 && unanswered && traffic.came == last.came;
        if !is_silent {
            self.since = None;
            return self.overdue.check(None);
        }
        let since = *self.since.get_or_insert(now);
        self.overdue.check(Some(now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(out: u32, sent: u64, came: u64) -> Option<Traffic> {
        Some(Traffic { out, sent, came })
    }

    /// Reports of a run, with the second of each.
    fn said(silent: &mut SilentBack, began: Instant, traffic: impl Fn(u64) -> Option<Traffic>) -> Vec<News> {
        (0..=40).filter_map(|s| silent.check(began + Duration::from_secs(s), traffic(s))).collect()
    }

    #[test]
    fn a_back_is_silent_while_what_was_sent_is_unanswered() {
        let (began, mut silent) = (Instant::now(), SilentBack::default());
        // The back got no request, or answers all, or answers as fast as it gets them.
        assert_eq!(said(&mut silent, began, |_| of(0, 7, 0)), []);
        assert_eq!(said(&mut silent, began, |s| of(9, 7 + 3 * s, 0)), []);
        // The back answers no request, but sends frames.
        assert_eq!(said(&mut silent, began, |s| of(9, 200, s)), []);
        // The ring is full, so no more requests are in flight. The oldest has waited for 5 s, then
        // for 30 s.
        let waits = [5, 30].map(|s| News::Waits(Duration::from_secs(s)));
        let sent = |s: u64| of(9 + s.min(20) as u32, 200 + s.min(20), 41);
        assert_eq!(said(&mut silent, began, sent), waits);
        let later = began + Duration::from_secs(41);
        let over = News::Over(Duration::from_secs(39));
        assert_eq!(silent.check(later, of(28, 220, 41)), Some(over));
        // Another connection has another silence.
        assert_eq!(said(&mut silent, later, |_| of(28, 220, 41)).len(), 2);
        assert_eq!(silent.check(later, None), None);
        assert_eq!(silent.check(later, of(0, 0, 0)), None);
    }
}
