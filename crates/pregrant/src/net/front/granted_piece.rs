//! Fragments of TX frames in pages that the caller grants for each frame.
//!
//! ```text
//!   id --sent--> out --its answer--> answered --> the caller
//! ```
//! Invariant: an id has at most one unanswered request; the queue ignores answers to ids that are
//! not in flight. What the back may do: see [`tx_pieces`](super::tx_pieces).

use crate::error::PlatformError;
use crate::memory;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::netif::NR_SLOTS_MIN;
use alloc::vec::Vec;

/// Largest number of fragments of a frame. The frame's head needs a slot, too.
pub const PIECES_MAX: usize = NR_SLOTS_MIN - 1;

/// A fragment in a page that the caller has granted to the back read-only. 8 bytes: reference,
/// offset, length.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedPiece {
    /// Grant reference of the page.
    pub gref: GrantRef,
    /// Offset of the fragment in the page.
    pub offset: u16,
    /// Number of bytes, at least 1; they must not exceed the page.
    pub len: u16,
}

impl GrantedPiece {
    pub(super) fn is_in_a_page(&self) -> bool {
        self.len > 0 && usize::from(self.offset) + usize::from(self.len) <= PAGE_SIZE
    }
}

/// Counts the requests for fragments in the caller's pages, and has the ids of those that were
/// answered.
#[derive(Default)]
pub(super) struct Pieces {
    out: u32,
    /// Ids of answered requests. The list's capacity is the number of ids; without capacity the
    /// queue accepts no such fragments.
    answered: Vec<u16>,
}

impl Pieces {
    /// Creates the counters of a queue with `n` ids that accepts such fragments.
    pub(super) fn of_ids(n: u32) -> Result<Self, PlatformError> {
        Ok(Self { out: 0, answered: memory::room(n as usize)? })
    }

    /// True if the queue accepts such fragments.
    #[inline(always)]
    pub(super) fn are_taken(&self) -> bool {
        self.answered.capacity() > 0
    }

    /// Returns the id of a fragment whose request was answered.
    #[inline(always)]
    pub(super) fn answered(&mut self) -> Option<u16> {
        self.answered.pop()
    }

    /// Number of requests that are in flight, or whose answers the caller did not collect.
    pub(super) fn out(&self) -> u32 {
        self.out + self.answered.len() as u32
    }

    /// Notes the answer for `id`.
    #[inline(always)]
    pub(super) fn take_answer(&mut self, id: u16) {
        self.out = self.out.saturating_sub(1);
        self.answered.push(id);
    }

    /// Notes that `n` more requests were sent.
    #[inline(always)]
    pub(super) fn sent(&mut self, n: u32) {
        self.out += n;
    }
}
