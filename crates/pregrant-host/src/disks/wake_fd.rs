//! An eventfd that wakes the thread that serves a queue. The kernel and threads of this process
//! write to it.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct WakeFd(OwnedFd);

impl WakeFd {
    /// Creates a descriptor that is not readable.
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Duplicates the descriptor, for a thread that polls it elsewhere.
    pub(super) fn another(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0)
    }

    pub(super) fn notify(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes()); // full: it stays readable
    }

    /// Makes the descriptor unreadable. Call this before looking for work.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]); // it may not be readable
    }

    /// Blocks until the descriptor is readable, or until the time `until`.
    pub(super) fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // On a signal or a spurious wake-up the caller checks and waits again.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left));
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
