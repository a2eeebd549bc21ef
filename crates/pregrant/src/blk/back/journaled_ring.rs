//! A queue's ring, in either of the two layouts that a front has. [`take`](JournaledRing::take)
//! and the answers go through the journal: a request is answered once, also by the next process.

use crate::error::PeerFault;
use crate::ring::{BackRing, Blkif32, Blkif64, ById, Notify, RedoWords, RingPages, Taken};
use crate::shm::SharedBytes;
use crate::wire::blkif::{Abi, Request, Response};
use alloc::vec::Vec;

/// Bytes of the memory that outlives the process, for a queue's journal: enough for a ring of 16
/// pages; of a smaller one only the beginning is touched.
pub const JOURNAL_BYTES: usize = 128 * 1024;

/// A queue's journal.
pub type Journal = ById<RedoWords<JOURNAL_BYTES>>;

type Ring<K, S> = BackRing<K, RingPages<K, S>, Journal>;

/// See the module.
pub enum JournaledRing<S: SharedBytes> {
    /// 112 bytes each.
    X64(Ring<Blkif64, S>),
    /// 108 bytes each.
    X32(Ring<Blkif32, S>),
}

/// Evaluates `$call` with `$ring` bound to the ring that it is.
macro_rules! with_ring {
    ($any:expr, $ring:ident => $call:expr) => {
        match $any {
            Self::X64($ring) => $call,
            Self::X32($ring) => $call,
        }
    };
}

impl<S: SharedBytes> JournaledRing<S> {
    /// Takes up the ring in `pages`. The journal, in memory that outlives the process, is
    /// [cleared](ById::clear) before for a new connection.
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

    /// [`BackRing::size`].
    pub fn size(&self) -> u32 {
        with_ring!(self, ring => ring.size())
    }

    /// [`BackRing::unnotified`], of all that its front can wait for: a batch of answers is a ring
    /// of them at most.
    pub fn unnotified(&self) -> Notify {
        with_ring!(self, ring => ring.unnotified(ring.size()))
    }

    /// [`BackRing::available`].
    pub fn available(&mut self, want: u32) -> Result<u32, PeerFault> {
        with_ring!(self, ring => ring.available(want))
    }

    /// [`BackRing::prefetch`].
    pub fn prefetch(&self, n: u32) {
        with_ring!(self, ring => ring.prefetch(n));
    }

    /// [`BackRing::take`].
    pub fn take(&mut self) -> Option<(Taken, Request)> {
        with_ring!(self, ring => ring.take())
    }

    /// [`BackRing::pending`].
    pub fn pending(&self) -> Vec<(Taken, Request)> {
        with_ring!(self, ring => ring.pending())
    }

    /// [`BackRing::forget`].
    pub fn forget(&self) {
        with_ring!(self, ring => ring.forget())
    }

    /// [`BackRing::answer_taken`].
    pub fn answer_taken(&mut self, rsps: &[(Taken, Response)]) -> Notify {
        with_ring!(self, ring => ring.answer_taken(rsps))
    }

    /// [`BackRing::final_check`].
    pub fn final_check(&mut self) -> Result<bool, PeerFault> {
        with_ring!(self, ring => ring.final_check(1))
    }

    /// [`BackRing::req_cons`].
    pub fn req_cons(&self) -> u32 {
        with_ring!(self, ring => ring.req_cons())
    }
}
