//! Measures the part of a receiving thread's run that counts: it begins after a warm-up of a tenth
//! of its length.
//!
//! ```text
//!   begin --warm-up--> count, clock, CPU time --run_for--> what was taken in between
//! ```

use super::Measured;
use crate::cpu_time;
use std::time::{Duration, Instant};

/// A warm-up, and the measured time after it, of the thread that made this.
pub(super) struct Window {
    run_for: Duration,
    since: Instant,
    cpu_ns: u64,
    /// Number of frames before the measured time; None while that has not started.
    first: Option<u64>,
}

impl Window {
    pub(super) fn new(run_for: Duration) -> Self {
        Self { run_for, since: Instant::now(), cpu_ns: cpu_time::of_this_thread(), first: None }
    }

    /// Notes that `frames` were received since the warm-up began. Once the time is over, returns
    /// the result.
    pub(super) fn turn(&mut self, frames: u64) -> Option<Measured> {
        let elapsed = self.since.elapsed();
        match self.first {
            None if elapsed * 10 >= self.run_for => {
                *self = Self { first: Some(frames), ..Self::new(self.run_for) }
            }
            Some(first) if elapsed >= self.run_for => {
                let (frames, seconds) = (frames - first, elapsed.as_secs_f64());
                let taker_cpu_ns = cpu_time::of_this_thread() - self.cpu_ns;
                return Some(Measured { frames, seconds, taker_cpu_ns, ..Measured::default() });
            }
            _ => {}
        }
        None
    }
}
