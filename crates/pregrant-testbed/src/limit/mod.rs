//! What this machine does without a driver, as `pregrant-lab bench limit` prints it.
//!
//! | file | measures |
//! |---|---|
//! | [`lines`] | cache lines handed from one core to another, one way, in a bounded ring |
//! | [`pool`] | frames handed over by as many buffers as the ring has slots, and by more |
//! | [`memory`] | memcpy within the caches |
//! | [`remote`] | `process_vm_readv` in batches out of another process |
//! | [`wake`] | an eventfd there and back, both ends asleep in between |
//!
//! Each runs for a given time on given cores and returns what it counted. Two threads that hand
//! lines to each other have a core each and never sleep; with fewer than two cores that is not
//! measured, see [`cores`].
#![expect(unsafe_code, reason = "bare memory between two threads or two processes, without the platforms")]

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub mod lines;
pub mod memory;
pub mod pool;
pub mod remote;
pub mod wake;
mod window;

/// The numbers that were counted in the measured time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// Number of lines, copies, fragments or round trips.
    pub frames: u64,
    pub seconds: f64,
    /// CPU time of the sending thread (or of the only one).
    pub giver_cpu_ns: u64,
    /// CPU time of the receiving thread.
    pub taker_cpu_ns: u64,
    /// Number of system calls that both ends made in the measured loop.
    pub syscalls: u64,
}

/// Returns the cores that this process may use; measurements use the first two.
pub fn cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Pins the calling thread to one core.
pub fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the result of a thread that was joined. If the thread panicked, the panic continues
/// here.
pub fn joined<T>(result: std::thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
