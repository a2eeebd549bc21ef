//! Reads the CPU time that threads have used, as the kernel counts it.

use rustix::thread::Pid;
use rustix::time::{ClockId, clock_gettime};
use std::io;

fn ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the CPU time of this thread in ns.
pub fn of_this_thread() -> u64 {
    ns(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of all threads of this process in ns.
pub fn of_process() -> u64 {
    ns(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of one thread of this process in ns, as it was at the thread's last tick or
/// sleep. That is at most some milliseconds ago.
///
/// # Errors
///
/// The thread does not exist, or the kernel does not account threads.
pub fn of_thread(thread: Pid) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero()))?;
    let first = text.split_whitespace().next().and_then(|n| n.parse().ok());
    first.ok_or_else(|| io::Error::other(format!("no number in a thread's schedstat: {text:?}")))
}
