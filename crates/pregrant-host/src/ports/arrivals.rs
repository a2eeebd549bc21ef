//! One descriptor for many taps, readable when new frames came.
//!
//! ```text
//!   tap, tap ... --edge--> epoll <-- a loop that sleeps
//! ```
//! Once for each new frame and not as long as there are frames: who has no room for what waits sleeps nevertheless, and
//! looks at every port when it is woken.

use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::rc::Rc;

/// See the module.
#[derive(Clone, Debug)]
pub struct Arrivals(Rc<OwnedFd>);

impl Arrivals {
    /// Of no port yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }

    /// Of this port too, until it is closed.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn of(&self, port: impl AsFd) -> io::Result<()> {
        let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match epoll::add(&self.0, port, epoll::EventData::new_u64(0), on) {
            Err(Errno::EXIST) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Forgets what came up to now. True: some of it has not been read, and nothing will wake for it again: look at every
    /// port before you sleep.
    pub fn clear(&self) -> bool {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.0, &mut events[..], Some(&now)).is_ok_and(|n| n > 0)
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
