//! The ring's words in memory: shared pages in release, loom's cells in a model.
#![allow(unsafe_code)]

use crate::shm::{SharedBytes, prefetchw};
use crate::wire::ring::{HEADER_BYTES, ring_size};
use core::sync::atomic::{AtomicU32, Ordering};

/// The four indices of the shared header (offsets 0, 4, 8, 12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Requests published (f).
    ReqProd = 0,
    /// "Notify me when `req_prod` passes this" (b).
    ReqEvent = 1,
    /// Responses published (b).
    RspProd = 2,
    /// "Notify me when `rsp_prod` passes this" (f).
    RspEvent = 3,
}

/// A ring's words. Slots are addressed by free-running index and masked inside, so that no index can miss.
pub trait RingMem {
    /// Slots in the ring, a power of two; private, never read from the page.
    fn size(&self) -> u32;
    /// Loads an index with acquire order.
    fn load(&self, w: Word) -> u32;
    /// Stores an index with release order.
    fn store(&self, w: Word, v: u32);
    /// Asks for the cache lines of `n` slots from `idx` on in the exclusive state: whoever reads a slot here writes into
    /// it next, so that each line crosses between the cores once for each direction.
    #[inline(always)]
    fn prefetch<const SLOT: usize>(&self, idx: u32, n: u32) {
        let _ = (idx, n);
    }
    /// Reads the first `W` words of the slot at `idx` (slots have `SLOT` words), relaxed.
    fn read<const SLOT: usize, const W: usize>(&self, idx: u32) -> [u32; W];
    /// Writes the first `W` words of the slot at `idx`, relaxed.
    fn write<const SLOT: usize, const W: usize>(&self, idx: u32, words: [u32; W]);
    /// The full fence between telling the peer something and looking at what it told us. The loom tests have memory
    /// without it, to show that they find the wake-up that is lost then.
    #[inline(always)]
    fn full_fence(&self) {
        crate::sync::fence(crate::sync::Ordering::SeqCst);
    }
}

/// A ring in shared pages: the header in the first, slots through all of them.
#[derive(Debug)]
pub struct RingPages<S> {
    pages: S,
    size: u32,
    slot_words: usize,
}

impl<S: SharedBytes> RingPages<S> {
    /// A ring of slots of `slot_words` words in `pages`; its size is the largest power of two that fits.
    pub fn new(pages: S, slot_words: usize) -> Self {
        let size = ring_size(pages.len(), slot_words * 4);
        assert!(size > 0, "a ring needs at least a page");
        Self { pages, size, slot_words }
    }

    /// The pages back, when the ring is closed.
    pub fn into_pages(self) -> S {
        self.pages
    }

    /// Zeroes the page and sets both event indices to 1: the front does this once, the back never.
    pub fn init(&self) {
        self.pages.zero();
        self.store(Word::ReqEvent, 1);
        self.store(Word::RspEvent, 1);
    }

    #[inline(always)]
    fn header(&self, w: Word) -> &AtomicU32 {
        // SAFETY: the header lies in the first 64 octets of the first page, which `new` checked to exist; 4-aligned.
        unsafe { &*self.pages.base().as_ptr().cast::<AtomicU32>().add(w as usize) }
    }

    #[inline(always)]
    fn slot<const SLOT: usize, const W: usize>(&self, idx: u32) -> *const AtomicU32 {
        debug_assert!(SLOT == self.slot_words && W <= SLOT);
        let at = HEADER_BYTES / 4 + (idx & (self.size - 1)) as usize * SLOT;
        // SAFETY: `idx` is masked with `size - 1`, and `new` computed `size` so that `size` slots of `slot_words` words
        // fit behind the header; `SLOT == slot_words` is checked in debug builds and fixed by each `RingKind`.
        unsafe { self.pages.base().as_ptr().cast::<AtomicU32>().add(at) }
    }
}

impl<S: SharedBytes> RingMem for RingPages<S> {
    #[inline(always)]
    fn size(&self) -> u32 {
        self.size
    }
    #[inline(always)]
    fn load(&self, w: Word) -> u32 {
        self.header(w).load(Ordering::Acquire)
    }
    #[inline(always)]
    fn store(&self, w: Word, v: u32) {
        self.header(w).store(v, Ordering::Release);
    }
    #[inline(always)]
    fn prefetch<const SLOT: usize>(&self, idx: u32, n: u32) {
        let slots_per_line = (64 / (SLOT * 4)) as u32;
        let mut k = 0;
        while k < n {
            prefetchw(self.slot::<SLOT, SLOT>(idx.wrapping_add(k)).cast());
            k += slots_per_line;
        }
    }
    #[inline(always)]
    fn read<const SLOT: usize, const W: usize>(&self, idx: u32) -> [u32; W] {
        const { assert!(W <= SLOT) };
        let p = self.slot::<SLOT, W>(idx);
        // SAFETY: `slot` points at SLOT valid, aligned words of the range; atomics may race with the peer.
        core::array::from_fn(|i| unsafe { (*p.add(i)).load(Ordering::Relaxed) })
    }
    #[inline(always)]
    fn write<const SLOT: usize, const W: usize>(&self, idx: u32, words: [u32; W]) {
        const { assert!(W <= SLOT) };
        let p = self.slot::<SLOT, W>(idx);
        for (i, w) in words.into_iter().enumerate() {
            // SAFETY: as in `read`.
            unsafe { (*p.add(i)).store(w, Ordering::Relaxed) };
        }
    }
}
