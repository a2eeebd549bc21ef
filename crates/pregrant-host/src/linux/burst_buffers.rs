//! Buffers for bursts, of pages that we granted to ourselves: a copy to or from one needs no
//! look-up of a local page.
//!
//! ```text
//!   guest's page --hypercall--> the buffer of a burst        both named by reference
//! ```
//! As [`bounce`](super::bounce), for bytes at any place, and without its memcpy
//! (decision 0034). Only in a PV domain, where a lookup is dear.
//!
//! Memory: all buffers of a process are a third of what gntalloc may grant in this domain, so that
//! others have theirs; behind that, they are of the heap. Buffers are the process's, since a queue
//! goes from one worker's handle to another's with what waits in it.
//!
//! What a peer may do: nothing here. The grants are to this domain alone, and are its own memory.

use super::gntalloc::{Gntalloc, Region};
use super::ioctl::gref_side;
use crate::counters::Tally;
use crate::line_budget::LineBudget;
use pregrant::burst_buffer::BurstBuffer;
use pregrant::platform::{Access, GrantPool};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, GrantRef, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// Says what kind of domain this is.
const GUEST_TYPE: &str = "/sys/hypervisor/guest_type";

/// Pages of this domain that it granted to itself.
#[derive(Debug)]
pub(super) struct OwnPages {
    own: DomId,
    pub(super) region: Region,
    refs: Box<[GrantRef]>,
}

impl OwnPages {
    /// As many; None where lookups cost little, or none is to be had: the log says it then.
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

    /// Byte `at` as a side of a segment.
    #[inline]
    pub(super) fn side(&self, at: usize) -> Option<u64> {
        let gref = self.refs.get(at / PAGE_SIZE)?;
        Some(gref_side(gref.0, (at % PAGE_SIZE) as u16, self.own.0))
    }
}

/// A buffer, for as long as it is there, and where: its first byte's address, and its bytes.
struct Known {
    buffer: Weak<OwnPages>,
    start: usize,
    len: usize,
}

/// Guests come and go without end, and each may want a buffer.
static NONE: LineBudget = LineBudget::new();
/// Whether there ever was a buffer: where there is none, and none comes, no one waits for the list
/// of all.
static ANY: AtomicBool = AtomicBool::new(false);
/// All of this process.
static BURST_BUFFERS: BurstBuffers = BurstBuffers(RwLock::new(Vec::new()));

/// See the module.
pub(super) struct BurstBuffers(RwLock<Vec<Known>>);

impl BurstBuffers {
    /// Memory of `bytes` bytes for a burst.
    pub(super) fn take(own: DomId, tally: &Arc<Tally>, bytes: usize) -> BurstBuffer {
        BURST_BUFFERS.add(own, tally, bytes / PAGE_SIZE).unwrap_or_else(|| BurstBuffer::lines(bytes))
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
        // Not under the lock, for which other workers' copies wait.
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

    /// The buffer that these bytes, which somebody has borrowed, are in, and where it starts.
    pub(super) fn of(bytes: &[u8]) -> Option<(Arc<OwnPages>, usize)> {
        if !ANY.load(Ordering::Acquire) {
            return None;
        }
        let at = bytes.as_ptr().addr();
        let buffers = BURST_BUFFERS.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_in = |known: &&Known| at >= known.start && at + bytes.len() <= known.start + known.len;
        // An address may have been another buffer's before.
        buffers.iter().filter(is_in).find_map(|known| Some((known.buffer.upgrade()?, at - known.start)))
    }
}
