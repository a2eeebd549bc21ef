//! The back's end: takes requests, answers them; in order where its journal is a [`RedoPage`].

use super::crash::{self, Point};
use super::journal::{Journal, Resumed, asked};
use super::{InFlight, Notify, RedoMem, RedoPage, RingKind, RingMem, Word};
use crate::error::PeerFault;
use alloc::vec::Vec;
use core::marker::PhantomData;

/// The back's private view of a ring.
#[derive(Debug)]
pub struct BackRing<K, M, J = RedoPage> {
    mem: M,
    size: u32,
    /// Next request to take.
    req_cons: u32,
    /// The front's index, as last read and checked.
    req_prod: u32,
    /// Next response to write. The page's copy is only ever stored, never read back.
    rsp_prod: u32,
    journal: Option<J>,
    /// It was taken up by a record of it.
    is_recorded: bool,
    kind: PhantomData<K>,
}

impl<K: RingKind, M: RingMem<Kind = K>, J: Journal<K>> BackRing<K, M, J> {
    /// Takes a ring up: a fresh one (its journal cleared), one that an orderly predecessor left, or
    /// (with its journal) one whose back died. The result says whether the front asked for the
    /// answers that were replayed; a predecessor may also have died just before it notified: see
    /// [`unnotified`](Self::unnotified) (docs/protocol 1.1, R5).
    pub fn attach(mem: M, mut journal: Option<J>) -> Result<(Self, Notify), PeerFault> {
        let resumed = match &mut journal {
            Some(journal) => journal.resume(&mem)?,
            None => Resumed::at(mem.load(Word::RspProd), Notify::No),
        };
        Ok((Self::attach_at(mem, journal, resumed)?, resumed.notify))
    }

    /// Takes a ring up whose back keeps its `last` answer itself, together with what the request
    /// changed: the index after it, and the answer. If a predecessor died before it published that
    /// one, it is published now. Such a back answers one request at a time, in any order: `taken`
    /// were taken then and not answered, and are not on the ring any more. They count as
    /// [unanswered](Self::unanswered) here too, or not at all where the ring is not as it was kept.
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

    /// Of a live ring that was just taken up: whether its front is to be notified. A predecessor
    /// that published so many answers at once, at most, and then notified, may have died in
    /// between. A front that waits for one of these may not have been notified, and is notified
    /// now, perhaps once more. One that waits for an answer which is not there yet is not: it may
    /// take any event for that answer. Nor is one that has checked since.
    pub fn unnotified(&self, most: u32) -> Notify {
        // Behind whatever was published now: as a publisher's own test.
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

    /// Of a live ring that was just taken up: whether there is no record of it, and the next
    /// request may have an answer over it that was not published. Answers are written in order, so
    /// that no request has one where this says no. If it does, no one knows how far a predecessor
    /// that was killed had come. The slot is read once more when it is taken; a guest that changes
    /// it in between deceives itself alone.
    pub fn is_doubtful(&self) -> bool {
        let asks = self.mem.load(Word::ReqProd) != self.rsp_prod;
        asks && !self.is_recorded && K::may_be_answered(&self.mem, self.rsp_prod)
    }

    /// Requests that can be taken. Re-reads the front's index when fewer than `want` are cached.
    #[inline(always)]
    pub fn available(&mut self, want: u32) -> Result<u32, PeerFault> {
        let cached = self.req_prod.wrapping_sub(self.req_cons);
        if cached >= want {
            return Ok(cached);
        }
        let req_prod = self.mem.load(Word::ReqProd);
        let n = req_prod.wrapping_sub(self.req_cons);
        // A request that is taken and not answered still has its slot; and an index never goes
        // back.
        if n > self.size - self.unanswered() || n < cached {
            return Err(PeerFault::ReqProdOverrun { req_prod, req_cons: self.req_cons, size: self.size });
        }
        self.req_prod = req_prod;
        Ok(n)
    }

    /// Asks for the slots of the next `n` requests, before the first is read.
    #[inline(always)]
    pub fn prefetch(&self, n: u32) {
        self.mem.prefetch(self.req_cons, n);
    }

    /// Copies the request `ahead` places after the next one out of the ring. Call it once for each
    /// request.
    #[inline(always)]
    pub fn read(&self, ahead: u32) -> K::Req {
        K::read_req(&self.mem, self.req_cons.wrapping_add(ahead))
    }

    /// The next request's ring index.
    #[inline(always)]
    pub fn req_cons(&self) -> u32 {
        self.req_cons
    }

    /// Counts `n` requests as taken.
    #[inline(always)]
    pub fn consume(&mut self, n: u32) {
        debug_assert!(n <= self.req_prod.wrapping_sub(self.req_cons));
        self.req_cons = self.req_cons.wrapping_add(n);
    }

    /// Requests taken and not answered.
    #[inline(always)]
    pub fn unanswered(&self) -> u32 {
        self.req_cons.wrapping_sub(self.rsp_prod)
    }

    /// Before sleeping: asks to be notified of the next request (or of the `more`-th, to wait for
    /// room), and checks once more. True: there is work, do not sleep.
    pub fn final_check(&mut self, more: u32) -> Result<bool, PeerFault> {
        let want = more.max(1);
        if self.available(want)? >= want {
            return Ok(true);
        }
        self.mem.store(Word::ReqEvent, self.req_cons.wrapping_add(want));
        self.mem.full_fence();
        Ok(self.available(want)? >= want)
    }

    /// The answers in slots that the front has not used again, with their indices, the oldest
    /// first: also a predecessor's. The front can have changed them. Where they were never written,
    /// they are what the ring began with.
    pub fn answers_left(&self) -> Vec<(u32, K::Rsp)> {
        let oldest = |mem: &M| mem.load(Word::ReqProd).wrapping_sub(self.size);
        let from = oldest(&self.mem);
        // An index that no one can have; [`available`](Self::available) says so.
        let n = self.rsp_prod.wrapping_sub(from);
        if n > self.size {
            return Vec::new();
        }
        let read = |k: u32| (from.wrapping_add(k), K::read_rsp(&self.mem, from.wrapping_add(k)));
        let mut left: Vec<_> = (0..n).map(read).collect();
        // Slots that the front took meanwhile have requests.
        let taken = oldest(&self.mem).wrapping_sub(from).min(n);
        left.drain(..taken as usize);
        left
    }

    /// Slots in the ring.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether a journal is kept.
    pub fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// The memory back, when the queue is closed.
    pub fn into_mem(self) -> M {
        self.mem
    }

    /// Writes these answers into the next slots, and publishes them.
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

/// Answers in request order (R1).
impl<K: RingKind, M: RingMem<Kind = K>, W: RedoMem> BackRing<K, M, RedoPage<W>> {
    /// Answers the oldest `rsps.len()` requests: redo page, slots, publish. Give whole frames only
    /// (R2), and with a redo page at most [`REDO_RECORDS`](super::REDO_RECORDS) answers.
    #[inline(always)]
    pub fn answer(&mut self, rsps: &[K::Rsp]) -> Notify {
        self.answer_frames(rsps, 0)
    }

    /// The same, with which `frames` leave our hands: those of [`in_flight`](Self::in_flight) that
    /// are answered so.
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

    /// Tells a successor that `frames` are in our hands (what the port is about to get, or gave)
    /// and not answered, and that the port holds `held` more for the guest (docs/protocol 1.1, R7).
    #[inline(always)]
    pub fn in_flight(&self, frames: u32, held: u32) {
        if let Some(redo) = &self.journal {
            redo.in_flight(frames, held);
        }
    }

    /// Tells a successor that the port is being asked for frames: no one knows how many it gave,
    /// until the next [`in_flight`](Self::in_flight).
    #[inline(always)]
    pub fn asking(&self) {
        if let Some(redo) = &self.journal {
            redo.asking();
        }
    }

    /// Frames that predecessors were moving when they ended; None: there is no redo page, so this
    /// is unknown.
    pub fn inherited(&self) -> Option<InFlight> {
        self.journal.as_ref().map(RedoPage::inherited)
    }
}
