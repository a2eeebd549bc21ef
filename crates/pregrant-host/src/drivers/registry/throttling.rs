//! Listening to fronts, each as long as its guest's account has it
//! ([`Throttle`](crate::drivers::throttle::Throttle)).
//!
//! ```text
//!   run_throttled:  a step, or what a fault comes to; its time is charged --both accounts empty--> watches away, throttled
//!   wake_throttled: watches set again, which gives an event, and with it the step that was missed
//! ```
//! Changes of a throttled device by the toolstack (`online`, its directory) are served at once.
//!
//! What a guest may do: ask for steps without end. It gets a bounded share of the worker's time,
//! and a line in the log once in a while.

use super::Backend;
use super::devices::Instance;
use crate::drivers::throttle::LONGEST_THROTTLE;
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;
use std::time::{Duration, Instant};

/// The log line for a throttled device; it is repeated rarely.
const THROTTLED: &str = "throttled: the frontend writes its xenstore keys too often";

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Makes a step that the device's front caused, and charges its guest for the time.
    pub(super) fn run_throttled(&mut self, id: DeviceId, what: impl FnOnce(&mut Self)) {
        let start = Instant::now();
        what(self);
        let Some(served) = self.devices.get_mut(&id) else { return };
        let now = Instant::now();
        let (throttle, at) = self.throttles.of(id.front);
        let pause = throttle.step(at, now.duration_since(start));
        let Some(pause) = pause.filter(|_| self.config.limits_steps && served.throttle.until.is_none())
        else {
            return;
        };
        if let Err(e) = served.unwatch(&mut self.xs) {
            // one of its watches may be gone: they are set again in any case
            served.say(Level::Warn, &e);
        }
        let (throttle, at) = self.throttles.of(id.front);
        throttle.spend(at, now.elapsed());
        let until = now + pause;
        served.throttle.until = Some(until);
        let first = &mut self.throttles.resumes_at;
        *first = Some(first.map_or(until, |at| at.min(until)));
        if served.throttle.steps.again(now) {
            let times = served.throttle.steps.times;
            served.say(Level::Warn, &format_args!("{THROTTLED} ({times} time(s) in all)"));
        }
    }

    /// Watches all throttled devices again, even those whose pause is not over.
    pub(super) fn wake_all(&mut self) {
        self.wake_those_until(Instant::now() + LONGEST_THROTTLE);
    }

    /// Watches the fronts of devices again whose throttling is over. Returns true if there are any.
    /// Events that they missed may have arrived already.
    pub(super) fn wake_throttled(&mut self) -> bool {
        self.wake_those_until(Instant::now())
    }

    fn wake_those_until(&mut self, end: Instant) -> bool {
        if self.throttles.resumes_at.is_none_or(|at| at > end) {
            return false;
        }
        let mut woke = false;
        let is_over = |s: &Instance<P, T>| s.throttle.until.is_some_and(|until| until <= end);
        for served in self.devices.iter_mut().filter(|s| is_over(s)) {
            woke = true;
            let start = Instant::now();
            served.throttle.until = match served.watch(&mut self.xs) {
                Ok(()) => None,
                Err(e) => {
                    served.say(Level::Warn, &e);
                    Some(start + LONGEST_THROTTLE)
                }
            };
            let (throttle, at) = self.throttles.of(served.device.id().front);
            throttle.spend(at, start.elapsed());
        }
        self.throttles.resumes_at = self.devices.iter().filter_map(|s| s.throttle.until).min();
        woke
    }

    /// Time until the first throttled device is watched again.
    pub(super) fn throttle_left(&self) -> Option<Duration> {
        self.throttles.resumes_at.map(|until| until.saturating_duration_since(Instant::now()))
    }
}
