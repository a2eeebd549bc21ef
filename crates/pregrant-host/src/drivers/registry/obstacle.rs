//! An unavailable backing of a device: the reason, whether the log has it, and when it is tried
//! again.
//!
//! ```text
//!   found:                 tried before its front comes, until that is decided: it is there, or it is not        (try_ahead)
//!   about to connect:      it is not there: closed; a front that comes again waits for the next try
//!   the time since the first failure doubles with each try; ten seconds between two at most
//!   the log has each reason once, and again after it worked
//! ```
//! What a guest may do: connect again and again. It costs a try each ten seconds, and no line.

use std::time::{Duration, Instant};

/// The first pause.
const PAUSE_LEAST: Duration = Duration::from_millis(500);
/// The longest: a repair has its effect within that time.
const PAUSE_MOST: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind {
    /// Why it cannot be had, as of the last try.
    why: Option<String>,
    /// As of when the tries have failed.
    since: Option<Instant>,
    /// Its front is not connected before.
    until: Option<Instant>,
    /// It is tried then, though no front comes.
    ahead: Option<Instant>,
    /// No one knows yet whether it is there.
    undecided: bool,
    /// The reason that the log has.
    said: Option<String>,
}

impl Behind {
    /// Why it cannot be had.
    pub(super) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Whether it was tried, and is there or is not.
    pub(super) fn is_decided(&self) -> bool {
        !self.undecided
    }

    /// Whether a front that is there is to wait.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// It was found, or the toolstack has changed what it is: all that is known of it means
    /// nothing, and it is tried at once.
    pub(super) fn begin(&mut self, now: Instant) {
        let said = self.said.take();
        *self = Self { ahead: Some(now), undecided: true, said, ..Self::default() };
    }

    /// Its front is connected, or will not be.
    pub(super) fn is_over(&mut self) {
        *self = Self::default();
    }

    /// It is there, as it seems without a front. One that comes now may find it otherwise, and has
    /// not waited for nothing then.
    pub(super) fn is_there(&mut self) {
        (self.why, self.until, self.ahead, self.undecided) = (None, None, None, false);
    }

    /// It is not there, or somebody has it: `decided` where there is nothing to wait for. It is
    /// tried again after a pause.
    pub(super) fn fails(&mut self, now: Instant, why: &str, decided: bool) {
        let since = *self.since.get_or_insert(now);
        let pause = now.duration_since(since).clamp(PAUSE_LEAST, PAUSE_MOST);
        self.why = Some(why.into());
        self.until = Some(now + pause);
        self.ahead = Some(now + pause);
        self.undecided = !decided;
    }

    /// Before a device is tried with no front there: whether it is to be, and for how long it has
    /// failed.
    pub(super) fn is_due(&mut self, now: Instant) -> Option<Duration> {
        self.ahead.take_if(|at| *at <= now)?;
        Some(self.since.map_or(Duration::ZERO, |since| now.duration_since(since)))
    }

    /// When it is.
    pub(super) fn due(&self) -> Option<Instant> {
        self.ahead
    }

    /// Whether the log is to have this line: not if it was the last one.
    pub(super) fn is_news(&mut self, line: &str) -> bool {
        let is_news = self.said.as_deref() != Some(line);
        if is_news {
            self.said = Some(line.into());
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
        let (mut now, mut behind) = (begin, Behind::default());
        behind.begin(now);
        assert!(!behind.is_decided() && !behind.is_paused(now));
        assert_eq!(behind.is_due(now), Some(Duration::ZERO));
        assert_eq!(behind.is_due(now), None, "once");
        let mut pauses = Vec::new();
        while now < begin + Duration::from_secs(120) {
            behind.fails(now, "no such file", true);
            assert!(behind.is_decided() && behind.is_paused(now));
            assert_eq!(behind.is_news("no such file"), now == begin);
            let next = behind.due().unwrap();
            assert!(!behind.is_paused(next) && behind.is_due(next - MS).is_none());
            assert_eq!(behind.is_due(next), Some(next - begin));
            pauses.push(next - now);
            now = next;
        }
        assert!(pauses.is_sorted() && pauses[0] == PAUSE_LEAST && pauses.last() == Some(&PAUSE_MOST));
        assert!(pauses.len() < 20, "{pauses:?}");
        // It is there for who checks, and not for a front: the pauses go on from where they were.
        behind.is_there();
        assert_eq!((behind.why(), behind.due(), behind.is_paused(now)), (None, None, false));
        behind.fails(now, "no such file", true);
        assert!(behind.is_paused(now + PAUSE_MOST - MS) && !behind.is_news("no such file"));
        assert!(behind.is_news("another reason"));
        // It works, and fails again.
        behind.is_over();
        behind.fails(now, "no such file", true);
        assert!(!behind.is_paused(now + PAUSE_LEAST) && behind.is_news("no such file"));
        // The toolstack names another, which is tried at once.
        behind.begin(now);
        assert!(!behind.is_paused(now) && behind.is_due(now).is_some() && behind.why().is_none());
    }
}
