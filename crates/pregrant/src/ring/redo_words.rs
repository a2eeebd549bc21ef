//! The redo page's words in memory: pages that outlive the process, or what a test records.
//!
//! Invariant: no number of a word reaches past the page, whatever is asked.
#![expect(unsafe_code, reason = "words of the redo page, at computed places")]

use crate::shm::SharedBytes;
use alloc::boxed::Box;
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a redo page (at most three words for each record and a line of header).
pub const REDO_BYTES: usize = 4096;

/// A journal's words, in fours of bytes. Every store of a back that its successor may find goes
/// through here or through [`RingMem`](super::RingMem), so that a test which stands behind both
/// sees them all in their order.
pub trait RedoMem {
    /// Loads word `i`.
    fn load(&self, i: usize, order: Ordering) -> u32;
    /// Stores word `i`.
    fn store(&self, i: usize, value: u32, order: Ordering);
}

/// A redo page's words in memory that outlives the process; `BYTES` of them, a power of two.
pub struct RedoWords<const BYTES: usize = REDO_BYTES> {
    base: NonNull<AtomicU32>,
    /// Owner of the memory, kept mapped until the words are dropped.
    _owner: Box<dyn Any + Send>,
}

// SAFETY: `S: Send` is required at construction; the words are atomics.
unsafe impl<const BYTES: usize> Send for RedoWords<BYTES> {}

impl<const BYTES: usize> RedoWords<BYTES> {
    /// The first `BYTES` of `memory`; None when it is shorter, or may not be written.
    pub fn new<S: SharedBytes + Send + 'static>(memory: S) -> Option<Self> {
        const { assert!(BYTES.is_power_of_two()) };
        if memory.len() < BYTES || !memory.is_writable() {
            return None;
        }
        Some(Self { base: memory.base().cast(), _owner: Box::new(memory) })
    }

    #[inline(always)]
    fn word(&self, i: usize) -> &AtomicU32 {
        debug_assert!(i < BYTES / 4);
        // SAFETY: masked, so it is in the first BYTES, which `new` checked to exist; the owner
        // keeps the range mapped and page aligned.
        unsafe { &*self.base.as_ptr().add(i % (BYTES / 4)) }
    }
}

impl<const BYTES: usize> RedoMem for RedoWords<BYTES> {
    #[inline(always)]
    fn load(&self, i: usize, order: Ordering) -> u32 {
        self.word(i).load(order)
    }
    #[inline(always)]
    fn store(&self, i: usize, value: u32, order: Ordering) {
        self.word(i).store(value, order);
    }
}

impl<const BYTES: usize> fmt::Debug for RedoWords<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedoWords at {:p}", self.base)
    }
}
