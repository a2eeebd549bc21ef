//! TX of one queue, from the guest: frames in private memory to the ring.
//!
//! ```text
//!   Burst --send--> runs of frames --chain--> memory of a free id, and its reference --push--> ring --publish-->
//!          ids <--reclaim-- answers
//! ```
//!
//! Each path of the [chain](FrontChain) takes the frames that fit one of its slots; the last takes longer ones, slot by slot. A
//! [data ring](SendArea) comes before the last: what fits no slot of the others goes there whole, until it is full. Ids are
//! used again in the order in which they came back. A received buffer is sent on by its own id ([`allow_send_on`](TxFront::allow_send_on)), and is free for RX
//! when its request was answered; so is a page of the guest's own ([`tx_own_pages`](super::tx_own_pages)). What the back may do: answer an id that is not in flight, or too much (faults: the device is closed); never answer (the queue is full);
//! hold on to a page (its id is not used again until it lets go).

use super::regions::OwnRing;
use crate::error::{PeerFault, PlatformError};
use crate::net::headers::MacAddr;
use crate::net::path::any_front::with_path;
use crate::net::path::data_ring::front::SendArea;
use crate::net::path::data_ring::{PREFETCHED, rounded};
use crate::net::path::gref_mapping::cache::GrefCache;
use crate::net::path::{AnyFrontPath, FrontChain, FrontPath};
use crate::net::stats::{Counted, DirStats};
use crate::platform::{Events, Platform};
use crate::port::{BURST_FRAMES, Burst, MAX_FRAME, Offload};
use crate::ring::{FrontRing, NetTx, RingMem};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::{
    Extra, GSO_TYPE_TCPV4, GSO_TYPE_TCPV6, MCAST_LIST_MAX, RSP_NULL, RSP_OKAY, TXF_CSUM_BLANK, TXF_DATA_RING,
    TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_MORE_DATA, TXF_STAGING_BUFFER, TxRequest,
};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Frames up to this length have the buffers of the whole burst prefetched before the first is filled; longer ones
/// have the next two.
const SHORT: usize = 256;

/// Ids that are free, first come first served.
pub(super) struct FreeIds {
    ids: Box<[u16]>,
    head: u32,
    tail: u32,
}

impl FreeIds {
    fn new(n: u32) -> Self {
        Self { ids: (0..n as u16).collect(), head: 0, tail: n }
    }
    #[inline(always)]
    pub(super) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
    #[inline(always)]
    pub(super) fn take(&mut self) -> u16 {
        let id = self.ids[self.head as usize & (self.ids.len() - 1)];
        self.head = self.head.wrapping_add(1);
        id
    }
    /// The id that will be taken after `ahead` others.
    #[inline(always)]
    pub(super) fn peek(&self, ahead: u32) -> u16 {
        self.ids[self.head.wrapping_add(ahead) as usize & (self.ids.len() - 1)]
    }
    #[inline(always)]
    pub(super) fn give(&mut self, id: u16) {
        let mask = self.ids.len() - 1;
        self.ids[self.tail as usize & mask] = id;
        self.tail = self.tail.wrapping_add(1);
    }
}

/// The front's TX half of a queue.
pub struct TxFront<P: Platform> {
    pub(super) slots: Slots<P>,
    pub(super) chain: FrontChain<P>,
    /// The half for TX of a data ring.
    pub(super) area: Option<SendArea<P>>,
    /// Ids whose page the back has not let go of.
    busy: Vec<u16>,
    /// Ids of requests that carry a multicast wish and no frame.
    wishes: Vec<u16>,
    wishes_refused: u64,
    pub(super) limits: TxLimits,
    sent_on: SentOn,
    pub(super) own: Option<Box<OwnTx>>,
}

/// Pages of the guest's own that frames are sent from.
pub(super) struct OwnTx {
    pub(super) cache: GrefCache,
    /// By id of the request: the page's place, or [`NO_PLACE`].
    pub(super) places: Box<[u32]>,
    /// For frames that no single page holds.
    pub(super) scratch: Box<[u8]>,
}

const NO_PLACE: u32 = u32::MAX;

/// Received staging buffers that are on their way.
#[derive(Default)]
struct SentOn {
    /// The id of the first RX buffer in the queue's lists; None: the back takes none.
    first_id: Option<u16>,
    /// By id of the request: the buffer, or [`NO_BUFFER`].
    buffers: Box<[u16]>,
    /// Those whose requests were answered.
    returned: Vec<u16>,
}

const NO_BUFFER: u16 = u16::MAX;

/// The ring, and which ids are on it.
pub(super) struct Slots<P: Platform> {
    pub(super) ring: FrontRing<NetTx, OwnRing<NetTx, P>>,
    pub(super) free: FreeIds,
    /// By id: a request is in flight.
    pub(super) in_flight: Box<[bool]>,
    extras_in_flight: u32,
    /// Scratch of a burst: where its frames go.
    places: Box<[Place; BURST_FRAMES]>,
    pub(super) stats: DirStats,
}

/// What the back takes (docs/protocol 2.8: `feature-sg`, `feature-gso-*`). Frames beyond it are dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxLimits {
    /// Frames over several slots.
    pub sg: bool,
    /// TCPv4 segments larger than the MTU.
    pub gso_tcpv4: bool,
    /// TCPv6 segments larger than the MTU.
    pub gso_tcpv6: bool,
}

impl TxLimits {
    /// A back that takes everything.
    pub const NONE: Self = Self { sg: true, gso_tcpv4: true, gso_tcpv6: true };

    pub(super) fn allow(self, len: usize, gso_type: u8) -> bool {
        let gso = match gso_type {
            0 => true,
            GSO_TYPE_TCPV4 => self.sg && self.gso_tcpv4,
            GSO_TYPE_TCPV6 => self.sg && self.gso_tcpv6,
            _ => false,
        };
        gso && (self.sg || len <= PAGE_SIZE)
    }
}

/// What became of the first frames of a burst.
enum InArea {
    /// So many are in the data ring.
    Sent(usize),
    /// The first is none for it.
    NotForIt,
    /// The ring has no slot for it, or there is no id.
    NoRoom,
    /// The data ring has no room for it.
    Full,
}

/// Where a frame goes, and the request that says so.
#[derive(Clone, Copy, Default)]
struct Place {
    /// In the region.
    at: u32,
    request: [u32; 3],
}

/// Copies the frames of a run to their places and writes their requests, the second pass of it.
///
/// A function of its own, with as little in it as can be: each store waits here for those before it, whose lines come from the back's
/// core, so that two spilled registers a frame took a fifth of the frames (`bench net`, staging, TX, 64 B).
#[inline(never)]
fn fill<M: RingMem<Kind = NetTx>, B: SharedBytes>(
    ring: &FrontRing<NetTx, M>,
    bytes: &B,
    burst: &Burst<'_>,
    places: &[Place],
) {
    for (k, (desc, place)) in burst.frames.iter().zip(places).enumerate() {
        if let (Some(next), Some(desc)) = (places.get(k + 2), burst.frames.get(k + 2))
            && desc.len as usize > SHORT
        {
            bytes.prefetch_write(next.at as usize, (desc.len as usize).min(1024));
        }
        let from = desc.at as usize;
        let fits = bytes.copy_in(place.at as usize, &burst.bytes[from..from + desc.len as usize]);
        debug_assert!(fits, "a slot lies in its region");
        ring.write(k as u32, &TxRequest::from_words(place.request));
    }
}

impl<P: Platform> Slots<P> {
    /// Slots that frames can take now.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.ring.free().min(self.free.len())
    }

    /// Frames from the first that fit a slot of `path`, but none of those that go by one ahead of it, and that need no extra
    /// info. An error of the platform (no grant to be had) ends the run, and is told where it is the first frame's.
    ///
    /// Compiled for each path apart, and called once a run.
    #[inline(never)]
    fn send_run<F: FrontPath<P>>(
        &mut self,
        p: &P,
        path: &mut F,
        ahead: &mut [AnyFrontPath<P>],
        burst: &Burst<'_>,
    ) -> Result<usize, PlatformError> {
        let shorter = ahead.iter().map(AnyFrontPath::slot_bytes).max().unwrap_or(0);
        let limit = path.slot_bytes();
        let room = (self.room() as usize).min(burst.frames.len()).min(BURST_FRAMES);
        let mut n = 0;
        let mut bytes = 0;
        // First pass: ids, places and requests, and the slots' cache lines asked for in the exclusive state.
        for desc in &burst.frames[..room] {
            let len = desc.len as usize;
            if len <= shorter || len > limit || desc.offload.gso_type != 0 {
                break;
            }
            let id = self.free.take();
            let gref = match path.grant(p, id) {
                Ok(gref) => gref,
                Err(e) => {
                    self.free.give(id);
                    if n == 0 {
                        return Err(e);
                    }
                    break;
                }
            };
            let offset = path.offset(id, len);
            let at = path.start(id) + offset;
            if len <= SHORT {
                path.bytes().prefetch_write(at, len);
            }
            let flags = flags_of(desc.offload) | F::TX_FLAGS;
            let req = TxRequest { gref, offset: offset as u16, flags, id, size: desc.len as u16 };
            self.places[n] = Place { at: at as u32, request: req.to_words() };
            self.in_flight[id as usize] = true;
            bytes += desc.len as u64;
            n += 1;
        }
        fill(&self.ring, path.bytes(), burst, &self.places[..n]);
        if !ahead.is_empty() {
            self.heads(ahead, burst, n);
        }
        self.ring.advance(n as u32);
        self.stats.bytes += bytes;
        self.stats.handed_on_by(F::COUNTED, n as u64);
        // The next burst's lines, as many as this one had, begin to come while this one's stores drain into the fence of `publish`.
        if let Some(last) = burst.frames[..n].last()
            && last.len as usize <= SHORT
        {
            for k in 0..self.free.len().min(n as u32) {
                let (id, len) = (self.free.peek(k), last.len as usize);
                path.bytes().prefetch_write(path.start(id) + path.offset(id, len), len);
            }
        }
        Ok(n)
    }

    /// Frames from the first that `area` has room for, but none that goes by a path ahead of it, whose slots have `shorter` bytes at
    /// most.
    fn send_in_area(
        &mut self,
        area: &mut SendArea<P>,
        burst: &Burst<'_>,
        shorter: usize,
        limits: TxLimits,
    ) -> InArea {
        let (mut sent, mut slots, mut bytes) = (0, 0, 0);
        let mut ended = InArea::NotForIt;
        let frames = &burst.frames[..burst.frames.len().min(BURST_FRAMES)];
        // Of short frames all, of long ones the next two, as in pages of their own.
        let mut ahead = 0;
        for (k, desc) in frames.iter().enumerate() {
            let len = desc.len as usize;
            if k >= 2 && len > SHORT {
                break;
            }
            area.prefetch(ahead, len.min(PREFETCHED));
            ahead += rounded(len);
        }
        for (k, desc) in frames.iter().enumerate() {
            let (len, gso) = (desc.len as usize, desc.offload.gso_type != 0);
            let long = gso || len > PAGE_SIZE;
            if len == 0
                || len <= shorter && !gso
                || len > MAX_FRAME
                || long && !limits.allow(len, desc.offload.gso_type)
            {
                break;
            }
            if self.ring.free() < slots + 1 + u32::from(gso) || self.free.len() == 0 {
                ended = InArea::NoRoom;
                break;
            }
            let from = desc.at as usize;
            let id = self.free.peek(0);
            let Some(place) = area.put(id, &burst.bytes[from..from + len]) else {
                ended = InArea::Full;
                break;
            };
            if let Some([next, later]) = frames.get(k + 1..k + 3)
                && later.len as usize > SHORT
            {
                area.prefetch(rounded(next.len as usize), (later.len as usize).min(PREFETCHED));
            }
            self.free.take();
            self.in_flight[id as usize] = true;
            let flags = TXF_DATA_RING | flags_of(desc.offload) | if gso { TXF_EXTRA_INFO } else { 0 };
            self.ring.write(slots, &TxRequest { gref: place, offset: 0, flags, id, size: len as u16 });
            slots += 1;
            if gso {
                let Offload { gso_size: size, gso_type, .. } = desc.offload;
                let extra = Extra::Gso { size, gso_type };
                self.ring.write(slots, &TxRequest::from_words(extra.to_tx_words(false)));
                slots += 1;
                self.extras_in_flight += 1;
            }
            bytes += len as u64;
            sent += 1;
        }
        if sent == 0 {
            return ended;
        }
        self.ring.advance(slots);
        self.stats.bytes += bytes;
        self.stats.handed_on_by(Counted::DataRing, sent as u64);
        InArea::Sent(sent)
    }

    /// Tells the paths ahead of the heads of a run.
    #[inline(never)]
    fn heads(&self, ahead: &mut [AnyFrontPath<P>], burst: &Burst<'_>, n: usize) {
        for (k, place) in self.places[..n].iter().enumerate() {
            let id = TxRequest::from_words(place.request).id;
            ahead.iter_mut().for_each(|other| other.head(id, burst.frame(k)));
        }
    }

    /// One frame over slots of `path`, the last one or one that it fits a slot of, with an extra info where it is to be cut. False: no
    /// room now; else the ids that are to be freed, where it failed.
    fn send_long<F: FrontPath<P>>(
        &mut self,
        p: &P,
        path: &mut F,
        ahead: &mut [AnyFrontPath<P>],
        (frame, offload): (&[u8], Offload),
    ) -> Result<bool, (PlatformError, [u16; MAX_FRAME_SLOTS], usize)> {
        let slots = frame.len().div_ceil(PAGE_SIZE) as u32;
        let split = slots > 1 && ahead.iter().any(AnyFrontPath::takes_first);
        let gso = offload.gso_type != 0;
        if self.ring.free() < slots + gso as u32 || self.free.len() < slots {
            return Ok(false);
        }
        // All grants first: nothing is on the ring until the whole frame can be.
        let mut reqs = [TxRequest::default(); MAX_FRAME_SLOTS];
        for (k, piece) in frame.chunks(PAGE_SIZE).enumerate() {
            let id = self.free.take();
            let flags = TXF_MORE_DATA | F::TX_FLAGS;
            reqs[k] = TxRequest { gref: 0, offset: 0, flags, id, size: piece.len() as u16 };
            if k == 0 && split {
                continue; // `head` puts it there
            }
            let granted = if slots == 1 || path.carries_all() { path.grant(p, id) } else { Err(NO_PAGES) };
            match granted {
                Ok(gref) => reqs[k].gref = gref,
                Err(e) => return Err((e, reqs.map(|req| req.id), k + 1)),
            }
            let fits = path.bytes().copy_in(path.start(id), piece);
            debug_assert!(fits, "a slot lies in its region");
        }
        let reqs = &mut reqs[..slots as usize];
        ahead.iter_mut().for_each(|other| other.head(reqs[0].id, frame));
        if let Some(last) = reqs.last_mut() {
            last.flags = F::TX_FLAGS;
        }
        reqs[0].size = frame.len() as u16;
        reqs[0].flags |= flags_of(offload) | if gso { TXF_EXTRA_INFO } else { 0 };
        for (k, req) in reqs.iter().enumerate() {
            self.in_flight[req.id as usize] = true;
            self.ring.push(req);
            if k == 0 && gso {
                let extra = Extra::Gso { size: offload.gso_size, gso_type: offload.gso_type };
                self.ring.push(&TxRequest::from_words(extra.to_tx_words(false)));
                self.extras_in_flight += 1;
            }
        }
        self.stats.bytes += frame.len() as u64;
        self.stats.handed_on_by(F::COUNTED, 1);
        Ok(true)
    }
}

/// A queue that was made without the memory that its frames need.
const NO_PAGES: PlatformError =
    PlatformError { op: "send a frame that needs ordinary pages, without any", code: -22 };

impl<P: Platform> TxFront<P> {
    /// A queue over a ring that was just initialised. There are as many ids as have memory, a power of two; fewer than the
    /// ring has slots where memory is short.
    pub fn new(ring: FrontRing<NetTx, OwnRing<NetTx, P>>, chain: FrontChain<P>) -> Self {
        let n = chain.ids().min(ring.size());
        debug_assert!(n.is_power_of_two());
        Self {
            slots: Slots {
                ring,
                free: FreeIds::new(n),
                in_flight: vec![false; n as usize].into_boxed_slice(),
                extras_in_flight: 0,
                places: Box::new([Place::default(); BURST_FRAMES]),
                stats: DirStats::default(),
            },
            chain,
            area: None,
            busy: Vec::with_capacity(n as usize),
            wishes: Vec::new(),
            wishes_refused: 0,
            limits: TxLimits::NONE,
            sent_on: SentOn::default(),
            own: None,
        }
    }

    /// The back takes received buffers, the first of which has this id in the queue's lists (docs/protocol 3.5).
    pub fn allow_send_on(&mut self, first_id: u16) {
        let n = self.slots.in_flight.len();
        self.sent_on = SentOn {
            first_id: Some(first_id),
            buffers: vec![NO_BUFFER; n].into_boxed_slice(),
            returned: Vec::with_capacity(n),
        };
    }

    /// Whether it does.
    #[inline(always)]
    pub fn sends_on(&self) -> bool {
        self.sent_on.first_id.is_some()
    }

    /// Writes a request for what is in RX buffer `buffer`, `len` bytes from `offset` on; the next [`publish`](Self::publish) shows it.
    /// False: no room, or the back takes none; the buffer is not taken then.
    #[inline(always)]
    #[must_use]
    pub(super) fn send_on(&mut self, buffer: u16, (offset, len): (u16, u16), offload: Offload) -> bool {
        let Some(first_id) = self.sent_on.first_id else { return false };
        let slots = &mut self.slots;
        if slots.room() == 0 {
            return false;
        }
        let id = slots.free.take();
        slots.in_flight[usize::from(id)] = true;
        self.sent_on.buffers[usize::from(id)] = buffer;
        let (gref, flags) = (u32::from(first_id + buffer), flags_of(offload) | TXF_STAGING_BUFFER);
        slots.ring.push(&TxRequest { gref, offset, flags, id, size: len });
        slots.stats.bytes += u64::from(len);
        slots.stats.handed_on_by(Counted::Staged, 1);
        true
    }

    /// A buffer whose request was answered: RX's again.
    #[inline(always)]
    pub fn returned(&mut self) -> Option<u16> {
        self.sent_on.returned.pop()
    }

    /// Has frames go through a data ring that has as many ids as the queue; before the first one.
    pub fn set_area(&mut self, area: Option<SendArea<P>>) {
        self.area = area;
    }

    /// Takes the data ring away, before the first frame or when the queue is over.
    pub fn take_area(&mut self) -> Option<SendArea<P>> {
        self.area.take()
    }

    /// Has frames go from pages of the guest's own, where `cache` says that the back has them; before the first one.
    pub fn set_cache(&mut self, cache: GrefCache) {
        let places = vec![NO_PLACE; self.slots.in_flight.len()].into_boxed_slice();
        self.own = Some(Box::new(OwnTx { cache, places, scratch: vec![0; MAX_FRAME].into_boxed_slice() }));
    }

    /// Takes that away, when the queue is over.
    pub fn take_cache(&mut self) -> Option<GrefCache> {
        self.own.take().map(|own| own.cache)
    }

    /// Whether there is one.
    pub fn has_area(&self) -> bool {
        self.area.is_some()
    }

    /// Tells what the back takes.
    pub fn limit(&mut self, limits: TxLimits) {
        self.limits = limits;
    }

    /// Slots that frames can take now.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.slots.room()
    }

    /// Requests without an answer yet.
    pub fn in_flight(&self) -> u32 {
        self.slots.ring.in_flight()
    }

    /// Writes as many frames of `burst` to the ring as fit, from the first, and publishes them. Returns how many it
    /// took; frames marked as dropped count as taken. An error of the platform (no grant to be had) stops it early.
    pub fn send(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        burst: &Burst<'_>,
    ) -> Result<usize, PlatformError> {
        let sent = self.queue(p, burst);
        self.publish(p, chan);
        sent
    }

    /// The same; the next [`publish`](Self::publish) shows them.
    pub(super) fn queue(&mut self, p: &P, burst: &Burst<'_>) -> Result<usize, PlatformError> {
        let mut sent = 0;
        let mut failed = None;
        while sent < burst.frames.len() {
            match self.send_some(p, &burst.skip(sent)) {
                Ok(0) => break,
                Ok(n) => sent += n,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        match failed {
            Some(e) if sent == 0 => Err(e),
            _ => Ok(sent),
        }
    }

    /// Shows the back what was written.
    #[inline(always)]
    pub fn publish(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        let slots = &mut self.slots;
        if slots.ring.publish().wanted() {
            slots.stats.notifications += 1;
            p.events().notify(chan);
        }
        slots.stats.batches += 1;
    }

    /// Frames from the first that go the same way. 0: no room now.
    #[inline(always)]
    pub(super) fn send_some(&mut self, p: &P, burst: &Burst<'_>) -> Result<usize, PlatformError> {
        if self.area.is_some() {
            return self.send_some_by_area(p, burst);
        }
        for k in 0..self.chain.len() {
            let Some((ahead, path)) = self.chain.split(k) else { break };
            let n = with_path!(path, path => self.slots.send_run(p, path, ahead, burst))?;
            if n > 0 {
                return Ok(n);
            }
        }
        Ok(usize::from(self.send_long(p, burst.frame(0), burst.frames[0].offload)?))
    }

    /// The same, with a data ring before the last path.
    #[inline(never)]
    fn send_some_by_area(&mut self, p: &P, burst: &Burst<'_>) -> Result<usize, PlatformError> {
        let last = self.chain.len().saturating_sub(1);
        let mut shorter = 0;
        let mut full = false;
        for k in 0..self.chain.len() {
            if k == last
                && let Some(area) = &mut self.area
            {
                match self.slots.send_in_area(area, burst, shorter, self.limits) {
                    InArea::Sent(n) => return Ok(n),
                    InArea::Full => full = true,
                    InArea::NoRoom => return Ok(0),
                    InArea::NotForIt => {}
                }
            }
            let Some((ahead, path)) = self.chain.split(k) else { break };
            let n = with_path!(path, path => self.slots.send_run(p, path, ahead, burst))?;
            if n > 0 {
                self.slots.stats.data_ring_full += if full { n as u64 } else { 0 };
                return Ok(n);
            }
            shorter = shorter.max(path.slot_bytes());
        }
        let sent = self.send_long(p, burst.frame(0), burst.frames[0].offload)?;
        self.slots.stats.data_ring_full += u64::from(full && sent);
        Ok(usize::from(sent))
    }

    /// One frame that fits no run. False: no room now.
    fn send_long(&mut self, p: &P, frame: &[u8], offload: Offload) -> Result<bool, PlatformError> {
        if frame.is_empty() {
            return Ok(true);
        }
        // No slot can say such a length, or the back did not offer to take such a frame.
        if frame.len() > MAX_FRAME || !self.limits.allow(frame.len(), offload.gso_type) {
            self.slots.stats.dropped += 1;
            return Ok(true);
        }
        let fits = |path: &AnyFrontPath<P>| frame.len() <= path.slot_bytes();
        let last = self.chain.len().saturating_sub(1);
        let first = self.chain.paths().iter().position(fits).unwrap_or(last);
        let Some((ahead, path)) = self.chain.split(first) else { return Err(NO_PAGES) };
        match with_path!(path, path => self.slots.send_long(p, path, ahead, (frame, offload))) {
            Ok(sent) => Ok(sent),
            Err((e, ids, n)) => {
                ids[..n].iter().for_each(|id| self.free_id(p, *id));
                Err(e)
            }
        }
    }

    /// Asks the back, in a request without a frame, for multicast frames to `mac`, or no longer. False: no room now, or
    /// too many wishes are on the way. Only where the back offers `feature-multicast-control`.
    pub fn multicast(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        mac: MacAddr,
        wanted: bool,
    ) -> bool {
        if self.slots.ring.free() < 2 || self.slots.free.len() == 0 || self.wishes.len() == MCAST_LIST_MAX {
            return false;
        }
        let id = self.slots.free.take();
        let extra = if wanted { Extra::McastAdd(mac.0) } else { Extra::McastDel(mac.0) };
        self.slots.in_flight[id as usize] = true;
        self.wishes.push(id);
        self.slots.ring.push(&TxRequest { flags: TXF_EXTRA_INFO, id, ..TxRequest::default() });
        self.slots.ring.push(&TxRequest::from_words(extra.to_tx_words(false)));
        self.slots.extras_in_flight += 1;
        self.publish(p, chan);
        true
    }

    /// Multicast wishes on the way, and how many were refused so far.
    pub fn multicast_wishes(&self) -> (usize, u64) {
        (self.wishes.len(), self.wishes_refused)
    }

    #[inline(always)]
    fn free_id(&mut self, p: &P, id: u16) {
        if let Some(area) = &mut self.area {
            area.settle(id);
        }
        if self.chain.settle(p, id) {
            self.slots.free.give(id);
        } else {
            self.busy.push(id);
        }
    }

    /// Takes the answers that are there, once at least `want` are (so that the ring's lines are not touched for less),
    /// and frees their ids. Returns how many.
    pub fn reclaim(&mut self, p: &P, want: u32) -> Result<u32, PeerFault> {
        // Also when nothing is answered: with all ids held back, nothing will be.
        if !self.busy.is_empty() {
            self.retry_busy(p);
        }
        let n = self.slots.ring.available(want)?;
        if n < want {
            return Ok(0);
        }
        self.slots.ring.prefetch(n);
        for k in 0..n {
            let rsp = self.slots.ring.read(k);
            if rsp.status == RSP_NULL {
                if self.slots.extras_in_flight == 0 {
                    return Err(PeerFault::BadResponse { offset: 0, status: RSP_NULL });
                }
                self.slots.extras_in_flight -= 1;
                continue;
            }
            match self.slots.in_flight.get_mut(rsp.id as usize) {
                Some(used) if *used => *used = false,
                _ => return Err(PeerFault::UnknownId(rsp.id)),
            }
            if self.sent_on.first_id.is_some() {
                let buffer = core::mem::replace(&mut self.sent_on.buffers[usize::from(rsp.id)], NO_BUFFER);
                if buffer != NO_BUFFER {
                    self.sent_on.returned.push(buffer);
                }
            }
            if let Some(own) = &mut self.own {
                let place = core::mem::replace(&mut own.places[usize::from(rsp.id)], NO_PLACE);
                if place != NO_PLACE {
                    own.cache.answered(place);
                }
            }
            if !self.wishes.is_empty()
                && let Some(k) = self.wishes.iter().position(|id| *id == rsp.id)
            {
                self.wishes.swap_remove(k);
                self.wishes_refused += u64::from(rsp.status != RSP_OKAY);
            } else if rsp.status != RSP_OKAY {
                self.slots.stats.errors += 1;
            }
            self.free_id(p, rsp.id);
        }
        self.slots.ring.consume(n);
        Ok(n)
    }

    #[cold]
    fn retry_busy(&mut self, p: &P) {
        for _ in 0..self.busy.len() {
            let id = self.busy.remove(0);
            self.free_id(p, id);
        }
    }

    /// Before sleeping: asks for an event at the `ahead`-th answer from here. True: there is work.
    pub fn final_check(&mut self, ahead: u32) -> Result<bool, PeerFault> {
        self.slots.ring.final_check(ahead)
    }

    /// Whether there is work, as [`final_check`](Self::final_check) of the next answer says it, and nothing is armed.
    pub fn is_pending(&mut self) -> bool {
        self.slots.ring.available(1) != Ok(0)
    }

    /// What happened so far.
    pub fn stats(&self) -> DirStats {
        let data_ring_most = self.area.as_ref().map_or(0, |area| area.most().into());
        DirStats { data_ring_most, ..self.slots.stats }
    }

    /// Slots of its ring.
    pub fn ring_size(&self) -> u32 {
        self.slots.ring.size()
    }

    /// The memory of its frames.
    pub fn chain(&self) -> &FrontChain<P> {
        &self.chain
    }

    /// The memory of its frames, to be changed before the first one.
    pub fn chain_mut(&mut self) -> &mut FrontChain<P> {
        &mut self.chain
    }

    /// Ends the queue: its memory, to be released once the back has closed.
    pub fn into_parts(self) -> (OwnRing<NetTx, P>, FrontChain<P>) {
        (self.slots.ring.into_mem(), self.chain)
    }
}

/// Slots of the longest frame, at 4096 bytes each.
const MAX_FRAME_SLOTS: usize = MAX_FRAME.div_ceil(PAGE_SIZE);

#[inline(always)]
pub(super) fn flags_of(offload: Offload) -> u16 {
    if offload.csum_blank {
        TXF_CSUM_BLANK | TXF_DATA_VALIDATED
    } else if offload.csum_ok {
        TXF_DATA_VALIDATED
    } else {
        0
    }
}
