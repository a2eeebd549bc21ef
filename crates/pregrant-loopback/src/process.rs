//! Kernel resources of this process, for tests that compare them before and after.

use std::fs;
use std::io;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessCounts {
    pub fds: usize,
    /// Number of these descriptors that are eventfds. An eventfd that wakes another process is
    /// opened when it is first needed.
    pub eventfds: usize,
    pub threads: usize,
    /// Number of mappings of the loopback's memfds, including the windows of userfaultfd.
    pub mappings: usize,
}

impl ProcessCounts {
    /// Reads the counts.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted.
    pub fn now() -> io::Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let fds = fs::read_dir("/proc/self/fd")?;
        let open: Vec<_> =
            fds.map(|fd| fs::read_link(fd?.path())).map(|link| link.unwrap_or_default()).collect();
        Ok(Self {
            // Without the descriptor that lists them.
            fds: open.len() - 1,
            eventfds: open.iter().filter(|fd| fd.to_string_lossy().ends_with("[eventfd]")).count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            mappings: maps.lines().filter(|line| line.contains("memfd:pregrant-")).count(),
        })
    }
}
