//! TX of one queue, from the guest: frames in private memory go to the ring.
//!
//! ```text
//!   Frames --send--> runs of frames --chain--> memory of a free id, and its reference --push--> ring --publish-->
//!          ids <--reclaim-- answers
//! ```
//!
//! Each path of the [chain](FrontChain) takes the frames that fit one of its slots, or its memory
//! while that has room; the last one takes longer frames, slot by slot. A received buffer is sent
//! on under its own id ([`allow_send_on`](TxFront::allow_send_on)), and is free for RX when its
//! request is answered. The same holds for a page of the guest's own
//! ([`own_pages`](super::own_pages)), and for one that the caller
//! grants for a frame ([`tx_pieces`](super::tx_pieces)).
//!
//! What the back may do: answer an id that is not in flight, or more than was sent (faults: the
//! device is closed); never answer (the queue is full); keep a page mapped (its id is not used
//! again until the page is released).

use super::granted_piece::Pieces;
use super::own_pages::announced_pages::AnnouncedPages;
use super::regions::OwnRing;
use super::tx_slots::{IdTables, InFlight, TxLimits, TxSlots, flags_of};
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::headers::MacAddr;
use crate::net::path::front::Sent;
use crate::net::path::{AnyFrontPath, FrontChain, FrontPath, PathName};
use crate::net::stats::DirStats;
use crate::platform::{Events, Platform};
use crate::port::{Frames, MAX_FRAME, Offload, Source};
use crate::ring::{FrontRing, NetTx};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::{
    Extra, MCAST_LIST_MAX, RSP_NULL, RSP_OKAY, TXF_EXTRA_INFO, TXF_MORE_DATA, TXF_STAGING_BUFFER, TxRequest,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The front's TX half of a queue.
pub struct TxFront<P: Platform> {
    pub(crate) slots: TxSlots<P>,
    pub(crate) chain: FrontChain<P>,
    /// Ids of answered requests whose page's grant is still in use.
    busy: Vec<u16>,
    /// Ids of requests that carry a multicast request and no frame.
    multicast_ids: Vec<u16>,
    multicast_refused: u64,
    sent_on: SentOn,
    pub(super) pieces: Pieces,
    pub(crate) own: Option<Box<AnnouncedPages>>,
}

/// The tables of a queue, made before its ring and its paths are given to it.
pub(super) struct TxTables {
    ids: IdTables,
    busy: Vec<u16>,
    multicast_ids: Vec<u16>,
}

impl TxTables {
    /// Allocates the tables for a ring of `slots` slots and these paths.
    pub(super) fn new<P: Platform>(slots: u32, chain: &mut FrontChain<P>) -> Result<Self, PlatformError> {
        Ok(Self {
            ids: IdTables::new(chain.serve_ids(slots)?)?,
            busy: memory::room(slots as usize)?,
            // A multicast request may come where no call can allocate.
            multicast_ids: memory::room(MCAST_LIST_MAX)?,
        })
    }
}

/// Received staging buffers that TX is sending.
#[derive(Default)]
struct SentOn {
    /// The id of the first RX buffer in the queue's lists; None: the back does not support sending
    /// received buffers.
    first_id: Option<u16>,
    /// For each request id the number of the RX buffer that it sends, or [`NO_BUFFER`].
    buffers: Box<[u16]>,
    /// Numbers of RX buffers whose requests were answered.
    returned: Vec<u16>,
}

const NO_BUFFER: u16 = u16::MAX;

/// A part of a frame that is sent from the slot's own staging buffer.
#[derive(Clone, Copy, Default)]
pub(crate) struct SentPart {
    /// The RX slot in which the part arrived.
    pub slot: u16,
    pub buffer: u16,
    pub offset: u16,
    pub len: u16,
}

impl<P: Platform> TxSlots<P> {
    /// Passes the heads of a run of frames to the paths in `ahead`, of which some keep a copy.
    #[inline(never)]
    fn heads(&self, ahead: &mut [AnyFrontPath<P>], frames: &impl Frames, n: usize) {
        for (frame, place) in frames.first(n).zip(self.places.iter()) {
            let id = TxRequest::from_words(place.request).id;
            ahead.iter_mut().for_each(|other| other.head(id, &frame));
        }
    }

    /// Writes the extra info of a frame that the back must segment, after the frame's first
    /// request.
    pub(crate) fn push_gso(&mut self, offload: &Offload) {
        let extra = Extra::Gso { size: offload.gso_size, gso_type: offload.gso_type };
        self.ring.push(&TxRequest::from_words(extra.to_tx_words(false)));
        self.extras_in_flight += 1;
    }

    /// Writes one frame to slots of `path`, with an extra info if the back must segment it. `path`
    /// is the last one, or has slots large enough for the whole frame. False: there is no room now.
    /// An error has the ids to be freed.
    fn send_long<F: FrontPath<P>>(
        &mut self,
        p: &P,
        path: &mut F,
        ahead: &mut [AnyFrontPath<P>],
        frame: &impl Source,
    ) -> Result<bool, (PlatformError, [u16; MAX_FRAME_SLOTS], usize)> {
        let (len, offload) = (frame.len(), *frame.offload());
        let slots = len.div_ceil(PAGE_SIZE) as u32;
        let split = slots > 1 && ahead.iter().any(AnyFrontPath::takes_first);
        let gso = offload.gso_type != 0;
        if self.ring.free() < slots + gso as u32 || self.free.len() < slots {
            return Ok(false);
        }
        // All grants first: nothing is on the ring until the whole frame can be.
        let mut reqs = [TxRequest::default(); MAX_FRAME_SLOTS];
        for (k, (at, req)) in (0..len).step_by(PAGE_SIZE).zip(&mut reqs).enumerate() {
            let size = (len - at).min(PAGE_SIZE);
            let id = self.free.take();
            let flags = TXF_MORE_DATA | F::TX_FLAGS;
            *req = TxRequest { gref: 0, offset: 0, flags, id, size: size as u16 };
            if k == 0 && split {
                continue; // `head` puts it there
            }
            let granted =
                if slots == 1 || path.holds(len, slots as usize) { path.place(p, id) } else { Err(NO_PAGES) };
            match granted {
                Ok(gref) => req.gref = gref,
                Err(e) => return Err((e, reqs.map(|req| req.id), k + 1)),
            }
            let to = path.bytes().piece_mut(path.start(id), size);
            debug_assert!(to.is_some(), "a slot is in its region");
            if let Some(to) = to {
                frame.copy_to(at, to);
            }
        }
        let reqs = reqs.get_mut(..slots as usize).unwrap_or_default();
        if let Some(last) = reqs.last_mut() {
            last.flags = F::TX_FLAGS;
        }
        if let Some(first) = reqs.first_mut() {
            ahead.iter_mut().for_each(|other| other.head(first.id, frame));
            first.size = len as u16;
            first.flags |= flags_of(&offload) | if gso { TXF_EXTRA_INFO } else { 0 };
        }
        for (k, req) in reqs.iter().enumerate() {
            self.note_sent(req.id);
            self.ring.push(req);
            if k == 0 && gso {
                self.push_gso(&offload);
            }
        }
        self.stats.bytes += len as u64;
        self.stats.handed_on_by(F::NAME, 1);
        Ok(true)
    }
}

/// The error for a queue that was made without the memory that its frames need.
const NO_PAGES: PlatformError =
    PlatformError { op: "send a frame that needs ordinary pages, without any", code: 22 };

impl<P: Platform> TxFront<P> {
    /// A queue over a ring that was just initialised. There are as many ids as have memory: fewer
    /// than the ring has slots where memory is short, more where there are more buffers.
    ///
    /// # Errors
    /// There is no memory for its tables. The grants of the ring and of the paths are ended.
    pub fn new(
        p: &P,
        ring: FrontRing<NetTx, OwnRing<NetTx, P>>,
        mut chain: FrontChain<P>,
    ) -> Result<Self, PlatformError> {
        match TxTables::new(ring.size(), &mut chain) {
            Ok(tables) => Ok(Self::with_tables(ring, chain, tables)),
            Err(e) => {
                chain.end_with(p, ring.into_mem());
                Err(e)
            }
        }
    }

    /// Like [`new`](Self::new), with tables that were made before.
    pub(super) fn with_tables(
        ring: FrontRing<NetTx, OwnRing<NetTx, P>>,
        chain: FrontChain<P>,
        tables: TxTables,
    ) -> Self {
        Self {
            slots: TxSlots::new(ring, tables.ids),
            chain,
            busy: tables.busy,
            multicast_ids: tables.multicast_ids,
            multicast_refused: 0,
            sent_on: SentOn::default(),
            pieces: Pieces::default(),
            own: None,
        }
    }

    /// Sets the ids for which the queue's paths have memory. It is called when the paths are final,
    /// before the first frame is sent.
    pub(super) fn settle_ids(&mut self) -> Result<(), PlatformError> {
        let ids = self.chain.serve_ids(self.slots.ring.size())?;
        self.slots.set_ids(IdTables::new(ids)?);
        Ok(())
    }

    /// Allows TX to send received buffers. The first RX buffer has the id `first_id` in the queue's
    /// lists (docs/protocol 3.5).
    pub fn allow_send_on(&mut self, first_id: u16) -> Result<(), PlatformError> {
        let n = self.slots.in_flight.len();
        self.sent_on = SentOn {
            first_id: Some(first_id),
            buffers: memory::list(NO_BUFFER, n)?,
            returned: memory::room(n)?,
        };
        Ok(())
    }

    /// True if TX can send received buffers.
    #[inline(always)]
    pub fn sends_on(&self) -> bool {
        self.sent_on.first_id.is_some()
    }

    /// Writes a request for `len` bytes, from `offset` on, of RX buffer `buffer`; the next
    /// [`publish`](Self::publish) shows it to the back. Returns false if there is no room or the
    /// back does not support this; the caller then keeps the buffer.
    #[inline(always)]
    #[must_use]
    pub(crate) fn send_on(&mut self, buffer: u16, (offset, len): (u16, u16), offload: Offload) -> bool {
        let Some(first_id) = self.sent_on.first_id else { return false };
        let slots = &mut self.slots;
        if slots.room() == 0 {
            return false;
        }
        let id = slots.free.take();
        slots.note_sent(id);
        if let Some(of_id) = self.sent_on.buffers.get_mut(usize::from(id)) {
            *of_id = buffer;
        }
        let (gref, flags) = (u32::from(first_id + buffer), flags_of(&offload) | TXF_STAGING_BUFFER);
        slots.ring.push(&TxRequest { gref, offset, flags, id, size: len });
        slots.stats.bytes += u64::from(len);
        slots.stats.handed_on_by(PathName::Staging, 1);
        true
    }

    /// True if the back accepts a frame of this length, number of slots, and type of segmentation.
    pub(crate) fn takes(&self, len: usize, slots: usize, gso_type: u8) -> bool {
        let limits = self.slots.limits;
        len <= MAX_FRAME && limits.allow(len, gso_type) && (slots == 1 || limits.sg)
    }

    /// True if there is room now for a frame of `slots` slots and `extras` extra infos.
    pub(crate) fn has_room_for(&self, slots: usize, extras: usize) -> bool {
        self.slots.free.len() as usize >= slots && self.slots.ring.free() as usize >= slots + extras
    }

    /// Like [`send_on`](Self::send_on), for a frame that is in several RX buffers.
    #[must_use]
    pub(crate) fn send_parts_on(&mut self, parts: &[SentPart], offload: Offload) -> bool {
        let Some(first_id) = self.sent_on.first_id else { return false };
        let gso = offload.gso_type != 0;
        let total: usize = parts.iter().map(|part| usize::from(part.len)).sum();
        if total > MAX_FRAME || !self.has_room_for(parts.len(), gso.into()) {
            return false;
        }
        let slots = &mut self.slots;
        for (k, part) in parts.iter().enumerate() {
            let id = slots.free.take();
            slots.note_sent(id);
            if let Some(of_id) = self.sent_on.buffers.get_mut(usize::from(id)) {
                *of_id = part.buffer;
            }
            let more = if k + 1 < parts.len() { TXF_MORE_DATA } else { 0 };
            let (gref, offset) = (u32::from(first_id + part.buffer), part.offset);
            let mut req = TxRequest { gref, offset, flags: TXF_STAGING_BUFFER | more, id, size: part.len };
            if k == 0 {
                req.size = total as u16;
                req.flags |= flags_of(&offload) | if gso { TXF_EXTRA_INFO } else { 0 };
            }
            slots.ring.push(&req);
            if k == 0 && gso {
                slots.push_gso(&offload);
            }
        }
        slots.stats.bytes += total as u64;
        slots.stats.handed_on_by(PathName::Staging, 1);
        true
    }

    /// An RX buffer whose request was answered, to be given back to RX.
    #[inline(always)]
    pub fn returned(&mut self) -> Option<u16> {
        self.sent_on.returned.pop()
    }

    /// Sets which frames the back accepts.
    pub fn limit(&mut self, limits: TxLimits) {
        self.slots.limits = limits;
    }

    /// Number of slots that are free for frames.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.slots.room()
    }

    /// Requests without an answer yet.
    pub fn in_flight(&self) -> u32 {
        self.slots.ring.in_flight()
    }

    /// Writes as many of `frames` to the ring as fit, from the first on, and publishes them.
    /// Returns how many it accepted; frames that are dropped count as accepted. An error of the
    /// platform (no grant is free) ends the call early.
    pub fn send(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        frames: &impl Frames,
    ) -> Result<usize, PlatformError> {
        let sent = self.queue(p, frames);
        self.publish(p, chan);
        sent
    }

    /// Like [`send`](Self::send), without publishing: the next [`publish`](Self::publish) shows the
    /// requests to the back.
    pub fn queue(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        let mut sent = 0;
        let mut failed = None;
        while sent < frames.count() {
            match self.send_some(p, &frames.skip(sent)) {
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

    /// Publishes to the back the requests that were written.
    #[inline(always)]
    pub fn publish(&mut self, p: &P, chan: &<P::Events as Events>::Chan) {
        let slots = &mut self.slots;
        if slots.ring.publish().wanted() {
            slots.stats.notifications += 1;
            p.events().notify(chan);
        }
        slots.stats.batches += 1;
    }

    /// Writes frames, from the first on, that go by the same path. Returns how many; 0: there is no
    /// room now.
    #[inline(always)]
    pub(crate) fn send_some(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        let (mut shorter, mut full) = (0, false);
        for k in 0..self.chain.len() {
            let Some((ahead, path)) = self.chain.split(k) else { break };
            let slots = &mut self.slots;
            let (sent, shows_heads) = match path {
                AnyFrontPath::Staging(path) => (slots.send_run(p, path, frames, shorter)?, true),
                AnyFrontPath::DataRing(path) => (path.send_run(slots, frames, shorter), false),
                #[cfg(feature = "research")]
                AnyFrontPath::Foreign(path) => (slots.send_run(p, path, frames, shorter)?, true),
                AnyFrontPath::Copy(path) => (slots.send_run(p, path, frames, shorter)?, true),
            };
            match sent {
                Sent::Frames(0) => {}
                Sent::Frames(n) => {
                    if shorter > 0 && shows_heads {
                        self.slots.heads(ahead, frames, n);
                    }
                    self.slots.stats.no_room += if full { n as u64 } else { 0 };
                    return Ok(n);
                }
                Sent::Full => full = true,
            }
            shorter = shorter.max(path.slot_bytes());
        }
        let Some(first) = frames.get(0) else { return Ok(0) };
        let sent = self.send_long(p, &first)?;
        self.slots.stats.no_room += u64::from(full && sent);
        Ok(usize::from(sent))
    }

    /// Writes one frame that cannot be part of a run. Returns false if there is no room now.
    fn send_long(&mut self, p: &P, frame: &impl Source) -> Result<bool, PlatformError> {
        let (len, gso_type) = (frame.len(), frame.offload().gso_type);
        if len == 0 {
            return Ok(true);
        }
        // No slot can express such a length, or the back did not offer to accept such a frame.
        if len > MAX_FRAME || !self.slots.limits.allow(len, gso_type) {
            self.slots.stats.dropped += 1;
            return Ok(true);
        }
        let fits = |path: &AnyFrontPath<P>| len <= path.slot_bytes();
        let last = self.chain.len().saturating_sub(1);
        let first = self.chain.paths().iter().position(fits).unwrap_or(last);
        let Some((ahead, path)) = self.chain.split(first) else { return Err(NO_PAGES) };
        let slots = &mut self.slots;
        let sent = match path {
            AnyFrontPath::Staging(path) => slots.send_long(p, path, ahead, frame),
            AnyFrontPath::DataRing(path) => slots.send_long(p, path, ahead, frame),
            #[cfg(feature = "research")]
            AnyFrontPath::Foreign(path) => slots.send_long(p, path, ahead, frame),
            AnyFrontPath::Copy(path) => slots.send_long(p, path, ahead, frame),
        };
        match sent {
            Ok(sent) => Ok(sent),
            Err((e, ids, n)) => {
                ids.iter().take(n).for_each(|id| self.free_id(p, *id));
                Err(e)
            }
        }
    }

    /// Asks the back, in a request without a frame, for multicast frames to `mac`, or no longer.
    /// False: no room now, or too many such requests are in flight. Only where the back offers
    /// `feature-multicast-control`.
    pub fn multicast(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        mac: MacAddr,
        wanted: bool,
    ) -> bool {
        if self.slots.ring.free() < 2
            || self.slots.free.len() == 0
            || self.multicast_ids.len() == MCAST_LIST_MAX
        {
            return false;
        }
        let id = self.slots.free.take();
        let extra = if wanted { Extra::McastAdd(mac.0) } else { Extra::McastDel(mac.0) };
        self.slots.note_sent(id);
        self.multicast_ids.push(id);
        self.slots.ring.push(&TxRequest { flags: TXF_EXTRA_INFO, id, ..TxRequest::default() });
        self.slots.ring.push(&TxRequest::from_words(extra.to_tx_words(false)));
        self.slots.extras_in_flight += 1;
        self.publish(p, chan);
        true
    }

    /// Number of multicast requests in flight, and number that the back has refused.
    pub fn multicast_requests(&self) -> (usize, u64) {
        (self.multicast_ids.len(), self.multicast_refused)
    }

    #[inline(always)]
    pub(crate) fn free_id(&mut self, p: &P, id: u16) {
        if self.chain.settle(p, id) {
            self.slots.free.give(id);
        } else {
            self.busy.push(id);
        }
    }

    /// Processes the answers that have arrived, once at least `want` have (so that the ring's cache
    /// lines are not touched for fewer), and frees their ids. Returns how many.
    pub fn reclaim(&mut self, p: &P, want: u32) -> Result<u32, PeerFault> {
        self.take_answers(p, want).map_err(|fault| self.slots.ring.fail(fault))
    }

    #[inline(always)]
    fn take_answers(&mut self, p: &P, want: u32) -> Result<u32, PeerFault> {
        // Needed even without new answers: if all ids wait for their grants to end, no answer will
        // ever come.
        if !self.busy.is_empty() {
            self.retry_busy(p);
        }
        let n = self.slots.ring.available(want)?;
        if n < want {
            return Ok(0);
        }
        self.slots.ring.prefetch(n);
        // Requests that carry more than a frame's copy are known by their ids; mostly there are
        // none.
        let are_special = self.sends_on() || self.own.is_some() || !self.multicast_ids.is_empty();
        for k in 0..n {
            let rsp = self.slots.ring.read(k);
            if rsp.status == RSP_NULL {
                if self.slots.extras_in_flight == 0 {
                    return Err(PeerFault::BadResponse { offset: 0, status: RSP_NULL });
                }
                self.slots.extras_in_flight -= 1;
                continue;
            }
            match self.slots.in_flight.get_mut(rsp.id as usize).map(core::mem::take) {
                Some(InFlight::Frame) => {}
                // The request's memory belongs to the caller, and to no path.
                Some(InFlight::Piece) => {
                    self.slots.stats.errors += u64::from(rsp.status != RSP_OKAY);
                    self.pieces.take_answer(rsp.id);
                    self.slots.free.give(rsp.id);
                    continue;
                }
                Some(InFlight::Nothing) | None => return Err(PeerFault::UnknownId(rsp.id)),
            }
            if are_special && self.is_multicast(rsp.id) {
                self.multicast_refused += u64::from(rsp.status != RSP_OKAY);
            } else if rsp.status != RSP_OKAY {
                self.slots.stats.errors += 1;
            }
            self.free_id(p, rsp.id);
        }
        self.chain.all_settled();
        self.slots.ring.consume(n);
        Ok(n)
    }

    /// Handles the answer to a request that sent a received buffer, or a page of the guest's own.
    /// Returns true if the request carried a multicast address.
    #[inline(always)]
    fn is_multicast(&mut self, id: u16) -> bool {
        if self.sends_on() {
            let of_id = self.sent_on.buffers.get_mut(usize::from(id));
            let buffer = of_id.map_or(NO_BUFFER, |buffer| core::mem::replace(buffer, NO_BUFFER));
            if buffer != NO_BUFFER {
                self.sent_on.returned.push(buffer);
            }
        }
        if let Some(own) = &mut self.own {
            own.answered(id);
        }
        let place = self.multicast_ids.iter().position(|place| *place == id);
        place.map(|k| self.multicast_ids.swap_remove(k)).is_some()
    }

    /// True if some answered requests' ids are not free, because the back still uses their grants.
    /// No answer will say when to call [`reclaim`](Self::reclaim), which tries them again.
    pub(super) fn holds_ids_back(&self) -> bool {
        !self.busy.is_empty()
    }

    #[cold]
    fn retry_busy(&mut self, p: &P) {
        for _ in 0..self.busy.len() {
            let id = self.busy.remove(0);
            self.free_id(p, id);
        }
    }

    /// Called before sleeping: asks for an event when `ahead` answers have arrived that were not
    /// taken yet. Returns true if they have already.
    pub fn final_check(&mut self, ahead: u32) -> Result<bool, PeerFault> {
        self.slots.ring.final_check(ahead)
    }

    /// True if there is work, like [`final_check`](Self::final_check) for the next answer, without
    /// arming anything.
    pub fn is_pending(&mut self) -> bool {
        self.slots.ring.available(1) != Ok(0)
    }

    /// The counters, as a copy.
    pub fn stats(&self) -> DirStats {
        DirStats { most_bytes: self.chain.most(), ..self.slots.stats }
    }

    /// Number of ids that requests can have.
    pub fn ids(&self) -> u32 {
        self.slots.in_flight.len() as u32
    }

    /// Number of slots of the ring.
    pub fn ring_size(&self) -> u32 {
        self.slots.ring.size()
    }

    /// The paths, with the memory of the frames.
    pub fn chain(&self) -> &FrontChain<P> {
        &self.chain
    }

    /// The paths, to be changed before the first frame.
    pub fn chain_mut(&mut self) -> &mut FrontChain<P> {
        &mut self.chain
    }

    /// Ends the queue and returns its memory, which is released once the back has closed.
    pub fn into_parts(self) -> (OwnRing<NetTx, P>, FrontChain<P>) {
        (self.slots.ring.into_mem(), self.chain)
    }
}

/// Slots of the longest frame, at 4096 bytes each.
const MAX_FRAME_SLOTS: usize = MAX_FRAME.div_ceil(PAGE_SIZE);
