//! TX of one queue, from the guest: frames in private memory to the ring.
//!
//! ```text
//!   Burst --send--> staging buffer of a free id (gref 0), or that id's page (a grant) --push--> ring --publish-->
//!          ids <--reclaim-- answers
//! ```
//!
//! A frame of at most N bytes takes one staging buffer, a longer one ordinary pages, one for each 4096 bytes; where N
//! is 65535, staging buffers for all of it. Ids are used again in the order in which they came back. What the back may
//! do: answer an id that is not in flight, or too much (faults: the device is closed); never answer (the queue is full);
//! hold on to a page (its id is not used again until it lets go).

use super::buffers::Buffers;
use crate::error::{PeerFault, PlatformError};
use crate::net::headers::MacAddr;
use crate::net::path::staging::front::StagingArea;
use crate::net::path::staging::list::colour;
use crate::net::stats::DirStats;
use crate::platform::{Events, GrantPool, Platform};
use crate::port::{BURST_FRAMES, Burst, MAX_FRAME, Offload};
use crate::ring::{FrontRing, NetTx, RingPages};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::{
    Extra, GSO_TYPE_TCPV4, GSO_TYPE_TCPV6, MCAST_LIST_MAX, RSP_NULL, RSP_OKAY, TXF_CSUM_BLANK,
    TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest,
};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The memory of a ring in one's own granted pages.
pub type OwnRing<K, P> = RingPages<K, <<P as Platform>::Grants as GrantPool>::Region>;

/// Frames up to this length have the buffers of the whole burst prefetched before the first is filled; longer ones
/// have the next two.
const SHORT: usize = 256;

/// Ids that are free, first come first served.
struct FreeIds {
    ids: Box<[u16]>,
    head: u32,
    tail: u32,
}

impl FreeIds {
    fn new(n: u32) -> Self {
        Self { ids: (0..n as u16).collect(), head: 0, tail: n }
    }
    #[inline(always)]
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
    #[inline(always)]
    fn take(&mut self) -> u16 {
        let id = self.ids[self.head as usize & (self.ids.len() - 1)];
        self.head = self.head.wrapping_add(1);
        id
    }
    /// The id that will be taken after `ahead` others.
    #[inline(always)]
    fn peek(&self, ahead: u32) -> u16 {
        self.ids[self.head.wrapping_add(ahead) as usize & (self.ids.len() - 1)]
    }
    #[inline(always)]
    fn give(&mut self, id: u16) {
        let mask = self.ids.len() - 1;
        self.ids[self.tail as usize & mask] = id;
        self.tail = self.tail.wrapping_add(1);
    }
}

/// The front's TX half of a queue.
pub struct TxFront<P: Platform> {
    ring: FrontRing<NetTx, OwnRing<NetTx, P>>,
    free: FreeIds,
    /// By id: a request is in flight.
    in_flight: Box<[bool]>,
    extras_in_flight: u32,
    /// Ids of requests that carry a multicast wish and no frame.
    wishes: Vec<u16>,
    wishes_refused: u64,
    buffers: Buffers<P>,
    /// Ids whose page the back has not let go of.
    busy: Vec<u16>,
    /// Scratch of a burst: where its frames go.
    places: Box<[Place; BURST_FRAMES]>,
    limits: TxLimits,
    stats: DirStats,
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

    fn allow(self, len: usize, gso_type: u8) -> bool {
        let gso = match gso_type {
            0 => true,
            GSO_TYPE_TCPV4 => self.sg && self.gso_tcpv4,
            GSO_TYPE_TCPV6 => self.sg && self.gso_tcpv6,
            _ => false,
        };
        gso && (self.sg || len <= PAGE_SIZE)
    }
}

/// Where a staged frame goes.
#[derive(Clone, Copy, Default)]
struct Place {
    id: u16,
    /// In the buffer.
    offset: u16,
    /// In the region.
    at: u32,
}

impl<P: Platform> TxFront<P> {
    /// A queue over a ring that was just initialised. There are as many ids as have memory, a power of two; fewer than the
    /// ring has slots where memory is short.
    pub fn new(ring: FrontRing<NetTx, OwnRing<NetTx, P>>, buffers: Buffers<P>) -> Self {
        let n = buffers.ids().min(ring.size());
        debug_assert!(n.is_power_of_two());
        Self {
            ring,
            free: FreeIds::new(n),
            in_flight: vec![false; n as usize].into_boxed_slice(),
            extras_in_flight: 0,
            wishes: Vec::new(),
            wishes_refused: 0,
            buffers,
            busy: Vec::with_capacity(n as usize),
            places: Box::new([Place::default(); BURST_FRAMES]),
            limits: TxLimits::NONE,
            stats: DirStats::default(),
        }
    }

    /// Tells what the back takes.
    pub fn limit(&mut self, limits: TxLimits) {
        self.limits = limits;
    }

    /// Slots that frames can take now.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.ring.free().min(self.free.len())
    }

    /// Requests without an answer yet.
    pub fn in_flight(&self) -> u32 {
        self.ring.in_flight()
    }

    /// Writes as many frames of `burst` to the ring as fit, from the first, and publishes them. Returns how many it
    /// took; frames marked as dropped count as taken. An error of the platform (no grant to be had) stops it early.
    #[inline(always)]
    pub fn send(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        burst: &Burst<'_>,
    ) -> Result<usize, PlatformError> {
        let mut sent = 0;
        let mut failed = None;
        while sent < burst.frames.len() {
            let rest = burst.skip(sent);
            let staged = self.send_staged(&rest);
            sent += staged;
            if staged > 0 {
                continue;
            }
            match self.send_long(p, rest.frame(0), rest.frames[0].offload) {
                Ok(true) => sent += 1,
                Ok(false) => break,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        self.publish(p, chan);
        match failed {
            Some(e) if sent == 0 => Err(e),
            _ => Ok(sent),
        }
    }

    #[inline(always)]
    fn publish(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        if self.ring.publish().wanted() {
            self.stats.notifications += 1;
            p.events().notify(chan);
        }
        self.stats.batches += 1;
    }

    /// Frames from the first that fit one staging buffer each and need no extra info.
    #[inline(always)]
    fn send_staged(&mut self, burst: &Burst<'_>) -> usize {
        let Some(area) = &self.buffers.staging else { return 0 };
        let limit = area.buffer_bytes();
        let room = (self.ring.free().min(self.free.len()) as usize).min(burst.frames.len()).min(BURST_FRAMES);
        let places = &mut self.places;
        let mut n = 0;
        // First pass: ids and places, and the slots' cache lines asked for in the exclusive state.
        for desc in &burst.frames[..room] {
            let len = desc.len as usize;
            if len == 0 || len > limit || desc.offload.gso_type != 0 {
                break;
            }
            let id = self.free.take();
            let (offset, at) = place(area, id, len);
            if len <= SHORT {
                area.bytes().prefetch_write(at as usize, len);
            }
            places[n] = Place { id, offset, at };
            n += 1;
        }
        let mut bytes = 0;
        for (k, (desc, Place { id, offset, at })) in
            burst.frames.iter().zip(places.iter().copied()).take(n).enumerate()
        {
            if let Some(next) = burst.frames[..n].get(k + 2)
                && next.len as usize > SHORT
            {
                area.bytes().prefetch_write(places[k + 2].at as usize, (next.len as usize).min(1024));
            }
            let from = desc.at as usize;
            let fits = area.bytes().copy_in(at as usize, &burst.bytes[from..from + desc.len as usize]);
            debug_assert!(fits);
            self.in_flight[id as usize] = true;
            bytes += desc.len as u64;
            let flags = flags_of(desc.offload);
            self.ring.write(k as u32, &TxRequest { gref: 0, offset, flags, id, size: desc.len as u16 });
        }
        self.ring.advance(n as u32);
        self.stats.bytes += bytes;
        // The next burst's lines begin to come while this one's stores drain into the fence of `publish`.
        if let Some(last) = burst.frames[..n].last()
            && last.len as usize <= SHORT
        {
            for ahead in 0..self.free.len().min(BURST_FRAMES as u32) {
                let (_, at) = place(area, self.free.peek(ahead), last.len as usize);
                area.bytes().prefetch_write(at as usize, last.len as usize);
            }
        }
        self.stats.frames += n as u64;
        self.stats.staged += n as u64;
        n
    }

    /// One frame of any length: ordinary pages, or staging buffers slot by slot. False: no room now.
    fn send_long(&mut self, p: &P, frame: &[u8], offload: Offload) -> Result<bool, PlatformError> {
        if frame.is_empty() {
            return Ok(true);
        }
        // No slot can say such a length, or the back did not offer to take such a frame.
        if frame.len() > MAX_FRAME || !self.limits.allow(frame.len(), offload.gso_type) {
            self.stats.dropped += 1;
            return Ok(true);
        }
        let copy_only = self.buffers.staging.as_ref().is_some_and(|a| a.data_len().copy_only());
        let slots = frame.len().div_ceil(PAGE_SIZE) as u32;
        let gso = offload.gso_type != 0;
        if self.ring.free() < slots + gso as u32 || self.free.len() < slots {
            return Ok(false);
        }
        // All grants first: nothing is on the ring until the whole frame can be.
        let mut reqs = [TxRequest::default(); MAX_FRAME_SLOTS];
        let pieces = frame.chunks(PAGE_SIZE);
        for (k, (piece, req)) in pieces.zip(reqs.iter_mut()).enumerate() {
            let id = self.free.take();
            let at = match (&self.buffers.staging, copy_only) {
                (Some(area), true) => {
                    let place = area.place(id as u32) as usize;
                    area.bytes().copy_in(place, piece).then_some(0)
                }
                _ => match &mut self.buffers.pages {
                    Some(pages) => match pages.grant(p, id as usize) {
                        Ok(gref) => pages.bytes().copy_in(id as usize * PAGE_SIZE, piece).then_some(gref.0),
                        Err(e) => {
                            self.give_back(p, id, &reqs[..k]);
                            return Err(e);
                        }
                    },
                    None => None,
                },
            };
            let Some(gref) = at else {
                self.give_back(p, id, &reqs[..k]);
                return Err(PlatformError {
                    op: "send a frame that needs ordinary pages, without any",
                    code: -22,
                });
            };
            *req = TxRequest { gref, offset: 0, flags: TXF_MORE_DATA, id, size: piece.len() as u16 };
        }
        let reqs = &mut reqs[..slots as usize];
        // The grants describe the whole frame; its first N bytes are in the first id's buffer too, for a back that
        // splits headers off (docs/protocol 3.3). Ours takes each byte from the grants.
        if let (Some(area), false) = (&self.buffers.staging, copy_only) {
            let header = &frame[..frame.len().min(area.buffer_bytes())];
            let fits = area.bytes().copy_in(area.place(reqs[0].id as u32) as usize, header);
            debug_assert!(fits, "a buffer lies in its region");
        }
        if let Some(last) = reqs.last_mut() {
            last.flags = 0;
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
        self.stats.frames += 1;
        self.stats.bytes += frame.len() as u64;
        if copy_only {
            self.stats.staged += 1;
        } else {
            self.stats.granted += 1;
        }
        Ok(true)
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
        if self.ring.free() < 2 || self.free.len() == 0 || self.wishes.len() == MCAST_LIST_MAX {
            return false;
        }
        let id = self.free.take();
        let extra = if wanted { Extra::McastAdd(mac.0) } else { Extra::McastDel(mac.0) };
        self.in_flight[id as usize] = true;
        self.wishes.push(id);
        self.ring.push(&TxRequest { flags: TXF_EXTRA_INFO, id, ..TxRequest::default() });
        self.ring.push(&TxRequest::from_words(extra.to_tx_words(false)));
        self.extras_in_flight += 1;
        self.publish(p, chan);
        true
    }

    /// Multicast wishes on the way, and how many were refused so far.
    pub fn multicast_wishes(&self) -> (usize, u64) {
        (self.wishes.len(), self.wishes_refused)
    }

    /// Undoes what `send_long` began.
    #[cold]
    fn give_back(&mut self, p: &P, id: u16, reqs: &[TxRequest]) {
        for id in reqs.iter().map(|r| r.id).chain([id]) {
            self.free_id(p, id);
        }
    }

    #[inline(always)]
    fn free_id(&mut self, p: &P, id: u16) {
        let settled = self.buffers.pages.as_mut().is_none_or(|pages| pages.settle(p, id as usize));
        if settled {
            self.free.give(id);
        } else {
            self.busy.push(id);
        }
    }

    /// Takes the answers that are there, once at least `want` are (so that the ring's lines are not touched for less),
    /// and frees their ids. Returns how many.
    #[inline(always)]
    pub fn reclaim(&mut self, p: &P, want: u32) -> Result<u32, PeerFault> {
        // Also when nothing is answered: with all ids held back, nothing will be.
        if !self.busy.is_empty() {
            self.retry_busy(p);
        }
        let n = self.ring.available(want)?;
        if n < want {
            return Ok(0);
        }
        self.ring.prefetch(n);
        for k in 0..n {
            let rsp = self.ring.read(k);
            if rsp.status == RSP_NULL {
                if self.extras_in_flight == 0 {
                    return Err(PeerFault::BadResponse { offset: 0, status: RSP_NULL });
                }
                self.extras_in_flight -= 1;
                continue;
            }
            match self.in_flight.get_mut(rsp.id as usize) {
                Some(used) if *used => *used = false,
                _ => return Err(PeerFault::UnknownId(rsp.id)),
            }
            if !self.wishes.is_empty()
                && let Some(k) = self.wishes.iter().position(|id| *id == rsp.id)
            {
                self.wishes.swap_remove(k);
                self.wishes_refused += u64::from(rsp.status != RSP_OKAY);
            } else if rsp.status != RSP_OKAY {
                self.stats.errors += 1;
            }
            self.free_id(p, rsp.id);
        }
        self.ring.consume(n);
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
        self.ring.final_check(ahead)
    }

    /// Whether there is work, as [`final_check`](Self::final_check) of the next answer says it, and nothing is armed.
    pub fn is_pending(&mut self) -> bool {
        self.ring.available(1) != Ok(0)
    }

    /// What happened so far.
    pub fn stats(&self) -> DirStats {
        self.stats
    }

    /// Slots of its ring.
    pub fn ring_size(&self) -> u32 {
        self.ring.size()
    }

    /// The memory of its frames.
    pub fn buffers(&self) -> &Buffers<P> {
        &self.buffers
    }

    /// The memory of its frames, to be changed before the first one.
    pub fn buffers_mut(&mut self) -> &mut Buffers<P> {
        &mut self.buffers
    }

    /// Ends the queue: its memory, to be released once the back has closed.
    pub fn into_parts(self) -> (OwnRing<NetTx, P>, Buffers<P>) {
        (self.ring.into_mem(), self.buffers)
    }
}

/// Where a frame of `len` bytes goes in the buffer of `id`: offset in the buffer, and place in the region. Consecutive
/// buffers start in different L1 sets where the frame leaves room for it.
#[inline(always)]
fn place<P: Platform>(area: &StagingArea<P>, id: u16, len: usize) -> (u16, u32) {
    let offset = colour(id, len, area.buffer_bytes());
    (offset as u16, area.place(id as u32) + offset as u32)
}

/// Slots of the longest frame, at 4096 bytes each.
const MAX_FRAME_SLOTS: usize = MAX_FRAME.div_ceil(PAGE_SIZE);

#[inline(always)]
fn flags_of(offload: Offload) -> u16 {
    if offload.csum_blank {
        TXF_CSUM_BLANK | TXF_DATA_VALIDATED
    } else if offload.csum_ok {
        TXF_DATA_VALIDATED
    } else {
        0
    }
}
