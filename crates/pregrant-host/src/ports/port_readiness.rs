//! One descriptor that becomes readable when any of many ports (with kernel descriptors) has new
//! frames.
//!
//! ```text
//!   tap, tap ... --edge--> epoll <-- a worker that sleeps --take--> which ones
//! ```
//! It is edge triggered: it reports new frames once, so a worker that has no room for waiting
//! frames can still sleep. A disk's queue has its descriptor here too: it becomes readable when
//! requests have ended.

use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// Largest number of ports reported by one check; the others follow in the next.
const AT_ONCE: usize = 64;

/// An edge-triggered epoll descriptor for many ports.
#[derive(Clone, Debug)]
pub struct PortReadiness(Arc<OwnedFd>);

impl PortReadiness {
    /// Creates an epoll descriptor without ports.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }

    /// Adds a port with the number `number`, until it is [removed](Self::remove).
    ///
    /// # Errors
    ///
    /// The kernel has no memory for it.
    pub fn add(&self, port: impl AsFd, number: u64) -> io::Result<()> {
        let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match epoll::add(&self.0, port, epoll::EventData::new_u64(number), on) {
            Err(Errno::EXIST) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Removes a port.
    pub fn remove(&self, port: impl AsFd) {
        let _ = epoll::delete(&self.0, port); // it may not have been added
    }

    /// Passes the number of each port that got frames since the last check to `each`.
    pub fn take(&self, mut each: impl FnMut(u64)) {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; AT_ONCE];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let n = epoll::wait(&self.0, &mut events[..], Some(&now)).unwrap_or(0);
        events[..n].iter().for_each(|event| each(event.data.u64()));
    }
}

impl AsFd for PortReadiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
