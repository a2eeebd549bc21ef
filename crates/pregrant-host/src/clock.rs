//! Time on Linux.

use pregrant::platform::Clock;
use rustix::time::ClockId;

/// CLOCK_MONOTONIC, the same for all processes of the machine.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}
