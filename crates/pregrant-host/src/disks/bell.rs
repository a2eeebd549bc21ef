//! What wakes whoever waits for a queue's orders: a descriptor that the kernel and threads of this process write to.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::time::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    /// One that was not rung.
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Another descriptor of the same, for who sleeps in another place.
    pub(super) fn another(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0)
    }

    /// Rings.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes()); // full: it rings still
    }

    /// Forgets how often it rang. To be called before one looks for what it rang for.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]); // it may not have rung
    }

    /// Sleeps until it rings, and until `until` at most.
    pub(super) fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // Interrupted, or woken for nothing: the caller looks, and waits anew.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left));
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
