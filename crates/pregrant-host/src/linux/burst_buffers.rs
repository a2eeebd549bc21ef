//! Buffers for bursts in pages that the domain granted to itself, so that a copy to or from them
//! needs no lookup of a local page.
//!
//! ```text
//!   guest's page --hypercall--> the buffer of a burst        both named by reference
//! ```
//! They serve the purpose of [`bounce`](super::bounce) without its memcpy, but only for data that
//! is put there from the start (decision 0034). They are used only in PV domains, where a lookup is
//! expensive.
//!
//! Memory: the buffers of a process use at most a third of gntalloc's limit in this domain, which
//! leaves the rest to others; further buffers are on the heap. They belong to the process, because
//! a queue may move from one worker's handle to another's with data waiting in its buffer.
//!
//! What a peer may do: nothing. The domain grants these pages to itself only.

use super::gntalloc::{Gntalloc, Region};
use super::ioctl::gref_side;
use crate::counters::Tally;
use crate::line_budget::LineBudget;
use pregrant::PlatformError;
use pregrant::burst_buffer::BurstBuffer;
use pregrant::platform::{Access, GrantPool};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, GrantRef, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// The file that names the type of this domain.
const GUEST_TYPE: &str = "/sys/hypervisor/guest_type";

/// Pages that this domain has granted to itself.
#[derive(Debug)]
pub(super) struct OwnPages {
    own: DomId,
    pub(super) region: Region,
    refs: Box<[GrantRef]>,
}

impl OwnPages {
    /// Grants this many pages. None: lookups are cheap here, or no pages are left, which is logged.
    #[cold]
    pub(super) fn grant(own: DomId, tally: &Arc<Tally>, pages: usize) -> Option<Self> {
        if std::fs::read_to_string(GUEST_TYPE).ok()?.trim() != "PV" {
            return None;
        }
        let mut refs = vec![GrantRef::NONE; pages].into_boxed_slice();
        let region = Gntalloc::new(Arc::clone(tally)).alloc(own, Access::ReadWrite, &mut refs).map_err(|e| {
            let text =
                format_args!("/dev/xen/gntalloc is unavailable ({e}); each grant copy looks up a local page");
            NONE.say(log::Level::Info, text);
        });
        Some(Self { own, region: region.ok()?, refs })
    }

    /// Returns byte `at` as the local side of a segment.
    #[inline]
    pub(super) fn side(&self, at: usize) -> Option<u64> {
        let gref = self.refs.get(at / PAGE_SIZE)?;
        Some(gref_side(gref.0, (at % PAGE_SIZE) as u16, self.own.0))
    }
}

/// A buffer that exists: a weak reference to it, the address of its first byte, and its length.
struct Known {
    buffer: Weak<OwnPages>,
    start: usize,
    len: usize,
}

/// Limits the log lines about missing buffers, which guests that connect again and again could
/// repeat without end.
static NONE: LineBudget = LineBudget::new();
/// True once a buffer was registered. Before that, lookups need not lock the list.
static ANY: AtomicBool = AtomicBool::new(false);
/// The buffers of this process.
static BURST_BUFFERS: BurstBuffers = BurstBuffers(RwLock::new(Vec::new()));

/// The list of registered buffers.
pub(super) struct BurstBuffers(RwLock<Vec<Known>>);

impl BurstBuffers {
    /// Allocates `bytes` bytes for a burst.
    pub(super) fn take(own: DomId, tally: &Arc<Tally>, bytes: usize) -> Result<BurstBuffer, PlatformError> {
        match BURST_BUFFERS.add(own, tally, bytes / PAGE_SIZE) {
            Some(buffer) => Ok(buffer),
            None => BurstBuffer::lines(bytes),
        }
    }

    fn add(&self, own: DomId, tally: &Arc<Tally>, pages: usize) -> Option<BurstBuffer> {
        let most = Gntalloc::limit()? / 3;
        let is_there = |known: &&Known| known.buffer.strong_count() > 0;
        let full = |buffers: &[Known]| {
            let taken: usize = buffers.iter().filter(is_there).map(|known| known.len / PAGE_SIZE).sum();
            (taken + pages) as u64 > most
        };
        if full(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return None;
        }
        // Not under the lock, for which copies of other workers wait.
        let buffer = Arc::new(OwnPages::grant(own, tally, pages)?);
        let (base, len) = (buffer.region.base(), buffer.region.len());
        let mut buffers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        buffers.retain(|known| is_there(&known));
        if full(&buffers) {
            return None;
        }
        buffers.push(Known { buffer: Arc::downgrade(&buffer), start: base.addr().get(), len });
        ANY.store(true, Ordering::Release);
        // SAFETY: the region is a mapping of its own, zeroed, which stays until it is dropped; its
        // owner below, which is the only one but for a moment of a copy, touches no byte of it, and
        // the hypercalls that do are asked for with the buffer borrowed.
        Some(unsafe { BurstBuffer::over(base, len, Box::new(buffer)) })
    }

    /// Finds the buffer that contains these bytes, and the offset of the first.
    pub(super) fn of(bytes: &[u8]) -> Option<(Arc<OwnPages>, usize)> {
        if !ANY.load(Ordering::Acquire) {
            return None;
        }
        let at = bytes.as_ptr().addr();
        let buffers = BURST_BUFFERS.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_in = |known: &&Known| at >= known.start && at + bytes.len() <= known.start + known.len;
        // The address may have belonged to an earlier buffer.
        buffers.iter().filter(is_in).find_map(|known| Some((known.buffer.upgrade()?, at - known.start)))
    }
}
