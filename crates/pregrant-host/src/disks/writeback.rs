//! Writes that the page cache took and the storage did not: whether there are any, also for a flush
//! that ends well.
//!
//! ```text
//!   open        a second open file of the image, through which nothing is read or written
//!   flush       fdatasync of the first: EIO   --> noted: each further flush fails until the image is opened again
//!               fdatasync of the first: done  --> the second is asked: EIO --> the same
//! ```
//! Linux reports lost writes once to each open file. Of two flushes at a time, on two queues or on
//! one, one gets the error, and the other may end well, and first, though what it confirms is gone.
//! The second open file has not reported it then.
//!
//! Where a filter of system calls refuses that question, and on overlayfs, which keeps the errors
//! below, nothing is known of the second, and only one of the two flushes fails. A second flush
//! would say it, and a worker would wait for it.
//!
//! Invariant: elsewhere a flush is confirmed only where neither open file has reported lost writes
//! since the image was opened. What a guest may do: nothing.
#![expect(unsafe_code, reason = "sync_file_range, which no library wraps")]

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};

/// See the module.
pub(super) struct Writeback {
    /// None: there is no cache below the image's file, or nothing is written.
    second: Option<OwnedFd>,
    /// Why writes are lost, once that was reported.
    lost: Mutex<Option<Errno>>,
}

impl Writeback {
    /// Of an image without a cache, or one that is only read.
    pub(super) fn none() -> Self {
        Self { second: None, lost: Mutex::default() }
    }

    /// Of this open file.
    ///
    /// # Errors
    /// It cannot be opened a second time.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let second = rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty())?;
        Ok(Self { second: Some(second), lost: Mutex::default() })
    }

    /// A flush of the image's open file has ended so. How it ended for its guest.
    pub(super) fn flushed(&self, outcome: Result<(), Errno>) -> Result<(), Errno> {
        // Locked while the kernel is asked: it says it to one that asks.
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.is_none() {
            *lost = outcome.and_then(|()| self.second.as_ref().map_or(Ok(()), ask)).err();
        }
        lost.map_or(Ok(()), Err)
    }
}

/// Whether this open file has lost writes to report. It waits for no storage.
fn ask(fd: &OwnedFd) -> Result<(), Errno> {
    // No page is so far behind: there is nothing to wait for, and the error is reported all the
    // same.
    let (behind_all, flags) = (i64::MAX - 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE);
    // SAFETY: a call with numbers alone; the descriptor is open.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), behind_all, 1, flags) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
            // It was not asked.
            Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL | Errno::SPIPE => Ok(()),
            e => Err(e),
        },
    }
}
