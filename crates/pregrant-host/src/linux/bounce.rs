//! Granted bounce pages: short parts of a grant copy go through them.
//!
//! ```text
//!   guest's page --hypercall--> a page that we granted to ourselves --memcpy--> where the piece belongs       (and the other way)
//! ```
//! A copy names its local side by an address, and gntdev looks up the page for each segment. In a
//! PV domain, where each page table entry that is read must be translated, that takes about 1600
//! instructions, more than the rest of the copy. A local side that is a grant reference needs no
//! lookup. So a short segment costs a memcpy instead; longer ones gain nothing (decision 0034).
//!
//! Memory: [`PAGES`] of gntalloc's limit for each handle that copies. If gntalloc has none (no
//! module, limit reached, no PV domain), copies name addresses as usual.
//!
//! What a peer may do: nothing. The domain grants these pages to itself only.

use super::burst_buffers::OwnPages;
use crate::counters::Tally;
use pregrant::shm::SharedBytes;
use pregrant::{DomId, PAGE_SIZE};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

/// Pages per handle: enough for a batch of 64 frames of 1500 bytes.
const PAGES: usize = 32;
/// Largest number of bytes of a short segment. Copying that many with memcpy costs a quarter of
/// what it saves.
const SHORT: usize = 2048;

/// The bounce pages of one handle.
#[derive(Debug)]
pub(super) struct Bounce {
    own: DomId,
    tally: Arc<Tally>,
    pages: OnceCell<Option<OwnPages>>,
    places: Cell<Places>,
}

/// Tracks which parts of the bounce pages are in use.
#[derive(Clone, Copy, Default, Debug)]
struct Places {
    used: usize,
}

impl Places {
    /// Reserves `len` bytes in one page, which start on a cache line of their own.
    fn next(&mut self, len: usize) -> Option<usize> {
        let left = PAGE_SIZE - self.used % PAGE_SIZE;
        let at = if len > left { self.used + left } else { self.used };
        if len > SHORT || at + len > PAGES * PAGE_SIZE {
            return None;
        }
        self.used = (at + len).next_multiple_of(64);
        Some(at)
    }
}

impl Bounce {
    /// Bounce pages for this domain, granted when they are first needed.
    pub(super) fn new(own: DomId, tally: Arc<Tally>) -> Self {
        Self { own, tally, pages: OnceCell::new(), places: Cell::default() }
    }

    fn granted(&self) -> Option<&OwnPages> {
        self.pages.get_or_init(|| OwnPages::grant(self.own, &self.tally, PAGES)).as_ref()
    }

    /// Reserves `len` bytes until [`clear`](Self::clear). None: `len` is too long, or no room is
    /// left.
    pub(super) fn place(&self, len: usize) -> Option<usize> {
        let mut places = self.places.get();
        let at = places.next(len)?;
        self.granted()?;
        self.places.set(places);
        Some(at)
    }

    /// Returns a reserved range as the local side of a segment.
    pub(super) fn side(&self, at: usize) -> Option<u64> {
        self.granted()?.side(at)
    }

    /// Copies `bytes` into a reserved range. False: there are no pages.
    #[must_use]
    pub(super) fn put(&self, at: usize, bytes: &[u8]) -> bool {
        self.granted().is_some_and(|granted| granted.region.copy_in(at, bytes))
    }

    /// Copies a reserved range to `bytes`. False: there are no pages.
    #[must_use]
    pub(super) fn take(&self, at: usize, bytes: &mut [u8]) -> bool {
        self.granted().is_some_and(|granted| granted.region.copy_out(at, bytes))
    }

    /// Frees all reserved ranges of the bounce pages.
    pub(super) fn clear(&self) {
        self.places.set(Places::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_none_crosses_a_page() {
        for len in [1, 60, 64, 1514, 2047, 2048] {
            let mut places = Places::default();
            let mut end = 0;
            let mut n = 0;
            while let Some(at) = places.next(len) {
                assert!(at >= end && at.is_multiple_of(64), "{len}: {at} is before {end}");
                assert_eq!(at / PAGE_SIZE, (at + len - 1) / PAGE_SIZE, "{len}");
                (end, n) = (at + len, n + 1);
            }
            assert!(end <= PAGES * PAGE_SIZE && n >= 64, "{len}: {n} pieces");
        }
        assert_eq!(Places::default().next(SHORT + 1), None);
    }
}
