//! Access to the words of a redo page: in memory that outlives the process, or in a test that
//! records every store.
//!
//! Invariant: no word index reaches past the page.
#![expect(unsafe_code, reason = "words of the redo page, at computed places")]

use crate::shm::SharedBytes;
use alloc::boxed::Box;
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a redo page: at most three words per record, and a header of one cache line.
pub const REDO_BYTES: usize = 4096;

/// The 32-bit words of a journal. Every store of a back that its successor may read goes through
/// this trait or through [`RingMem`](super::RingMem), so a test that implements both sees all
/// stores in their order.
pub trait RedoMem {
    /// Loads word `i`.
    fn load(&self, i: usize, order: Ordering) -> u32;
    /// Stores word `i`.
    fn store(&self, i: usize, value: u32, order: Ordering);
}

/// A redo page's words in memory that outlives the process. There are `BYTES` bytes, a power of
/// two.
pub struct RedoWords<const BYTES: usize = REDO_BYTES> {
    base: NonNull<AtomicU32>,
    /// Owner of the memory, which stays mapped until the words are dropped.
    _owner: Box<dyn Any + Send>,
}

// SAFETY: `S: Send` is required at construction; the words are atomics.
unsafe impl<const BYTES: usize> Send for RedoWords<BYTES> {}

impl<const BYTES: usize> RedoWords<BYTES> {
    /// The words in the first `BYTES` of `memory`. None: it is shorter, or not writable.
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
