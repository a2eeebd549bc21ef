//! Requests that an image, or a front's back, does not answer: how long the oldest has waited, and
//! which lines the log has about it.
//!
//! ```text
//!   each check: age of the oldest --5 s, 30 s, 120 s, each once--> a warning --younger than 5 s again--> a line that it is over
//! ```
//! Storage that hangs gives no error: no counter moves, and the latency of what was answered says
//! nothing of what was not.
//!
//! What a guest may do: nothing but ask; its device's budget bounds the lines.

use std::time::Duration;

/// The age from which on a request is overdue.
pub const OVERDUE: Duration = Duration::from_secs(5);
/// Ages at which a line is logged, once each.
const AGES: [Duration; 3] = [OVERDUE, Duration::from_secs(30), Duration::from_secs(120)];

/// Decides when to log that a device's requests wait for too long.
#[derive(Default, Debug)]
pub struct Overdue {
    /// Number of the [`AGES`] that were logged.
    said: usize,
    /// The highest age that was seen since a request became overdue.
    most: Duration,
}

/// Something that must be logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// The oldest request has waited for this long.
    Waits(Duration),
    /// No request is overdue any more, and the oldest one had waited for at least this long.
    Over(Duration),
}

impl Overdue {
    /// Returns the number of warnings that were logged since a request became overdue.
    #[must_use]
    pub fn said(&self) -> usize {
        self.said
    }

    /// Reports the age of the oldest request; None: there is no request. Returns what must be
    /// logged.
    pub fn check(&mut self, age: Option<Duration>) -> Option<News> {
        let age = age.unwrap_or_default();
        if age < OVERDUE {
            let most = std::mem::take(self).most;
            return (most >= OVERDUE).then_some(News::Over(most));
        }
        self.most = self.most.max(age);
        let passed = AGES.iter().filter(|least| **least <= age).count();
        let is_news = passed > self.said;
        self.said = self.said.max(passed);
        is_news.then_some(News::Waits(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_age_is_said_once_and_so_is_the_end() {
        let mut overdue = Overdue::default();
        for _ in 0..2 {
            assert_eq!(overdue.check(None), None);
            let said: Vec<_> = (0..400).filter_map(|s| overdue.check(Some(Duration::from_secs(s)))).collect();
            assert_eq!(said, [5, 30, 120].map(|s| News::Waits(Duration::from_secs(s))));
            // Another is the oldest, and is overdue as well.
            assert_eq!(overdue.check(Some(Duration::from_secs(40))), None);
            let young = (Duration::from_millis(4999), News::Over(Duration::from_secs(399)));
            assert_eq!(overdue.check(Some(young.0)), Some(young.1));
            assert_eq!(overdue.check(None), None);
        }
        // A control thread that checks late reports the age that it sees.
        let late = Duration::from_secs(60);
        assert_eq!(overdue.check(Some(late)), Some(News::Waits(late)));
        assert_eq!(overdue.check(None), Some(News::Over(late)));
    }
}
