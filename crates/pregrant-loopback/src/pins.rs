//! Xen's part of a grant operation: checks an entry of the granting domain's table, marks it as in
//! use, and undoes that.
//!
//! ```text
//!   lock the active entry (names us)  ->  check the entry, mark it  ->  frame  ->  unlock with our pin (map)
//!                                                                              ->  stay locked (copy)
//!   ...                               ->  marks of the pins that are left      ->  unlock
//! ```
//!
//! A lock makes checking and marking one step, also between two workers of a domain. A copy keeps
//! it until its batch is done, which saves one atomic operation per copy; so it must never wait for
//! a second lock while it holds one: on [`PinError::Busy`] it finishes what it has first. The
//! broker undoes the uses of a dead process: [`sweep`].
//!
//! The loopback distinguishes cases that Xen reports as `general_error`: another domain's grant, or
//! a write to a read-only one, is `permission_denied`; an entry that grants nothing is
//! `bad_gntref`.
//!
//! The marks in the entry itself, and their order, are in [`table`](crate::table). Entries of
//! version 2 have none, since there the active entry is the status.
//!
//! What a peer may do: write anything into its table at any time. Each word is read once.

use crate::ledger::{Active, Ledger};
use crate::table::{Head, Table};
use pregrant::DomId;
use pregrant::wire::grant::GrantStatus;
use pregrant_host::mapping::Mapping;
use std::sync::atomic::Ordering;

/// The grant table and the memory of the granting domain, as a hypervisor accesses them.
#[derive(Clone, Copy)]
pub(super) struct Granter<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) table: &'a Mapping,
}

/// The user of a grant: an attached process or thread of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct User {
    pub(super) domid: DomId,
    pub(super) slot: usize,
}

/// The reason why the use of a grant could not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PinError {
    Status(GrantStatus),
    /// Another user, perhaps in this process, has the entry locked.
    Busy,
}

/// A grant that a copy is using; locked until [`Granter::copied`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    gref: u32,
    before: Active,
}

impl<'a> Granter<'a> {
    #[inline(always)]
    pub(super) fn table(&self) -> Table<'a> {
        Table::new(self.table, self.ledger)
    }

    /// Returns all entries of the table, so that they can be counted.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..self.ledger.layout().grants as u32).map_while(|gref| {
            let active = Active(self.ledger.active(gref)?.load(Ordering::Acquire));
            let head = self.table().head(gref);
            Some(Entry { gref, active, head, in_use: self.table().says_in_use(head) })
        })
    }

    /// Begins the use of a grant by a copy. Returns its frame.
    #[inline]
    pub(super) fn hold(&self, gref: u32, user: User, write: bool) -> Result<(u32, Held), PinError> {
        let before = self.lock_to_use(gref, user, write)?;
        match self.table().begin_use(gref, user.domid, write, before) {
            Ok(frame) => Ok((frame, Held { gref, before })),
            Err(status) => {
                self.settle(gref, before);
                Err(PinError::Status(status))
            }
        }
    }

    /// Ends the use of a grant by a copy.
    #[inline]
    pub(super) fn copied(&self, held: Held) {
        self.settle(held.gref, held.before);
    }

    /// Begins the use of a grant by a mapping, until [`unpin`](Self::unpin). Returns its frame.
    pub(super) fn pin(&self, gref: u32, user: User, write: bool) -> Result<u32, PinError> {
        let before = self.lock_to_use(gref, user, write)?;
        let (after, result) = match self.table().begin_use(gref, user.domid, write, before) {
            Ok(frame) => {
                self.ledger.frame(gref).store(frame, Ordering::Relaxed);
                let pins = before.0 | Active::pin(user.slot, write) | u64::from(user.domid.0);
                (Active(pins), Ok(frame))
            }
            Err(status) => (before, Err(PinError::Status(status))),
        };
        self.settle(gref, after);
        result
    }

    /// Ends the mappings that [`pin`](Self::pin) recorded for this user and access.
    pub(super) fn unpin(&self, gref: u32, user: User, write: bool) -> Result<(), PinError> {
        let before = self.lock(gref, user)?;
        self.settle(gref, Active(before.0 & !Active::pin(user.slot, write)));
        Ok(())
    }

    /// Like [`lock`](Self::lock), but only if the entry allows the use before it is locked.
    #[inline]
    fn lock_to_use(&self, gref: u32, user: User, write: bool) -> Result<Active, PinError> {
        self.table().allows(gref, user.domid, write).map_err(PinError::Status)?;
        self.lock(gref, user)
    }

    #[inline]
    fn lock(&self, gref: u32, user: User) -> Result<Active, PinError> {
        let Some(entry) = self.ledger.active(gref) else {
            return Err(PinError::Status(GrantStatus::BAD_GNTREF));
        };
        let now = Active(entry.load(Ordering::Relaxed));
        if now.locked_by().is_some() {
            return Err(PinError::Busy);
        }
        if now.pinned() && now.domid() != user.domid.0 {
            return Err(PinError::Status(GrantStatus::PERMISSION_DENIED));
        }
        let locked = now.locked(user.domid.0, user.slot);
        entry
            .compare_exchange(now.0, locked.0, Ordering::SeqCst, Ordering::Relaxed)
            .map(|_| now.unlocked())
            .map_err(|_| PinError::Busy)
    }

    /// Writes the marks that `after` needs into the entry, and unlocks it.
    #[inline]
    fn settle(&self, gref: u32, after: Active) {
        self.table().end_use(gref, after);
        if let Some(entry) = self.ledger.active(gref) {
            entry.store(after.unlocked().0, Ordering::Release);
        }
    }
}

/// Undoes every use of a domain's grants by a dead user. Returns false if a living user has an
/// entry locked; call again soon.
pub(super) fn sweep(granter: Granter<'_>, dead: User) -> bool {
    let mut clean = true;
    for gref in 0..granter.ledger.layout().grants as u32 {
        let Some(entry) = granter.ledger.active(gref) else { break };
        let now = Active(entry.load(Ordering::Acquire));
        if !now.involves(dead.domid.0, dead.slot) {
            continue;
        }
        let ours = now.locked_by() == Some(dead.slot);
        let taken = now.locked(dead.domid.0, dead.slot);
        if now.locked_by().is_some() && !ours
            || entry.compare_exchange(now.0, taken.0, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            clean = false;
            continue;
        }
        granter.settle(gref, now.without(dead.slot));
    }
    clean
}

/// Counts of a grant table's entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Count {
    pub(super) grants: usize,
    /// Number of entries that are mapped or being copied.
    pub(super) in_use: usize,
    /// Number of pins. An entry has one for each process that uses it and each kind of access.
    pub(super) pins: usize,
}

pub(super) fn count(granter: Granter<'_>) -> Count {
    let mut c = Count::default();
    for entry in granter.entries() {
        c.grants += usize::from(entry.grants());
        c.in_use += usize::from(entry.is_in_use());
        c.pins += entry.active.pins() as usize + usize::from(entry.active.locked_by().is_some());
    }
    c
}

/// A snapshot of an entry of a grant table.
pub(super) struct Entry {
    pub(super) gref: u32,
    pub(super) active: Active,
    /// The access that the entry grants, and the domain that it is granted to.
    pub(super) head: Head,
    /// True if the table itself marks the entry as in use.
    in_use: bool,
}

impl Entry {
    pub(super) fn grants(&self) -> bool {
        self.head.grants()
    }

    /// True if the page is mapped, or being copied.
    pub(super) fn is_in_use(&self) -> bool {
        self.active != Active::NONE || self.in_use
    }
}
