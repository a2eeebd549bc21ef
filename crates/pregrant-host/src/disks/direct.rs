//! Direct I/O of an image, past the page cache: whether it is possible, and how it is switched off.
//!
//! ```text
//!   open     what the kernel says of alignment (statx), or the sectors of the device below, and one read that tries it
//!            all that a guest may ask for fits: direct      else: through the page cache, all of it
//!   later    direct --a transfer is refused (EINVAL)--> draining: nothing begins --the last direct one is over--> page cache, for good
//!   Submitter   one for each that gives the kernel transfers: a ring, a thread. It says whether it has some under way
//! ```
//! Invariants: direct and cached transfers of one image are never in flight together. A page of the
//! cache may hold sectors that another request writes directly, and the kernel drops such a page
//! only if it is not dirty, so two requests for different sectors could undo each other. Therefore
//! all queues of an image use the same mode, and an image that left direct I/O never returns to it.
//!
//! What a guest may do: cause one request that the storage refuses to do directly. From then on its
//! image uses this domain's page cache.

use super::device;
use super::wake_fd::WakeFd;
use pregrant::blk::disk::{Buffer, SECTOR_BYTES};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_setfl, statx};
use rustix::io::pread;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The alignment that an open file requires for direct I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wants {
    /// Alignment in bytes: of memory addresses, and of offsets and lengths in the file.
    Aligned { memory: u32, offset: u32 },
    /// No alignment is required.
    None,
    /// The kernel does not tell. `offset` is the sector size of the device below, if there is one.
    Unsaid { offset: Option<u32> },
}

/// Switches an open file to direct I/O if every request that a guest with such sectors can make is
/// possible so: whole sectors, at any multiple of 512 bytes in memory. Returns false if such I/O is
/// not possible, or the kernel does not tell.
pub(super) fn go_direct(fd: BorrowedFd<'_>, access: OFlags, sector_size: u32) -> bool {
    let fits = |offset: u32| sector_size.is_multiple_of(offset);
    let may = match wants(fd) {
        Wants::Aligned { memory, offset } => fits(offset) && (SECTOR_BYTES as u32).is_multiple_of(memory),
        Wants::Unsaid { offset } => offset.is_none_or(fits),
        Wants::None => false,
    };
    may && fcntl_setfl(fd, access | OFlags::DIRECT).is_ok() && reads(fd, sector_size)
}

/// Returns the length of the smallest write to an open file that needs no read of the bytes around
/// it, as the system reports it: 512 to 4096 bytes.
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
        // Linux reports this since 6.1, and only for some file systems.
        Ok(said) if said.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            match (said.stx_dio_mem_align, said.stx_dio_offset_align) {
                (0, _) | (_, 0) => Wants::None,
                (memory, offset) => Wants::Aligned { memory, offset },
            }
        }
        _ => Wants::Unsaid { offset: device::sector_size_below(fd) },
    }
}

/// Tries one read. Success proves little, since reading a hole touches no storage.
fn reads(fd: BorrowedFd<'_>, sector_size: u32) -> bool {
    let len = sector_size as usize;
    let mut buffer = Buffer::new(SECTOR_BYTES + len);
    buffer.set_len(SECTOR_BYTES + len);
    // Read the second sector, since a file system with larger blocks refuses that.
    pread(fd, &mut buffer.bytes_mut()[SECTOR_BYTES..], u64::from(sector_size)).is_ok()
}

/// Interval at which a draining thread checks whether transfers are left. Normally a notification
/// wakes it earlier.
const DRAINS: Duration = Duration::from_secs(1);

const DIRECT: u8 = 0;
const DRAINING: u8 = 1;
const CACHED: u8 = 2;

/// The state of direct I/O on an open file, which all queues of the file share.
pub(super) struct Direct {
    mode: AtomicU8,
    /// The flags that the file was opened with, without `O_DIRECT`.
    access: OFlags,
    submitters: Mutex<Vec<Weak<Submitter>>>,
    /// True if direct I/O of this image was refused once. This value survives a close of the image.
    refused: Arc<AtomicBool>,
}

/// A queue or thread that submits an image's transfers to the kernel.
pub(super) struct Submitter {
    /// True while direct transfers of this submitter may be in flight.
    busy: AtomicBool,
    wake: Arc<WakeFd>,
}

impl Direct {
    pub(super) fn new(direct: bool, access: OFlags, refused: Arc<AtomicBool>) -> Self {
        let mode = if direct { DIRECT } else { CACHED };
        Self { mode: AtomicU8::new(mode), access, submitters: Mutex::default(), refused }
    }

    /// Returns true while transfers are direct.
    pub(super) fn is_on(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == DIRECT
    }

    /// Creates a submitter with nothing in flight. `wake` is notified when the submitter may submit
    /// transfers that it had to hold back.
    pub(super) fn submitter(&self, wake: Arc<WakeFd>) -> Arc<Submitter> {
        let submitter = Arc::new(Submitter { busy: AtomicBool::new(false), wake });
        let mut submitters = self.submitters();
        submitters.retain(|submitter| submitter.strong_count() > 0);
        submitters.push(Arc::downgrade(&submitter));
        submitter
    }

    /// True if a submitter may submit transfers of the open file `fd` now. It must then call
    /// [`idle`](Self::idle) once none of them is in flight any more.
    #[inline]
    pub(super) fn may_begin(&self, fd: BorrowedFd<'_>, submitter: &Submitter) -> bool {
        match self.mode.load(Ordering::Acquire) {
            CACHED => true,
            DRAINING => false,
            // It is marked as busy already, so the drain also waits for what it submits now.
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

    /// Reports that no transfer of a submitter is in flight.
    #[inline]
    pub(super) fn idle(&self, fd: BorrowedFd<'_>, submitter: &Submitter) {
        if submitter.busy.load(Ordering::Relaxed) {
            submitter.busy.store(false, Ordering::SeqCst);
            if self.mode.load(Ordering::SeqCst) == DRAINING {
                self.settle(fd);
            }
        }
    }

    /// Blocks until the submitter of a thread may submit.
    pub(super) fn wait_to_begin(&self, fd: BorrowedFd<'_>, submitter: &Submitter) {
        while !self.may_begin(fd, submitter) {
            submitter.wake.wait(Instant::now() + DRAINS);
            submitter.wake.clear();
        }
    }

    /// Called when the kernel refused a transfer, whose submitter is still marked as busy.
    #[cold]
    pub(super) fn refused(&self) -> Refused {
        match self.mode.compare_exchange(DIRECT, DRAINING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                self.refused.store(true, Ordering::Relaxed);
                Refused::First
            }
            // No cached transfer is submitted while a direct one is in flight, so one refused
            // during the drain was direct.
            Err(DRAINING) => Refused::Direct,
            Err(_) => Refused::Cached,
        }
    }

    /// Switches to the page cache once no submitter has anything in flight.
    #[cold]
    fn settle(&self, fd: BorrowedFd<'_>) {
        let submitters = self.submitters();
        let there: Vec<_> = submitters.iter().filter_map(Weak::upgrade).collect();
        let is_busy = |submitter: &Arc<Submitter>| submitter.busy.load(Ordering::SeqCst);
        if self.mode.load(Ordering::SeqCst) != DRAINING || there.iter().any(is_busy) {
            return;
        }
        // If the kernel refuses to clear the flag, transfers are refused as before and fail.
        let _ = fcntl_setfl(fd, self.access);
        self.mode.store(CACHED, Ordering::Release);
        there.iter().for_each(|submitter| submitter.wake.notify());
    }

    fn submitters(&self) -> MutexGuard<'_, Vec<Weak<Submitter>>> {
        self.submitters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mode of a transfer that was [refused](Direct::refused).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// The transfer was direct and the first to be refused. From now on all transfers use the page
    /// cache, and this one must be submitted again.
    First,
    /// The transfer was direct, so it must be submitted again.
    Direct,
    /// The transfer used the page cache, so it has failed.
    Cached,
}
