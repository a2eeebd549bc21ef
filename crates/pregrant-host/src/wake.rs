//! Descriptors besides the event channels that end a wait: the xenstore connection, a tap, a timer.

use pregrant::PlatformError;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The number of descriptors that [`WakeOn::also_wake_on`] accepts at most.
pub const EXTRAS_MAX: usize = 16;

/// Event channels whose `wait` also ends when a descriptor is readable. The platforms of a real Xen
/// and of the loopback implement it.
pub trait WakeOn {
    fn extras(&self) -> &Extras;
    /// Polls the descriptors without sleeping, in one system call.
    fn check_now(&self);

    /// Makes [`Events::wait`](pregrant::platform::Events::wait) return also when `fd` becomes
    /// readable. A duplicate is kept until [`forget`](Self::forget). Returns the number for
    /// [`woken_by`](Self::woken_by).
    ///
    /// # Errors
    /// No descriptor left, or more than [`EXTRAS_MAX`].
    fn also_wake_on(&self, fd: BorrowedFd<'_>) -> Result<usize, PlatformError> {
        self.extras().add(fd)
    }
    /// Removes descriptor `number` from the sleep's descriptors.
    fn forget(&self, number: usize) {
        self.extras().forget(number);
    }
    /// Returns true if descriptor `number` was readable when the last wait slept, or at the last
    /// [`check`](Self::check).
    fn woken_by(&self, number: usize) -> bool {
        self.extras().woken_by(number)
    }
    /// Returns true if any descriptor ended the last wait.
    fn woken_by_any(&self) -> bool {
        self.extras().woke()
    }
    /// Polls the descriptors without sleeping, in one system call; returns whether one is readable.
    /// A wait that finds events does not look at them, so a busy loop calls this now and then.
    fn check(&self) -> bool {
        if self.extras().is_empty() {
            return false;
        }
        self.check_now();
        self.extras().woke()
    }
}

/// The reason why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slept {
    /// The caller's own descriptor is readable; the extra ones may be too.
    Own,
    /// An extra descriptor is readable, or a signal arrived.
    Woken,
    /// The time limit of the sleep was reached.
    Over,
}

/// The extra descriptors; the index is a descriptor's number.
#[derive(Debug, Default)]
pub struct Extras {
    fds: RefCell<Vec<Option<OwnedFd>>>,
    woken: Cell<u32>,
}

impl Extras {
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> Result<usize, PlatformError> {
        let failed = |op, e: Errno| PlatformError { op, code: e.raw_os_error() };
        let fd = fd.try_clone_to_owned().map_err(|e| {
            failed("duplicate a descriptor to wake on", Errno::from_io_error(&e).unwrap_or(Errno::MFILE))
        })?;
        let mut fds = self.fds.borrow_mut();
        let free = fds.iter().position(Option::is_none);
        match free {
            Some(at) => {
                fds[at] = Some(fd);
                Ok(at)
            }
            None if fds.len() < EXTRAS_MAX => {
                fds.push(Some(fd));
                Ok(fds.len() - 1)
            }
            None => Err(failed("wake on one more descriptor (16 at most)", Errno::MFILE)),
        }
    }

    pub(crate) fn forget(&self, number: usize) {
        if let Some(fd) = self.fds.borrow_mut().get_mut(number) {
            *fd = None;
        }
    }

    pub(crate) fn woken_by(&self, number: usize) -> bool {
        number < EXTRAS_MAX && self.woken.get() & 1 << number != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fds.borrow().iter().all(Option::is_none)
    }

    /// Clears the record of what ended the last sleep.
    pub fn clear(&self) {
        self.woken.set(0);
    }

    /// Returns true if a descriptor ended the last sleep.
    pub fn woke(&self) -> bool {
        self.woken.get() != 0
    }

    /// Sleeps until `own` or an extra descriptor is readable, or `max` has passed (None: no
    /// timeout).
    pub fn sleep(&self, own: impl AsFd, max: Option<Duration>) -> Slept {
        let extras = self.fds.borrow();
        let mut numbers = [0; EXTRAS_MAX + 1];
        let mut count = 1;
        let mut fds: [PollFd<'_>; EXTRAS_MAX + 1] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(own.as_fd(), PollFlags::IN));
        for (number, fd) in extras.iter().enumerate() {
            if let Some(fd) = fd {
                fds[count] = PollFd::new(fd, PollFlags::IN);
                numbers[count] = number;
                count += 1;
            }
        }
        let timeout = max.map(|d| Timespec {
            tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: d.subsec_nanos().into(),
        });
        if rustix::event::poll(&mut fds[..count], timeout.as_ref()) == Ok(0) {
            self.woken.set(0);
            return Slept::Over;
        }
        let mut woken = 0;
        for at in 1..count {
            if !fds[at].revents().is_empty() {
                woken |= 1 << numbers[at];
            }
        }
        self.woken.set(woken);
        if fds[0].revents().is_empty() { Slept::Woken } else { Slept::Own }
    }
}
