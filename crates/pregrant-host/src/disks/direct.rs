//! Direct I/O of an image, past the page cache: whether it is to be had, and how it is given up.
//!
//! ```text
//!   open     what the kernel says of alignment (statx), or the sectors of the device below, and one read that tries it
//!            all that a guest may ask for fits: direct      else: through the page cache, all of it
//!   later    direct --a transfer is refused (EINVAL)--> draining: nothing begins --the last direct one is over--> page cache, for good
//!   Submitter   one for each that gives the kernel transfers: a ring, a thread. It says whether it has some under way
//! ```
//! Invariants: direct and cached transfers of one image are never under way together. A page of the
//! cache may hold sectors that another request writes past it, and the kernel drops such a page
//! only where no one has made it dirty meanwhile: two requests for different sectors could undo
//! each other. So the whole image goes one way at a time, all queues of it, and never comes back to
//! the first.
//!
//! What a guest may do: ask for what the storage refuses directly, once. From then on its image
//! costs memory of this domain.

use super::device;
use super::wake_fd::WakeFd;
use pregrant::blk::disk::{Buffer, SECTOR_BYTES};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_setfl, statx};
use rustix::io::pread;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// An open file's requirements for direct I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wants {
    /// Multiples of so many bytes: addresses in memory; places and lengths in the file.
    Aligned { memory: u32, offset: u32 },
    /// It has none.
    None,
    /// The kernel does not say. Of places and lengths what the device below it wants, where there
    /// is one.
    Unsaid { offset: Option<u32> },
}

/// Has an open file pass the page cache by, if whatever a guest with such sectors may ask for can
/// be done so: whole sectors, to any multiple of 512 bytes in memory. False: it cannot, or it is
/// not known.
pub(super) fn go_direct(fd: BorrowedFd<'_>, access: OFlags, sector_size: u32) -> bool {
    let fits = |offset: u32| sector_size.is_multiple_of(offset);
    let may = match wants(fd) {
        Wants::Aligned { memory, offset } => fits(offset) && (SECTOR_BYTES as u32).is_multiple_of(memory),
        Wants::Unsaid { offset } => offset.is_none_or(fits),
        Wants::None => false,
    };
    may && fcntl_setfl(fd, access | OFlags::DIRECT).is_ok() && reads(fd, sector_size)
}

/// The least that can be written to an open file without reading the bytes around it, as the system
/// reports it: 512 bytes to 4096.
pub(super) fn physical_sector_size(fd: BorrowedFd<'_>) -> u32 {
    let offset = match wants(fd) {
        Wants::Aligned { offset, .. } => Some(offset),
        Wants::Unsaid { offset } => offset,
        Wants::None => None,
    };
    offset.filter(|bytes| bytes.is_power_of_two()).unwrap_or(0).clamp(SECTOR_BYTES as u32, 4096)
}

fn wants(fd: BorrowedFd<'_>) -> Wants {
    let said = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match said {
        // Since Linux 6.1, and of some file systems since then.
        Ok(said) if said.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            match (said.stx_dio_mem_align, said.stx_dio_offset_align) {
                (0, _) | (_, 0) => Wants::None,
                (memory, offset) => Wants::Aligned { memory, offset },
            }
        }
        _ => Wants::Unsaid { offset: device::sector_size_below(fd) },
    }
}

/// Tries one read, which proves little where it can: of a hole there is nothing to be read.
fn reads(fd: BorrowedFd<'_>, sector_size: u32) -> bool {
    let len = sector_size as usize;
    let mut buffer = Buffer::new(SECTOR_BYTES + len);
    buffer.set_len(SECTOR_BYTES + len);
    // The second sector: a file system with larger blocks refuses it.
    pread(fd, &mut buffer.bytes_mut()[SECTOR_BYTES..], u64::from(sector_size)).is_ok()
}

/// Between two checks of a thread that drains; a notification ends it, as a rule.
const DRAINS: Duration = Duration::from_secs(1);

const DIRECT: u8 = 0;
const DRAINING: u8 = 1;
const CACHED: u8 = 2;

/// Which way an open file's transfers go. See the module.
pub(super) struct Direct {
    mode: AtomicU8,
    /// The flags that the file was opened with, without `O_DIRECT`.
    access: OFlags,
    submitters: Mutex<Vec<Weak<Submitter>>>,
    /// Its image was refused once, however often it is opened.
    refused: Arc<AtomicBool>,
}

/// One that gives the kernel an image's transfers.
pub(super) struct Submitter {
    /// Some may be under way, directly.
    busy: AtomicBool,
    wake: Arc<WakeFd>,
}

impl Direct {
    pub(super) fn new(direct: bool, access: OFlags, refused: Arc<AtomicBool>) -> Self {
        let mode = if direct { DIRECT } else { CACHED };
        Self { mode: AtomicU8::new(mode), access, submitters: Mutex::default(), refused }
    }

    /// Whether the page cache is passed by.
    pub(super) fn is_on(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == DIRECT
    }

    /// A submitter that has nothing under way. `wake` is notified when it may begin what it was to
    /// wait with.
    pub(super) fn submitter(&self, wake: Arc<WakeFd>) -> Arc<Submitter> {
        let submitter = Arc::new(Submitter { busy: AtomicBool::new(false), wake });
        let mut submitters = self.submitters();
        submitters.retain(|submitter| submitter.strong_count() > 0);
        submitters.push(Arc::downgrade(&submitter));
        submitter
    }

    /// Whether a submitter may give the kernel transfers of the open file `fd` now. Where it may,
    /// it says when none is under way any more ([`idle`](Self::idle)).
    #[inline]
    pub(super) fn may_begin(&self, fd: BorrowedFd<'_>, submitter: &Submitter) -> bool {
        match self.mode.load(Ordering::Acquire) {
            CACHED => true,
            DRAINING => false,
            // It is marked as busy already, so a drain waits for what is added now.
            _ if submitter.busy.load(Ordering::Relaxed) => true,
            _ => {
                submitter.busy.store(true, Ordering::SeqCst);
                let may = self.mode.load(Ordering::SeqCst) == DIRECT;
                if !may {
                    self.idle(fd, submitter);
                }
                may
            }
        }
    }

    /// None of a submitter's transfers is under way.
    #[inline]
    pub(super) fn idle(&self, fd: BorrowedFd<'_>, submitter: &Submitter) {
        if submitter.busy.load(Ordering::Relaxed) {
            submitter.busy.store(false, Ordering::SeqCst);
            if self.mode.load(Ordering::SeqCst) == DRAINING {
                self.settle(fd);
            }
        }
    }

    /// Sleeps until a thread's submitter may begin.
    pub(super) fn wait_to_begin(&self, fd: BorrowedFd<'_>, submitter: &Submitter) {
        while !self.may_begin(fd, submitter) {
            submitter.wake.wait(Instant::now() + DRAINS);
            submitter.wake.clear();
        }
    }

    /// The kernel refused a transfer, whose submitter has not been marked as idle since.
    #[cold]
    pub(super) fn refused(&self) -> Refused {
        match self.mode.compare_exchange(DIRECT, DRAINING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                self.refused.store(true, Ordering::Relaxed);
                Refused::First
            }
            // Nothing goes through the cache while a direct one is under way, so what is refused
            // while it drains was direct.
            Err(DRAINING) => Refused::Direct,
            Err(_) => Refused::Cached,
        }
    }

    /// Goes through the page cache, once no submitter has anything under way.
    #[cold]
    fn settle(&self, fd: BorrowedFd<'_>) {
        let submitters = self.submitters();
        let there: Vec<_> = submitters.iter().filter_map(Weak::upgrade).collect();
        let is_busy = |submitter: &Arc<Submitter>| submitter.busy.load(Ordering::SeqCst);
        if self.mode.load(Ordering::SeqCst) != DRAINING || there.iter().any(is_busy) {
            return;
        }
        // Where the kernel does not let go of it transfers are refused as before, and fail.
        let _ = fcntl_setfl(fd, self.access);
        self.mode.store(CACHED, Ordering::Release);
        there.iter().for_each(|submitter| submitter.wake.notify());
    }

    fn submitters(&self) -> MutexGuard<'_, Vec<Weak<Submitter>>> {
        self.submitters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a transfer went that was [refused](Direct::refused).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// Directly, and the first: from now on all go through the page cache, and so is this to be
    /// tried again.
    First,
    /// Directly: it is to be tried again.
    Direct,
    /// Through the page cache.
    Cached,
}
