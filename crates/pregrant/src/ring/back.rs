//! The back's end of a ring: takes requests and answers them, in order if its journal is a
//! [`RedoPage`].

use super::crash::{self, Point};
use super::journal::{Journal, Resumed, asked};
use super::{InFlight, Notify, RedoMem, RedoPage, RingKind, RingMem, Word};
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use alloc::vec::Vec;
use core::marker::PhantomData;

/// The back's private view of a ring.
#[derive(Debug)]
pub struct BackRing<K, M, J = RedoPage> {
    mem: M,
    size: u32,
    /// Index of the next request to take.
    req_cons: u32,
    /// The front's index, as last read and checked.
    req_prod: u32,
    /// Index of the next response. The copy in the shared page is only written, never read back.
    rsp_prod: u32,
    journal: Option<J>,
    /// The ring was resumed from a record.
    is_recorded: bool,
    kind: PhantomData<K>,
}

impl<K: RingKind, M: RingMem<Kind = K>, J: Journal<K>> BackRing<K, M, J> {
    /// Attaches to a ring: a new one (whose journal was cleared), one that a predecessor left in
    /// order, or, with its journal, one whose back died. The result says whether the front asked
    /// for the answers that were replayed. A predecessor may also have died just before it notified
    /// the front: see [`unnotified`](Self::unnotified) (docs/protocol 1.1, R5).
    pub fn attach(mem: M, mut journal: Option<J>) -> Result<(Self, Notify), PeerFault> {
        let resumed = match &mut journal {
            Some(journal) => journal.resume(&mem)?,
            None => Resumed::at(mem.load(Word::RspProd), Notify::No),
        };
        Ok((Self::attach_at(mem, journal, resumed)?, resumed.notify))
    }

    /// Attaches to a ring whose back itself keeps its `last` answer together with what the request
    /// changed: the ring index after that answer, and the answer. If a predecessor died before it
    /// published the answer, it is published now. Such a back answers one request at a time, in any
    /// order. `taken` requests were taken and not answered, and are no longer on the ring; they
    /// count as [unanswered](Self::unanswered) here too, or not at all if the ring is not in the
    /// state that was kept.
    pub fn attach_after(mem: M, last: (u32, K::Rsp), taken: u32) -> Result<(Self, Notify), PeerFault> {
        let old = mem.load(Word::RspProd);
        let (rsp_prod, rsp) = last;
        let asked = mem.load(Word::ReqProd) != old;
        let mut ring = Self::attach_at(mem, None, Resumed::at(old, Notify::No))?;
        let is_next = rsp_prod == old.wrapping_add(1) && asked;
        if is_next || rsp_prod == old {
            ring.rsp_prod = rsp_prod;
            ring.req_cons = rsp_prod.wrapping_add(taken.min(ring.size));
            ring.req_prod = ring.req_cons;
        }
        if !is_next {
            return Ok((ring, Notify::No));
        }
        K::write_rsp(&ring.mem, old, &rsp);
        ring.mem.store(Word::RspProd, rsp_prod);
        ring.mem.full_fence();
        let notify = Notify::test(old, rsp_prod, ring.mem.load(Word::RspEvent));
        Ok((ring, notify))
    }

    /// For a live ring that was just attached: whether its front must be notified. A predecessor
    /// publishes at most `most` answers at once, then notifies, and may have died in between. A
    /// front that waits for one of these answers may not have been notified, and is notified now,
    /// perhaps a second time. A front that waits for an answer that does not exist yet is not
    /// notified, because it may take any event for that answer; neither is one that has checked the
    /// ring since.
    pub fn unnotified(&self, most: u32) -> Notify {
        // After the fence, as in the test of a publisher, so that it follows what was published
        // now.
        self.mem.full_fence();
        let old = self.rsp_prod.wrapping_sub(most.min(self.size));
        Notify::test(old, self.rsp_prod, self.mem.load(Word::RspEvent))
    }

    fn attach_at(mem: M, journal: Option<J>, at: Resumed) -> Result<Self, PeerFault> {
        asked(&mem, at.rsp_prod)?;
        let (size, req_cons, rsp_prod) = (mem.size(), at.req_cons, at.rsp_prod);
        let is_recorded = at.is_recorded;
        Ok(Self {
            mem,
            size,
            req_cons,
            req_prod: req_cons,
            rsp_prod,
            journal,
            is_recorded,
            kind: PhantomData,
        })
    }

    /// For a live ring that was just attached: whether there is no record of it, and the next
    /// request's slot may already hold an answer that was not published. Answers are written in
    /// order, so if this is false no request has one; if it is true, it is unknown how far a killed
    /// predecessor had come. The slot is read once more when the request is taken; a guest that
    /// changes it in between harms only itself.
    pub fn is_doubtful(&self) -> bool {
        let asks = self.mem.load(Word::ReqProd) != self.rsp_prod;
        asks && !self.is_recorded && K::may_be_answered(&self.mem, self.rsp_prod)
    }

    /// Number of requests that can be taken. Reads the front's index again if fewer than `want` are
    /// cached.
    #[inline(always)]
    pub fn available(&mut self, want: u32) -> Result<u32, PeerFault> {
        let cached = self.req_prod.wrapping_sub(self.req_cons);
        if cached >= want {
            return Ok(cached);
        }
        let req_prod = self.mem.load(Word::ReqProd);
        let n = req_prod.wrapping_sub(self.req_cons);
        // A request that was taken and not answered still occupies its slot, and an index never
        // goes back.
        if n > self.size - self.unanswered() || n < cached {
            return Err(PeerFault::ReqProdOverrun { req_prod, req_cons: self.req_cons, size: self.size });
        }
        self.req_prod = req_prod;
        Ok(n)
    }

    /// Prefetches the slots of the next `n` requests, before the first is read.
    #[inline(always)]
    pub fn prefetch(&self, n: u32) {
        self.mem.prefetch(self.req_cons, n);
    }

    /// Copies the request at `ahead` slots after the next one from the ring. Call it once for each
    /// request, and again only after the request was [given back](Self::give_back).
    #[inline(always)]
    pub fn read(&self, ahead: u32) -> K::Req {
        K::read_req(&self.mem, self.req_cons.wrapping_add(ahead))
    }

    /// The next request's ring index.
    #[inline(always)]
    pub fn req_cons(&self) -> u32 {
        self.req_cons
    }

    /// The front's index as it is now, unchecked: only to find that it changed.
    #[inline]
    pub fn shown(&self) -> u32 {
        self.mem.load(Word::ReqProd)
    }

    /// Marks `n` requests as taken.
    #[inline(always)]
    pub fn consume(&mut self, n: u32) {
        debug_assert!(n <= self.req_prod.wrapping_sub(self.req_cons));
        self.req_cons = self.req_cons.wrapping_add(n);
    }

    /// Gives the last `n` requests that were taken back to the ring: they are read again.
    #[cold]
    pub fn give_back(&mut self, n: u32) {
        debug_assert!(n <= self.unanswered());
        self.req_cons = self.req_cons.wrapping_sub(n.min(self.unanswered()));
    }

    /// Number of requests that were taken and not answered.
    #[inline(always)]
    pub fn unanswered(&self) -> u32 {
        self.req_cons.wrapping_sub(self.rsp_prod)
    }

    /// Call before sleeping: asks to be notified of the next request (or of the `more`-th, to wait
    /// for room), then checks once more. Returns true if there is work, do not sleep.
    pub fn final_check(&mut self, more: u32) -> Result<bool, PeerFault> {
        let want = more.max(1);
        if self.available(want)? >= want {
            return Ok(true);
        }
        self.mem.store(Word::ReqEvent, self.req_cons.wrapping_add(want));
        self.mem.full_fence();
        Ok(self.available(want)? >= want)
    }

    /// The answers, also a predecessor's, in slots that the front has not reused, with their ring
    /// indices, oldest first. The front may have changed them. Slots that were never written have
    /// what the ring was initialised with.
    pub fn answers_left(&self) -> Result<Vec<(u32, K::Rsp)>, PlatformError> {
        let oldest = |mem: &M| mem.load(Word::ReqProd).wrapping_sub(self.size);
        let from = oldest(&self.mem);
        // An impossible index; [`available`](Self::available) reports the fault.
        let n = self.rsp_prod.wrapping_sub(from);
        if n > self.size {
            return Ok(Vec::new());
        }
        let read = |k: u32| (from.wrapping_add(k), K::read_rsp(&self.mem, from.wrapping_add(k)));
        let mut left = memory::collected((0..n).map(read))?.into_vec();
        // Slots that the front has reused meanwhile hold requests.
        let taken = oldest(&self.mem).wrapping_sub(from).min(n);
        let mut place = 0..;
        left.retain(|_| place.next() >= Some(taken));
        Ok(left)
    }

    /// Number of slots.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether there is a journal.
    pub fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Returns the memory when the queue is closed.
    pub fn into_mem(self) -> M {
        self.mem
    }

    /// Writes these answers to the next slots and publishes them.
    #[inline(always)]
    pub(super) fn publish<'a>(&mut self, rsps: impl ExactSizeIterator<Item = &'a K::Rsp>) -> Notify
    where
        K::Rsp: 'a,
    {
        let (old, n) = (self.rsp_prod, rsps.len());
        for (k, rsp) in rsps.enumerate() {
            K::write_rsp(&self.mem, old.wrapping_add(k as u32), rsp);
            if k == 0 {
                crash::here(Point::MidFrame);
            }
            if k == n / 2 {
                crash::here(Point::InResponses);
            }
        }
        crash::here(Point::BeforePublish);
        self.rsp_prod = old.wrapping_add(n as u32);
        self.mem.store(Word::RspProd, self.rsp_prod);
        self.mem.full_fence();
        crash::here(Point::BeforeNotify);
        Notify::test(old, self.rsp_prod, self.mem.load(Word::RspEvent))
    }

    /// The next answer's ring index.
    pub(super) fn rsp_prod(&self) -> u32 {
        self.rsp_prod
    }

    pub(super) fn mem(&self) -> &M {
        &self.mem
    }

    pub(super) fn journal(&self) -> Option<&J> {
        self.journal.as_ref()
    }

    pub(super) fn journal_mut(&mut self) -> Option<&mut J> {
        self.journal.as_mut()
    }
}

/// With a redo page, requests are answered in their order (R1).
impl<K: RingKind, M: RingMem<Kind = K>, W: RedoMem> BackRing<K, M, RedoPage<W>> {
    /// Answers the oldest `rsps.len()` requests: first the redo page, then the slots, then the
    /// index. Pass whole frames only (R2) and, with a redo page, at most
    /// [`REDO_RECORDS`](super::REDO_RECORDS) answers.
    #[inline(always)]
    pub fn answer(&mut self, rsps: &[K::Rsp]) -> Notify {
        self.answer_frames(rsps, 0)
    }

    /// Like [`answer`](Self::answer), and notes that `frames` of the frames
    /// [`in_flight`](Self::in_flight) are done with these answers.
    #[inline(always)]
    pub fn answer_frames(&mut self, rsps: &[K::Rsp], frames: u32) -> Notify {
        debug_assert!(rsps.len() as u32 <= self.unanswered());
        if rsps.is_empty() {
            return Notify::No;
        }
        crash::here(Point::AfterCopy);
        if let Some(redo) = &mut self.journal {
            redo.begin::<K>(self.rsp_prod, rsps, frames);
        }
        self.publish(rsps.iter())
    }

    /// Records for a successor that `frames` frames are in flight between ring and port and not
    /// answered, and that the port holds `held` more for the guest (docs/protocol 1.1, R7).
    #[inline(always)]
    pub fn in_flight(&self, frames: u32, held: u32) {
        if let Some(redo) = &self.journal {
            redo.in_flight(frames, held);
        }
    }

    /// Records for a successor that the port is being asked for frames, so that the number of
    /// frames in flight is unknown until the next [`in_flight`](Self::in_flight).
    #[inline(always)]
    pub fn asking(&self) {
        if let Some(redo) = &self.journal {
            redo.asking();
        }
    }

    /// Frames that were in flight when predecessors ended. None: there is no redo page, so this is
    /// unknown.
    pub fn inherited(&self) -> Option<InFlight> {
        self.journal.as_ref().map(RedoPage::inherited)
    }
}
