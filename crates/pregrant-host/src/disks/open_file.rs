//! One open file, through which all of an image's transfers go, and which its [`lock`](super::lock)
//! is on.

use super::direct::{Direct, Refused, Submitter};
use super::wake_fd::WakeFd;
use crate::line_budget::LineBudget;
use pregrant::blk::disk::{IoOp, SECTOR_BYTES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FallocateFlags;
use std::fmt::Arguments;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Free blocks, and the file stays as long as it is.
pub(super) const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// See the module.
pub(super) struct OpenFile {
    fd: OwnedFd,
    path: PathBuf,
    /// Bytes of a block device's own logical sectors; None: it is a file.
    device_sectors: Option<u32>,
    /// Others may have the image open, too.
    is_shared: bool,
    direct: Direct,
    /// The kernel got a guest's pages, and could not use them.
    cannot_reach: AtomicBool,
    /// Lines about its image, however often that is opened.
    lines: Arc<LineBudget>,
}

impl OpenFile {
    /// `fd`, which was opened at `path`: a file, or a block device with logical sectors of so many
    /// bytes.
    pub(super) fn new(
        fd: OwnedFd,
        path: &Path,
        device_sectors: Option<u32>,
        is_shared: bool,
        direct: Direct,
        lines: Arc<LineBudget>,
    ) -> Self {
        let cannot_reach = AtomicBool::new(false);
        Self { fd, path: path.into(), device_sectors, is_shared, direct, cannot_reach, lines }
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

    /// A transfer failed.
    #[cold]
    pub(super) fn complain(&self, what: Arguments<'_>) {
        self.lines.warn(format_args!("{}: {what}", self.path.display()));
    }
}
