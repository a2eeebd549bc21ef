//! Which ordinary page a TX request has, where a queue has more ids than pages.
//!
//! ```text
//!   id --take--> a free page, until the id is answered and its grant has ended --give_back--> free
//! ```
//! Invariant: no more ids are in flight than there are pages
//! ([`Ids::at_once`](crate::net::front::tx_slots::Ids)), so a page is free for each request. What
//! the back may do: nothing here, for an id counts once it is known to be in flight.

use crate::error::PlatformError;
use crate::net::front::tx_slots::{NO_ID, table};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The id has no page.
const NONE: u16 = NO_ID;

/// A table of which id has which page, where ids share fewer pages.
pub struct PagesOfIds {
    of_id: Box<[u16]>,
    free: Vec<u16>,
}

impl PagesOfIds {
    /// A table for `pages` pages that `ids` ids share.
    pub(super) fn new(ids: u32, pages: u32) -> Result<Self, PlatformError> {
        let mut free = table(pages)?;
        free.iter_mut().zip((0..pages).rev()).for_each(|(place, page)| *place = page as u16);
        Ok(Self { of_id: table(ids)?, free: free.into_vec() })
    }

    /// The page of an id; a number that no page has if the id has none.
    #[inline(always)]
    pub(super) fn of(&self, id: u16) -> u16 {
        self.of_id.get(usize::from(id)).copied().unwrap_or(NONE)
    }

    /// Takes a free page for an id.
    #[inline(always)]
    pub(super) fn take(&mut self, id: u16) -> u16 {
        let Some(of_id) = self.of_id.get_mut(usize::from(id)) else { return NONE };
        if *of_id == NONE {
            *of_id = self.free.pop().unwrap_or(NONE);
        }
        *of_id
    }

    /// Returns the page of an id, if it has one.
    #[inline(always)]
    pub(super) fn give_back(&mut self, id: u16) {
        if let Some(of_id) = self.of_id.get_mut(usize::from(id))
            && *of_id != NONE
        {
            self.free.push(core::mem::replace(of_id, NONE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_a_page_while_it_is_in_flight() {
        let mut pages = PagesOfIds::new(8, 2).expect("memory");
        assert_eq!((pages.of(7), pages.take(7), pages.of(7)), (NONE, 0, 0));
        assert_eq!((pages.take(7), pages.take(3)), (0, 1), "it has one");
        assert_eq!(pages.take(5), NONE, "more are in flight than there are pages");
        pages.give_back(5);
        pages.give_back(7);
        pages.give_back(7);
        assert_eq!((pages.take(5), pages.take(6), pages.of(3)), (0, NONE, 1));
        assert_eq!((pages.take(8), pages.of(8)), (NONE, NONE), "there is no such id");
    }
}
