//! TX of one queue: the guest's frames to the port.
//!
//! ```text
//!   ring --take--> TxBatch --fetch--> arena --tx_burst--> port
//!     ^                      |  what the path does not serve: copy
//!     +------ answer --------+  (late answers first, in request order)
//!                                ^          \--tx_zero_copy--> zero-copy port
//!                                +-- piece, hold --------'   (the port completes, or gives up)
//! ```
//! One call moves one batch: one index is loaded, and one is published, with one notification test.
//! The bytes reach the port before their requests are answered.
//!
//! Invariants: pages of a zero-copy frame are unmapped after the port's call, or, if the port holds
//! the frame, after its [`Completions`] has completed it or given it up. Before a queue ends, it
//! makes the port give up what it holds. Until then the requests are not answered, and count as in
//! flight for a successor. If the port never completes frames, or has [no room](FramePort::room),
//! only that guest's queue stalls.

use super::Polled;
use super::control_state::Control;
use super::credit::Credit;
use super::late_answers::LateAnswers;
use super::shared_control::SharedControl;
use crate::bounded::Bounded;
use crate::error::{PeerFault, PlatformError};
use crate::memory;
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

/// The TX half of a queue at the back.
pub struct TxQueue<P: Platform> {
    ring: BackRing<NetTx, PeerRing<NetTx, P>>,
    chain: Chain<P>,
    /// Which requests belong to the queue's own paths.
    claims: AnyClaims,
    batch: Box<TxBatch>,
    late: LateAnswers,
    done: Bounded<Token>,
    answers: Bounded<TxResponse>,
    stats: Arc<LiveStats>,
    /// The object by which the port reports frames that it no longer holds. None: it has never held
    /// one.
    completions: Option<Arc<dyn Completions>>,
    /// The port holds frames now.
    keeps: bool,
    /// The port's last answer; without room no request is taken.
    room: Room,
    completed: Vec<Token>,
}

/// The zero-copy payload of one burst.
struct BatchPayload<'a, P: Platform> {
    chain: &'a mut Chain<P>,
    p: &'a P,
    of: DomId,
}

impl<P: Platform> PayloadSource for BatchPayload<'_, P> {
    fn map_payload(&mut self) -> u64 {
        let (p, of) = (self.p, self.of);
        self.chain.paths_mut().iter_mut().fold(0, |failed, path| failed | path.map_payload(p, of))
    }
    fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.chain.piece(i, k)
    }
    fn hold(&mut self, i: usize) -> Option<Token> {
        self.chain.paths_mut().iter_mut().find_map(|path| path.hold(i))
    }
}

/// Uses the port's own memory for the batch, if it provides any.
#[inline(always)]
fn take_buffer(port: &mut dyn FramePort, arena: &mut Arena) -> bool {
    port.tx_room(arena.used_bytes()).is_some_and(|room| arena.move_in(room).is_ok())
}

impl<P: Platform> TxQueue<P> {
    /// A queue over a ring that was just attached.
    #[inline(never)]
    pub fn new(
        ring: BackRing<NetTx, PeerRing<NetTx, P>>,
        chain: impl Into<Chain<P>>,
    ) -> Result<Self, PlatformError> {
        let size = ring.size();
        let stats = Arc::new(LiveStats::default());
        stats.interrupted.add(ring.inherited().map_or(0, |i| i.total.into()));
        let mut chain = chain.into();
        chain.make_room(size as usize)?;
        Ok(Self {
            ring,
            claims: chain.claims(),
            chain,
            batch: TxBatch::new()?,
            late: LateAnswers::new(size)?,
            done: Bounded::new(size as usize)?,
            answers: Bounded::new(BATCH_SLOTS)?,
            stats,
            completions: None,
            keeps: false,
            room: Room::Now,
            completed: memory::room(size as usize)?,
        })
    }

    /// Sets the lengths up to which frames are copied.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.batch.thresholds = thresholds;
    }

    /// Moves one batch from domain `of` to `port`, through `arena` (scratch memory that the
    /// worker's queues share), and executes what it asks of the vif's `control`. The result says
    /// whether to call again; after a fault the device must be closed.
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
            match self.take_limited(control, p.clock(), arena)? {
                Some(todo) => todo,
                None => return Ok(Polled::More),
            }
        } else {
            let todo = self.batch.take(&mut self.ring, arena, self.claims)?;
            if self.batch.no_frame != 0 && !self.ask(control, arena) {
                return Ok(Polled::More);
            }
            todo
        };
        let nr_frames = self.batch.nr_frames;
        if nr_frames == 0 {
            return Ok(if self.is_late() { Polled::More } else { Polled::Idle });
        }
        let is_long = arena.used_bytes() >= BURST_BYTES_MIN;
        if self.chain.holds_frames() {
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

    /// Takes as many frames as the vif's credit allows. None: another queue has the lock, or there
    /// is no `rate` any more.
    #[cold]
    #[inline(never)]
    fn take_limited(
        &mut self,
        control: &SharedControl,
        clock: &P::Clock,
        arena: &mut Arena,
    ) -> Result<Option<Todo>, PeerFault> {
        let Some(mut locked) = control.try_lock(false) else { return Ok(None) };
        let Some(credit) = locked.credit.as_mut() else { return Ok(None) };
        let todo = self.take_within(credit, clock, arena)?;
        if self.batch.no_frame != 0 {
            locked.mark_changed();
            self.execute(&mut locked);
        }
        Ok(Some(todo))
    }

    /// Takes as many frames as the vif's credit allows.
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
                // A window has started, and no frame was taken yet.
                Some(size) if !credit.is_short(size, clock.now_ns()) && self.batch.nr_frames == 0 => {}
                _ => return Ok(todo),
            }
        }
    }

    /// Executes the batch's multicast requests, before any request of the batch is answered. False:
    /// another thread has the lock, and the batch is on the ring again.
    #[cold]
    fn ask(&mut self, control: &SharedControl, arena: &mut Arena) -> bool {
        let Some(mut locked) = control.try_lock(true) else {
            self.ring.give_back(self.batch.answers().len() as u32);
            self.batch.clear(arena);
            return false;
        };
        self.execute(&mut locked);
        true
    }

    fn execute(&mut self, control: &mut Control) {
        let mut refused = 0u64;
        control.multicast(self.batch.multicast.iter().map(|(_, ask)| *ask), |k| refused |= 1 << k);
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

    /// Passes the batch to a zero-copy port. Returns how many frames were passed.
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
        for path in self.chain.paths_mut() {
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

    /// Lets the paths release the frames that the port no longer holds, and answers those that can
    /// be answered now.
    #[cold]
    fn answer_late(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        if let (true, Some(completions)) = (self.keeps, &self.completions) {
            completions.complete(&mut self.completed);
            self.keeps = false;
            for path in self.chain.paths_mut() {
                path.complete(Some(&self.completed));
                self.keeps |= path.in_flight();
            }
            self.completed.clear();
        }
        let before = p.peer().grant_ops();
        self.chain.retire(p, &mut self.done);
        self.stats.add_grant_ops(&before, &p.peer().grant_ops());
        self.late.release(&self.done);
        self.done.clear();
        loop {
            let given = self.late.take(BATCH_SLOTS, &mut self.answers);
            if self.answers.is_empty() {
                return;
            }
            let notify = self.ring.answer_frames(&self.answers, given);
            self.notify(p, chan, notify);
        }
    }

    /// Call before sleeping. Returns true if there is work. If the port has no room, the queue asks
    /// for no event.
    pub fn final_check(&mut self) -> Result<bool, PeerFault> {
        Ok(self.is_late() || self.room == Room::Now && self.ring.final_check(1)?)
    }

    /// If the port had no room at the last check: time in nanoseconds until it is asked again.
    pub fn stands(&self) -> Option<u64> {
        match self.room {
            Room::Now => None,
            Room::Later(ns) => Some(ns),
        }
    }

    /// Whether there is work, as for [`final_check`](Self::final_check), without asking for events.
    pub fn is_pending(&mut self) -> bool {
        self.is_late() || self.room == Room::Now && self.ring.available(1) != Ok(0)
    }

    /// Frames that the port may get twice because a predecessor died. None: unknown.
    pub fn inherited(&self) -> Option<InFlight> {
        self.ring.inherited()
    }

    /// Whether frames wait for their path before they are answered. Frames that the port holds do
    /// not count, since their completion wakes the worker.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty() && !self.keeps
    }

    /// A copy of the counters.
    pub fn stats(&self) -> DirStats {
        self.stats.read()
    }

    /// Number of requests consumed from the TX ring, which wraps.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.ring.req_cons()
    }

    /// Number of requests consumed from the ring, and the front's index: two numbers of which one
    /// changes if a request comes.
    pub(super) fn progress(&self) -> (u32, u32) {
        (self.ring.req_cons(), self.ring.shown())
    }

    /// The counters, which any thread may read.
    pub fn live_stats(&self) -> Arc<LiveStats> {
        Arc::clone(&self.stats)
    }

    /// True if the ring's next request may be an answer ([`BackRing::is_doubtful`]).
    pub(super) fn is_doubtful(&self) -> bool {
        self.ring.is_doubtful()
    }

    /// The paths that serve the queue's frames.
    pub fn chain(&self) -> &Chain<P> {
        &self.chain
    }

    /// The paths that serve the queue's frames, for limiting the pages that they keep mapped.
    pub fn chain_mut(&mut self) -> &mut Chain<P> {
        &mut self.chain
    }

    /// Answers the frames that their paths and the port have let go of.
    pub fn settle(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        if !self.late.is_empty() {
            self.answer_late(p, chan);
        }
    }

    /// Number of requests that were taken and not answered.
    pub fn unanswered(&self) -> u32 {
        self.ring.unanswered()
    }

    /// Ends the queue in good order: makes the port give up the frames that it holds, and answers
    /// them.
    pub fn drain(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        self.recall();
        if !self.late.is_empty() {
            self.answer_late(p, chan);
        }
    }

    /// Makes the port give up the frames that it holds, because their pages will be unmapped.
    fn recall(&mut self) {
        if let (true, Some(completions)) = (self.keeps, &self.completions) {
            completions.give_up();
            self.chain.paths_mut().iter_mut().for_each(|path| path.complete(None));
            self.keeps = false;
        }
    }
}

impl<P: Platform> Drop for TxQueue<P> {
    fn drop(&mut self) {
        self.recall();
    }
}
