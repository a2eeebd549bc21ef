//! The open file through which all transfers of an image go, and which carries its
//! [`lock`](super::lock).
//!
//! When an image is closed while transfers are in flight, its open file is [left
//! behind](OpenFile::leave_behind) until they end. Meanwhile this process does not open the image
//! again, not even to read, for which the lock could be shared: otherwise each connection to
//! storage that hangs would leave behind memory, the guest's pages and threads.

use super::direct::{Direct, Refused, Submitter};
use super::wake_fd::WakeFd;
use super::writeback::Writeback;
use crate::line_budget::LineBudget;
use pregrant::blk::disk::{IoOp, SECTOR_BYTES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, RawMode, Stat};
use rustix::io::Errno;
use std::fmt::Arguments;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// fallocate flags that free blocks and keep the file's length.
pub(super) const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// A number that identifies an image on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ImageNumber(u64, u64);

impl ImageNumber {
    pub(super) fn of(stat: &Stat) -> Self {
        Self::from_parts(stat.st_mode, stat.st_rdev, (stat.st_dev, stat.st_ino))
    }

    /// Builds the number from a device's number, or from a file's file system and inode.
    pub(super) fn from_parts(mode: RawMode, device: u64, (file_system, inode): (u64, u64)) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::BlockDevice => Self(device, 0),
            _ => Self(file_system, inode),
        }
    }
}

/// Open files of closed images, which may have transfers in flight.
static LEFT_BEHIND: Mutex<Vec<(ImageNumber, Weak<OpenFile>)>> = Mutex::new(Vec::new());

/// Returns true while transfers of a closed image are still in flight.
pub(super) fn is_left_behind(number: ImageNumber) -> bool {
    let mut left = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|(_, file)| file.strong_count() > 0);
    left.iter().any(|(other, _)| *other == number)
}

/// The open file of an image.
pub(super) struct OpenFile {
    /// The check for lost writes. It is the first field so that it is closed first: the next owner
    /// of the lock may want the device exclusively.
    writeback: Writeback,
    fd: OwnedFd,
    number: ImageNumber,
    path: PathBuf,
    /// The length of a block device's own logical sectors in bytes. None: the image is a file.
    device_sectors: Option<u32>,
    /// True if other processes may have the image open, too.
    is_shared: bool,
    direct: Direct,
    /// The drive now contains another medium than the one that was opened.
    is_replaced: AtomicBool,
    /// True if the kernel could not access a guest's mapped pages.
    cannot_reach: AtomicBool,
    /// The budget of log lines for the image, which survives a close.
    lines: Arc<LineBudget>,
}

impl OpenFile {
    /// Creates the open file of the image at `path`, whose descriptor is `fd`. If it is a block
    /// device, `device_sectors` is the length of its logical sectors in bytes.
    pub(super) fn new(
        (fd, number): (OwnedFd, ImageNumber),
        path: &Path,
        device_sectors: Option<u32>,
        is_shared: bool,
        (direct, writeback): (Direct, Writeback),
        lines: Arc<LineBudget>,
    ) -> Self {
        let [is_replaced, cannot_reach] = [false; 2].map(AtomicBool::new);
        Self {
            writeback,
            fd,
            number,
            path: path.into(),
            device_sectors,
            is_shared,
            direct,
            is_replaced,
            cannot_reach,
            lines,
        }
    }

    /// Called when the image is closed while transfers may be in flight.
    pub(super) fn leave_behind(self: &Arc<Self>) {
        let mut left = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
        left.push((self.number, Arc::downgrade(self)));
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn is_device(&self) -> bool {
        self.device_sectors.is_some()
    }

    /// Returns the size in bytes of the device's own logical sectors.
    pub(super) fn sector_size(&self) -> u32 {
        self.device_sectors.unwrap_or(SECTOR_BYTES as u32)
    }

    /// Returns true while transfers bypass the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_on()
    }

    /// Creates a submitter; see [`Direct::submitter`].
    pub(super) fn submitter(&self, wake: Arc<WakeFd>) -> Arc<Submitter> {
        self.direct.submitter(wake)
    }

    /// Checks whether a submitter may submit; see [`Direct::may_begin`].
    #[inline]
    pub(super) fn may_begin(&self, submitter: &Submitter) -> bool {
        self.direct.may_begin(self.fd(), submitter)
    }

    /// Blocks until a submitter may submit; see [`Direct::wait_to_begin`].
    pub(super) fn wait_to_begin(&self, submitter: &Submitter) {
        self.direct.wait_to_begin(self.fd(), submitter);
    }

    /// Reports a submitter as idle; see [`Direct::idle`].
    #[inline]
    pub(super) fn idle(&self, submitter: &Submitter) {
        self.direct.idle(self.fd(), submitter);
    }

    /// Records the outcome of a flush; see [`Writeback::flushed`].
    pub(super) fn flushed(&self, outcome: Result<(), Errno>) -> Result<(), Errno> {
        self.writeback.flushed(outcome)
    }

    /// Handles a transfer that the kernel refused. Returns true if it was direct. It must then be
    /// submitted again, and this image does no more direct transfers.
    #[cold]
    pub(super) fn goes_another_way(&self, what: Arguments<'_>) -> bool {
        let refused = self.direct.refused();
        if refused == Refused::First {
            // LOG: once for each image.
            log::info!(
                "{}: direct I/O failed ({what}); using the page cache from now on",
                self.path.display()
            );
        }
        refused != Refused::Cached
    }

    /// Returns true if a transfer of this kind uses a bounce buffer; see
    /// [`transfer`](super::transfer).
    pub(super) fn bounces(&self, op: IoOp) -> bool {
        self.is_shared && op == IoOp::Read || self.cannot_reach.load(Ordering::Relaxed)
    }

    /// Records that the kernel cannot access guests' mapped pages for this process.
    #[cold]
    pub(super) fn cannot_reach_guests(&self) {
        if !self.cannot_reach.swap(true, Ordering::Relaxed) {
            // LOG: once for each image that is opened.
            log::info!(
                "{}: the kernel cannot read or write mapped guest pages for this image; using a bounce buffer",
                self.path.display()
            );
        }
    }

    /// Logs that fewer threads could be created than wanted, which only limits parallelism.
    #[cold]
    pub(super) fn lacks_threads(&self, had: usize, wanted: usize, why: &std::io::Error) {
        self.lines.warn(format_args!(
            "{}: {had} of {wanted} thread(s) for its I/O could be started ({why}): the disk is slower. The limit is the unit's \
             TasksMax, pids.max of its cgroup, or ulimit -u",
            self.path.display()
        ));
    }

    /// Logs that io_uring no longer does transfers of this image.
    #[cold]
    pub(super) fn leaves_uring(&self, why: Errno) {
        self.lines.warn(format_args!(
            "{}: io_uring did not carry out a request ({why}); using threads for its I/O until the disk is connected again. The \
             kernel may lack memory, or may start no thread (the unit's TasksMax, pids.max of its cgroup)",
            self.path.display()
        ));
    }

    /// Marks the image as replaced by another medium. Its guest may access neither: a transfer
    /// would reach the new medium through the old open file.
    #[cold]
    pub(super) fn mark_replaced(&self) {
        if !self.is_replaced.swap(true, Ordering::Relaxed) {
            self.lines.warn(format_args!(
                "{}: its medium was changed: each request fails until its guest's front connects again and gets the new medium",
                self.path.display()
            ));
        }
    }

    /// Returns true if all transfers must fail, because another medium is in the drive.
    #[inline]
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Logs a failed transfer.
    #[cold]
    pub(super) fn complain(&self, what: Arguments<'_>) {
        self.lines.warn(format_args!("{}: {what}", self.path.display()));
    }
}
