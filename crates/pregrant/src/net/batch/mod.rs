//! Frames of one queue on their way: what a back takes from a ring at once, and what it lays over a
//! ring's slots at once.
//!
//! ```text
//!   TX ring --take--> TxBatch --paths fetch--> arena        burst --place--> RxBatch --paths deliver--> RX ring
//! ```
//! Below the paths: a path serves frames of a batch, and a batch knows no path. Which requests are
//! a path's own, by a flag of theirs, says [`Claims`]. What a guest may do is said in [`tx`] and
//! [`rx`].

pub mod rx;
pub mod thresholds;
pub mod tx;

pub use rx::{FrameHash, RxBatch, RxFrame, RxSlot};
pub use thresholds::Thresholds;
pub use tx::{Claim, Claims, StandingTakes, TxBatch, TxFrame, TxSlot};

/// One bit for each frame of a batch. A full batch is `!0`.
pub type Todo = u64;

/// Slots in a batch at most; also the records of a redo page.
pub const BATCH_SLOTS: usize = crate::ring::REDO_RECORDS;

/// The lowest `n` bits.
#[inline(always)]
pub fn mask(n: usize) -> Todo {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

/// The numbers of the bits that are set, from the lowest.
#[inline(always)]
pub fn bits(mut todo: Todo) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        if todo == 0 {
            return None;
        }
        let i = todo.trailing_zeros() as usize;
        todo &= todo - 1;
        Some(i)
    })
}
