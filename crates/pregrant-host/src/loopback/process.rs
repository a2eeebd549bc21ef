//! What this process holds of the kernel's, for tests that compare before and after.

use std::fs;
use std::io;

/// Counts from /proc/self.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessCounts {
    /// Open descriptors.
    pub fds: usize,
    /// Threads.
    pub threads: usize,
    /// Mappings of memfds of the loopback, and userfaultfds' windows among them.
    pub mappings: usize,
}

impl ProcessCounts {
    /// Counts now.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub fn now() -> io::Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        Ok(Self {
            // Not the one that lists them.
            fds: fs::read_dir("/proc/self/fd")?.count() - 1,
            threads: fs::read_dir("/proc/self/task")?.count(),
            mappings: maps.lines().filter(|line| line.contains("memfd:pregrant-")).count(),
        })
    }
}
