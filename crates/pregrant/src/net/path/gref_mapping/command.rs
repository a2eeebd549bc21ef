//! Commands of a vif's owner to a queue's worker, about pages that the guest asked to map.
//!
//! ```text
//!   control: PageCommand, with lists that are long enough --> worker: fills them, and allocates nothing
//! ```

use crate::bounded::Bounded;
use crate::linked::Entry;
use crate::units::GrantRef;
use alloc::boxed::Box;

/// A page of the guest that is mapped.
#[derive(Debug)]
pub struct Mapped<M> {
    /// The mapping.
    pub map: M,
    /// The page is mapped for writing too.
    pub writable: bool,
    /// The guest asked to unmap the page (DEL): ports get no payload of it any more.
    pub leaves: bool,
}

impl<M> Mapped<M> {
    /// A page that the guest did not ask to unmap.
    pub fn new(map: M, writable: bool) -> Self {
        Self { map, writable, leaves: false }
    }
}

/// Pages of one list that found no place in the hash table.
pub(super) type Unplaced<M> = Bounded<(GrantRef, Mapped<M>)>;

/// A command of the vif's owner to the queue's worker, with the memory that its execution needs.
#[derive(Debug)]
pub(super) enum PageCommand<M> {
    Keep { pages: Bounded<(GrantRef, Mapped<M>)>, unplaced: Option<Box<Entry<Unplaced<M>>>> },
    GiveBack { refs: Bounded<GrantRef>, pages: Bounded<M> },
}
