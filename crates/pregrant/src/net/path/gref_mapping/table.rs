//! The pages of one queue that its guest asked to keep mapped, by reference.
//!
//! ```text
//!   gref --locate--> place --at--> Mapped { map, writable }
//! ```
//! Invariants: one thread at a time owns it, with its queue; it changes between batches only
//! (`exchange`), and allocates nothing then. The control side bounds its length.
//!
//! What a guest may do: choose references with equal hashes. Such pages are mapped, and the next
//! path serves their frames, as if they were not.

pub use super::command::Mapped;
use super::command::{PageCommand, Unplaced};
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::grants::MappedPages;
use crate::linked::{Entry, Linked};
use crate::units::GrantRef;
use alloc::boxed::Box;

/// The mapped pages of one queue, found by grant reference.
#[derive(Debug)]
pub struct GrefTable<M> {
    store: MappedPages<Mapped<M>>,
    /// Pages that found no place in the hash table, in the lists that came with them. No list is
    /// empty.
    unplaced: Linked<Unplaced<M>>,
    nr_unplaced: usize,
    writable: usize,
    /// Commands that wait for a page that is held, the oldest first.
    pub(super) commands: Linked<PageCommand<M>>,
}

impl<M> GrefTable<M> {
    /// A table for at most `limit` pages.
    pub fn new(limit: usize) -> Result<Self, PlatformError> {
        Ok(Self {
            store: MappedPages::new(limit)?,
            unplaced: Linked::new(),
            nr_unplaced: 0,
            writable: 0,
            commands: Linked::new(),
        })
    }

    /// Adds `pages`. Those without a place in the hash table go into the list `unplaced`, which has
    /// room for all of them, and which is taken if there are any.
    pub(super) fn insert_all(
        &mut self,
        pages: &mut Bounded<(GrantRef, Mapped<M>)>,
        unplaced: &mut Option<Box<Entry<Unplaced<M>>>>,
    ) {
        while let Some((gref, page)) = pages.pop() {
            let writable = usize::from(page.writable);
            if let Err(page) = self.store.insert(gref, page) {
                let list = unplaced.as_mut().map(|list| &mut list.item);
                let has_room = list.is_some_and(|list| list.push((gref, page)).is_ok());
                debug_assert!(has_room, "there is room for each");
                if !has_room {
                    continue; // it is unmapped, and in no count
                }
                self.nr_unplaced += 1;
            }
            self.writable += writable;
        }
        if let Some(list) = unplaced.take_if(|list| !list.item.is_empty()) {
            self.unplaced.push(list);
        }
    }

    /// Marks the page of `gref`: ports get no payload of it any more.
    pub fn let_leave(&mut self, gref: GrantRef) {
        if let Some(page) = self.store.page_mut(gref) {
            page.leaves = true;
        }
    }

    /// Whether a frame in flight holds the page of `gref`.
    pub fn is_held(&self, gref: GrantRef) -> bool {
        self.store.is_held(gref)
    }

    /// Removes a page, unless a frame in flight uses it.
    pub fn remove(&mut self, gref: GrantRef) -> Option<M> {
        let page = match self.store.remove(gref) {
            Some(page) => page,
            None => self.remove_unplaced(gref)?,
        };
        self.writable -= usize::from(page.writable);
        Some(page.map)
    }

    #[cold]
    fn remove_unplaced(&mut self, gref: GrantRef) -> Option<Mapped<M>> {
        let (_, page) = self.unplaced.iter_mut().find_map(|list| {
            let at = list.iter().position(|(r, _)| *r == gref)?;
            list.take(at)
        })?;
        self.nr_unplaced -= 1;
        self.unplaced.retain(|list| !list.is_empty());
        Some(page)
    }

    /// The index of the page of `gref`, valid until the table changes.
    #[inline(always)]
    pub fn locate(&self, gref: GrantRef) -> Option<u32> {
        self.store.locate(gref)
    }

    /// The page at an index.
    #[inline(always)]
    pub fn at(&self, place: u32) -> Option<&Mapped<M>> {
        self.store.at(place)
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.store.len() + self.nr_unplaced
    }

    /// True if the table is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }

    /// Number of pages that are mapped for writing.
    pub fn nr_writable(&self) -> usize {
        self.writable
    }
}

impl<M> GrefTable<M> {
    /// Keeps a page in the table until [`release`](Self::release) was called as often as `hold`.
    pub fn hold(&mut self, page: u32) {
        let is_held = self.store.hold(GrantRef(page));
        debug_assert!(is_held, "a page that is lent is there");
    }

    /// Undoes one [`hold`](Self::hold).
    pub fn release(&mut self, page: u32) {
        self.store.release(GrantRef(page));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a page, with a list for it.
    fn insert(table: &mut GrefTable<u32>, r: u32, writable: bool) {
        let page = (GrantRef(r), Mapped::new(r, writable));
        let mut pages = Bounded::of([page].into_iter()).expect("memory");
        let unplaced = Unplaced::new(1).and_then(Entry::new).expect("memory");
        table.insert_all(&mut pages, &mut Some(unplaced));
    }

    #[test]
    fn what_finds_no_place_is_kept_and_comes_back() {
        let mut table = GrefTable::new(2).expect("memory");
        for r in [8, 9, 10] {
            insert(&mut table, r, r != 8);
        }
        assert_eq!((table.len(), table.nr_writable()), (3, 2));
        assert_eq!(table.locate(GrantRef(10)), None, "served by the next path");
        for r in [10, 8, 9] {
            assert_eq!(table.remove(GrantRef(r)), Some(r));
            assert_eq!(table.remove(GrantRef(r)), None);
        }
        assert_eq!((table.len(), table.nr_writable(), table.is_empty()), (0, 0, true));
    }
}
