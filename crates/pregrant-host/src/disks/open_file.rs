//! One open file, through which all of an image's orders go, and which its [`lock`](super::lock) is on.

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
    /// The kernel was told of a guest's pages, and could not use them.
    cannot_reach: AtomicBool,
    /// Lines about its image, however often that is opened.
    lines: Arc<LineBudget>,
}

impl OpenFile {
    /// `fd`, which was opened at `path`: a file, or a block device with logical sectors of so many bytes.
    pub(super) fn new(
        fd: OwnedFd,
        path: &Path,
        device_sectors: Option<u32>,
        is_shared: bool,
        lines: Arc<LineBudget>,
    ) -> Self {
        Self { fd, path: path.into(), device_sectors, is_shared, cannot_reach: AtomicBool::new(false), lines }
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

    /// Whether such an order's bytes go through a buffer of our own; see [`transfer`](super::transfer).
    pub(super) fn bounces(&self, op: IoOp) -> bool {
        self.is_shared && op == IoOp::Read || self.cannot_reach.load(Ordering::Relaxed)
    }

    /// The kernel cannot read or write a guest's pages in this process' place.
    #[cold]
    pub(super) fn cannot_reach_guests(&self) {
        if !self.cannot_reach.swap(true, Ordering::Relaxed) {
            // LOG: once for each image that is opened.
            log::info!(
                "{}: the kernel does not take guests' pages for it; bytes are copied once more",
                self.path.display()
            );
        }
    }

    /// An order failed.
    #[cold]
    pub(super) fn complain(&self, what: Arguments<'_>) {
        self.lines.warn(format_args!("{}: {what}", self.path.display()));
    }
}
