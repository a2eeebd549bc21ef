//! The control thread's time that guests have spent, and the bounds that their devices have
//! reached.
//!
//! What a guest may do: ask for steps without end, or on its control ring; see
//! [`throttling`](super::throttling) and [`control_turns`](super::control_turns).

use crate::drivers::throttle::Throttle;
use pregrant::units::DomId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time after a log line within which no further line about the same device and bound is
/// written.
const LOGGED_AGAIN: Duration = Duration::from_secs(3600);

/// The control thread's time that each guest has used.
pub(super) struct Throttles {
    by_guest: BTreeMap<DomId, Throttle>,
    began: Instant,
    /// Time at which the first of the throttled devices is served again.
    pub(super) resumes_at: Option<Instant>,
}

impl Default for Throttles {
    fn default() -> Self {
        Self { by_guest: BTreeMap::new(), began: Instant::now(), resumes_at: None }
    }
}

impl Throttles {
    /// Returns a guest's account, and the current time.
    pub(super) fn of(&mut self, guest: DomId) -> (&mut Throttle, Duration) {
        (self.by_guest.entry(guest).or_default(), self.began.elapsed())
    }

    /// Called when a guest has no device any more.
    pub(super) fn forget(&mut self, guest: DomId) {
        self.by_guest.remove(&guest);
    }
}

/// The bounds that a device has reached, in any stage.
#[derive(Default)]
pub(super) struct DeviceThrottle {
    /// The device's front is not watched until this time; None: it is watched.
    pub(super) until: Option<Instant>,
    /// Number of times the front's steps were throttled, and when that was last logged.
    pub(super) steps: Repeated,
    /// Number of times the control ring was throttled, and when that was last logged.
    pub(super) ring: Repeated,
}

impl DeviceThrottle {
    /// Returns the number of times the device reached a bound.
    pub(super) fn times(&self) -> u64 {
        self.steps.times + self.ring.times
    }
}

/// An event that repeats, and that is logged once in a while.
#[derive(Default)]
pub(super) struct Repeated {
    pub(super) times: u64,
    logged: Option<Instant>,
}

impl Repeated {
    /// Counts one more time. Returns true if this time must be logged.
    pub(super) fn again(&mut self, now: Instant) -> bool {
        self.times += 1;
        let is_due = self.logged.is_none_or(|at| now.duration_since(at) >= LOGGED_AGAIN);
        if is_due {
            self.logged = Some(now);
        }
        is_due
    }
}
