//! A queue's ring, in either of the two layouts that fronts use. [`take`](JournaledRing::take) and
//! the answers go through the journal, so each request is answered once, even across processes.

use crate::error::PeerFault;
use crate::ring::{BackRing, Blkif32, Blkif64, ById, Notify, RedoWords, RingPages, Taken};
use crate::shm::SharedBytes;
use crate::wire::blkif::{Abi, Request, Response};
use alloc::vec::Vec;

/// Bytes of a queue's journal in memory that outlives the process: enough for a ring of 16 pages. A
/// smaller ring touches only the first pages.
pub const JOURNAL_BYTES: usize = 128 * 1024;

/// The journal of a queue.
pub type Journal = ById<RedoWords<JOURNAL_BYTES>>;

type Ring<K, S> = BackRing<K, RingPages<K, S>, Journal>;

/// A queue's ring with its journal, in the layout of its front.
pub enum JournaledRing<S: SharedBytes> {
    /// Slots of 112 bytes.
    X64(Ring<Blkif64, S>),
    /// Slots of 108 bytes.
    X32(Ring<Blkif32, S>),
}

/// Evaluates `$call` with `$ring` bound to the ring of either layout.
macro_rules! with_ring {
    ($any:expr, $ring:ident => $call:expr) => {
        match $any {
            Self::X64($ring) => $call,
            Self::X32($ring) => $call,
        }
    };
}

impl<S: SharedBytes> JournaledRing<S> {
    /// Attaches to the ring in `pages`. The journal is in memory that outlives the process; for a
    /// new connection it must be [cleared](ById::clear) first.
    pub fn attach(
        abi: Abi,
        pages: S,
        journal: impl FnOnce(u32) -> Option<Journal>,
    ) -> Result<(Self, Notify), PeerFault> {
        match abi {
            Abi::X86_64 => {
                let mem = RingPages::<Blkif64, S>::new(pages);
                let journal = journal(crate::ring::RingMem::size(&mem));
                BackRing::attach(mem, journal).map(|(ring, notify)| (Self::X64(ring), notify))
            }
            Abi::X86_32 => {
                let mem = RingPages::<Blkif32, S>::new(pages);
                let journal = journal(crate::ring::RingMem::size(&mem));
                BackRing::attach(mem, journal).map(|(ring, notify)| (Self::X32(ring), notify))
            }
        }
    }

    /// See [`BackRing::size`].
    pub fn size(&self) -> u32 {
        with_ring!(self, ring => ring.size())
    }

    /// See [`BackRing::unnotified`], for as many answers as the ring has slots, which is the most
    /// in a batch.
    pub fn unnotified(&self) -> Notify {
        with_ring!(self, ring => ring.unnotified(ring.size()))
    }

    /// See [`BackRing::available`].
    pub fn available(&mut self, want: u32) -> Result<u32, PeerFault> {
        with_ring!(self, ring => ring.available(want))
    }

    /// See [`BackRing::prefetch`].
    pub fn prefetch(&self, n: u32) {
        with_ring!(self, ring => ring.prefetch(n));
    }

    /// See [`BackRing::take`].
    pub fn take(&mut self) -> Option<(Taken, Request)> {
        with_ring!(self, ring => ring.take())
    }

    /// See [`BackRing::pending`].
    pub fn pending(&self) -> Vec<(Taken, Request)> {
        with_ring!(self, ring => ring.pending())
    }

    /// See [`BackRing::forget`].
    pub fn forget(&self) {
        with_ring!(self, ring => ring.forget())
    }

    /// See [`BackRing::answer_taken`].
    pub fn answer_taken(&mut self, rsps: &[(Taken, Response)]) -> Notify {
        with_ring!(self, ring => ring.answer_taken(rsps))
    }

    /// See [`BackRing::final_check`].
    pub fn final_check(&mut self) -> Result<bool, PeerFault> {
        with_ring!(self, ring => ring.final_check(1))
    }

    /// See [`BackRing::req_cons`].
    pub fn req_cons(&self) -> u32 {
        with_ring!(self, ring => ring.req_cons())
    }
}
