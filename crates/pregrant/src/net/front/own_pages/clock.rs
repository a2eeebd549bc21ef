//! A bounded number of places for pages: which page has which place, and which page was not used
//! for long.
//!
//! ```text
//!   page --place_of--> place: [page 7, used] [page 3] [page 90, used] ...
//!                                 ^ hand: takes the mark of those that were used, and stops at one that was not
//! ```
//! This is the clock algorithm: nearly least recently used, for one store at each use and a few
//! loads for each page that makes way. All memory is allocated by `new`.
//!
//! What a peer may do: nothing here.

use crate::error::PlatformError;
use crate::memory;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The value for "none" in both tables: a page without a place, or a place without a page.
const NONE: u32 = u32::MAX;

/// Largest number of places that the hand passes to find one page to remove. This bounds the time
/// that a frame waits, whatever was used before.
const STEPS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Place {
    page: u32,
    used: bool,
}

/// A clock algorithm (second chance): approximates which page was not used for the longest time.
#[derive(Debug)]
pub struct Clock {
    /// For each page, its place on the clock.
    place_of: Box<[u32]>,
    places: Box<[Place]>,
    free: Vec<u32>,
    /// This place, and each one after it, never had a page.
    top: usize,
    hand: usize,
}

impl Clock {
    /// Creates a clock for pages 0 to `pages`, of which `places` can have a place.
    pub fn new(pages: usize, places: usize) -> Result<Self, PlatformError> {
        Ok(Self {
            place_of: memory::list(NONE, pages)?,
            places: memory::list(Place { page: NONE, used: false }, places)?,
            free: memory::collected((0..places as u32).rev())?.into_vec(),
            top: 0,
            hand: 0,
        })
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.place_of.len()
    }

    /// Number of pages that have a place.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// True if no page has a place.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place of a page, if it has one.
    #[inline(always)]
    pub fn find(&self, page: usize) -> Option<usize> {
        self.place_of.get(page).filter(|place| **place != NONE).map(|place| *place as usize)
    }

    /// Notes that the page at this place was used.
    #[inline(always)]
    pub fn touch(&mut self, place: usize) {
        if let Some(place) = self.places.get_mut(place) {
            place.used = true;
        }
    }

    /// The page at this place, if there is one.
    pub fn page(&self, place: usize) -> Option<usize> {
        self.places.get(place).filter(|place| place.page != NONE).map(|place| place.page as usize)
    }

    /// Gives a page a place. None: all places are taken, there is no such page, or it has a place.
    pub fn insert(&mut self, page: usize) -> Option<usize> {
        let place_of = self.place_of.get_mut(page).filter(|place| **place == NONE)?;
        let place = self.free.pop()?;
        *place_of = place;
        *self.places.get_mut(place as usize)? = Place { page: page as u32, used: true };
        self.top = self.top.max(place as usize + 1);
        Some(place as usize)
    }

    /// Takes the page at this place from the table.
    pub fn remove(&mut self, place: usize) {
        let Some(had) = self.places.get_mut(place).filter(|place| place.page != NONE) else { return };
        if let Some(place_of) = self.place_of.get_mut(had.page as usize) {
            *place_of = NONE;
        }
        had.page = NONE;
        self.free.push(place as u32);
    }

    /// Moves the hand to a page that `may_go` and that was not used since the hand last passed it.
    /// None: there was none within `STEPS_MAX` places.
    pub fn unused(&mut self, may_go: impl Fn(usize) -> bool) -> Option<usize> {
        for _ in 0..STEPS_MAX.min(2 * self.top) {
            let at = self.hand;
            self.hand = if at + 1 < self.top { at + 1 } else { 0 };
            let place = self.places.get_mut(at)?;
            if place.page == NONE || !may_go(at) {
                continue;
            }
            if !place.used {
                return Some(at);
            }
            place.used = false;
        }
        None
    }

    /// The place of the hand, if a page has it.
    pub fn at_hand(&self) -> Option<usize> {
        self.page(self.hand).map(|_| self.hand)
    }

    /// Removes all pages from the clock.
    pub fn clear(&mut self) {
        (0..self.top).rev().for_each(|place| self.remove(place));
        self.hand = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_goes_first() {
        let mut clock = Clock::new(10, 4).expect("memory");
        let places: Vec<_> = (0..4).map(|page| clock.insert(page).expect("a place")).collect();
        assert_eq!((clock.insert(4), clock.insert(2), clock.insert(10), clock.len()), (None, None, None, 4));
        // Once around, and all marks are gone.
        assert_eq!(clock.unused(|_| true), Some(places[0]));
        clock.touch(places[1]);
        assert_eq!(clock.unused(|place| place != places[2]), Some(places[3]));
        clock.remove(places[3]);
        assert_eq!((clock.find(3), clock.insert(9), clock.find(9)), (None, Some(places[3]), Some(places[3])));
        assert_eq!(clock.unused(|_| false), None);
        clock.clear();
        assert!(clock.is_empty() && clock.find(0).is_none() && clock.unused(|_| true).is_none());
    }

    #[test]
    fn the_hand_goes_so_far_and_no_farther() {
        let mut clock = Clock::new(4096, 4096).expect("memory");
        (0..4096).for_each(|page| assert!(clock.insert(page).is_some()));
        for _ in 0..4096 / STEPS_MAX {
            assert_eq!(clock.unused(|_| true), None);
        }
        assert_eq!(clock.unused(|_| true), Some(0), "they were all passed once");
    }
}
