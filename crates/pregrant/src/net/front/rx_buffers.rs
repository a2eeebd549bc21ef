//! Assigns staging buffers to RX slots, where TX can send a received buffer on (docs/protocol 3.5).
//!
//! ```text
//!   spare --post--> slot --answer, copied or dropped--> the same slot
//!     ^              '----answer, sent on--> TX, by its id --answer of TX taken--.
//!     '--------------------------------------------------------------------------'
//! ```
//! Invariants: a buffer is in one place: it has a slot, is spare, or is on TX ([`RxBuffers::holds`]
//! counts them). The id of an RX request is its buffer's number, so a slot without a buffer is not
//! posted. Where nothing is sent on, a slot always has the buffer of its own number.
//!
//! What the back may do: nothing here. It names RX slots by their place on the ring, and an id of
//! TX counts once it is known to be in flight ([`tx`](super::tx)).

use alloc::boxed::Box;
use alloc::vec::Vec;

/// No buffer.
const NONE: u16 = u16::MAX;

/// The buffers of one RX ring.
pub struct RxBuffers {
    /// By slot: its buffer.
    of_slot: Box<[u16]>,
    /// Those that no slot has, the one that came back last on top.
    spare: Vec<u16>,
    /// Buffers that are on TX.
    on_tx: u32,
}

impl RxBuffers {
    /// Each of `slots` has the buffer of its number; the others of `buffers` are spare.
    pub fn new(slots: u32, buffers: u32) -> Self {
        let mut spare = Vec::with_capacity(buffers.max(slots) as usize);
        spare.extend((slots..buffers).map(|buffer| buffer as u16));
        Self { of_slot: (0..slots as u16).collect(), spare, on_tx: 0 }
    }

    /// The buffer with which `slot` was posted.
    #[inline(always)]
    pub fn of(&self, slot: u16) -> u16 {
        self.of_slot.get(usize::from(slot)).copied().unwrap_or(NONE)
    }

    /// The buffer with which `slot` is to be posted; None: there is none at present.
    #[inline(always)]
    pub fn to_post(&mut self, slot: u16) -> Option<u16> {
        let buffer = self.of_slot.get_mut(usize::from(slot))?;
        if *buffer == NONE {
            *buffer = self.spare.pop()?;
        }
        Some(*buffer)
    }

    /// Whether `slot` could be posted.
    #[inline(always)]
    pub fn can_post(&self, slot: u16) -> bool {
        self.of(slot) != NONE || !self.spare.is_empty()
    }

    /// The buffer of `slot`, which was answered, goes to TX.
    #[inline(always)]
    pub fn send_on(&mut self, slot: u16) -> u16 {
        self.on_tx += 1;
        self.of_slot.get_mut(usize::from(slot)).map_or(NONE, |buffer| core::mem::replace(buffer, NONE))
    }

    /// The request that sent `buffer` on was answered.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u16) {
        self.on_tx -= 1;
        self.spare.push(buffer);
    }

    /// Buffers that are on TX.
    pub fn on_tx(&self) -> u32 {
        self.on_tx
    }

    /// Buffers with a slot, spare ones, and those on TX.
    pub fn holds(&self) -> [usize; 3] {
        let with_slot = self.of_slot.iter().filter(|buffer| **buffer != NONE).count();
        [with_slot, self.spare.len(), self.on_tx as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_in_one_place() {
        let mut buffers = RxBuffers::new(4, 5);
        assert_eq!((buffers.holds(), buffers.of(2)), ([4, 1, 0], 2));
        assert_eq!(buffers.to_post(2), Some(2), "it has one");
        assert_eq!(buffers.send_on(2), 2);
        assert_eq!(buffers.holds(), [3, 1, 1]);
        assert_eq!((buffers.can_post(2), buffers.to_post(2)), (true, Some(4)));
        assert_eq!(buffers.send_on(0), 0);
        assert_eq!((buffers.can_post(0), buffers.to_post(0)), (false, None), "both are on TX");
        buffers.give_back(2);
        assert_eq!((buffers.to_post(0), buffers.of(0)), (Some(2), 2));
        buffers.give_back(0);
        assert_eq!((buffers.holds(), buffers.on_tx()), ([4, 1, 0], 0));
    }
}
