//! `staging`: buffers that the front granted before the data came, mapped from connect to
//! disconnect (docs/protocol 3).
//!
//! ```text
//!   request.id --> buffers.place[id] --> one memcpy of `size` bytes, no grant operation
//! ```
//!
//! TX: reference 0 says that the fragment's bytes are in the staging buffer of its id, at the
//! request's offset; where the queue's RX buffers are known too
//! ([`with_received`](StagingPath::with_received)), a request may name any buffer by its id in the
//! lists. Any other reference is an ordinary grant, which the next path serves: each byte comes
//! from exactly one of the two. A frame longer than a buffer has its first bytes in both; with
//! [heads](StagingPath::with_heads) they are taken from here. RX: a frame of at most N bytes, with
//! what is left free ahead of them, goes into the buffer of its slot's id, a longer one into the
//! granted pages of its slots, but for its [head](RxHeads); where N is 65535 every slot is staged.
//! What the front may do:
//! change a buffer while it is copied (the copy is what counts), or name an id that is not in the
//! list or twice in a batch (answered with ERROR), or one that is posted on RX at the moment (it
//! sends what the back puts there for that same guest).

use super::list::colour;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::memory;
use crate::net::ahead::{SHORT, short_staged};
use crate::net::batch::{RxBatch, RxSlot, Todo, TxBatch, TxSlot, bits};
use crate::net::path::held::{HeldFrames, Place};
use crate::net::path::{BackPath, BufferNames};
use crate::platform::{PeerMem, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::netif::{RSP_OKAY, TXF_STAGING_BUFFER};
use alloc::boxed::Box;
use alloc::sync::Arc;

/// The buffers of one direction of a queue, mapped.
#[derive(Debug)]
pub struct StagedBuffers<M> {
    /// All pages of the list, each once.
    pub map: M,
    /// For each id the offset of its buffer in `map`, bytes.
    pub place: Box<[u32]>,
    /// Length of a buffer in bytes: the data length, at most a page.
    pub len: u16,
    /// The data length is 65535: every slot of a frame is staged.
    pub copy_only: bool,
}

/// RX: where the first bytes of a frame are that is longer than a buffer. These are the bytes of
/// its first page before byte N, the length of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RxHeads {
    /// The head is in the page, like the rest of the frame.
    #[default]
    InPage,
    /// The head is in the page and also in the slot's buffer, because the back does not know where
    /// the front reads it.
    InBoth,
    /// The head is in the slot's buffer.
    InBuffer,
}

/// The staging buffers of one direction, and the ids that the current batch used.
pub struct StagingPath<P: Platform> {
    buffers: Arc<StagedBuffers<<P::Peer as PeerMem>::Map>>,
    /// TX only: the RX buffers of the queue, whose ids follow those of TX. A guest may send them.
    received: Option<Arc<StagedBuffers<<P::Peer as PeerMem>::Map>>>,
    /// A bit for each id that the current batch used.
    seen: Box<[u64]>,
    heads: bool,
    rx_heads: RxHeads,
    pub(crate) held: HeldFrames,
}

impl<P: Platform> StagingPath<P> {
    /// Makes the path over `buffers`.
    pub fn new(buffers: StagedBuffers<<P::Peer as PeerMem>::Map>) -> Result<Self, PlatformError> {
        let seen = memory::list(0, buffers.place.len().div_ceil(64))?;
        Ok(Self {
            buffers: Arc::new(buffers),
            received: None,
            seen,
            heads: false,
            rx_heads: RxHeads::InPage,
            held: HeldFrames::default(),
        })
    }

    /// TX: requests may also name the buffers of `rx` (docs/protocol 3.5).
    pub fn with_received(self, rx: &Self) -> Result<Self, PlatformError> {
        let ids = self.buffers.place.len() + rx.buffers.place.len();
        let seen = memory::list(0, ids.div_ceil(64))?;
        Ok(Self { received: Some(Arc::clone(&rx.buffers)), seen, ..self })
    }

    /// Flag by which a request names an RX buffer; 0: requests may not name one, and the flag has
    /// no meaning.
    pub fn buffer_flag(&self) -> u16 {
        if self.received.is_some() { TXF_STAGING_BUFFER } else { 0 }
    }

    /// RX: sets where the heads of long frames are, which both ends must know (on TX each slot says
    /// where its bytes are). `first_slots`: both ends place the first slot of a long frame in its
    /// buffer if buffers have 4096 bytes.
    #[must_use]
    pub fn with_rx_heads(self, heads: RxHeads, first_slots: bool) -> Self {
        let is_page = usize::from(self.buffers.len) == PAGE_SIZE;
        let rx_heads = match heads {
            _ if self.buffers.copy_only => RxHeads::InPage,
            _ if first_slots && is_page => RxHeads::InBuffer,
            heads => heads,
        };
        Self { rx_heads, ..self }
    }

    /// TX: sets whether the first bytes of a frame that is longer than a buffer are read from the
    /// buffer (docs/protocol 3.3).
    #[must_use]
    pub fn with_heads(self, heads: bool) -> Self {
        Self { heads, ..self }
    }

    /// Largest number of bytes of a frame that fits a buffer: the data length in the keys.
    pub fn data_len(&self) -> u32 {
        if self.buffers.copy_only { u32::from(u16::MAX) } else { u32::from(self.buffers.len) }
    }

    /// True if the heads of longer frames [are in the buffers](Self::with_heads).
    pub fn has_heads(&self) -> bool {
        let is_rx = self.rx_heads == RxHeads::InBuffer && usize::from(self.buffers.len) < PAGE_SIZE;
        (self.heads || is_rx) && !self.buffers.copy_only
    }

    /// Whether every slot of a frame is staged.
    pub fn serves_all(&self) -> bool {
        self.buffers.copy_only
    }

    /// RX: whether frames of several slots are in pages alone, as without staging.
    pub fn leaves_long(&self) -> bool {
        !self.buffers.copy_only && self.rx_heads == RxHeads::InPage
    }

    /// Number and length of the buffers, for the status.
    pub fn buffer_names(&self) -> BufferNames {
        let count = self.buffers.place.len() as u32;
        BufferNames { count, data_len: self.data_len(), heads: self.has_heads() }
    }

    /// Fragment `k` of frame `i`; None: another path serves the frame, or it has no such fragment.
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.held.piece(i, k, |place, len| self.map_of(place.page)?.piece(place.at as usize, len))
    }

    /// The mapping that holds a place.
    fn map_of(&self, page: u32) -> Option<&<P::Peer as PeerMem>::Map> {
        if page == OWN { Some(&self.buffers.map) } else { self.received.as_deref().map(|rx| &rx.map) }
    }

    /// Marks long frames so that the port reads them from their buffers. Each of these frames is
    /// served, or fails.
    #[cold]
    #[inline(never)]
    fn lend(&mut self, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let (own, received) = (&*self.buffers, self.received.as_deref());
        let place_of = |slot: &TxSlot| {
            let (page, _, at) = find(own, received, slot).filter(|_| slot.gref == GrantRef::NONE.0)?;
            Some(Place { page, at: at as u32 })
        };
        let copy = |place: Place, to: &mut [u8]| match (place.page, received) {
            (RECEIVED, Some(rx)) => rx.map.copy_out(place.at as usize, to),
            _ => own.map.copy_out(place.at as usize, to),
        };
        let lent = self.held.lend(batch, todo, out, place_of, copy);
        for i in bits(lent) {
            let seen = &mut self.seen;
            if batch.slots_of(i).iter().any(|slot| slot.len > 0 && !first_use(seen, slot.buffer)) {
                batch.fail(i, out);
            }
        }
        batch.zero_copy &= !batch.failed;
        self.held.fail(batch.failed);
        lent
    }

    /// Reads the head of a frame that is longer than a buffer: as much of its first fragment as
    /// fits in the buffer. What is not there is read with the rest of the frame.
    fn fetch_head(&mut self, i: usize, batch: &mut TxBatch, out: &mut Arena) {
        let desc = out.desc(i);
        let slot = batch.first_slot(i);
        let (at, n) = (desc.at as usize, slot.len.min(self.buffers.len));
        if desc.len <= u32::from(self.buffers.len) || self.buffers.copy_only {
            return;
        }
        if let Some(&place) = self.buffers.place.get(slot.id as usize)
            && first_use(&mut self.seen, slot.id)
            && let Some(to) = out.part_mut(at, n.into())
            && self.buffers.map.copy_out(place as usize, to)
        {
            slot.fetched = n;
        }
    }
}

/// Value of [`Place::page`] for a place in the buffers of this direction; the next constant is that
/// for a place in the received buffers.
const OWN: u32 = 0;
const RECEIVED: u32 = 1;

/// Notes an id; false when the batch has it already or it can have no buffer.
#[inline(always)]
fn first_use(seen: &mut [u64], id: u16) -> bool {
    let (word, bit) = (id as usize / 64, 1 << (id % 64));
    match seen.get_mut(word) {
        Some(w) if *w & bit == 0 => {
            *w |= bit;
            true
        }
        _ => false,
    }
}

impl<M> StagedBuffers<M> {
    /// Offset in the mapping of the `len` bytes at `offset` in buffer `id`; None: the buffer has no
    /// such bytes.
    #[inline(always)]
    fn at(&self, id: usize, offset: u16, len: usize) -> Option<usize> {
        let place = *self.place.get(id)? as usize;
        let offset = usize::from(offset);
        (offset + len <= usize::from(self.len)).then_some(place + offset)
    }
}

/// RX: puts the head of a frame that is longer than a buffer into the buffer; returns its length.
/// None: the slot has no buffer. `seen` has the ids of the batch, if they must be checked.
#[inline(always)]
fn put_head<M: SharedBytes>(
    buffers: &StagedBuffers<M>,
    seen: Option<&mut [u64]>,
    slot: RxSlot,
    frames: &Burst<'_>,
) -> Option<u16> {
    let n = slot.len.min(buffers.len.saturating_sub(slot.offset));
    if n == 0 {
        return Some(0);
    }
    let place = *buffers.place.get(slot.id as usize)? as usize + usize::from(slot.offset);
    let is_first = seen.is_none_or(|seen| first_use(seen, slot.id));
    let head = RxSlot { len: n, ..slot };
    (is_first && head.copy_to(frames, &buffers.map, place)).then_some(n)
}

/// Finds a slot's bytes, in a TX or an RX buffer. A slot names an RX buffer by number, a TX buffer
/// by the request's id.
#[inline(always)]
fn find<'a, M>(
    own: &'a StagedBuffers<M>,
    received: Option<&'a StagedBuffers<M>>,
    slot: &TxSlot,
) -> Option<(u32, &'a M, usize)> {
    let (id, len) = (usize::from(slot.buffer), usize::from(slot.len));
    match (id.checked_sub(own.place.len()), received) {
        (Some(id), Some(rx)) if slot.buffer != slot.id => {
            Some((RECEIVED, &rx.map, rx.at(id, slot.offset, len)?))
        }
        _ => Some((OWN, &own.map, own.at(id, slot.offset, len)?)),
    }
}

impl<P: Platform> BackPath<P> for StagingPath<P> {
    #[inline(never)]
    fn fetch(&mut self, _p: &P, _of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        self.seen.fill(0);
        let todo = if batch.standing.is_some() { todo & !self.lend(batch, todo, out) } else { todo };
        let mut rest: Todo = 0;
        let short = short_staged(self.buffers.place.len());
        // The loop below is too long for the processor to prefetch ahead: ask for the whole batch's
        // lines first.
        for i in bits(todo) {
            let slot = *batch.first_slot(i);
            if usize::from(slot.len) > short {
                continue;
            }
            let (offset, len) = (slot.offset as usize, slot.len as usize);
            if let Some(&place) = self.buffers.place.get(slot.buffer as usize) {
                self.buffers.map.prefetch_read(place as usize + offset, len);
            } else if let Some(rx) = &self.received
                && let Some(&place) =
                    rx.place.get((slot.buffer as usize).wrapping_sub(self.buffers.place.len()))
            {
                rx.map.prefetch_read(place as usize + offset, len);
            }
        }
        for i in bits(todo) {
            let mut at = out.desc(i).at as usize;
            let frame = batch.frame(i);
            for k in 0..usize::from(frame.nr_slots) {
                let slot = *batch.slot(usize::from(frame.first_slot) + k);
                let len = slot.len as usize;
                if slot.gref != GrantRef::NONE.0 {
                    rest |= 1 << i;
                    if self.heads && k == 0 {
                        self.fetch_head(i, batch, out);
                    }
                } else if len > 0 {
                    let copied = first_use(&mut self.seen, slot.buffer)
                        && out.part_mut(at, len).is_some_and(|to| {
                            find(&self.buffers, self.received.as_deref(), &slot)
                                .is_some_and(|(_, map, at)| map.copy_out(at, to))
                        });
                    if !copied {
                        batch.fail(i, out);
                        break;
                    }
                    batch.slot(usize::from(frame.first_slot) + k).fetched = slot.len;
                }
                at += len;
            }
        }
        rest & !batch.failed
    }

    fn retire(&mut self, _p: &P, done: &mut Bounded<Token>) {
        self.held.retire(done);
    }

    #[inline(never)]
    fn deliver(&mut self, _p: &P, _of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        let Self { buffers, seen, rx_heads, .. } = self;
        let buffers = &**buffers;
        let limit = buffers.len as usize;
        let headroom = usize::from(batch.headroom);
        let heads = *rx_heads != RxHeads::InPage;
        let mut rest: Todo = 0;
        for i in bits(todo) {
            let slot = *batch.first_slot(i);
            if (usize::from(slot.len) <= SHORT || heads)
                && let Some(&place) = buffers.place.get(slot.id as usize)
            {
                let at = place as usize + place_in(headroom, slot, limit);
                buffers.map.prefetch_write(at, usize::from(slot.len).min(SHORT));
            }
        }
        let rising = batch.ids_rise;
        if !rising {
            seen.fill(0);
        }
        for i in bits(todo) {
            if let Some((_, slot)) = batch.long_ahead(i, todo)
                && headroom + usize::from(slot.len) <= limit
                && let Some(&place) = buffers.place.get(slot.id as usize)
            {
                let at = place as usize + place_in(headroom, *slot, limit);
                buffers.map.prefetch_write(at, slot.len.into());
            }
            let f = batch.frame(i);
            let whole = frames.len_of(f.frame.into()) as usize;
            if headroom + whole > limit && !buffers.copy_only {
                rest |= 1 << i;
                if heads {
                    let slot = *batch.slot(f.first_slot.into());
                    match put_head(buffers, (!rising).then_some(&mut **seen), slot, frames) {
                        Some(n) if *rx_heads == RxHeads::InBuffer => batch.delivered_head(i, n),
                        None if *rx_heads == RxHeads::InBuffer => batch.fail(i),
                        _ => {}
                    }
                }
                continue;
            }
            for k in f.slots() {
                let slot = *batch.slot(k);
                let len = slot.len as usize;
                let offset = place_in(headroom, slot, limit);
                let copied = (rising || first_use(seen, slot.id))
                    && match buffers.place.get(slot.id as usize) {
                        Some(&place) => slot.copy_to(frames, &buffers.map, place as usize + offset),
                        None => false,
                    };
                if !copied {
                    batch.fail(i);
                    break;
                }
                let rsp = batch.rsp(slot);
                rsp.offset = offset as u16;
                debug_assert!(rsp.status >= RSP_OKAY && offset + len <= PAGE_SIZE);
            }
        }
        rest & !batch.failed
    }
}

/// Holds no page individually, since all buffers stay mapped as long as the path exists.
impl<P: Platform> StagingPath<P> {
    /// Marks frame `i` as kept by the port; None: another path serves the frame.
    pub fn hold(&mut self, i: usize) -> Option<Token> {
        self.held.hold(i, |_| {})
    }

    /// Notes that the port has completed the frames with these tokens; `None`: all frames.
    pub fn complete(&mut self, tokens: Option<&[Token]>) {
        self.held.complete(tokens, |_| {});
    }
}

/// Offset in its buffer at which a slot's bytes start: after the headroom, if there is any.
#[inline(always)]
fn place_in(headroom: usize, slot: RxSlot, limit: usize) -> usize {
    if headroom > 0 { headroom } else { colour(slot.id, slot.len as usize, limit) }
}
