//! `map` at the back: heads are copied by grant copy; pages are mapped together and unmapped
//! together.
//!
//! ```text
//!   fetch --port takes private bytes--> map, copied out  --> retire: unmapped, answered
//!         \--port takes lent payload--> map, if it reads --> settle --+--> retire
//!                                                                     +--> held, until complete --> retire
//! ```
//! Invariants: the pages of a batch go together. While the port holds one frame of a batch, all of
//! its pages stay mapped, and all of its frames unanswered: so no more pages are kept than the ring
//! has slots, for which there is memory from the beginning.

use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::memory;
use crate::net::batch::{BATCH_SLOTS, RxBatch, Todo, TxBatch, bits};
use crate::net::path::BackPath;
use crate::net::path::held::{HEAD_BYTES, may_be_zero_copy};
use crate::platform::{Access, CopyOp, LocalBytes, PeerMem, Platform};
use crate::port::{Arena, BURST_FRAMES, Burst, Piece, Token};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::grant::GrantStatus;
use alloc::boxed::Box;
use core::mem;

/// A page of the current batch, and the bytes of it that a frame uses.
#[derive(Clone, Copy, Debug)]
struct Part {
    frame: u8,
    slot: u8,
    /// Offset in the page.
    from: u16,
    len: u16,
    /// Offset in the arena.
    at: u32,
}

/// An earlier batch with frames that the port holds.
struct Kept {
    serial: u64,
    /// Frames that the port has not completed.
    open: Todo,
    /// Frames of the batch that are held.
    held: Todo,
}

/// The path `map`: pages that are mapped for the frames of a batch.
pub struct MapPath<P: Platform> {
    headers: Bounded<CopyOp>,
    header_of: Bounded<(u8, u8)>,
    /// Pages of the current batch, which one call maps.
    refs: Bounded<GrantRef>,
    parts: Bounded<Part>,
    /// For each frame of the batch the index of its first part.
    first: Box<[u16]>,
    /// The frames of the batch that this path serves.
    own: Todo,
    /// Mappings of the parts: either all parts are in the first one, or each part is in its own, in
    /// order.
    mapped: Bounded<<P::Peer as PeerMem>::Map>,
    maps_done: bool,
    /// The parts are mapped one by one, not all in one mapping.
    apart: bool,
    /// Parts before `tried` that could not be mapped.
    bad: Bounded<u16>,
    /// Number of parts that were tried one by one. Later ones, if there are any, are bad too.
    tried: usize,
    /// Number of the current batch.
    serial: u64,
    /// Frames of the current batch that the port keeps.
    keeping: Todo,
    /// Frames of the current batch that are held.
    waiting: Todo,
    /// Earlier batches that the port has not completed.
    kept: Bounded<Kept>,
    /// The mappings of those batches, each with the batch's number.
    kept_maps: Bounded<(u64, <P::Peer as PeerMem>::Map)>,
}

impl<P: Platform> Default for MapPath<P> {
    fn default() -> Self {
        Self {
            headers: Bounded::without_room(),
            header_of: Bounded::without_room(),
            refs: Bounded::without_room(),
            parts: Bounded::without_room(),
            first: Box::default(),
            own: 0,
            mapped: Bounded::without_room(),
            maps_done: false,
            apart: false,
            bad: Bounded::without_room(),
            tried: 0,
            serial: 0,
            keeping: 0,
            waiting: 0,
            kept: Bounded::without_room(),
            kept_maps: Bounded::without_room(),
        }
    }
}

impl<P: Platform> MapPath<P> {
    /// Plans frame `i`: its head, which is copied, and the parts of the rest. The head ends in the
    /// slot that holds its last byte.
    fn plan(&mut self, i: usize, batch: &mut TxBatch, out: &mut Arena) {
        let (start, first) = (out.desc(i).at, self.parts.len());
        let mut at = start;
        let (mut lent, mut has_room) = (batch.takes.is_some(), true);
        let frame = batch.frame(i);
        for k in 0..usize::from(frame.nr_slots) {
            let slot = *batch.slot(usize::from(frame.first_slot) + k);
            let had = slot.fetched;
            if had == slot.len {
                // A frame cannot have a part in private memory after one in the guest's pages.
                lent &= self.parts.len() == first || slot.len == 0;
                at += slot.len as u32;
                continue;
            }
            if slot.gref == GrantRef::NONE.0 && slot.len > 0 {
                batch.fail_slot(i, k, out);
                break;
            }
            let gref = GrantRef(slot.gref);
            let head = u32::from(HEAD_BYTES).saturating_sub(at - start);
            let is_head = self.parts.len() == first;
            lent &= is_head || had == 0;
            let copied = if is_head {
                head.saturating_sub(u32::from(had)).min(u32::from(slot.len - had)) as u16
            } else {
                0
            };
            if copied > 0 {
                let (offset, at) = (slot.offset + had, at + u32::from(had));
                let op = CopyOp { gref, offset, len: copied, at, status: GrantStatus::OKAY };
                has_room &= self.header_of.push((i as u8, k as u8)).is_ok() && self.headers.push(op).is_ok();
            }
            let copied = had + copied;
            if slot.len > copied {
                if is_head {
                    *batch.head(i) = (at - start) as u16 + copied;
                }
                let part = Part {
                    frame: i as u8,
                    slot: k as u8,
                    from: slot.offset + copied,
                    len: slot.len - copied,
                    at: at + copied as u32,
                };
                has_room &= self.refs.push(gref).is_ok() && self.parts.push(part).is_ok();
            }
            if !has_room {
                batch.fail_slot(i, k, out); // cannot be: there is room for a batch's slots
                break;
            }
            at += slot.len as u32;
        }
        let Some(place) = self.first.get_mut(i) else { return };
        *place = first as u16;
        self.own |= 1 << i;
        batch.zero_copy |= Todo::from(lent && self.parts.len() > first) << i;
    }

    /// Maps the pages of the batch by one call. If that fails, because of one bad reference or
    /// because the platform cannot map these pages as one range, maps them page by page; then only
    /// frames with a bad page fail.
    fn map(&mut self, p: &P, of: DomId) {
        if mem::replace(&mut self.maps_done, true) || self.refs.is_empty() {
            return;
        }
        if let Ok(map) = p.peer().map(of, &self.refs, Access::ReadOnly) {
            self.mapped.put(map); // it is empty
            return;
        }
        (self.apart, self.tried) = (true, 0);
        for (k, gref) in self.refs.iter().enumerate() {
            let map = p.peer().map(of, &[*gref], Access::ReadOnly);
            let has_room = match map {
                Ok(map) => self.mapped.push(map).is_ok(),
                Err(_) => self.bad.push(k as u16).is_ok(),
            };
            debug_assert!(has_room, "there is room for a batch's slots");
            if !has_room {
                break; // a later part would have another one's page
            }
            self.tried = k + 1;
        }
    }

    /// The bytes of part `k`, if it is mapped.
    fn part(&self, k: usize) -> Option<Piece<'_>> {
        let part = self.parts.get(k)?;
        let (map, page) = match (self.apart, self.bad.binary_search(&(k as u16))) {
            (false, _) => (0, k),
            (true, Err(bad_before)) if k < self.tried => (k - bad_before, 0),
            (true, _) => return None,
        };
        self.mapped.get(map)?.piece(page * PAGE_SIZE + part.from as usize, part.len as usize)
    }

    /// Copies the payload of `frames` from the mapped pages to its place in the arena.
    fn copy_out(&mut self, p: &P, of: DomId, frames: Todo, batch: &mut TxBatch, out: &mut Arena) {
        self.map(p, of);
        for (k, part) in self.parts.iter().enumerate().filter(|(_, part)| frames >> part.frame & 1 != 0) {
            let to = out.part_mut(part.at as usize, part.len.into()).unwrap_or_default();
            if self.part(k).map(|piece| piece.copy_out(to)) != Some(part.len as usize) {
                batch.fail_slot(part.frame as usize, part.slot as usize, out);
            }
        }
    }

    /// True if all mappings of the current batch can be kept.
    fn has_room(&self) -> bool {
        self.kept.room() > 0 && self.kept_maps.room() >= self.mapped.len()
    }

    /// Keeps the mappings of the current batch, for which there [is room](Self::has_room).
    #[cold]
    fn keep(&mut self, batch: Kept) {
        for map in self.mapped.to_drain().drain(..) {
            if let Err((_, map)) = self.kept_maps.push((batch.serial, map)) {
                mem::forget(map); // cannot be; a port may still read it
            }
        }
        self.kept.put(batch); // a frame is held only where there is room
    }

    /// Unmaps what was kept of a batch.
    #[cold]
    fn end(&mut self, p: &P, serial: u64) {
        let mut k = 0;
        while let Some((of, _)) = self.kept_maps.get(k) {
            if *of != serial {
                k += 1;
            } else if let Some((_, map)) = self.kept_maps.take(k) {
                self.mapped.put(map); // a batch's fit
            }
        }
        p.peer().unmap(self.mapped.to_drain());
    }

    /// The parts that could not be mapped.
    fn bad_parts(&self) -> impl Iterator<Item = &Part> {
        let bad = self.bad.iter().filter_map(|k| self.parts.get(usize::from(*k)));
        bad.chain(self.parts.get(self.tried..).unwrap_or_default().iter().filter(|_| self.apart))
    }

    /// Fails the frames with a page that could not be mapped.
    fn fail_bad(&self, batch: &mut TxBatch, out: &mut Arena) {
        for part in self.bad_parts() {
            batch.fail_slot(part.frame as usize, part.slot as usize, out);
        }
    }

    /// Marks frames as held, also failed ones: their pages stay mapped until they are retired.
    fn hold(&mut self, batch: &mut TxBatch) {
        self.waiting = if self.mapped.is_empty() { 0 } else { self.own };
        batch.held |= self.waiting;
        // Frames that arrive without this path are not its own.
        self.own = 0;
    }
}

impl<P: Platform> BackPath<P> for MapPath<P> {
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let mut rest: Todo = 0;
        self.headers.clear();
        self.header_of.clear();
        self.refs.clear();
        self.parts.clear();
        self.bad.clear();
        (self.own, self.maps_done, self.apart) = (0, false, false);
        self.serial = batch.serial;
        for i in bits(todo) {
            if out.desc(i).len <= batch.thresholds.copy_below {
                rest |= 1 << i;
            } else {
                self.plan(i, batch, out);
            }
        }
        if !self.headers.is_empty() {
            let tried = p.peer().copy(of, LocalBytes::FromPeer(out.bytes_mut()), &mut self.headers).is_ok();
            for (op, &(i, k)) in self.headers.iter().zip(self.header_of.iter()) {
                if !tried || op.status != GrantStatus::OKAY {
                    batch.fail_slot(i as usize, k as usize, out);
                }
            }
        }
        let takes = batch.takes.unwrap_or_default();
        for i in bits(batch.zero_copy & self.own & !batch.failed) {
            let desc = out.desc(i);
            let head = out.part_mut(desc.at as usize, (*batch.head(i)).into()).unwrap_or_default();
            if !may_be_zero_copy(takes, desc, head) {
                batch.zero_copy &= !(1 << i);
            }
        }
        let whole = self.own & !batch.zero_copy & !batch.failed;
        if whole != 0 {
            self.copy_out(p, of, whole, batch, out);
            // Frames that a port would read fail too: the port might never read their pages, and
            // must not get a frame that is answered with ERROR.
            self.fail_bad(batch, out);
        }
        batch.zero_copy &= !batch.failed;
        if batch.zero_copy == 0 {
            self.hold(batch);
        }
        rest
    }

    fn retire(&mut self, p: &P, done: &mut Bounded<Token>) {
        let mut answer = |serial: u64, held: Todo| {
            for i in bits(held) {
                done.put(Token::of(serial, i)); // there is room for a ring's frames
            }
        };
        let held = mem::take(&mut self.waiting);
        let open = mem::take(&mut self.keeping);
        if open == 0 {
            p.peer().unmap(self.mapped.to_drain());
            answer(self.serial, held);
        } else {
            self.keep(Kept { serial: self.serial, open, held });
        }
        while let Some(k) = self.kept.iter().position(|batch| batch.open == 0)
            && let Some(batch) = self.kept.take(k)
        {
            self.end(p, batch.serial);
            answer(batch.serial, batch.held);
        }
    }

    /// This path is for TX only.
    fn deliver(&mut self, _p: &P, _of: DomId, _batch: &mut RxBatch, _frames: &Burst<'_>, todo: Todo) -> Todo {
        todo
    }
}

impl<P: Platform> MapPath<P> {
    /// Fragment `k` of frame `i`; None: another path serves the frame, or it has no such fragment.
    #[inline]
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        let k = usize::from(*self.first.get(i)?) + k;
        let part = self.parts.get(k).filter(|part| usize::from(part.frame) == i && self.own >> i & 1 != 0);
        part.and_then(|_| self.part(k))
    }
}

impl<P: Platform> MapPath<P> {
    /// Maps the payload of the batch's frames. Returns the frames for which that failed.
    pub fn map_payload(&mut self, p: &P, of: DomId) -> Todo {
        if self.own == 0 {
            return 0; // what is here is of a batch before
        }
        self.map(p, of);
        self.bad_parts().fold(0, |failed, part| failed | 1 << part.frame)
    }

    /// Marks frame `i` as kept by the port; None: another path serves the frame.
    pub fn hold_frame(&mut self, i: usize) -> Option<Token> {
        if self.own >> i & 1 == 0 || !self.has_room() {
            return None;
        }
        self.keeping |= 1 << i;
        Some(Token::of(self.serial, i))
    }

    /// Makes room for a batch, and for as many kept pages as a ring of `slots` slots can name.
    pub fn make_room(&mut self, slots: usize) -> Result<(), PlatformError> {
        self.headers = Bounded::new(BATCH_SLOTS)?;
        self.header_of = Bounded::new(BATCH_SLOTS)?;
        self.refs = Bounded::new(BATCH_SLOTS)?;
        self.parts = Bounded::new(BATCH_SLOTS)?;
        self.first = memory::list(0, BURST_FRAMES)?;
        self.mapped = Bounded::new(BATCH_SLOTS)?;
        self.bad = Bounded::new(BATCH_SLOTS)?;
        self.kept = Bounded::new(slots)?;
        self.kept_maps = Bounded::new(slots)?;
        Ok(())
    }

    /// Called after the port had the batch: fails frames that could not be read, and marks those
    /// that are held.
    pub fn settle(&mut self, batch: &mut TxBatch, out: &mut Arena) {
        if self.own != 0 {
            self.fail_bad(batch, out);
            self.hold(batch);
        }
    }

    /// True if the port has any frame in flight.
    pub fn in_flight(&self) -> bool {
        self.keeping != 0 || !self.kept.is_empty()
    }

    /// Notes that the port has completed the frames with these tokens; `None`: all frames.
    pub fn complete(&mut self, tokens: Option<&[Token]>) {
        let Some(tokens) = tokens else {
            self.keeping = 0;
            self.kept.iter_mut().for_each(|batch| batch.open = 0);
            return;
        };
        for (serial, i) in tokens.iter().map(|token| token.split()) {
            if let Some(batch) = self.kept.iter_mut().find(|batch| batch.serial == serial) {
                batch.open &= !(1 << i);
            } else if serial == self.serial {
                self.keeping &= !(1 << i);
            }
        }
    }
}
