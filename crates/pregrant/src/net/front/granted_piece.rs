//! Pieces of TX frames: pages that the caller grants for a frame.
//!
//! ```text
//!   id --sent--> out --its answer--> answered --> the caller
//! ```
//! Invariant: an id has at most one unanswered request; the queue ignores answers to ids that are
//! not in flight. What the back may do: see [`tx_pieces`](super::tx_pieces).

use super::tx_slots::room;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::netif::NR_SLOTS_MIN;
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

/// How many requests are pieces, and which of them were answered.
#[derive(Default)]
pub(super) struct Pieces {
    out: u32,
    /// With room for all ids; without any the queue takes no pieces.
    answered: Vec<u16>,
}

impl Pieces {
    /// Of a queue with so many ids, which takes pieces.
    pub(super) fn of_ids(n: u32) -> Self {
        Self { out: 0, answered: room(n) }
    }

    /// Whether it takes any.
    #[inline(always)]
    pub(super) fn are_taken(&self) -> bool {
        self.answered.capacity() > 0
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

    /// The piece of `id` was answered.
    #[inline(always)]
    pub(super) fn take_answer(&mut self, id: u16) {
        self.out = self.out.saturating_sub(1);
        self.answered.push(id);
    }

    /// So many more are on the ring.
    #[inline(always)]
    pub(super) fn sent(&mut self, n: u32) {
        self.out += n;
    }
}
