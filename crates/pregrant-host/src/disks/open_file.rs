//! One open file, through which all of an image's transfers go, and which its [`lock`](super::lock)
//! is on.
//!
//! A closed image's open file is [left behind](OpenFile::leave_behind) while transfers of it are
//! under way. Until they are over the image is not opened again by this process, also to be read,
//! for which the lock is shared: each connection to storage that hangs would leave its memory, its
//! guest's pages and its threads.

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

/// Free blocks, and the file stays as long as it is.
pub(super) const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// An image among all that this machine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ImageNumber(u64, u64);

impl ImageNumber {
    pub(super) fn of(stat: &Stat) -> Self {
        Self::from_parts(stat.st_mode, stat.st_rdev, (stat.st_dev, stat.st_ino))
    }

    /// Of a device its number, of a file its file system and inode.
    pub(super) fn from_parts(mode: RawMode, device: u64, (file_system, inode): (u64, u64)) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::BlockDevice => Self(device, 0),
            _ => Self(file_system, inode),
        }
    }
}

/// Open files of closed images that may have transfers under way.
static LEFT_BEHIND: Mutex<Vec<(ImageNumber, Weak<OpenFile>)>> = Mutex::new(Vec::new());

/// Whether a closed image's transfers are under way still.
pub(super) fn is_left_behind(number: ImageNumber) -> bool {
    let mut left = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|(_, file)| file.strong_count() > 0);
    left.iter().any(|(other, _)| *other == number)
}

/// See the module.
pub(super) struct OpenFile {
    /// Closed first: who gets the lock may have the device alone.
    writeback: Writeback,
    fd: OwnedFd,
    number: ImageNumber,
    path: PathBuf,
    /// Bytes of a block device's own logical sectors; None: it is a file.
    device_sectors: Option<u32>,
    /// Others may have the image open, too.
    is_shared: bool,
    direct: Direct,
    /// Another medium is in the place of the one that was opened.
    is_replaced: AtomicBool,
    /// The kernel got a guest's pages, and could not use them.
    cannot_reach: AtomicBool,
    /// Lines about its image, however often that is opened.
    lines: Arc<LineBudget>,
}

impl OpenFile {
    /// `fd`, which was opened at `path`: a file, or a block device with logical sectors of so many
    /// bytes.
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

    /// Its image is closed.
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

    /// Bytes of its own logical sectors.
    pub(super) fn sector_size(&self) -> u32 {
        self.device_sectors.unwrap_or(SECTOR_BYTES as u32)
    }

    /// Whether the page cache is passed by.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_on()
    }

    /// [`Direct::submitter`].
    pub(super) fn submitter(&self, wake: Arc<WakeFd>) -> Arc<Submitter> {
        self.direct.submitter(wake)
    }

    /// [`Direct::may_begin`].
    #[inline]
    pub(super) fn may_begin(&self, submitter: &Submitter) -> bool {
        self.direct.may_begin(self.fd(), submitter)
    }

    /// [`Direct::wait_to_begin`].
    pub(super) fn wait_to_begin(&self, submitter: &Submitter) {
        self.direct.wait_to_begin(self.fd(), submitter);
    }

    /// [`Direct::idle`].
    #[inline]
    pub(super) fn idle(&self, submitter: &Submitter) {
        self.direct.idle(self.fd(), submitter);
    }

    /// [`Writeback::flushed`].
    pub(super) fn flushed(&self, outcome: Result<(), Errno>) -> Result<(), Errno> {
        self.writeback.flushed(outcome)
    }

    /// The kernel refused a transfer. True: since it went directly, which no transfer of this image
    /// does any more; again.
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

    /// Whether such a transfer's bytes go through a buffer of our own; see
    /// [`transfer`](super::transfer).
    pub(super) fn bounces(&self, op: IoOp) -> bool {
        self.is_shared && op == IoOp::Read || self.cannot_reach.load(Ordering::Relaxed)
    }

    /// The kernel cannot read or write a guest's pages in this process' place.
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

    /// Threads cannot be had: less is done at a time, and nothing else is wrong.
    #[cold]
    pub(super) fn lacks_threads(&self, had: usize, wanted: usize, why: &std::io::Error) {
        self.lines.warn(format_args!(
            "{}: {had} of {wanted} thread(s) for its I/O could be started ({why}): the disk is slower. The limit is the unit's \
             TasksMax, pids.max of its cgroup, or ulimit -u",
            self.path.display()
        ));
    }

    /// io_uring does no transfers of it any more.
    #[cold]
    pub(super) fn leaves_uring(&self, why: Errno) {
        self.lines.warn(format_args!(
            "{}: io_uring did not carry out a request ({why}); using threads for its I/O until the disk is connected again. The \
             kernel may lack memory, or may start no thread (the unit's TasksMax, pids.max of its cgroup)",
            self.path.display()
        ));
    }

    /// It has become another image, and no guest's: the kernel would read it, and write to it,
    /// through what was opened before.
    #[cold]
    pub(super) fn mark_replaced(&self) {
        if !self.is_replaced.swap(true, Ordering::Relaxed) {
            self.lines.warn(format_args!(
                "{}: its medium was changed: each request fails until its guest's front connects again, which gets the new medium",
                self.path.display()
            ));
        }
    }

    /// Whether transfers of it are to fail.
    #[inline]
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// A transfer failed.
    #[cold]
    pub(super) fn complain(&self, what: Arguments<'_>) {
        self.lines.warn(format_args!("{}: {what}", self.path.display()));
    }
}
