//! One disk at the front: from the back's offer to live queues, and back.
//!
//! ```text
//!   1 Initialising --back at 2: grant, offer channels, write keys--> 3 Initialised --back at 4: figures read, live--> 4 Connected
//!         ^                                                                                                              |
//!         +------------------- 6 Closed <----------- 5 Closing <--------------- back at 5 or 6 -------------------------+
//! ```
//! Every step is taken in [`FrontVbd::step`], which the owner calls when a watch fires; none runs
//! on the data path. The back's properties are read when it is connected, and again whenever it
//! announces a change, since a disk may grow while it is used. The front promises persistent grants
//! before it knows whether the back uses them, and keeps the promise in any case.
//!
//! What a back may do: offer anything, close at any time, keep pages mapped
//! ([`regions`](crate::grants::regions)), report a wrong length. The back refuses requests beyond
//! the end. Requests that were not answered when it closes are [lost](FrontVbd::take_lost), and
//! reported as such.

use super::not_offered::{Asked, NotOffered};
use super::own_pages::{OwnAsk, REFUSED, end_grants};
use super::queue::{Answer, Ask, FrontQueue, NotAsked, QueueConfig};
use crate::blk::disk::DiskFigures;
use crate::blk::features::{BackFeatures, FrontRequest, QueueKeys, of_front_connection, read_figures};
use crate::error::{PeerFault, PlatformError};
use crate::grants::regions::{Granting, Region, Regions};
use crate::platform::{Clock, Platform};
use crate::units::{DomId, GrantRef};
use crate::wire::blkif::Abi;
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::front::{Front, FrontError, lets_go};
use crate::xenbus::state::{Handshake, STEPS_AT_ONCE, XenbusState};
use alloc::vec::Vec;

/// A front's settings. Of what they ask for, the front gets what the back offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontConfig {
    /// Number of queues.
    pub queues: u32,
    /// log2 of the pages of each ring.
    pub ring_order: u32,
    /// The layout of slots.
    pub abi: Abi,
    /// Whether the same granted pages are used again and again, the one that was returned last
    /// first.
    pub persistent: bool,
    /// How pages are granted without persistent grants.
    pub granting: Granting,
    /// Largest number of segments of a request, if the back takes indirect requests; up to 11 need
    /// none.
    pub max_segments: u32,
    /// Largest number of pages of each queue for data and segment lists. They are allocated and
    /// granted on demand, and kept; there are fewer if memory is short.
    pub pages: usize,
}

impl Default for FrontConfig {
    fn default() -> Self {
        Self {
            queues: 1,
            ring_order: 0,
            abi: Abi::X86_64,
            persistent: true,
            granting: Granting::PerFrame,
            max_segments: 64,
            pages: 512,
        }
    }
}

/// The result of [`FrontVbd::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrontStep {
    /// There is nothing to do until the next watch event.
    Waiting,
    /// The queues have become live.
    Live,
    /// The disk has another length.
    Resized,
    /// The toolstack wants the disk gone, but it is [in use](FrontVbd::set_in_use), so its queues
    /// stay live.
    StaysInUse,
    /// The queues have ended.
    Closed,
}

/// One disk, which another domain serves.
pub struct FrontVbd<P: Platform> {
    front: Front,
    config: FrontConfig,
    queues: Vec<FrontQueue<P>>,
    figures: Option<DiskFigures>,
    /// Pages that are granted to the back and not in use.
    regions: Regions<P>,
    /// The guest's own memory, for requests without a copy.
    memory: Option<Region<P>>,
    /// Grants of the guest's own memory that a back still uses although its queue has ended.
    left: Vec<GrantRef>,
    /// Tags of requests that had no answer when their queue ended.
    lost: Vec<u64>,
    /// Whether both ends use persistent grants, as of the last connect.
    persistent: bool,
    /// Whether the back accepts barriers, as of the last connect.
    barrier: bool,
    /// Whether xenstore says that the disk is in use.
    reported: bool,
    /// What of our request the back does not offer, as of the last set-up.
    not_offered: Vec<NotOffered>,
}

/// The text in xenstore for a disk that does not close yet.
const IN_USE: &str = "the disk is in use in the guest: it closes once no program has it open";

impl<P: Platform> FrontVbd<P> {
    /// Creates the front of a disk in state 1, as the toolstack created it.
    pub fn new(to: DomId, config: FrontConfig, reconnect: bool) -> Self {
        Self {
            front: Front::new(Handshake::Confirmed, reconnect),
            config,
            queues: Vec::new(),
            figures: None,
            regions: Regions::new(to),
            memory: None,
            left: Vec::new(),
            lost: Vec::new(),
            persistent: false,
            barrier: false,
            reported: false,
            not_offered: Vec::new(),
        }
    }

    /// Continues where a predecessor in this domain (a front that died, or the kernel's blkfront)
    /// left the device: a connected device is closed first, and a closed one begins again. Call it
    /// before the first [`step`](Self::step), and only for a front that reconnects.
    pub fn succeed<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.front.succeed(bus)
    }

    /// The front's own state.
    pub fn state(&self) -> XenbusState {
        self.front.state()
    }

    /// Sets whether the disk has a user who would lose data if it closed on the toolstack's
    /// request. Once the disk is no longer in use, a [`step`](Self::step) closes it.
    pub fn set_in_use(&mut self, in_use: bool) {
        self.front.set_in_use(in_use && self.is_live());
    }

    /// True if the toolstack wants the disk gone while it is in use, so that it stays live.
    pub fn stays(&self) -> bool {
        self.front.stays()
    }

    /// True if the disk can accept requests.
    pub fn is_live(&self) -> bool {
        self.figures.is_some()
    }

    /// The disk's properties as the back reported them. None: the disk is not connected.
    pub fn figures(&self) -> Option<&DiskFigures> {
        self.figures.as_ref()
    }

    /// The request that makes answered writes durable: a flush, or an empty barrier if the back has
    /// no flush. None: the disk has no cache.
    pub fn flush_ask(&self) -> Option<Ask<'static>> {
        let figures = self.figures.as_ref()?;
        match (figures.flush, self.barrier) {
            (true, _) => Some(Ask::Flush),
            (false, true) => Some(Ask::Barrier { sector: 0, bytes: &[] }),
            (false, false) => None,
        }
    }

    /// Whether both ends use persistent grants.
    pub fn persists(&self) -> bool {
        self.persistent
    }

    /// What of our request the back does not offer, as of the last set-up. The disk works with
    /// less.
    pub fn not_offered(&self) -> &[NotOffered] {
        &self.not_offered
    }

    /// Reads the back's state and makes the steps that it allows. After an error call
    /// [`close`](Self::close).
    pub fn step<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<FrontStep, FrontError<B::Error>> {
        use XenbusState as S;
        self.release_unneeded(p);
        let mut came_to = FrontStep::Waiting;
        for _ in 0..STEPS_AT_ONCE {
            let back = bus.peer_state().map_err(FrontError::Keys)?;
            let next = self.front.next(bus, back, p.clock().now_ns()).map_err(FrontError::Keys)?;
            let Some(next) = next else {
                if self.is_live() && back == S::Connected && came_to == FrontStep::Waiting {
                    return self.recheck(bus);
                }
                return Ok(came_to);
            };
            match next {
                S::Initialised => self.set_up(p, bus)?,
                S::Connected => {
                    let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
                    self.persistent = self.config.persistent && back.persistent;
                    self.barrier = back.barrier;
                    self.figures = Some(read_figures(bus).map_err(FrontError::Keys)?);
                    came_to = FrontStep::Live;
                }
                S::Closing if self.front.stays() => {
                    came_to = FrontStep::StaysInUse;
                    // This is for a toolstack that waits to detach; a guest may be unable to write
                    // it.
                    self.reported = bus.report(IN_USE).is_ok();
                }
                S::Closing | S::Closed => {
                    if core::mem::take(&mut self.reported) {
                        let _ = bus.recant(); // the directory may be gone
                    }
                    if !self.queues.is_empty() && lets_go(back) {
                        self.tear_down(p);
                        came_to = FrontStep::Closed;
                    }
                    self.figures = None;
                }
                _ => {}
            }
            self.front.enter(bus, next, of_front_connection).map_err(FrontError::Keys)?;
        }
        Ok(came_to) // the back's state changed meanwhile, and there is an event that says so
    }

    /// Handles that the back announced again that it is connected.
    fn recheck<B: DeviceBus>(&mut self, bus: &mut B) -> Result<FrontStep, FrontError<B::Error>> {
        let figures = read_figures(bus).map_err(FrontError::Keys)?;
        let grown = self.figures.is_some_and(|before| before.sectors != figures.sectors);
        if let Some(before) = &mut self.figures {
            before.sectors = figures.sectors;
        }
        Ok(if grown { FrontStep::Resized } else { FrontStep::Waiting })
    }

    /// Begins to close from this end. Keep calling [`step`](Self::step) until
    /// [`is_closed`](Self::is_closed).
    pub fn close<B: DeviceBus>(&mut self, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        self.figures = None;
        self.front.close(bus, why)
    }

    /// The toolstack removed the disk with its directories: it is closed without any write to
    /// xenstore. A front that reconnects waits for another disk of the same number.
    pub fn removed(&mut self, p: &P) {
        self.tear_down(p);
        self.front.removed();
    }

    /// Whether the disk is closed and the back uses none of its memory any more.
    pub fn is_closed(&self) -> bool {
        self.state() == XenbusState::Closed
            && self.queues.is_empty()
            && self.regions.is_empty()
            && self.left.is_empty()
    }

    /// Whether a disk that does not reconnect still waits for pages that the back uses:
    /// [`step`](Self::step) tries again to release them.
    pub fn awaits_release(&self) -> bool {
        !(self.front.reconnects() || self.regions.is_empty() && self.left.is_empty())
    }

    /// The time of the next [`step`](Self::step) of a disk that waits before it begins again, by
    /// the platform's clock. None: the disk does not wait.
    pub fn begins_at_ns(&self) -> Option<u64> {
        self.front.begins_at_ns()
    }

    /// Grants rings and pages, offers channels, and writes the keys.
    fn set_up<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<(), FrontError<B::Error>> {
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        self.tear_down(p);
        self.regions.begin();
        let most = self.config.queues.clamp(1, back.max_queues);
        let mut keys: Vec<QueueKeys> = Vec::new();
        for _ in 0..most {
            match self.queue(p, &back) {
                Ok(queue_keys) => keys.push(queue_keys),
                Err(e) if keys.is_empty() => return Err(e.into()),
                Err(_) => break, // fewer do as well
            }
        }
        let FrontConfig { queues, ring_order, max_segments, .. } = self.config;
        self.not_offered =
            NotOffered::by(&back, Asked { queues, ring_order, max_segments }, keys.len() as u32);
        let (abi, persistent) = (self.config.abi, self.config.persistent);
        let request = FrontRequest { abi, persistent, queues: keys };
        self.regions.mark_exposed();
        bus.publish(&request.pairs(), of_front_connection).map_err(FrontError::Keys)
    }

    /// Creates one more queue.
    fn queue(&mut self, p: &P, back: &BackFeatures) -> Result<QueueKeys, PlatformError> {
        let FrontConfig { abi, ring_order, persistent, granting, max_segments, pages, .. } = self.config;
        // A reference that the back may have mapped must keep naming its page.
        let granting = if persistent { Granting::Standing } else { granting };
        let max_indirect = max_segments.min(back.max_indirect_segments);
        let ring_order = ring_order.min(back.max_ring_order);
        let config = QueueConfig { abi, ring_order, pages, granting, max_indirect };
        let (queue, ring, channel) = FrontQueue::new(p, &mut self.regions, config)?;
        self.queues.push(queue);
        Ok(QueueKeys::new(ring, channel))
    }

    /// Releases the pages that are not in use, if the front never reconnects.
    fn release_unneeded(&mut self, p: &P) {
        end_grants(p, &mut self.left);
        if !self.front.reconnects() {
            self.regions.release(p);
        }
    }

    fn tear_down(&mut self, p: &P) {
        self.figures = None;
        for q in core::mem::take(&mut self.queues) {
            self.lost.extend(q.unanswered());
            self.left.extend(q.end(p, &mut self.regions));
        }
        self.release_unneeded(p);
    }

    /// Tags of requests whose queue ended before they were answered. The caller may repeat them;
    /// the back may have executed them.
    pub fn take_lost(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.lost)
    }

    /// Number of live queues.
    pub fn nr_queues(&self) -> usize {
        if self.is_live() { self.queues.len() } else { 0 }
    }

    /// Queue `i`, while it is live.
    pub fn queue_mut(&mut self, i: usize) -> Option<&mut FrontQueue<P>> {
        if self.is_live() { self.queues.get_mut(i) } else { None }
    }

    /// Calls [`FrontQueue::submit`] on queue `i`.
    pub fn submit(&mut self, p: &P, i: usize, ask: &Ask<'_>, tag: u64) -> Result<(), NotAsked> {
        let is_live = self.is_live();
        let Self { queues, regions, .. } = self;
        let queue = queues.get_mut(i).filter(|_| is_live).ok_or(NotAsked::Closed)?;
        queue.submit(p, regions, ask, tag)
    }

    /// Sets the `memory` that requests may use directly from now on, pages of a
    /// [`GrantTable`](crate::platform::GrantTable): see [`own_pages`](super::own_pages). Returns
    /// the previous memory, which no back may use any more
    /// ([`is_memory_free`](Self::is_memory_free)).
    pub fn use_memory(&mut self, memory: Option<Region<P>>) -> Option<Region<P>> {
        core::mem::replace(&mut self.memory, memory)
    }

    /// True if no request and no back uses a page of the memory set by
    /// [`use_memory`](Self::use_memory).
    pub fn is_memory_free(&self) -> bool {
        self.left.is_empty() && self.queues.iter().all(|q| q.own_grants() == 0)
    }

    /// The memory set by [`use_memory`](Self::use_memory).
    pub fn memory(&self) -> Option<&Region<P>> {
        self.memory.as_ref()
    }

    /// Calls [`FrontQueue::submit_own`] on queue `i`.
    pub fn submit_own(&mut self, p: &P, i: usize, ask: &OwnAsk, tag: u64) -> Result<(), NotAsked> {
        let is_live = self.is_live();
        let Self { queues, regions, memory, .. } = self;
        let queue = queues.get_mut(i).filter(|_| is_live).ok_or(NotAsked::Closed)?;
        let memory = memory.as_ref().filter(|_| !self.config.persistent).ok_or(REFUSED)?;
        queue.submit_own(p, regions, memory, ask, tag)
    }

    /// [`FrontQueue::most_bytes`] of queue `i`; 0 if the queue is not live.
    pub fn most_bytes(&self, i: usize) -> usize {
        self.queues.get(i).filter(|_| self.is_live()).map_or(0, FrontQueue::most_bytes)
    }

    /// Calls [`FrontQueue::publish`] on queue `i`.
    pub fn publish(&mut self, p: &P, i: usize) {
        if let Some(q) = self.queue_mut(i) {
            q.publish(p);
        }
    }

    /// Calls [`FrontQueue::take`] on queue `i`.
    pub fn take(&mut self, p: &P, i: usize, each: impl FnMut(Answer<'_, P>)) -> Result<usize, PeerFault> {
        self.queue_mut(i).map_or(Ok(0), |q| q.take(p, each))
    }

    /// Calls [`FrontQueue::arm`] on all queues. True: there is an answer.
    pub fn arm(&mut self, p: &P) -> Result<bool, PeerFault> {
        let mut work = false;
        for i in 0..self.nr_queues() {
            work |= self.queues[i].arm(p)?;
        }
        Ok(work)
    }

    /// Whether any queue has an answer. It does not ask for events.
    pub fn is_pending(&mut self) -> bool {
        let live = self.nr_queues();
        self.queues[..live].iter_mut().any(FrontQueue::is_pending)
    }
}
