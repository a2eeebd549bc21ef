//! Passes pages between the control thread, which maps and unmaps them, and the queue's worker,
//! which uses them.
//!
//! ```text
//!   control thread: mapped --Keep--> commands --> table       worker, when it applies settings, between two batches
//!                 unmapped <--given-- pages <--GiveBack--
//! ```
//! The worker moves pages in and out of its table; the control thread makes the system calls, and
//! allocates the lists: the worker only links and fills them.
//! Invariant: a lock is held only while a list is taken or linked: once for each ADD or DEL, never
//! for a batch, and once a turn while a DEL waits for frames that a port holds. Meanwhile no page
//! of the list is lent. The worker never waits for a lock: it looks again later. Loom checks all
//! orders: `tests/control_loom.rs`.

use super::command::{Mapped, PageCommand, Unplaced};
use super::table::GrefTable;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::linked::{Entry, Linked};
use crate::sync::{AtomicBool, Lock, Ordering};
use crate::units::GrantRef;
use alloc::boxed::Box;
use core::mem;
use core::sync::atomic::AtomicUsize;

/// Mailbox between the vif's owner, which maps and unmaps pages, and the worker that runs the
/// queue.
#[derive(Debug)]
pub struct GrefExchange<M> {
    /// The newest first.
    commands: Lock<Linked<PageCommand<M>>>,
    /// The pages that the worker removed for the last [`GiveBack`](PageCommand::GiveBack), until
    /// the owner collects them.
    given: Lock<Option<Bounded<M>>>,
    /// True while a command waits: the port still holds frames in some of its pages, or a lock was
    /// held.
    waits: AtomicBool,
    has_given: AtomicBool,
    /// Number of pages in the table as the worker last saw it: all, and the writable ones.
    pages: [AtomicUsize; 2],
}

/// An order to keep pages, with the memory for them, which is asked for before they are mapped.
/// None: it was taken.
#[derive(Debug)]
pub struct KeepOrder<M>(Option<Box<Entry<PageCommand<M>>>>);

impl<M> KeepOrder<M> {
    /// An order for at most `most` pages.
    pub fn new(most: usize) -> Result<Self, PlatformError> {
        let unplaced = Some(Entry::new(Unplaced::new(most)?)?);
        Ok(Self(Some(Entry::new(PageCommand::Keep { pages: Bounded::new(most)?, unplaced })?)))
    }

    /// An order for these pages.
    pub fn of(pages: impl ExactSizeIterator<Item = (GrantRef, Mapped<M>)>) -> Result<Self, PlatformError> {
        let mut order = Self::new(pages.len())?;
        order.fill(pages);
        Ok(order)
    }

    /// Puts pages in an order that has none, as many as it was made for.
    pub fn fill(&mut self, new: impl Iterator<Item = (GrantRef, Mapped<M>)>) {
        if let Some(PageCommand::Keep { pages, .. }) = self.0.as_mut().map(|order| &mut order.item) {
            new.for_each(|page| pages.put(page));
            // The worker takes them from the end.
            pages.reverse();
        }
    }

    /// Leaves none behind.
    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }
}

impl<M> Default for GrefExchange<M> {
    fn default() -> Self {
        Self {
            commands: Lock::default(),
            given: Lock::default(),
            waits: AtomicBool::new(false),
            has_given: AtomicBool::new(false),
            pages: Default::default(),
        }
    }
}

impl<M> GrefExchange<M> {
    /// Orders the worker to add these pages to its table. Advance the queue's
    /// [`ConfigGeneration`](crate::net::path::ConfigGeneration) afterwards.
    pub fn keep(&self, KeepOrder(order): KeepOrder<M>) {
        if let Some(order) = order {
            self.commands.lock().push(order);
        }
    }

    /// Orders the worker to remove these pages from its table and to [return](Self::given) them
    /// together. Advance the queue's [`ConfigGeneration`](crate::net::path::ConfigGeneration)
    /// afterwards.
    pub fn want_back(&self, refs: Bounded<GrantRef>) -> Result<(), PlatformError> {
        let pages = Bounded::new(refs.len())?;
        let order = Entry::new(PageCommand::GiveBack { refs, pages })?;
        self.commands.lock().push(order);
        Ok(())
    }

    /// Pages that the owner wanted back, once the worker has removed all of them.
    pub fn given(&self) -> Option<Bounded<M>> {
        if !self.has_given() {
            return None;
        }
        self.has_given.store(false, Ordering::Relaxed);
        self.given.lock().take()
    }

    /// True if pages wait to be collected by [`given`](Self::given).
    pub fn has_given(&self) -> bool {
        self.has_given.load(Ordering::Acquire)
    }

    /// True if the worker must [apply](Self::apply) the last command again, although there is no
    /// new one.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Called by the worker between two batches: executes the owner's commands. Returns true if
    /// pages were given back. The pages of one list are given back together: a list with a page
    /// that a port still reads waits, and so do later commands.
    pub fn apply(&self, table: &mut GrefTable<M>) -> bool {
        let mut commands = mem::take(&mut table.commands);
        let (mut gave, mut waits) = (false, false);
        match self.commands.try_lock() {
            Some(mut newest) => commands.append_reversed(mem::take(&mut *newest)),
            None => waits = true,
        }
        while let Some(mut command) = commands.pop() {
            match &mut command.item {
                PageCommand::GiveBack { refs, .. } if refs.iter().any(|gref| table.is_held(*gref)) => {
                    refs.iter().for_each(|gref| table.let_leave(*gref));
                    commands.push(command);
                    waits = true;
                    break;
                }
                PageCommand::Keep { pages, unplaced } => table.insert_all(pages, unplaced),
                PageCommand::GiveBack { refs, pages } => {
                    let Some(mut given) = self.given.try_lock() else {
                        commands.push(command);
                        waits = true;
                        break;
                    };
                    refs.iter().filter_map(|gref| table.remove(*gref)).for_each(|page| pages.put(page));
                    *given = Some(mem::take(pages));
                    gave = true;
                }
            }
        }
        table.commands = commands;
        self.waits.store(waits, Ordering::Relaxed);
        for (count, n) in self.pages.iter().zip([table.len(), table.nr_writable()]) {
            count.store(n, Ordering::Relaxed);
        }
        if gave {
            self.has_given.store(true, Ordering::Release);
        }
        gave
    }

    /// Pages of the table that serve TX, and RX, as of the queue's last check.
    pub fn pages(&self) -> [usize; 2] {
        [0, 1].map(|dir| self.pages[dir].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_and_go_when_the_queue_looks() {
        let (exchange, mut table) = (GrefExchange::default(), GrefTable::new(8).expect("memory"));
        let page = |r: u32, writable| (GrantRef(r), Mapped::new(r, writable));
        exchange.keep(KeepOrder::of([page(8, true), page(9, false)].into_iter()).expect("memory"));
        assert_eq!((table.len(), exchange.pages()), (0, [0, 0]));
        assert!(!exchange.apply(&mut table) && !exchange.has_given());
        assert_eq!((table.len(), exchange.pages()), (2, [2, 1]));
        let refs = Bounded::of([GrantRef(8), GrantRef(77)].into_iter()).expect("memory");
        assert_eq!(exchange.want_back(refs), Ok(()));
        assert_eq!(exchange.given(), None);
        assert!(exchange.apply(&mut table));
        assert_eq!((exchange.given().as_deref(), exchange.given().as_deref()), (Some([8].as_slice()), None));
        assert_eq!((table.len(), exchange.pages()), (1, [1, 0]));
    }

    #[test]
    fn a_list_of_which_a_page_is_held_waits_and_so_does_what_comes_behind_it() {
        let (exchange, mut table) = (GrefExchange::default(), GrefTable::new(8).expect("memory"));
        let page = |r: u32| (GrantRef(r), Mapped::new(r, false));
        exchange.keep(KeepOrder::of([page(8), page(9)].into_iter()).expect("memory"));
        exchange.apply(&mut table);
        table.hold(9);
        let refs = Bounded::of([GrantRef(8), GrantRef(9)].into_iter()).expect("memory");
        assert_eq!(exchange.want_back(refs), Ok(()));
        exchange.keep(KeepOrder::of([page(10)].into_iter()).expect("memory"));
        assert!(!exchange.apply(&mut table) && exchange.waits());
        assert_eq!((exchange.given(), table.len()), (None, 2));
        table.release(9);
        assert!(exchange.apply(&mut table) && !exchange.waits());
        assert_eq!((exchange.given().as_deref(), table.len()), (Some([8, 9].as_slice()), 1));
    }
}
