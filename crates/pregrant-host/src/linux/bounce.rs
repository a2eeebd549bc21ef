//! Memory of ours that Xen knows by reference: short pieces of a copy go by way of it.
//!
//! ```text
//!   guest's page --hypercall--> a page that we granted to ourselves --memcpy--> where the piece belongs       (and the other way)
//! ```
//! A copy names its local side by an address, and gntdev finds the page there for each piece: in a
//! PV domain, where each entry of a page table that is read is translated, some 1600 instructions,
//! more than the rest of the copy. It hands on a local side that is a reference as it is. So a
//! short piece costs a memcpy instead; longer ones gain nothing by it (decision 0034).
//!
//! Memory: [`PAGES`] for each handle that copies, of what gntalloc may grant. Where that gives none
//! (no module, its limit, no PV domain) pieces go as they always went.
//!
//! What a peer may do: nothing here. The grants are to this domain alone, and are its own memory.

use super::burst_buffers::OwnPages;
use crate::counters::Tally;
use pregrant::shm::SharedBytes;
use pregrant::{DomId, PAGE_SIZE};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

/// Pages of a handle: a batch's 64 pieces of an MTU each.
const PAGES: usize = 32;
/// Bytes of a short piece at most: a memcpy of so many is a fourth of what it saves.
const SHORT: usize = 2048;

/// See the module.
#[derive(Debug)]
pub(super) struct Bounce {
    own: DomId,
    tally: Arc<Tally>,
    pages: OnceCell<Option<OwnPages>>,
    places: Cell<Places>,
}

/// How many of the pages are taken.
#[derive(Clone, Copy, Default, Debug)]
struct Places {
    used: usize,
}

impl Places {
    /// A place of `len` bytes, on cache lines of its own and in one page.
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
    /// Of this domain; pages are granted when they are first wanted.
    pub(super) fn new(own: DomId, tally: Arc<Tally>) -> Self {
        Self { own, tally, pages: OnceCell::new(), places: Cell::default() }
    }

    fn granted(&self) -> Option<&OwnPages> {
        self.pages.get_or_init(|| OwnPages::grant(self.own, &self.tally, PAGES)).as_ref()
    }

    /// A place for a piece of `len` bytes, until all are [cleared](Self::clear). None: it is too
    /// long, or there is none.
    pub(super) fn place(&self, len: usize) -> Option<usize> {
        let mut places = self.places.get();
        let at = places.next(len)?;
        self.granted()?;
        self.places.set(places);
        Some(at)
    }

    /// A place as a side of a segment.
    pub(super) fn side(&self, at: usize) -> Option<u64> {
        self.granted()?.side(at)
    }

    /// Fills a place.
    #[must_use]
    pub(super) fn put(&self, at: usize, bytes: &[u8]) -> bool {
        self.granted().is_some_and(|granted| granted.region.copy_in(at, bytes))
    }

    /// Reads a place.
    #[must_use]
    pub(super) fn take(&self, at: usize, bytes: &mut [u8]) -> bool {
        self.granted().is_some_and(|granted| granted.region.copy_out(at, bytes))
    }

    /// All places are free.
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
