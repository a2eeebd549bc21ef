//! Time on Linux.

use pregrant::platform::Clock;
use rustix::time::ClockId;
use std::time::Duration;

/// Time since some moment, as of the kernel's last tick, 10 ms ago at most: never a system call, as
/// [`MonotonicClock`] is one where the kernel has no clock for processes (a PV domain of many
/// machines).
pub fn coarse() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// CLOCK_MONOTONIC, the same for all processes of the machine.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}
