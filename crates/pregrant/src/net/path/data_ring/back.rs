//! `data-ring` at the back: bytes from and to the area of a queue, mapped from connect to
//! disconnect (docs/protocol 4.5).
//!
//! ```text
//!   TX   place, size --one memcpy, in two pieces around the end--> arena
//!   RX   frame --take--> place, memcpy --> response with the place      request i + N taken: response i's bytes are free
//! ```
//! TX serves the frames whose requests say that they are in the area ([`InArea`] has checked their
//! places). RX serves the frames that the area has room for, all slots of a frame or none. After a
//! back's death its successor calls [`resume`](DataRingPath::resume).
//!
//! What a front may do: change bytes while they are copied (the copy is used); name bytes of
//! another frame of its own; never post a slot again (its area is full).

use super::places::{Places, Used};
use super::{PIECE_MAX, PLACE_BYTES, copy_out_around, rounded};
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::net::ahead::{AHEAD, AHEAD_BYTES, SHORT};
use crate::net::batch::{Claim, RxBatch, Todo, TxBatch, bits};
use crate::net::features::MAX_HEADROOM;
use crate::net::path::BackPath;
use crate::platform::{PeerMem, Platform};
use crate::port::{Arena, Burst, Token};
use crate::shm::SharedBytes;
use crate::units::DomId;
use crate::wire::netif::{RXF_DATA_RING, RxResponse, TXF_DATA_RING, TxRequest};

/// TX requests whose bytes are in the data ring: a flag says so, and the reference field has their
/// place in the TX half.
pub const CLAIM: Claim = Claim::new(0);

/// The half for TX, by which requests are checked. If the queue has none, the request flag has no
/// meaning, like any unknown flag.
#[derive(Clone, Copy, Default, Debug)]
pub struct InArea {
    /// Length of the TX half in bytes; 0: the queue has no data ring.
    half_bytes: u32,
}

impl InArea {
    /// Creates the half of `half_bytes` bytes.
    pub const fn new(half_bytes: u32) -> Self {
        Self { half_bytes }
    }

    /// True if the queue has a data ring for TX.
    #[inline(always)]
    pub fn any(self) -> bool {
        self.half_bytes > 0
    }

    /// True if the request's flag says that its bytes are in the data ring.
    #[inline(always)]
    pub fn claims(self, req: &TxRequest) -> bool {
        req.flags & TXF_DATA_RING != 0 && self.any()
    }

    /// True if the request's place lies in the data ring and a frame fits there. If not, the frame
    /// fails.
    #[inline(always)]
    pub fn is_place(self, req: &TxRequest) -> bool {
        let is_whole = req.gref.is_multiple_of(PLACE_BYTES as u32) && req.offset == 0;
        is_whole && req.gref < self.half_bytes && u32::from(req.size) <= self.half_bytes
    }
}

/// The back's side of one half (direction) of a data ring.
pub struct DataRingPath<P: Platform> {
    map: <P::Peer as PeerMem>::Map,
    size: usize,
    /// The places that RX has in use; None if this half is for TX.
    given: Option<Given>,
}

/// RX: the places of the half that the back handed out and the guest may still read.
struct Given {
    /// Length of the data ring's half for RX, in bytes.
    size: u32,
    places: Places,
    /// Places in use, by the ring indices of their responses.
    used: Used<u32>,
    /// Number of slots of the ring.
    ring_size: u32,
    /// Number of frames that found no room and were not counted yet.
    full: u64,
}

impl<P: Platform> DataRingPath<P> {
    /// TX: the path over the mapped half `map` of `size` bytes.
    pub fn tx(map: <P::Peer as PeerMem>::Map, size: u32) -> Self {
        Self { map, size: size as usize, given: None }
    }

    /// RX: the path over the half `in`, which is used once it was [resumed](Self::resume).
    pub fn rx(map: <P::Peer as PeerMem>::Map, size: u32) -> Result<Self, PlatformError> {
        let given = Given { size, places: Places::new(size), used: Used::new(1)?, ring_size: 1, full: 0 };
        Ok(Self { map, size: size as usize, given: Some(given) })
    }

    /// Length of this half of the data ring, in bytes.
    pub fn half_bytes(&self) -> u32 {
        self.size as u32
    }

    /// True if this half of the data ring is for RX, in which a frame may find no room.
    pub fn is_rx(&self) -> bool {
        self.given.is_some()
    }

    /// RX: marks as used what a predecessor handed out on a ring of `ring_size` slots. `left` has
    /// the responses (with ring indices, the oldest first) of slots that the front has not posted
    /// again; `next` is the ring index of the next response.
    pub fn resume(
        &mut self,
        ring_size: u32,
        left: &[(u32, RxResponse)],
        next: u32,
    ) -> Result<(), PlatformError> {
        self.given.as_mut().map_or(Ok(()), |given| given.resume(ring_size, left, next))
    }

    /// RX: frames that found no room since the last call, and the most bytes in use at a time.
    #[inline(always)]
    pub fn take_counts(&mut self) -> Option<(u64, u64)> {
        self.given.as_mut().map(Given::take_counts)
    }
}

/// Prefetches the frame that is [`AHEAD`] frames after frame `i`, while frame `i` is copied to
/// `next`; for the first frame of `todo` it prefetches all frames up to there. It is called for
/// long frames only, and not inlined, since that would slow short frames.
#[inline(never)]
fn ask<M: SharedBytes>(
    map: &M,
    size: usize,
    next: usize,
    ahead: usize,
    batch: &RxBatch,
    todo: Todo,
    i: usize,
) {
    let from = if todo & ((1 << i) - 1) == 0 { i } else { i + AHEAD };
    let first = usize::from(batch.frame(i).first_slot);
    for j in (from..=i + AHEAD).filter(|j| todo.checked_shr(*j as u32).is_some_and(|bits| bits & 1 > 0)) {
        let k = usize::from(batch.frame(j).first_slot);
        let (Some(before), Some(slot)) = (batch.slots.get(first..k), batch.slots.get(k)) else { return };
        let bytes: usize = before.iter().map(|slot| ahead + rounded(slot.len.into())).sum();
        if usize::from(slot.len) > SHORT {
            map.prefetch_write((next + bytes + ahead) & (size - 1), slot.len.into());
        }
    }
}

impl Given {
    /// Marks as used what a predecessor handed out. If the responses make no sense (the front can
    /// change them), the whole half counts as in use until the front has posted all their slots.
    fn resume(&mut self, ring_size: u32, left: &[(u32, RxResponse)], next: u32) -> Result<(), PlatformError> {
        let size = self.size;
        (self.ring_size, self.used) = (ring_size, Used::new(ring_size)?);
        let pieces = left.iter().filter(|(_, rsp)| rsp.flags & RXF_DATA_RING != 0);
        let mut first = None;
        // The bytes in use, from the oldest response's place to the end of the newest.
        let (mut end, mut honest) = (0u32, true);
        for (index, rsp) in pieces.clone() {
            let place = u32::from(rsp.offset) * PLACE_BYTES as u32;
            let len = usize::try_from(rsp.status).unwrap_or(usize::MAX);
            let from = *first.get_or_insert(place);
            let ahead = place.wrapping_sub(from.wrapping_add(end)) & (size - 1);
            honest &= place < size && len <= PIECE_MAX.min(size as usize) && ahead <= u32::from(MAX_HEADROOM);
            if !honest {
                break;
            }
            end = end.saturating_add(ahead + rounded(len) as u32);
            honest &= end <= size;
            self.used.note(*index, from.wrapping_add(end));
        }
        let Some(from) = first else {
            self.places = Places::new(size);
            return Ok(());
        };
        if honest {
            // The gap ahead of the first is its slot's too; its size is unknown.
            let used = end.saturating_add(u32::from(MAX_HEADROOM)).min(size);
            self.places = Places::resumed(size, from.wrapping_add(end), used);
        } else {
            self.used = Used::new(self.ring_size)?;
            self.places = Places::resumed(size, 0, size);
            self.used.note(next.wrapping_sub(1), 0);
        }
        Ok(())
    }

    #[inline(always)]
    fn take_counts(&mut self) -> (u64, u64) {
        (core::mem::take(&mut self.full), self.places.most().into())
    }
}

impl Given {
    /// Frees the bytes of responses whose slots were posted again: the back took all requests
    /// before index `taken`.
    #[inline(always)]
    fn free(&mut self, taken: u32) {
        let size = self.ring_size;
        if let Some(head) = self.used.forget(|index| taken.wrapping_sub(*index) > size) {
            self.places.free_to(head);
        }
    }
}

impl<P: Platform> BackPath<P> for DataRingPath<P> {
    #[inline(always)]
    fn fetch(&mut self, _p: &P, _of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let ours = todo & batch.claimed(CLAIM);
        // All of the batch's first: it was written by another core.
        for i in bits(ours) {
            let slot = *batch.first_slot(i);
            self.map.prefetch_read(slot.gref as usize, (slot.len as usize).min(AHEAD_BYTES));
        }
        for i in bits(ours) {
            let at = out.desc(i).at as usize;
            let slot = batch.first_slot(i);
            slot.fetched = slot.len;
            let (place, to) = (slot.gref as usize, out.part_mut(at, slot.len.into()));
            if !to.is_some_and(|to| copy_out_around(&self.map, self.size, place, to)) {
                batch.fail(i, out); // cannot be: the place was checked
            }
        }
        todo & !ours
    }

    #[inline(always)]
    fn deliver(&mut self, _p: &P, _of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        let Some(given) = &mut self.given else { return todo };
        given.free(batch.taken());
        let ahead = rounded(usize::from(batch.headroom));
        let mut rest: Todo = 0;
        let mut next = given.places.next() as usize;
        let mut has_long = false;
        for i in bits(todo) {
            let len = frames.len_of(i) as usize;
            if len > SHORT {
                has_long = true;
                break;
            }
            next = (next + ahead) & (self.size - 1);
            self.map.prefetch_write(next, len);
            next += rounded(len);
        }
        for i in bits(todo) {
            if has_long {
                ask(&self.map, self.size, given.places.next() as usize, ahead, batch, todo, i);
            }
            let f = batch.frame(i);
            // The frame's first slot went by another path; so does the rest of the frame.
            if batch.slots_of(i).iter().any(|slot| slot.len == 0) {
                rest |= 1 << i;
                continue;
            }
            // A frame that is here is whole.
            let head = if f.head > 0 { batch.whole_again(i) } else { 0 };
            let pieces = batch.slots_of(i);
            let bytes: usize = pieces.iter().map(|slot| ahead + rounded(slot.len.into())).sum();
            if !given.places.has_room(bytes) || !given.used.has_room(pieces.len() as u32) {
                if head > 0 {
                    batch.delivered_head(i, head);
                }
                given.full += 1;
                rest |= 1 << i;
                continue;
            }
            for k in f.slots() {
                let slot = *batch.slot(k);
                let Some(place) = given.places.take(ahead + usize::from(slot.len)) else { break };
                let place = (place as usize + ahead) & (self.size - 1);
                let (at, len) = (slot.at as usize, usize::from(slot.len));
                let to_end = len.min(self.size - place);
                let fits = frames.copy_to(at, to_end, &self.map, place)
                    && (len == to_end || frames.copy_to(at + to_end, len - to_end, &self.map, 0));
                if !fits {
                    batch.fail(i); // cannot be: a place is in its half
                    break;
                }
                given.used.note(batch.first_index.wrapping_add(slot.rsp.into()), given.places.head());
                let rsp = batch.rsp(slot);
                rsp.offset = (place / PLACE_BYTES) as u16;
                rsp.flags |= RXF_DATA_RING;
            }
        }
        rest
    }

    fn retire(&mut self, _p: &P, _done: &mut Bounded<Token>) {}
}
