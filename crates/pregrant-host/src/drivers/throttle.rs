//! How much of a worker's time the steps of one guest's vifs may take: connecting, closing,
//! failing, being connected again.
//!
//! ```text
//!   a step of a vif of it ---took t---> two accounts, filled by time alone:  steps (bursts of 32, then 4 a second)
//!                                                                      time  (bursts of 20 ms, then 2 % of it)
//!   one of them is not empty: listen on          both are empty: throttled, for two seconds at most
//! ```
//! An honest guest connects and goes down now and then, and never empties the first account. One
//! that breaks its rings and comes back without end, or writes its state without end, empties both,
//! and from then on costs its neighbours the second's share of the worker's time. Its backend takes
//! its watches away while it is throttled, so that what is written then costs nothing.
//!
//! Requests on control rings have an account of time of their own, of the same size: a guest whose
//! steps took long has asked for nothing yet.
//!
//! A machine whose steps take long (an emulated one: 5 ms and more) has the first account, a fast
//! one the second.

use std::time::Duration;

/// The price of a step in the first account, which fills with time: four a second.
const PER_STEP: Duration = Duration::from_millis(250);
/// Number of steps that a guest can save up.
const STEPS: u32 = 32;
/// The divisor of a guest's part of the worker's time: the steps of one guest may use 1/50 of it.
const SHARE: u32 = 50;
/// Control thread time that a guest can save up.
const TIME: Duration = Duration::from_millis(20);
/// Longest time for which a vif is throttled. After that a guest that behaves again, or a vif that
/// is detached, is served.
pub const LONGEST_THROTTLE: Duration = Duration::from_secs(2);

/// The accounts of the control thread's time and work that one guest has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Throttle {
    /// Time at which the last step ended, by any clock.
    at: Duration,
    /// The used part of each account, given as the time that it takes to refill it.
    steps: Duration,
    time: Duration,
    asked: Duration,
}

impl Throttle {
    /// Charges a step that ended at `now` after `took`. If both accounts are used up, returns for
    /// how long the vif is throttled.
    pub fn step(&mut self, now: Duration, took: Duration) -> Option<Duration> {
        self.spend(now, took);
        self.steps = (self.steps + PER_STEP).min(PER_STEP * STEPS + LONGEST_THROTTLE);
        let steps = self.steps.saturating_sub(PER_STEP * STEPS);
        let overdrawn = steps.min(self.time.saturating_sub(TIME * SHARE));
        (!overdrawn.is_zero()).then_some(overdrawn)
    }

    /// Charges requests on a control ring that ended at `now` after `took`. If the account is used
    /// up, returns for how long the ring is not served.
    pub fn work(&mut self, now: Duration, took: Duration) -> Option<Duration> {
        self.fill(now);
        self.asked = Self::after(self.asked, took);
        let overdrawn = self.asked.saturating_sub(TIME * SHARE);
        (!overdrawn.is_zero()).then_some(overdrawn)
    }

    /// Charges other work for the guest's vifs, which ended at `now`.
    pub fn spend(&mut self, now: Duration, took: Duration) {
        self.fill(now);
        self.time = Self::after(self.time, took);
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.at = now;
        for account in [&mut self.steps, &mut self.time, &mut self.asked] {
            *account = account.saturating_sub(passed);
        }
    }

    /// Returns the used part of an account after a step of `took`.
    fn after(spent: Duration, took: Duration) -> Duration {
        spent.saturating_add(took.saturating_mul(SHARE)).min(TIME * SHARE + LONGEST_THROTTLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Simulates steps of `took` for a minute, as fast as allowed or one in each `every`. Returns
    /// their number and their total time.
    fn minute(took: Duration, every: Duration) -> (u32, Duration) {
        let (mut throttle, mut now, mut steps) = (Throttle::default(), Duration::from_secs(7), 0);
        while now < Duration::from_secs(67) {
            now += took;
            steps += 1;
            let pause = throttle.step(now, took).unwrap_or_default();
            now += pause.max(every);
        }
        (steps, took * steps)
    }

    #[test]
    fn who_steps_without_end_takes_a_fiftieth_of_the_time_or_four_steps_a_second() {
        for took in [MS / 20, MS, 4 * MS, 5 * MS, 10 * MS, 40 * MS] {
            let (steps, sum) = minute(took, Duration::ZERO);
            let due = (Duration::from_secs(60) / SHARE).max(4 * 60 * took);
            let burst = TIME.max(STEPS * took);
            assert!(sum <= burst + due + 2 * took, "{took:?}: {steps} steps took {sum:?}, due {due:?}");
            assert!(sum >= due, "{took:?}: {steps} steps took {sum:?}, due {due:?}: it starves");
        }
    }

    #[test]
    fn who_asks_without_end_takes_a_fiftieth_of_the_time() {
        let (mut throttle, mut now, mut sum) = (Throttle::default(), Duration::from_secs(7), Duration::ZERO);
        while now < Duration::from_secs(17) {
            now += MS / 10;
            sum += MS / 10;
            now += throttle.work(now, MS / 10).unwrap_or_default();
        }
        assert!(sum <= TIME + 201 * MS, "{sum:?} of 10 s");
        assert!(sum >= 200 * MS, "{sum:?} of 10 s: it starves");
    }

    #[test]
    fn a_slow_machine_has_its_steps() {
        // Each step takes as long as a hundred on a fast machine.
        let (steps, _) = minute(100 * MS, 150 * MS);
        assert_eq!(steps, 240, "none was throttled");
    }

    #[test]
    fn a_slow_machine_has_its_control_requests() {
        let mut throttle = Throttle::default();
        for _ in 0..3 {
            assert_eq!(throttle.step(7 * 100 * MS, 100 * MS), None);
        }
        assert_eq!(throttle.work(7 * 100 * MS, MS / 100), None, "its steps took long, and it asked once");
    }

    #[test]
    fn who_was_throttled_is_trusted_again() {
        let mut throttle = Throttle::default();
        let mut now = Duration::ZERO;
        while throttle.step(now, 10 * MS).is_none() {
            now += 10 * MS;
        }
        // Steps for a front that is not watched still come from the toolstack.
        for _ in 0..20 {
            let _ = throttle.step(now, Duration::from_secs(100));
        }
        assert_eq!(throttle.step(now, MS), Some(LONGEST_THROTTLE));
        now += Duration::from_secs(33);
        assert_eq!(throttle.step(now, 10 * MS), None, "the steps are saved up again");
        let mut full = Throttle::default();
        now += Duration::from_secs(6000);
        assert_eq!((full.step(now, MS), throttle.step(now, MS)), (None, None));
        assert_eq!(full, throttle);
    }
}
