//! Batches of frames of one queue: those that a back takes from a ring at once, and those that it
//! places in a ring's slots at once.
//!
//! ```text
//!   TX ring --take--> TxBatch --paths fetch--> arena        burst --place--> RxBatch --paths deliver--> RX ring
//! ```
//! Batches are below the paths: a path serves frames of a batch, and a batch knows no path.
//! [`Claims`] tells which requests belong to a path, by a flag. [`tx`] and [`rx`] say what a guest
//! may do.

pub mod rx;
pub mod thresholds;
pub mod tx;

pub use rx::{FrameHash, RxBatch, RxFrame, RxSlot};
pub use thresholds::Thresholds;
pub use tx::{Claim, Claims, StandingTakes, TxBatch, TxFrame, TxSlot};

/// A set of frames: one bit per frame of a batch. A full batch is `!0`.
pub type Todo = u64;

/// Largest number of slots in a batch, which is also the number of records of a redo page.
pub const BATCH_SLOTS: usize = crate::ring::REDO_RECORDS;

/// A set of the first `n` frames.
#[inline(always)]
pub fn mask(n: usize) -> Todo {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

/// The indices of the set bits, in ascending order.
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
