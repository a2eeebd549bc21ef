//! Zero-copy TX: a path leaves a frame's payload in the guest's pages, the port reads it there, and
//! the path keeps the pages until the port has completed the frame.
//!
//! ```text
//!   long frame --all slots have pages--> head (128 bytes, private) + parts --map_payload, piece--> port
//!                                                  held (token, pages) ... <--------hold----------'
//!                                       complete: pages may go, --retire--> answered
//! ```
//! | name | is |
//! |---|---|
//! | [`HeldFrames`] | the parts of a batch's frames, and the frames in flight, of a path whose pages stay mapped |
//! | [`PayloadSource`](crate::port::PayloadSource), [`Completions`](crate::port::Completions) | what a port sees of the chain; what a queue sees of the port |
//!
//! The pages of [`staging`](super::staging), [`gref_mapping`](super::gref_mapping) and
//! [`persistent`](super::persistent) stay mapped. Each of these says which page a slot uses, and
//! its reference. [`map`](super::map) maps its pages for a batch.
//!
//! Invariants:
//! - A frame is lent whole or not at all. Its head is private, and has all headers that a reader
//!   may parse.
//! - The page of a held frame is recorded here until the port completes the frame, and is not
//!   unmapped before.
//! - Nothing is allocated for a frame. A held frame keeps its slots of the ring, so the ring's
//!   length bounds the held frames, for which there is room from the beginning.
//!
//! What a guest may do: change the payload at any time, but no head, length or place. It can name a
//! page twice: both frames then have the bytes that are there when they are read.

use crate::bounded::{Bounded, BoundedQueue};
use crate::error::PlatformError;
use crate::memory;
use crate::net::batch::{BATCH_SLOTS, StandingTakes, Thresholds, Todo, TxBatch, TxSlot, bits};
use crate::net::headers::IpHeaders;
use crate::port::{Arena, BURST_FRAMES, FrameDesc, Offloads, Piece, Token};
use alloc::boxed::Box;

/// Number of bytes at the start of each frame that are always copied: the headers (Linux:
/// `XEN_NETBACK_TX_COPY_LEN`).
pub const HEAD_BYTES: u16 = Thresholds::LEAST as u16;

/// True if the payload after this head may go to the port uncopied; `takes` is the offload work
/// that the port accepts to do itself. We compute checksums and cut segments only in private
/// memory, never in bytes that a guest can still change.
pub fn may_be_zero_copy(takes: Offloads, desc: FrameDesc, head: &[u8]) -> bool {
    let (blank, cut) = (desc.offload.csum_blank, desc.offload.gso_type != 0);
    let unfit = blank && !takes.csum || cut && !takes.gso;
    !unfit && (!(blank || cut) || IpHeaders::are_in(head, desc.len as usize))
}

/// Where bytes of the guest are: a page, by a number that its path chose, and the offset in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The number by which a path finds the page: a grant reference, or with staging the index of
    /// one of the two mappings.
    pub page: u32,
    /// Offset in the page, bytes.
    pub at: u32,
}

/// A part of a frame's payload.
#[derive(Clone, Copy, Debug)]
struct Part {
    frame: u8,
    len: u16,
    place: Place,
}

/// A page of a frame that the port keeps. A frame's pages follow each other; one without pages has
/// an entry too.
#[derive(Debug)]
struct Kept {
    token: Token,
    page: Option<u32>,
}

/// Frames whose payload a port reads in the guest's pages, until it has completed them.
#[derive(Debug, Default)]
pub struct HeldFrames {
    /// Number of the current batch.
    serial: u64,
    /// Frames of the batch that the port may read; none once the batch is settled.
    own: Todo,
    /// Frames of the batch that the port keeps; none once the batch is settled.
    keeping: Todo,
    parts: Bounded<Part>,
    /// For each frame of the batch the index of its first part.
    first: Box<[u16]>,
    /// For this batch and earlier ones: frames that the port keeps, and frames that it completed
    /// and that are not retired. In both lists a frame has no more entries than slots.
    kept: BoundedQueue<Kept>,
    done: Bounded<Token>,
}

impl HeldFrames {
    /// Makes room for the frames of a batch, and for as many held frames as a ring of `slots` slots
    /// has. Without it no frame is lent.
    pub fn make_room(&mut self, slots: usize) -> Result<(), PlatformError> {
        self.parts = Bounded::new(BATCH_SLOTS)?;
        self.first = memory::list(0, BURST_FRAMES)?;
        self.kept = BoundedQueue::new(slots)?;
        self.done = Bounded::new(slots)?;
        Ok(())
    }

    /// Marks those frames of `todo` that are long enough, have no fragment fetched yet, and have a
    /// place for each slot; returns them. `copy` copies the bytes of a place.
    #[cold]
    #[inline(never)]
    pub fn lend(
        &mut self,
        batch: &mut TxBatch,
        todo: Todo,
        out: &mut Arena,
        mut place_of: impl FnMut(&TxSlot) -> Option<Place>,
        copy: impl Fn(Place, &mut [u8]) -> bool,
    ) -> Todo {
        (self.serial, self.own, self.keeping) = (batch.serial, 0, 0);
        self.parts.clear();
        let Some(StandingTakes { caps: takes, above }) = batch.standing else { return 0 };
        for i in bits(todo) {
            let desc = out.desc(i);
            if desc.len <= above {
                continue;
            }
            let (first, start) = (self.parts.len(), desc.at as usize);
            let mut had = 0;
            let mut all = true;
            for slot in batch.slots_of(i) {
                let place = place_of(slot).filter(|_| slot.fetched == 0);
                let n = slot.len.min(HEAD_BYTES - had);
                let to = out.part_mut(start + usize::from(had), n.into());
                let copied = |place: &Place| n == 0 || to.is_some_and(|to| copy(*place, to));
                let Some(Place { page, at }) = place.filter(copied) else {
                    all = slot.len == 0;
                    if all {
                        continue;
                    }
                    break;
                };
                had += n;
                if slot.len > n {
                    let place = Place { page, at: at + u32::from(n) };
                    let part = Part { frame: i as u8, len: slot.len - n, place };
                    all = self.parts.push(part).is_ok();
                    if !all {
                        break;
                    }
                }
            }
            let head = out.part_mut(start, had.into()).unwrap_or_default();
            let place = self.first.get_mut(i).filter(|_| all && may_be_zero_copy(takes, desc, head));
            if let Some(place) = place {
                *batch.head(i) = had;
                *place = first as u16;
                self.own |= 1 << i;
            } else {
                self.parts.truncate(first);
            }
        }
        batch.zero_copy |= self.own;
        self.own
    }

    /// Removes frames that failed after they were marked.
    pub fn fail(&mut self, frames: Todo) {
        self.own &= !frames;
    }

    /// Fragment `k` of frame `i`; `piece` maps its place to memory.
    #[inline]
    pub fn piece<'a>(
        &self,
        i: usize,
        k: usize,
        piece: impl FnOnce(Place, usize) -> Option<Piece<'a>>,
    ) -> Option<Piece<'a>> {
        let first = usize::from(*self.first.get(i)?);
        let part = self.parts.get(first + k).filter(|part| usize::from(part.frame) == i)?;
        if self.own >> i & 1 == 0 {
            return None;
        }
        piece(part.place, part.len.into())
    }

    /// Notes that the port keeps frame `i`; `page` gets each of its pages. None: the port may not
    /// read it here, or keeps it already; or there is no room for its pages.
    pub fn hold(&mut self, i: usize, mut page: impl FnMut(u32)) -> Option<Token> {
        if self.own & !self.keeping & 1 << i == 0 {
            return None;
        }
        let token = Token::of(self.serial, i);
        let first = usize::from(*self.first.get(i)?);
        let parts = self.parts.get(first..).unwrap_or_default();
        let n = parts.iter().take_while(|part| usize::from(part.frame) == i).count();
        if self.kept.room() < n.max(1) {
            return None;
        }
        self.keeping |= 1 << i;
        for part in parts.iter().take(n) {
            page(part.place.page);
            self.kept.put(Kept { token, page: Some(part.place.page) });
        }
        if n == 0 {
            self.kept.put(Kept { token, page: None });
        }
        Some(token)
    }

    /// Called after the port had the batch: marks the frames that it keeps as held.
    pub fn settle(&mut self, batch: &mut TxBatch) {
        // Frames that arrive without this path are not its own.
        batch.held |= core::mem::take(&mut self.keeping);
        self.own = 0;
    }

    /// True if the port has any frame in flight.
    pub fn in_flight(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Notes that the port has completed these frames, `None`: all. Calls `release` for their
    /// pages.
    pub fn complete(&mut self, tokens: Option<&[Token]>, mut release: impl FnMut(u32)) {
        let mut end = |kept: &mut BoundedQueue<Kept>, at: usize, token: Token| {
            while kept.get(at).is_some_and(|kept| kept.token == token) {
                kept.remove(at).and_then(|kept| kept.page).map(&mut release);
            }
            self.done.put(token); // a frame that is not retired has a slot of the ring
        };
        let Some(tokens) = tokens else {
            while let Some(token) = self.kept.front().map(|kept| kept.token) {
                end(&mut self.kept, 0, token);
            }
            return;
        };
        for token in tokens {
            // Nearly always the oldest. What was never kept, or is another path's, means nothing.
            if let Some(at) = self.kept.iter().position(|kept| kept.token == *token) {
                end(&mut self.kept, at, *token);
            }
        }
    }

    /// Appends the frames whose requests may be answered now.
    pub fn retire(&mut self, done: &mut Bounded<Token>) {
        while let Some(token) = self.done.pop() {
            done.put(token); // there is room for a ring's frames
        }
    }
}
