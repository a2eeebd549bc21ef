//! Reads Linux's clocks.

use pregrant::platform::Clock;
use rustix::time::ClockId;
use std::time::Duration;

/// Returns the time as of the kernel's last tick, which is at most 10 ms old. It never makes a
/// system call; reading [`MonotonicClock`] does where the vDSO has no clock source (in many PV
/// domains).
pub fn coarse() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The clock `CLOCK_MONOTONIC`, which is the same for all processes of the machine.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}
