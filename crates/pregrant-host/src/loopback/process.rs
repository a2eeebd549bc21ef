//! The kernel's resources that this process has, for tests that compare before and after.

use std::fs;
use std::io;

/// Counts from /proc/self.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessCounts {
    /// Open descriptors.
    pub fds: usize,
    /// Eventfds among them: those that wake others are opened when first needed.
    pub eventfds: usize,
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
        let fds = fs::read_dir("/proc/self/fd")?;
        let open: Vec<_> =
            fds.map(|fd| fs::read_link(fd?.path())).map(|link| link.unwrap_or_default()).collect();
        Ok(Self {
            // Not the one that lists them.
            fds: open.len() - 1,
            eventfds: open.iter().filter(|fd| fd.to_string_lossy().ends_with("[eventfd]")).count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            mappings: maps.lines().filter(|line| line.contains("memfd:pregrant-")).count(),
        })
    }
}
