//! One descriptor for many ports with descriptors of the kernel's; readable when new frames came.
//!
//! ```text
//!   tap, tap ... --edge--> epoll <-- a worker that sleeps --take--> which ones
//! ```
//! Once for each new frame and not as long as there are frames: who has no room for what waits
//! sleeps nevertheless.

use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// Ports that one check takes; what is more comes with the next.
const AT_ONCE: usize = 64;

/// See the module.
#[derive(Clone, Debug)]
pub struct PortReadiness(Arc<OwnedFd>);

impl PortReadiness {
    /// Of no port yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }

    /// Of this port too, as number `number`, until it is [removed](Self::remove).
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn add(&self, port: impl AsFd, number: u64) -> io::Result<()> {
        let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match epoll::add(&self.0, port, epoll::EventData::new_u64(number), on) {
            Err(Errno::EXIST) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Of this port no longer.
    pub fn remove(&self, port: impl AsFd) {
        let _ = epoll::delete(&self.0, port); // it may not have been added
    }

    /// The numbers of those that have had frames since the last check.
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
