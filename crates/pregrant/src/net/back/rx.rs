//! RX of one queue: frames from the port to the guest.
//!
//! ```text
//!   port --rx_burst--> arena --place--> RxBatch --deliver--> the guest's buffers --answer--> ring
//! ```
//! Zero-copy payload of another guest ([`Loan`](crate::port::Loan)) is copied from its pages to
//! this guest's. While frames wait for slots, it is copied to private memory, so that no sender
//! waits for this guest.
//!
//! Frames that found no slots wait in the queue's own arena, and the port is asked again when they
//! are gone. So what waits is bounded by one arena and the port's own queue, and by time
//! ([`RxQueue::turn`], see [`stall`](super::stall)).

use super::Polled;
use super::guest_settings::{GuestSettings, Hashes};
use super::shared_control::SharedControl;
use super::stall::{Link, Patience, QueueState, Stall};
use super::tx::PeerRing;
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::batch::{RxBatch, Todo, bits};
use crate::net::features::RxAccepts;
use crate::net::one_slot::OneSlot;
use crate::net::path::Chain;
use crate::net::stats::{DirStats, LiveStats, Served};
use crate::platform::{Events, PeerMem, Platform};
use crate::port::{ARENA_BYTES, Arena, Burst, FrameDesc, FramePort};
use crate::ring::{BackRing, InFlight, NetRx};
use crate::units::DomId;
use alloc::boxed::Box;
use alloc::sync::Arc;

/// Number of bytes of a frame's headers that contain its VLAN tags.
const HEAD: usize = 32;
/// Interval between reports to the vif's owner of frames that are too long.
const REPORTS_AGAIN_NS: u64 = 100_000_000;
/// Number of bursts that are received without zero-copy payload, after a burst whose zero-copy
/// payload had to be copied by grant copies.
const COPIES_AGAIN: u32 = 16;
/// Largest number of bursts from the port that are dropped in one control turn.
const EXPIRED_AT_ONCE: u32 = 64;

/// The RX half of a queue at the back.
pub struct RxQueue<P: Platform> {
    ring: BackRing<NetRx, PeerRing<NetRx, P>>,
    chain: Chain<P>,
    batch: Box<RxBatch>,
    arena: Box<Arena>,
    /// Number of bursts still to be received without zero-copy payload.
    not_lent: u32,
    /// Number of the arena's frames that were delivered or dropped.
    sent: usize,
    /// Number of slots that the next frame needs; 0: no frame waits.
    wait: u32,
    accepts: RxAccepts,
    /// Set if the guest takes only frames of one slot.
    one_slot: Option<OneSlot>,
    /// Frames that are too long for the guest arrived since the vif's owner was last notified.
    long_came: bool,
    /// The time at which the vif's owner was last notified of such frames.
    long_reported_ns: u64,
    /// The hashes of the arena's frames.
    hashes: Box<Hashes>,
    hashed: bool,
    /// Number of bursts taken from the port.
    bursts: u64,
    stall: Stall,
    stats: Arc<LiveStats>,
    /// The queue's copy of the guest's settings, and the number of changes that the copy includes.
    settings: Box<GuestSettings>,
    changes: u32,
}

impl<P: Platform> RxQueue<P> {
    /// A queue over a ring that was just attached, with an arena on the heap.
    pub fn new(
        ring: BackRing<NetRx, PeerRing<NetRx, P>>,
        chain: impl Into<Chain<P>>,
        accepts: RxAccepts,
    ) -> Result<Self, PlatformError> {
        Self::with_arena(ring, chain, accepts, Box::default())
    }

    /// Like `new`, with an arena in memory that the platform chooses.
    #[inline(never)]
    pub fn in_room_of(
        p: &P,
        ring: BackRing<NetRx, PeerRing<NetRx, P>>,
        chain: impl Into<Chain<P>>,
        accepts: RxAccepts,
    ) -> Result<Self, PlatformError> {
        let mut arena = Arena::boxed(p.peer().burst_buffer(ARENA_BYTES)?)?;
        arena.take_lent(p.peer().lent_copies().is_some());
        Self::with_arena(ring, chain, accepts, arena)
    }

    #[inline(never)]
    fn with_arena(
        ring: BackRing<NetRx, PeerRing<NetRx, P>>,
        chain: impl Into<Chain<P>>,
        accepts: RxAccepts,
        mut arena: Box<Arena>,
    ) -> Result<Self, PlatformError> {
        let stats = Arc::new(LiveStats::default());
        stats.interrupted.add(ring.inherited().map_or(0, |i| i.total.into()));
        let mut chain = chain.into();
        chain.make_room(0)?;
        chain.resume(&ring)?;
        if chain.has_others() {
            arena.take_lent(true);
        }
        let buffers = chain.buffers().map(|buffers| buffers.data_len);
        let one_slot = (!accepts.sg).then(|| OneSlot::with_buffers(buffers));
        Ok(Self {
            ring,
            chain,
            batch: RxBatch::new()?,
            arena,
            not_lent: 0,
            sent: 0,
            wait: 0,
            accepts,
            one_slot,
            long_came: false,
            long_reported_ns: 0,
            hashes: memory::array(None)?,
            hashed: false,
            bursts: 0,
            stall: Stall::new(Patience::default(), true, true, 0),
            stats,
            settings: GuestSettings::new()?,
            changes: 0,
        })
    }

    /// Moves one batch from `port` to domain `of`, according to the settings in `control`. The
    /// result says whether to call again.
    pub fn poll(
        &mut self,
        p: &P,
        of: DomId,
        chan: &<P::Events as Events>::Chan,
        port: &mut dyn FramePort,
        control: &SharedControl,
    ) -> Result<Polled, PeerFault> {
        if self.sent == self.arena.len() {
            if control.changes() != self.changes {
                self.apply_settings(control, port);
            }
            self.arena.clear();
            self.sent = 0;
            self.ring.asking();
            if port.rx_burst(&mut self.arena) == 0 {
                self.ring.in_flight(0, 0);
                return Ok(Polled::Idle);
            }
            self.bursts += 1;
            if self.accepts.leaves_work(&self.arena.burst()) {
                self.stats.dropped.add(self.accepts.finish(&mut self.arena) as u64);
            }
            if let Some(one_slot) = self.one_slot {
                self.drop_long(one_slot);
            }
            self.hashed = self.settings.touches_rx();
            if self.not_lent > 0 {
                self.not_lent -= 1;
                self.arena.take_lent(self.not_lent == 0);
            }
            if self.hashed {
                // A hash may cover headers beyond the head.
                self.arena.make_private(0);
                self.stats.filtered.add(self.settings.prepare(&mut self.arena, &mut self.hashes));
            }
            self.record_in_flight(port, 0);
        }
        let first = self.sent;
        let mut burst = self.arena.burst().skip(first);
        if !self.chain.copies_long() {
            // A path has places of its own for what is in a slot.
            burst.cuts = &[];
        }
        let hashes = if self.hashed { self.hashes.get(first..).unwrap_or_default() } else { &[] };
        let (used, wait) = self.batch.place(&mut self.ring, &burst, self.accepts, hashes)?;
        self.wait = wait;
        self.sent += used;
        self.stats.dropped.add(self.batch.dropped as u64);
        let nr_frames = self.batch.nr_frames;
        if nr_frames == 0 || used > nr_frames {
            // Some were dropped, here or before.
            self.record_in_flight(port, nr_frames);
        }
        if nr_frames == 0 {
            if used > 0 {
                return Ok(Polled::More);
            }
            self.arena.make_wait(first);
            port.rx_stands();
            return Ok(Polled::Idle);
        }
        let todo = self.batch.todo();
        let before = p.peer().grant_ops();
        let served = if self.arena.lent().is_none() {
            self.chain.deliver(p, of, &mut self.batch, &burst, todo)
        } else {
            self.deliver_lent(p, of, first, todo)
        };
        let burst = self.arena.burst().skip(first);
        self.stats.add_grant_ops(&before, &p.peer().grant_ops());
        if let Some((full, most)) = self.chain.take_counts() {
            self.stats.no_room.add(full);
            self.stats.most_bytes.raise(most);
        }
        let good = nr_frames - self.batch.failed.count_ones() as usize;
        self.stats.handed_on(todo & !self.batch.failed, served);
        self.stats.errors.add((nr_frames - good) as u64);
        self.stats.bytes.add(if self.batch.failed == 0 && self.batch.dropped == 0 {
            burst.frames.iter().take(used).map(|d| d.len as u64).sum()
        } else {
            self.batch.good_bytes(&burst)
        });
        self.stats.batches.add(1);
        if self.ring.answer_frames(self.batch.answers(), nr_frames as u32).wanted() {
            self.stats.notifications.add(1);
            p.events().notify(chan);
        }
        Ok(Polled::More)
    }

    /// Delivers zero-copy frames, those of the arena from `first` on.
    #[inline(never)]
    fn deliver_lent(&mut self, p: &P, of: DomId, first: usize, todo: Todo) -> Served {
        let Self { chain, batch, arena, .. } = self;
        let (mut served, mut rest) = (Served::by_grants(todo), todo);
        if let Some(loan) = arena.lent() {
            let burst = arena.burst().skip(first);
            loan.read(|lent| {
                let burst = Burst { lent, ..burst };
                (served, rest) = chain.deliver_in_place(p, of, batch, &burst, todo);
                rest = chain.deliver_lent(p, of, batch, &burst, rest);
            });
        }
        self.stats.lent.add(u64::from((todo & !rest & !batch.failed).count_ones()));
        if rest != 0 {
            arena.make_private(first);
            chain.deliver_copies(p, of, batch, &arena.burst().skip(first), rest);
            if rest == todo {
                self.not_lent = COPIES_AGAIN;
                arena.take_lent(false);
            }
        }
        if self.sent == arena.len() {
            arena.end_loan();
        }
        served
    }

    /// Drops frames that are too long for a guest that takes one slot per frame.
    #[cold]
    fn drop_long(&mut self, one_slot: OneSlot) {
        let burst = self.arena.burst();
        let head = |desc: &FrameDesc| {
            let at = desc.at as usize;
            burst.bytes.get(at..at + (desc.len as usize).min(HEAD)).unwrap_or_default()
        };
        let frames = burst.frames.iter().enumerate();
        let long: Todo = frames
            .filter(|(_, desc)| !one_slot.takes(desc.len as usize, head(desc)))
            .fold(0, |long, (i, _)| long | 1 << i);
        for i in bits(long) {
            self.arena.drop_frame(i);
        }
        self.long_came |= long != 0;
        self.stats.too_long.add(u64::from(long.count_ones()));
    }

    /// Whether frames were [too long](super::super::one_slot) for the guest, so that its vif's
    /// owner must act: true ten times per second at most.
    pub(super) fn reports_long_frames(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        if !self.long_came {
            return false;
        }
        let now_ns = now_ns();
        if self.long_reported_ns != 0 && now_ns.saturating_sub(self.long_reported_ns) < REPORTS_AGAIN_NS {
            return false;
        }
        (self.long_came, self.long_reported_ns) = (false, now_ns.max(1));
        true
    }

    /// Updates the copy of the guest's settings, and sets how `port` distributes frames if that
    /// changed.
    #[cold]
    pub(super) fn apply_settings(&mut self, control: &SharedControl, port: &mut dyn FramePort) {
        if control.changes() == self.changes {
            return;
        }
        let steered = self.settings.steered;
        let Some(changes) = control.copy_settings(&mut self.settings) else { return };
        self.changes = changes;
        if self.settings.steered != steered {
            port.steer(self.settings.steering.clone());
        }
    }

    /// Records for a successor what is lost if this process dies now: `placed` frames, those that
    /// wait in the arena, and what the port holds.
    #[inline(always)]
    fn record_in_flight(&self, port: &dyn FramePort, placed: usize) {
        if self.ring.has_journal() {
            self.ring.in_flight((self.waiting() + placed) as u32, port.held() as u32);
        }
    }

    /// Frames that predecessors took from their ports and lost. None: unknown.
    pub fn inherited(&self) -> Option<InFlight> {
        self.ring.inherited()
    }

    /// Called before sleeping. Returns true if there is work. If frames wait, it asks for the event
    /// at which there are enough slots; otherwise for the one that ends a stall.
    pub fn final_check(&mut self) -> Result<bool, PeerFault> {
        if self.sent == self.arena.len() {
            // The next control turn sets the link up. A guest that posts its slots before this need
            // not send an event.
            return if self.stall.link() == Link::Up {
                Ok(false)
            } else {
                self.ring.final_check(self.stall.wanted(0))
            };
        }
        self.ring.final_check(self.wait)
    }

    /// Whether there is work, as for [`final_check`](Self::final_check), without asking for events.
    /// For a guest that does not announce new slots there is none.
    pub fn is_pending(&mut self) -> bool {
        let waits = self.sent != self.arena.len();
        if !self.stall.is_notified() || !waits && self.stall.link() == Link::Up {
            return false;
        }
        let wanted = if waits { self.wait } else { self.stall.wanted(0) }.max(1);
        self.ring.available(wanted).is_ok_and(|n| n >= wanted)
    }

    /// Leaves `bytes` free before a frame's data in each page and each staging buffer, from the
    /// next frame on.
    pub fn set_headroom(&mut self, bytes: u16) {
        self.batch.headroom = bytes;
    }

    /// Sets how long frames wait. `notified`: the guest announces new slots; `live`: its queue was
    /// live before this process.
    pub fn watch(&mut self, patience: Patience, notified: bool, live: bool, now_ns: u64) {
        self.stall = Stall::new(patience, notified, live, now_ns);
    }

    /// Whether a [`turn`](Self::turn) has anything to do: frames wait, or the link is not up.
    /// Reading the clock may be a system call.
    pub fn is_timed(&self) -> bool {
        self.waiting() > 0 || self.stall.link() != Link::Up
    }

    /// In a control turn: drops frames that waited too long, and checks whether the guest still
    /// posts buffers. If not, it also drops the port's frames, which are as old.
    pub fn turn(&mut self, now_ns: u64, port: &mut dyn FramePort) -> Result<(), PeerFault> {
        let needed = if self.waiting() > 0 { self.wait } else { 0 };
        let free = self.ring.available(self.stall.wanted(needed))?;
        let check = QueueState { free, needed, burst: self.bursts, batches: self.stats.batches.get() };
        if !self.stall.turn(now_ns, check) {
            return Ok(());
        }
        self.expire();
        self.ring.asking();
        let mut most = EXPIRED_AT_ONCE;
        while self.stall.link() == Link::Stalled && most > 0 && port.rx_burst(&mut self.arena) > 0 {
            self.expire();
            most -= 1;
        }
        if self.stall.link() == Link::Stalled {
            // Its frames for the guest were taken to be dropped.
            port.rx_stands();
        }
        self.record_in_flight(port, 0);
        Ok(())
    }

    /// Drops the frames that wait for slots.
    fn expire(&mut self) {
        let gone = self.arena.burst().skip(self.sent).frames.iter().filter(|f| f.len > 0).count();
        self.stats.expired.add(gone as u64);
        self.arena.clear();
        (self.sent, self.wait) = (0, 0);
    }

    /// Time of the next [`turn`](Self::turn) that has something to do, unless slots come before.
    pub fn deadline_ns(&self) -> Option<u64> {
        if self.waiting() > 0 { self.stall.deadline_ns() } else { None }
    }

    /// Whether the guest receives frames, as of the last turn.
    pub fn link(&self) -> Link {
        self.stall.link()
    }

    /// Number of times the guest received no frames for so long that the link went down.
    pub fn stalls(&self) -> u64 {
        self.stall.stalls()
    }

    /// Frames that were taken from the port and wait for slots; they are lost if the queue ends
    /// now.
    pub fn waiting(&self) -> usize {
        self.arena.len() - self.sent
    }

    /// Number of requests that were taken and not answered.
    pub fn unanswered(&self) -> u32 {
        self.ring.unanswered()
    }

    /// A copy of the counters.
    pub fn stats(&self) -> DirStats {
        self.stats.read()
    }

    /// Number of requests consumed from the RX ring, which wraps.
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
}
