//! Which staging buffer, or which page, each RX slot has; either is called a buffer here. If there
//! are more buffers than slots, each buffer rests before it is written again (docs/protocol 3.2),
//! or leaves the slots for a time: TX sends a received buffer on (3.5), a consumer reads a page in
//! place.
//!
//! ```text
//!   spare --post--> slot --answer, copied or dropped--> the same slot, or spare
//!     ^              '----answer, taken--> TX, by its id, or a consumer, by a token --given back--.
//!     '------------------------------------------------------------------------------------------'
//! ```
//! If buffers rest, the spare buffer that came back first is posted first, so that all of them are
//! used in turn, except that a slot keeps a buffer in which nothing was received: its page, when
//! the frame was in its staging buffer. If buffers do not rest, the spare one that came back last
//! is posted first, and a slot keeps its own.
//!
//! Invariants: each buffer is in one place: a slot has it, or it is spare, or it is away
//! ([`SlotMemory::holds`] counts each kind). The id of an RX request is its buffer's number, so a
//! slot without a buffer is not posted. If there are no more buffers than slots, a slot always has
//! the buffer of its own number.
//!
//! What the back may do: nothing here. It names RX slots by their place on the ring, and an id of
//! TX counts once it is known to be in flight ([`tx`](super::tx)).

use super::tx_slots::{NO_ID, table};
use crate::error::PlatformError;
use alloc::boxed::Box;

/// The slot has no buffer.
const NONE: u16 = NO_ID;

/// The table of which buffer or page each RX slot has. A number is a buffer's, or a page's.
pub struct SlotMemory {
    /// For each slot the number of its buffer or page.
    of_slot: Box<[u16]>,
    /// Buffers that no slot has: a ring buffer with a power of two of places, large enough for all.
    spare: Box<[u16]>,
    head: u32,
    tail: u32,
    /// Buffers rest between uses: an answered slot's buffer becomes spare, and the buffer that is
    /// spare for the longest time is posted.
    rest: bool,
    /// If buffers rest: for each slot the buffer that it keeps for its next request, because the
    /// answer put nothing in it.
    kept: Box<[u16]>,
    /// Number of buffers that consumers have.
    away: u32,
}

impl SlotMemory {
    /// Gives each of `slots` slots the buffer of its own number; the rest of `buffers` is spare.
    /// With `rest` a slot gets another buffer each time it is posted.
    pub fn new(slots: u32, buffers: u32, rest: bool) -> Result<Self, PlatformError> {
        Self::with_room(slots, buffers, rest, 0)
    }

    /// Like [`new`](Self::new), with room for `more` buffers that are [added](Self::add) later.
    pub fn with_room(slots: u32, buffers: u32, rest: bool, more: u32) -> Result<Self, PlatformError> {
        let places = (buffers.max(slots) + more).next_power_of_two();
        let (mut of_slot, mut spare) = (table(slots)?, table(places)?);
        of_slot.iter_mut().zip(0..slots).for_each(|(place, buffer)| *place = buffer as u16);
        spare.iter_mut().zip(slots..buffers).for_each(|(place, buffer)| *place = buffer as u16);
        let tail = buffers.saturating_sub(slots);
        let kept = table(if rest { slots } else { 0 })?;
        Ok(Self { of_slot, spare, head: 0, tail, rest, kept, away: 0 })
    }

    #[inline(always)]
    fn put_by(&mut self, buffer: u16) {
        let at = self.tail as usize & (self.spare.len() - 1);
        if let Some(place) = self.spare.get_mut(at) {
            *place = buffer;
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// The buffer with which `slot` was posted.
    #[inline(always)]
    pub fn of(&self, slot: u16) -> u16 {
        self.of_slot.get(usize::from(slot)).copied().unwrap_or(NONE)
    }

    /// Called when the answer to `slot` put nothing in its buffer: the slot keeps the buffer.
    #[inline(always)]
    pub fn keep(&mut self, slot: u16) {
        if let Some(kept) = self.kept.get_mut(usize::from(slot)) {
            *kept = self.of_slot.get(usize::from(slot)).copied().unwrap_or(NONE);
        }
    }

    /// The buffer with which `slot` is posted next; None: no buffer is spare now.
    #[inline(always)]
    pub fn to_post(&mut self, slot: u16) -> Option<u16> {
        let before = self.of_slot.get(usize::from(slot)).copied()?;
        let kept = self.kept.get_mut(usize::from(slot)).map(|kept| core::mem::replace(kept, NONE));
        if before != NONE && kept.is_none_or(|kept| kept == before) {
            return Some(before);
        }
        if self.head == self.tail {
            return (before != NONE).then_some(before);
        }
        // Without rest the buffer that was returned last is used first: it is still in the cache.
        let next = if self.rest { self.head } else { self.tail.wrapping_sub(1) };
        let buffer = self.spare.get(next as usize & (self.spare.len() - 1)).copied()?;
        if self.rest {
            self.head = self.head.wrapping_add(1);
        } else {
            self.tail = next;
        }
        if let Some(of_slot) = self.of_slot.get_mut(usize::from(slot)) {
            *of_slot = buffer;
        }
        if before != NONE {
            self.put_by(before);
        }
        Some(buffer)
    }

    /// Whether `slot` could be posted.
    #[inline(always)]
    pub fn can_post(&self, slot: u16) -> bool {
        self.of(slot) != NONE || self.head != self.tail
    }

    /// Takes the buffer of `slot`, which was answered, until it is [given back](Self::give_back).
    #[inline(always)]
    pub fn take(&mut self, slot: u16) -> u16 {
        self.away += 1;
        self.of_slot.get_mut(usize::from(slot)).map_or(NONE, |buffer| core::mem::replace(buffer, NONE))
    }

    /// Makes a buffer spare that a consumer had.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u16) {
        self.away -= 1;
        self.put_by(buffer);
    }

    /// Number of buffers that neither a slot nor a consumer has.
    #[inline(always)]
    pub fn spare(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Adds a spare buffer. There must be [room](Self::with_room) for it.
    pub fn add(&mut self, buffer: u16) {
        self.put_by(buffer);
    }

    /// Removes a spare buffer whose number is at least `from`.
    pub fn take_out(&mut self, from: u16) -> Option<u16> {
        let mask = self.spare.len() - 1;
        let at = |index: u32| index as usize & mask;
        let mut places = (0..self.spare()).map(|k| self.head.wrapping_add(k));
        let found = places.find(|index| self.spare.get(at(*index)).is_some_and(|buffer| *buffer >= from))?;
        // The buffer that was returned last moves to the free place.
        self.tail = self.tail.wrapping_sub(1);
        self.spare.swap(at(found), at(self.tail));
        self.spare.get(at(self.tail)).copied()
    }

    /// Number of buffers that consumers have.
    pub fn away(&self) -> u32 {
        self.away
    }

    /// Number of buffers that slots have, that are spare, and that consumers have.
    pub fn holds(&self) -> [usize; 3] {
        let with_slot = self.of_slot.iter().filter(|buffer| **buffer != NONE).count();
        [with_slot, self.spare() as usize, self.away as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_buffer_is_in_one_place() {
        let mut buffers = SlotMemory::new(4, 5, false).expect("memory");
        assert_eq!((buffers.holds(), buffers.of(2)), ([4, 1, 0], 2));
        assert_eq!(buffers.to_post(2), Some(2), "it has one");
        assert_eq!(buffers.take(2), 2);
        assert_eq!(buffers.holds(), [3, 1, 1]);
        assert_eq!((buffers.can_post(2), buffers.to_post(2)), (true, Some(4)));
        assert_eq!(buffers.take(0), 0);
        assert_eq!((buffers.can_post(0), buffers.to_post(0)), (false, None), "both are away");
        buffers.give_back(2);
        assert_eq!((buffers.to_post(0), buffers.of(0)), (Some(2), 2));
        buffers.give_back(0);
        assert_eq!((buffers.holds(), buffers.away()), ([4, 1, 0], 0));
    }

    #[test]
    fn one_is_added_and_taken_out_while_it_is_spare() {
        let mut buffers = SlotMemory::with_room(2, 3, false, 2).expect("memory");
        assert_eq!(buffers.take_out(4), None, "it has none of these");
        [7, 8].into_iter().for_each(|buffer| buffers.add(buffer));
        assert_eq!((buffers.holds(), buffers.take(0)), ([2, 3, 0], 0));
        assert_eq!(buffers.to_post(0), Some(8));
        assert_eq!(buffers.take_out(4), Some(7));
        assert_eq!((buffers.take_out(4), buffers.holds()), (None, [2, 1, 1]), "a slot has the other");
        buffers.give_back(0);
        assert_eq!((buffers.take(0), buffers.to_post(0)), (8, Some(0)));
        buffers.give_back(8);
        assert_eq!((buffers.take_out(4), buffers.holds()), (Some(8), [2, 1, 0]));
    }

    #[test]
    fn those_that_are_posted_move_through_all() {
        let mut buffers = SlotMemory::new(2, 5, true).expect("memory");
        let posted: Vec<_> = (0..12).filter_map(|k| buffers.to_post(k % 2)).collect();
        assert_eq!(posted, [2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3], "the one that rested longest");
        assert_eq!(buffers.holds(), [2, 3, 0]);
        buffers.keep(1);
        assert_eq!(
            [0, 1, 0, 1].map(|slot| buffers.to_post(slot)),
            [4, 3, 0, 1].map(Some),
            "slot 1 kept its own"
        );
        let mut fixed = SlotMemory::new(2, 2, true).expect("memory");
        assert_eq!([0, 1, 0, 1].map(|slot| fixed.to_post(slot)), [0, 1, 0, 1].map(Some));
    }
}
