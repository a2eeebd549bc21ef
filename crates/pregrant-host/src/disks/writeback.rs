//! Detects writes that the page cache accepted and the storage lost, also when a flush reports
//! success.
//!
//! ```text
//!   open        a second open file of the image, through which nothing is read or written
//!   flush       fdatasync of the first: EIO   --> noted: each further flush fails until the image is opened again
//!               fdatasync of the first: done  --> the second is asked: EIO --> the same
//! ```
//! Linux reports lost writes once per open file. Of two flushes in flight, on two queues or on one,
//! one gets the error, and the other may succeed, even first, although what it confirms is lost. So
//! a second open file of the image is queried, which has not reported the error then.
//!
//! Where a seccomp filter refuses the query, and on overlayfs, which keeps the errors in the layer
//! below, the second open file reports nothing, and only one of the two flushes fails. (An
//! additional flush would find the error, but a worker would have to wait for it.)
//!
//! Invariant: elsewhere a flush is confirmed only if neither open file has reported lost writes
//! since the image was opened. What a guest may do: nothing.
#![expect(unsafe_code, reason = "sync_file_range, which no library wraps")]

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};

/// Detects writes that the page cache accepted and the storage lost.
pub(super) struct Writeback {
    /// A second open file of the image. None: writes are not cached, or the image is only read.
    second: Option<OwnedFd>,
    /// The error that was reported when writes were lost.
    lost: Mutex<Option<Errno>>,
}

impl Writeback {
    /// Creates the check for an image that is not cached, or only read. It reports no errors.
    pub(super) fn none() -> Self {
        Self { second: None, lost: Mutex::default() }
    }

    /// Creates the error check for this open file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened a second time.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let second = rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty())?;
        Ok(Self { second: Some(second), lost: Mutex::default() })
    }

    /// Takes the result of a flush of the image's open file, and returns the result for the guest.
    pub(super) fn flushed(&self, outcome: Result<(), Errno>) -> Result<(), Errno> {
        // Locked during the query, since the kernel reports an error to only one of them.
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.is_none() {
            *lost = outcome.and_then(|()| self.second.as_ref().map_or(Ok(()), ask)).err();
        }
        lost.map_or(Ok(()), Err)
    }
}

/// Asks the kernel whether it lost writes of this open file that were not reported yet. The call
/// does not wait for the storage.
fn ask(fd: &OwnedFd) -> Result<(), Errno> {
    // No page is that far in the file, so there is nothing to wait for, and a pending error is
    // reported all the same.
    let (behind_all, flags) = (i64::MAX - 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE);
    // SAFETY: a call with numbers alone; the descriptor is open.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), behind_all, 1, flags) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
            // The query itself was refused.
            Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL | Errno::SPIPE => Ok(()),
            e => Err(e),
        },
    }
}
