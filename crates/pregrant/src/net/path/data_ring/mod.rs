//! `data-ring`: bytes of frames in a circular area that is granted, and mapped, at connect
//! (docs/protocol 4.5).
//!
//! ```text
//!   front: index page, granted --key--> back: reads, validates, maps each half: all of it or nothing   index.rs
//!   TX   frame --place in `out`--> request with the place            answered: the place is free       places.rs
//!   RX   frame --place in `in` --> response with the place           slot posted again: the place is free
//! ```
//! Keys: `feature-data-ring` and `max-data-ring-order` of the back, `data-ring-ref` of the front;
//! `data-ring-active` of the back says which halves were accepted. Costs: a memory copy at each
//! end, no grant operation, and as many bytes of the area as the frame has, rounded up to 64. A
//! frame that finds no room goes by the queue's next path, in the end by `copy`.
//!
//! What a peer may do: change bytes at any time (the copy is used), and name any place (it is
//! checked).

pub mod back;
pub mod front;
pub mod index;
pub mod keys;
pub mod negotiation;
pub mod places;

pub use negotiation::DataRing;

use crate::shm::SharedBytes;

/// Places are multiples of this, so that the 16 bits of a response can express them and frames
/// begin on cache lines.
pub const PLACE_BYTES: usize = 64;

/// Number of bytes that a fragment of `len` bytes uses in the area.
#[inline(always)]
pub const fn rounded(len: usize) -> usize {
    len.next_multiple_of(PLACE_BYTES)
}

/// Largest number of bytes of one response: its status is signed, and lengths are rounded up.
pub const PIECE_MAX: usize = 32704;

/// Default order (log2 of the number of pages) of a queue's area: room for the frames of a full
/// ring in both directions, each of up to 2048 bytes.
pub const DEFAULT_ORDER: u32 = 8;

/// If there is no memory for a data ring, the front tries a quarter of its size, then a sixteenth.
const SMALLER: [u32; 3] = [0, 2, 4];

/// Copies bytes out of a half of `size` bytes, from `at` on, across its end. Returns false if `at`
/// is outside of it.
#[inline(always)]
#[must_use]
pub fn copy_out_around(half: &impl SharedBytes, size: usize, at: usize, dst: &mut [u8]) -> bool {
    if at >= size || dst.len() > size {
        return false;
    }
    let len = dst.len();
    let (to_end, rest) = dst.split_at_mut(len.min(size - at));
    half.copy_out(at, to_end) && (rest.is_empty() || half.copy_out(0, rest))
}
