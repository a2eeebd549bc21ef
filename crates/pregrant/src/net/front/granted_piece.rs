//! Pieces of TX frames: pages that the caller grants for a frame, and which ids have them.
//!
//! ```text
//!   id --sent--> out --its answer--> answered --> the caller
//! ```
//! Invariant: an id has at most one unanswered request; the queue ignores answers to ids that are
//! not in flight. What the back may do: see [`tx_pieces`](super::tx_pieces).

use super::tx_slots::{flags, room};
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::netif::NR_SLOTS_MIN;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Pieces that a frame can have: its head takes a slot, too.
pub const PIECES_MAX: usize = NR_SLOTS_MIN - 1;

/// A part of a frame in a page that the caller has granted to the back, for reading. 8 bytes: the
/// reference, the offset, the length.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedPiece {
    /// The page's.
    pub gref: GrantRef,
    /// Where it starts in the page.
    pub offset: u16,
    /// Its bytes, at least 1: the piece ends in its page.
    pub len: u16,
}

impl GrantedPiece {
    pub(super) fn is_in_a_page(&self) -> bool {
        self.len > 0 && usize::from(self.offset) + usize::from(self.len) <= PAGE_SIZE
    }
}

/// The ids whose requests are pieces.
#[derive(Default)]
pub(super) struct Pieces {
    /// By id; empty: the queue takes none.
    are_out: Box<[bool]>,
    out: u32,
    answered: Vec<u16>,
}

impl Pieces {
    /// Of a queue with so many ids, which takes pieces.
    pub(super) fn of_ids(n: u32) -> Self {
        Self { are_out: flags(n), out: 0, answered: room(n) }
    }

    /// Whether it takes any.
    #[inline(always)]
    pub(super) fn are_taken(&self) -> bool {
        !self.are_out.is_empty()
    }

    /// The id of one that was answered.
    #[inline(always)]
    pub(super) fn answered(&mut self) -> Option<u16> {
        self.answered.pop()
    }

    /// Those that are out, or whose answers were not asked for.
    pub(super) fn out(&self) -> u32 {
        self.out + self.answered.len() as u32
    }

    /// Whether a request that is in flight is one.
    #[inline(always)]
    pub(super) fn any_out(&self) -> bool {
        self.out > 0
    }

    /// The request of `id` was answered.
    #[inline(always)]
    pub(super) fn take_answer(&mut self, id: u16) {
        let is_out = self.are_out.get_mut(usize::from(id));
        if is_out.is_some_and(core::mem::take) {
            self.out -= 1;
            self.answered.push(id);
        }
    }

    /// The request of `id` is on the ring.
    #[inline(always)]
    pub(super) fn sent(&mut self, id: u16) {
        if let Some(is_out) = self.are_out.get_mut(usize::from(id)) {
            *is_out = true;
            self.out += 1;
        }
    }
}
