//! TX of one queue: the guest's frames to the port.
//!
//! ```text
//!   ring --take--> TxBatch --fetch--> arena --tx_burst--> port
//!     ^                      |  what the path does not serve: copy
//!     +------ answer --------+  (late answers first, in request order)
//!                                ^          \--tx_zero_copy--> zero-copy port
//!                                +-- inspect, hold ------'   (the port completes, or gives up)
//! ```
//! One call moves one batch: one index load, one publish, one notify test. The bytes reach the port
//! before their requests are answered.
//!
//! Invariants: pages that were lent are unmapped when the port's call is over, or, of frames that
//! it keeps, when its [`Completions`] has completed them or has given them up. Before a queue ends,
//! it asks the port to give up what the port keeps. Until then their requests are not answered, and
//! count as in flight for a successor. A guest whose port keeps frames for ever has a queue that
//! stands; no other guest waits. So has one whose port has [no room](FramePort::room).

use super::Polled;
use super::credit::Credit;
use super::late_answers::LateAnswers;
use super::shared_control::SharedControl;
use crate::error::PeerFault;
use crate::net::batch::{BATCH_SLOTS, StandingTakes, Thresholds, Todo, TxBatch, bits};
use crate::net::gso;
use crate::net::path::{AnyClaims, Chain};
use crate::net::stats::{DirStats, LiveStats};
use crate::platform::{Clock, Events, PeerMem, Platform};
use crate::port::{
    Arena, BURST_BYTES_MIN, Completions, FramePort, Payload, PayloadSource, Piece, Room, Token, ZeroCopyBurst,
};
use crate::ring::{BackRing, InFlight, NetTx, Notify, RingPages};
use crate::units::DomId;
use crate::wire::netif::TxResponse;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The memory of a ring `K` in a peer's pages.
pub type PeerRing<K, P> = RingPages<K, <<P as Platform>::Peer as PeerMem>::Map>;

/// The back's TX half of a queue.
pub struct TxQueue<P: Platform> {
    ring: BackRing<NetTx, PeerRing<NetTx, P>>,
    chain: Chain<P>,
    /// Which requests are its paths' own.
    claims: AnyClaims,
    batch: Box<TxBatch>,
    late: LateAnswers,
    done: Vec<Token>,
    answers: Vec<TxResponse>,
    stats: Arc<LiveStats>,
    /// Whether its chain can lend.
    holds_frames: bool,
    /// The port's, since it kept a frame.
    completions: Option<Arc<dyn Completions>>,
    /// The port keeps frames now.
    keeps: bool,
    /// What its port said last; without room nothing was taken from the ring.
    room: Room,
    completed: Vec<Token>,
}

/// The chain's paths that lend, for one burst.
struct BatchPayload<'a, P: Platform> {
    chain: &'a mut Chain<P>,
    p: &'a P,
    of: DomId,
}

impl<P: Platform> PayloadSource for BatchPayload<'_, P> {
    fn map_payload(&mut self) -> u64 {
        let (p, of) = (self.p, self.of);
        self.chain.holders().fold(0, |failed, path| failed | path.map_payload(p, of))
    }
    fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.chain.piece(i, k)
    }
    fn hold(&mut self, i: usize) -> Option<Token> {
        self.chain.holders().find_map(|path| path.hold(i))
    }
}

/// Has the batch fetched into the port's own memory, where it gives some.
#[inline(always)]
fn take_buffer(port: &mut dyn FramePort, arena: &mut Arena) -> bool {
    port.tx_room(arena.used_bytes()).is_some_and(|room| arena.move_in(room).is_ok())
}

impl<P: Platform> TxQueue<P> {
    /// A queue over a ring that was just taken up.
    #[inline(never)]
    pub fn new(ring: BackRing<NetTx, PeerRing<NetTx, P>>, chain: impl Into<Chain<P>>) -> Self {
        let size = ring.size();
        let stats = Arc::new(LiveStats::default());
        stats.interrupted.add(ring.inherited().map_or(0, |i| i.total.into()));
        let mut chain = chain.into();
        let holds_frames = chain.holders().next().is_some();
        Self {
            ring,
            holds_frames,
            claims: chain.claims(),
            chain,
            batch: Box::default(),
            late: LateAnswers::new(size),
            done: Vec::with_capacity(size as usize),
            answers: Vec::with_capacity(BATCH_SLOTS),
            stats,
            completions: None,
            keeps: false,
            room: Room::Now,
            completed: Vec::new(),
        }
    }

    /// Sets up to which length its frames are copied.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.batch.thresholds = thresholds;
    }

    /// Moves one batch from domain `of` to `port`, by way of `arena` (scratch, shared by the
    /// worker's queues); what it asks of the vif's `control` is done. The result says whether to
    /// call again; a fault means that the device is to be closed.
    pub fn poll(
        &mut self,
        p: &P,
        of: DomId,
        chan: &<P::Events as Events>::Chan,
        port: &mut dyn FramePort,
        arena: &mut Arena,
        control: &SharedControl,
    ) -> Result<Polled, PeerFault> {
        if !self.late.is_empty() {
            self.answer_late(p, chan);
        }
        self.room = port.room();
        if self.room != Room::Now {
            return Ok(if self.is_late() { Polled::More } else { Polled::Idle });
        }
        let todo = if control.is_limited() {
            let Some(todo) = control.with_credit(|credit| self.take_within(credit, p.clock(), arena)) else {
                return Ok(Polled::More);
            };
            todo?
        } else {
            self.batch.take(&mut self.ring, arena, self.claims)?
        };
        let nr_frames = self.batch.nr_frames;
        if nr_frames == 0 {
            return Ok(if self.is_late() { Polled::More } else { Polled::Idle });
        }
        if self.batch.no_frame != 0 {
            self.ask(control);
        }
        let is_long = arena.used_bytes() >= BURST_BYTES_MIN;
        if self.holds_frames {
            let payload = port.payload();
            self.batch.takes = matches!(payload, Payload::ZeroCopy | Payload::Named).then(|| port.caps());
            self.batch.standing = match payload {
                Payload::Named => Some(self.batch.thresholds.lend_from),
                Payload::Standing(above) if is_long => Some(above),
                _ => None,
            }
            .map(|above| StandingTakes { caps: port.caps(), above });
        }
        let has_room = is_long && self.batch.takes.is_none() && take_buffer(port, arena);
        let before = p.peer().grant_ops();
        let served = self.chain.fetch(p, of, &mut self.batch, todo, arena);
        self.stats.add_grant_ops(&before, &p.peer().grant_ops());
        if self.batch.unblanked & !self.batch.failed != 0 {
            self.blank_checksums(arena);
        }
        let mut good = self.batch.given().count_ones() as usize;
        if self.batch.zero_copy != 0 {
            good = self.pass_on(p, of, port, arena);
        } else if good > 0 {
            self.ring.in_flight(self.late.given() + good as u32, 0);
            let took = if has_room { port.tx_filled(arena) } else { port.tx_burst(&arena.burst()) };
            let burst = arena.burst();
            self.stats.dropped.add(burst.frames.len().saturating_sub(took) as u64);
            self.stats.bytes.add(burst.frames.iter().map(|d| d.len as u64).sum::<u64>());
        }
        self.stats.handed_on(self.batch.given(), served);
        self.stats.errors.add(self.batch.failed.count_ones() as u64);
        if self.batch.held == 0 && self.late.is_empty() {
            let notify = self.ring.answer_frames(self.batch.answers(), good as u32);
            self.notify(p, chan, notify);
        } else {
            self.late.push(&self.batch);
            self.answer_late(p, chan);
        }
        Ok(Polled::More)
    }

    /// As much as the vif's credit allows.
    #[cold]
    #[inline(never)]
    fn take_within(
        &mut self,
        credit: &mut Credit,
        clock: &P::Clock,
        arena: &mut Arena,
    ) -> Result<Todo, PeerFault> {
        if credit.deadline_ns().is_some() && credit.waits(clock.now_ns()) {
            self.batch.clear(arena);
            return Ok(0);
        }
        loop {
            let (todo, short) =
                self.batch.take_within(&mut self.ring, arena, self.claims, &mut credit.left)?;
            match short {
                // A window has started, and nothing was taken yet.
                Some(size) if !credit.is_short(size, clock.now_ns()) && self.batch.nr_frames == 0 => {}
                _ => return Ok(todo),
            }
        }
    }

    /// Executes the batch's multicast requests, before anything of it is answered.
    #[cold]
    fn ask(&mut self, control: &SharedControl) {
        let mut refused = 0u64;
        control.lock().multicast(self.batch.multicast.iter().map(|(_, ask)| *ask), |k| refused |= 1 << k);
        self.stats.errors.add(u64::from(refused.count_ones()));
        bits(refused).for_each(|k| self.batch.refuse(k));
    }

    /// Makes the checksums of large segments blank where their sender did not.
    #[cold]
    fn blank_checksums(&mut self, arena: &mut Arena) {
        for i in bits(self.batch.unblanked & !self.batch.failed) {
            self.stats.gso_checksum_fixups.add(1);
            if gso::blank_checksum(arena, i).is_err() {
                arena.drop_frame(i);
                self.batch.unfit |= 1 << i;
                self.stats.dropped.add(1);
            }
        }
    }

    #[inline(always)]
    fn notify(&mut self, p: &P, chan: &<P::Events as Events>::Chan, notify: Notify) {
        self.stats.batches.add(1);
        if notify.wanted() {
            self.stats.notifications.add(1);
            p.events().notify(chan);
        }
    }

    /// Hands the batch to a zero-copy port. Returns how many frames it had.
    #[cold]
    #[inline(never)]
    fn pass_on(&mut self, p: &P, of: DomId, port: &mut dyn FramePort, arena: &mut Arena) -> usize {
        let batch = &mut *self.batch;
        let good = batch.given().count_ones();
        let before = p.peer().grant_ops();
        if good > 0 {
            self.ring.in_flight(self.late.given() + good, 0);
            let mut source = BatchPayload { chain: &mut self.chain, p, of };
            let mut burst =
                ZeroCopyBurst::new(arena, batch.zero_copy, &batch.heads, &mut source, &mut self.completions);
            let took = port.tx_zero_copy(&mut burst);
            self.stats.dropped.add(burst.len().saturating_sub(took) as u64);
        }
        for path in self.chain.holders() {
            path.settle(batch, arena);
            self.keeps |= path.in_flight();
        }
        self.stats.add_grant_ops(&before, &p.peer().grant_ops());
        self.stats.bytes.add(arena.burst().frames.iter().map(|d| d.len as u64).sum::<u64>());
        let had = batch.given().count_ones();
        if had != good {
            self.ring.in_flight(self.late.given() + had, 0);
        }
        had as usize
    }

    /// Lets the path retire what it held, and answers what may be answered now.
    #[cold]
    fn answer_late(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        if let (true, Some(completions)) = (self.keeps, &self.completions) {
            completions.complete(&mut self.completed);
            self.keeps = false;
            for path in self.chain.holders() {
                path.complete(Some(&self.completed));
                self.keeps |= path.in_flight();
            }
            self.completed.clear();
        }
        let before = p.peer().grant_ops();
        self.chain.retire(p, &mut self.done);
        self.stats.add_grant_ops(&before, &p.peer().grant_ops());
        self.late.release(&mut self.done);
        loop {
            let given = self.late.take(BATCH_SLOTS, &mut self.answers);
            if self.answers.is_empty() {
                return;
            }
            let notify = self.ring.answer_frames(&self.answers, given);
            self.notify(p, chan, notify);
        }
    }

    /// Before sleeping; true: there is work. With no room in the port, it asks for no event.
    pub fn final_check(&mut self) -> Result<bool, PeerFault> {
        Ok(self.is_late() || self.room == Room::Now && self.ring.final_check(1)?)
    }

    /// Its port had no room when it was asked last: after how many nanoseconds it is asked again.
    pub fn stands(&self) -> Option<u64> {
        match self.room {
            Room::Now => None,
            Room::Later(ns) => Some(ns),
        }
    }

    /// Whether there is work, as [`final_check`](Self::final_check) says it, and nothing is armed.
    pub fn is_pending(&mut self) -> bool {
        self.is_late() || self.room == Room::Now && self.ring.available(1) != Ok(0)
    }

    /// Frames that the port may get twice, because a predecessor died; None: unknown.
    pub fn inherited(&self) -> Option<InFlight> {
        self.ring.inherited()
    }

    /// Whether frames wait for their path, to be answered. Those that wait for the port do not
    /// count: their completion wakes the worker.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty() && !self.keeps
    }

    /// The counters, as a copy.
    pub fn stats(&self) -> DirStats {
        self.stats.read()
    }

    /// Requests consumed from its ring; the number wraps.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.ring.req_cons()
    }

    /// The counters, readable by any thread.
    pub fn live_stats(&self) -> Arc<LiveStats> {
        Arc::clone(&self.stats)
    }

    /// Whether its next request may be an answer ([`BackRing::is_doubtful`]).
    pub(super) fn is_doubtful(&self) -> bool {
        self.ring.is_doubtful()
    }

    /// What serves its frames.
    pub fn chain(&self) -> &Chain<P> {
        &self.chain
    }

    /// The same, to bound what it keeps.
    pub fn chain_mut(&mut self) -> &mut Chain<P> {
        &mut self.chain
    }

    /// Ends the queue in good order: has the port give up what it keeps, retires what is held,
    /// answers it.
    pub fn drain(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        self.recall();
        if !self.late.is_empty() {
            self.answer_late(p, chan);
        }
    }

    /// Has the port give up what it keeps, for pages are to go.
    fn recall(&mut self) {
        if let (true, Some(completions)) = (self.keeps, &self.completions) {
            completions.give_up();
            self.chain.holders().for_each(|path| path.complete(None));
            self.keeps = false;
        }
    }
}

impl<P: Platform> Drop for TxQueue<P> {
    fn drop(&mut self) {
        self.recall();
    }
}
