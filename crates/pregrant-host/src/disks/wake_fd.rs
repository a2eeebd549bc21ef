//! An eventfd that wakes the thread that waits for a queue: the kernel and threads of this process
//! write to it.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::time::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct WakeFd(OwnedFd);

impl WakeFd {
    /// A descriptor that is not readable.
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Another descriptor of the same, for who sleeps in another place.
    pub(super) fn another(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0)
    }

    /// Makes it readable.
    pub(super) fn notify(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes()); // full: it stays readable
    }

    /// Makes it unreadable. Call it before checking for work.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]); // it may not be readable
    }

    /// Sleeps until it is readable, or until `until`.
    pub(super) fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // Interrupted, or woken for nothing: the caller checks, and waits again.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left));
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
