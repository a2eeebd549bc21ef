//! The ring's words in shared pages. (Models use loom's cells instead.)
//!
//! Invariant: the kind of a ring is part of its memory's type ([`RingMem::Kind`]). So the slot size
//! that the number of slots was computed with is the one that slots are addressed with, and no
//! index reaches past the pages.
#![expect(unsafe_code, reason = "words of the ring's pages, at computed places")]

use super::kind::{RingKind, RingMem, Word};
use crate::shm::{SharedBytes, prefetchw};
use crate::wire::ring::{HEADER_BYTES, ring_size};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

/// A ring in shared pages: the header in the first, slots through all of them.
///
/// Which ring it is (`K`) is part of the type, so that one ring's pages are not read as another's:
///
/// ```
/// use pregrant::platform::local::Pages;
/// use pregrant::ring::{BackRing, NetRx, NetTx, RingMem, RingPages};
///
/// let tx = RingPages::<NetTx, _>::new(Pages::new(1));
/// let whole_slot: [u32; 3] = tx.read(255);
/// let back = BackRing::<NetTx, _>::attach(tx, None);
/// # assert_eq!((whole_slot, back.is_ok()), ([0; 3], true));
/// ```
/// A slot of RX has two words where one of TX has three:
/// ```compile_fail,E0271
/// # use pregrant::platform::local::Pages;
/// # use pregrant::ring::{BackRing, NetRx, NetTx, RingMem, RingPages};
/// let rx = RingPages::<NetRx, _>::new(Pages::new(1));
/// let back = BackRing::<NetTx, _>::attach(rx, None);
/// ```
/// ```compile_fail,E0080
/// # use pregrant::platform::local::Pages;
/// # use pregrant::ring::{BackRing, NetRx, NetTx, RingMem, RingPages};
/// let rx = RingPages::<NetRx, _>::new(Pages::new(1));
/// let past_the_last_slot: [u32; 3] = rx.read(511);
/// ```
#[derive(Debug)]
pub struct RingPages<K, S> {
    pages: S,
    size: u32,
    kind: PhantomData<K>,
}

impl<K: RingKind, S: SharedBytes> RingPages<K, S> {
    /// A ring in `pages`, with the largest power of two of slots that fits.
    ///
    /// # Panics
    ///
    /// There is no page, or the pages are not writable: both ends of a ring write to it.
    pub fn new(pages: S) -> Self {
        const { assert!(K::SLOT_WORDS > 0 && K::SLOT_WORDS <= crate::PAGE_SIZE / 4, "a slot fits a page") };
        let size = ring_size(pages.len(), K::SLOT_WORDS * 4);
        assert!(size > 0, "a ring needs at least a page");
        assert!(pages.is_writable(), "a ring's pages are mapped to be written");
        Self { pages, size, kind: PhantomData }
    }

    /// Returns the pages when the ring is closed.
    pub fn into_pages(self) -> S {
        self.pages
    }

    /// Zeroes the page and sets both event indices to 1. Only the front does this, once.
    pub fn init(&self) {
        self.pages.zero();
        self.store(Word::ReqEvent, 1);
        self.store(Word::RspEvent, 1);
    }

    #[inline(always)]
    fn header(&self, w: Word) -> &AtomicU32 {
        // SAFETY: the header is in the first 64 bytes of the first page, which `new` checked to
        // exist; 4-aligned.
        unsafe { &*self.pages.base().as_ptr().cast::<AtomicU32>().add(w as usize) }
    }

    #[inline(always)]
    fn slot(&self, idx: u32) -> *const AtomicU32 {
        let at = HEADER_BYTES / 4 + (idx & (self.size - 1)) as usize * K::SLOT_WORDS;
        // SAFETY: `idx` is masked with `size - 1`, and `new` computed `size` so that `size` slots
        // of `K::SLOT_WORDS` words fit behind the header.
        unsafe { self.pages.base().as_ptr().cast::<AtomicU32>().add(at) }
    }
}

impl<K: RingKind, S: SharedBytes> RingMem for RingPages<K, S> {
    type Kind = K;
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
    fn prefetch(&self, idx: u32, n: u32) {
        let slots_per_line = const { if K::SLOT_WORDS < 16 { 16 / K::SLOT_WORDS as u32 } else { 1 } };
        let lines_per_slot = const { K::SLOT_WORDS.div_ceil(16) };
        let mut k = 0;
        while k < n {
            let slot = self.slot(idx.wrapping_add(k));
            for line in 0..lines_per_slot {
                // Memory after the slot's last word may belong to another slot or be unmapped: a
                // prefetch accesses nothing.
                prefetchw(slot.wrapping_add(line * 16).cast());
            }
            k += slots_per_line;
        }
    }
    #[inline(always)]
    fn read<const W: usize>(&self, idx: u32) -> [u32; W] {
        const { assert!(W <= K::SLOT_WORDS, "more words than a slot has") };
        let p = self.slot(idx);
        // SAFETY: `slot` points at `K::SLOT_WORDS` valid, aligned words of the range, which are no
        // fewer than `W`; atomics may race with the peer.
        core::array::from_fn(|i| unsafe { (*p.add(i)).load(Ordering::Relaxed) })
    }
    #[inline(always)]
    fn write<const W: usize>(&self, idx: u32, words: [u32; W]) {
        const { assert!(W <= K::SLOT_WORDS, "more words than a slot has") };
        let p = self.slot(idx);
        for (i, w) in words.into_iter().enumerate() {
            // SAFETY: as in `read`.
            unsafe { (*p.add(i)).store(w, Ordering::Relaxed) };
        }
    }
}
