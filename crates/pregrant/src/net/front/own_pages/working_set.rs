//! Decides whether pages of a full table make way for others: by whether the pages of the frames
//! fit a table of that size.
//!
//! ```text
//!   each frame's page --> a table without grants, whose pages change at once --> hits of a window --> Caching or Copying
//! ```
//! The second table is what the real one would be if the back answered in no time. So the choice
//! depends on the frames alone, and not on the back's answers or their delay, and it can be made
//! also while no page makes way. Pages that find the second table not yet full do not count.
//!
//! The numbers: a hit saves one copy of a frame at the front. A page that makes way costs an unmap
//! and a map at the back, a grant made and ended at the front, and its part of two lists: tens of
//! copies. If one frame in 16 brings another page, that costs more than the other 15 save; below
//! one in 32 it is about even or better. In between nothing changes, so a working set of just that
//! size does not go back and forth. In one window, a page of a working set that just fits comes 8
//! times.

use super::clock::Clock;
use crate::error::PlatformError;

/// Number of frames of a window for each entry of the table.
const WINDOW_FRAMES_PER_ENTRY: usize = 8;
/// Least number of frames of a window, however small the table is.
const WINDOW_FRAMES_MIN: usize = 1024;

/// Pages stop entering the table when more than one in this many frames of a window misses; then
/// frames are copied.
const COPY_ABOVE: u32 = 16;
/// Pages enter the table again when fewer than one in this many frames misses.
const CACHE_BELOW: u32 = 32;

crate::named! {
    /// The treatment of a page that is not in the full table.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    CacheMode {
        /// The page enters the table, in place of one that was not used for long.
        Caching = "caching",
        /// The frame is copied to the static pool. Frames in pages of the table are still sent from
        /// there.
        Copying = "copying",
    }
}

/// Decides by the rate of misses whether a queue's pages enter the table or are copied.
#[derive(Debug)]
pub struct WorkingSet {
    /// A model of what the table would hold if pages did enter it.
    beside: Clock,
    capacity: usize,
    window: u32,
    /// Number of frames in the current window.
    frames: u32,
    misses: u32,
    mode: CacheMode,
    changes: u64,
}

impl WorkingSet {
    /// Creates the decision for pages 0 to `pages` and tables of at most `places` entries; the
    /// table is empty at first.
    pub fn new(pages: usize, places: usize) -> Result<Self, PlatformError> {
        let beside = Clock::new(pages, places)?;
        let (window, mode) = (WINDOW_FRAMES_MIN as u32, CacheMode::Copying);
        Ok(Self { beside, capacity: 0, window, frames: 0, misses: 0, mode, changes: 0 })
    }

    /// Starts again, for a table of `capacity` entries.
    pub fn begin(&mut self, capacity: usize) {
        self.beside.clear();
        self.capacity = capacity;
        self.mode = if capacity == 0 { CacheMode::Copying } else { CacheMode::Caching };
        self.window = (WINDOW_FRAMES_PER_ENTRY * capacity).max(WINDOW_FRAMES_MIN) as u32;
        (self.frames, self.misses) = (0, 0);
    }

    /// Records that a frame is in this page.
    #[inline(always)]
    pub fn record_use(&mut self, page: usize) {
        if let Some(place) = self.beside.find(page) {
            self.beside.touch(place);
        } else if self.beside.len() >= self.capacity {
            self.replace(page);
        } else {
            self.beside.insert(page);
            return;
        }
        self.frames += 1;
        if self.frames >= self.window {
            self.evaluate();
        }
    }

    #[cold]
    fn replace(&mut self, page: usize) {
        self.misses += 1;
        if let Some(place) = self.beside.unused(|_| true).or(self.beside.at_hand()) {
            self.beside.remove(place);
            self.beside.insert(page);
        }
    }

    #[cold]
    fn evaluate(&mut self) {
        let mode = match self.mode {
            CacheMode::Caching if self.misses * COPY_ABOVE > self.frames => CacheMode::Copying,
            CacheMode::Copying if self.misses * CACHE_BELOW < self.frames => CacheMode::Caching,
            same => same,
        };
        self.changes += u64::from(mode != self.mode);
        self.mode = mode;
        (self.frames, self.misses) = (0, 0);
    }

    /// The decision after the last window.
    #[inline(always)]
    pub fn mode(&self) -> CacheMode {
        self.mode
    }

    /// Number of times the decision changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Generates numbers below `n`, evenly distributed.
    struct Even(u64);

    impl Even {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as usize) % n
        }
    }

    fn record_use(set: &mut WorkingSet, windows: usize, mut page: impl FnMut() -> usize) {
        let before = set.changes();
        for _ in 0..windows * set.window as usize {
            set.record_use(page());
        }
        assert!(set.changes() <= before + 1, "back and forth");
    }

    #[test]
    fn it_follows_the_working_set_and_does_not_go_back_and_forth() {
        let (mut set, mut even) = (WorkingSet::new(4096, 512).expect("memory"), Even(1));
        set.begin(512);
        // The mode after frames from that many pages, each used equally often.
        for (pages, mode) in [
            (512, CacheMode::Caching),
            (520, CacheMode::Caching),
            (1024, CacheMode::Copying),
            (4096, CacheMode::Copying),
            (520, CacheMode::Caching),
            (600, CacheMode::Copying),
            (256, CacheMode::Caching),
        ] {
            record_use(&mut set, 20, || even.below(pages));
            assert_eq!(set.mode(), mode, "{pages} pages");
        }
        assert_eq!(set.changes(), 4);
        // The pages are used one after the other.
        for (pages, mode) in [(512, CacheMode::Caching), (1024, CacheMode::Copying)] {
            let mut next = 0;
            record_use(&mut set, 20, || {
                next = (next + 1) % pages;
                next
            });
            assert_eq!(set.mode(), mode, "{pages} pages in turn");
        }
    }

    #[test]
    fn what_is_between_the_two_stays_as_it_is() {
        let (mut set, mut even) = (WorkingSet::new(4096, 512).expect("memory"), Even(7));
        // One frame in 24 is in a page that was not used for long.
        for (before, mode) in [(300, CacheMode::Caching), (4096, CacheMode::Copying)] {
            set.begin(512);
            record_use(&mut set, 20, || even.below(before));
            assert_eq!(set.mode(), mode);
            record_use(&mut set, 50, || {
                if even.below(24) == 0 { 300 + even.below(3796) } else { even.below(300) }
            });
            assert_eq!(set.mode(), mode);
        }
    }

    #[test]
    fn frames_before_the_table_is_full_count_for_nothing() {
        let mut set = WorkingSet::new(70_000, 4096).expect("memory");
        set.begin(4096);
        (0..4096).for_each(|page| set.record_use(page));
        assert_eq!((set.frames, set.misses), (0, 0));
        set.begin(0);
        assert_eq!(set.mode(), CacheMode::Copying, "no table at all");
        record_use(&mut set, 3, || 0);
        assert_eq!(set.mode(), CacheMode::Copying, "no table at all");
    }

    proptest! {
        /// Compared with an exact list of the least recently used pages, only a few pages more are
        /// missed.
        #[test]
        fn it_misses_about_as_often_as_the_least_recently_used(
            seed: u64, capacity in 8usize..200, part in 1usize..8, hot in 1usize..16,
        ) {
            let (mut set, mut even) = (WorkingSet::new(1000, 200).expect("memory"), Even(seed));
            set.begin(capacity);
            set.window = u32::MAX;
            let mut exact: Vec<usize> = Vec::new();
            let (mut misses, frames) = (0, 20_000);
            for _ in 0..frames {
                let page = if even.below(hot) == 0 { even.below(1000) } else { even.below(capacity * part / 4) };
                if let Some(at) = exact.iter().position(|had| *had == page) {
                    exact.remove(at);
                } else if exact.len() == capacity {
                    exact.remove(0);
                    misses += 1;
                }
                exact.push(page);
                set.record_use(page);
            }
            let more = f64::from(set.misses) - f64::from(misses);
            prop_assert!(more.abs() < 0.08 * f64::from(frames), "{} instead of {misses}", set.misses);
        }
    }
}
