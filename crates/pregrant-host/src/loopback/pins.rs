//! Xen's part of a grant operation: check an entry of the granting domain's table, mark it in use,
//! undo that.
//!
//! ```text
//!   lock the active entry (names us)  ->  flags |= reading[, writing]  ->  frame  ->  unlock with our pin (map)
//!                                                                                 ->  stay locked (copy)
//!   ...                               ->  flags of the pins that are left          ->  unlock
//! ```
//!
//! The lock makes set and clear of the flags one step, for two workers of a domain as for one. A
//! copy keeps it until its batch is done, which saves an atomic operation a piece; it therefore
//! never waits for a second lock while it holds one: [`PinError::Busy`] tells it to finish what it
//! has first. The broker undoes the part of a dead process: [`sweep`].
//!
//! Loopback distinguishes what Xen answers with `general_error` alone: another domain's grant or a
//! write to a read-only one is `permission_denied`, an entry that grants nothing is `bad_gntref`.
//!
//! What a peer may do: write anything into its table at any time. Each word is read once; the
//! exchange is tried four times, as in Xen, then fails.

use super::ledger::{Active, Layout, Ledger};
use crate::mapping::Mapping;
use pregrant::DomId;
use pregrant::wire::grant::{
    GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY, GTF_TYPE_MASK, GTF_WRITING, GrantEntryV1, GrantStatus,
    V1_PER_PAGE,
};
use std::sync::atomic::Ordering;

/// The granting domain as the hypervisor sees it.
#[derive(Clone, Copy)]
pub(super) struct Granter<'a> {
    /// Its ledger.
    pub(super) ledger: &'a Ledger,
    /// Its grant table.
    pub(super) table: &'a Mapping,
}

/// Who uses a grant: an attached process or thread of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct User {
    pub(super) domid: DomId,
    pub(super) slot: usize,
}

/// Why a grant could not be taken into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PinError {
    /// The operation's status.
    Status(GrantStatus),
    /// Somebody, perhaps we ourselves, is using the entry this moment.
    Busy,
}

/// A grant in use by a copy: locked until [`Granter::copied`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    gref: u32,
    before: Active,
}

impl Granter<'_> {
    /// All entries of the table, for counts.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..self.ledger.layout().grants as u32).map_while(|gref| {
            let active = Active(self.ledger.active(gref)?.load(Ordering::Acquire));
            let word = self.table.u32(gref as usize * GrantEntryV1::SIZE).load(Ordering::Acquire);
            Some(Entry { gref, active, grant: GrantEntryV1::from_words([word, 0]) })
        })
    }

    /// Takes a grant into use for a copy. Returns its frame.
    #[inline]
    pub(super) fn hold(&self, gref: u32, user: User, write: bool) -> Result<(u32, Held), PinError> {
        let before = self.lock(gref, user)?;
        match self.set_in_use(gref, user.domid, write, before) {
            Ok(frame) => Ok((frame, Held { gref, before })),
            Err(status) => {
                self.settle(gref, before);
                Err(PinError::Status(status))
            }
        }
    }

    /// The copy is done.
    #[inline]
    pub(super) fn copied(&self, held: Held) {
        self.settle(held.gref, held.before);
    }

    /// Records a mapping: the grant stays in use until [`unpin`](Self::unpin). Returns its frame.
    pub(super) fn pin(&self, gref: u32, user: User, write: bool) -> Result<u32, PinError> {
        let before = self.lock(gref, user)?;
        let (after, result) = match self.set_in_use(gref, user.domid, write, before) {
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

    /// Ends the mappings that [`pin`](Self::pin) recorded for this user and this kind of access.
    pub(super) fn unpin(&self, gref: u32, user: User, write: bool) -> Result<(), PinError> {
        let before = self.lock(gref, user)?;
        self.settle(gref, Active(before.0 & !Active::pin(user.slot, write)));
        Ok(())
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

    /// Checks the entry and sets reading and writing in it. Only under the lock.
    #[inline]
    fn set_in_use(&self, gref: u32, user: DomId, write: bool, before: Active) -> Result<u32, GrantStatus> {
        let at = gref as usize * GrantEntryV1::SIZE;
        let word = self.table.u32(at);
        let wanted = if write { GTF_READING | GTF_WRITING } else { GTF_READING };
        let mut seen = word.load(Ordering::Relaxed);
        let mut tries = 0;
        loop {
            let entry = GrantEntryV1::from_words([seen, 0]);
            if entry.flags & GTF_TYPE_MASK != GTF_PERMIT_ACCESS {
                return Err(GrantStatus::BAD_GNTREF);
            }
            if entry.domid != user.0 || (write && entry.flags & GTF_READONLY != 0) {
                return Err(GrantStatus::PERMISSION_DENIED);
            }
            let next = seen | u32::from(wanted);
            if next == seen {
                break;
            }
            match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(_) if tries == 3 => return Err(GrantStatus::GENERAL_ERROR),
                Err(now) => seen = now,
            }
            tries += 1;
        }
        let frame = if before.pinned() {
            self.ledger.frame(gref).load(Ordering::Relaxed)
        } else {
            self.table.u32(at + 4).load(Ordering::Relaxed)
        };
        let Layout { pages, grants } = self.ledger.layout();
        let inside = (frame as usize) < pages && frame as usize >= grants / V1_PER_PAGE;
        if inside { Ok(frame) } else { Err(GrantStatus::BAD_PAGE) }
    }

    /// Leaves in the entry's flags what `after` needs, and unlocks with it.
    #[inline]
    fn settle(&self, gref: u32, after: Active) {
        let stale = match (after.pinned(), after.written()) {
            (false, _) => GTF_READING | GTF_WRITING,
            (true, false) => GTF_WRITING,
            (true, true) => 0,
        };
        let word = self.table.u32(gref as usize * GrantEntryV1::SIZE);
        if word.load(Ordering::Relaxed) & u32::from(stale) != 0 {
            word.fetch_and(!u32::from(stale), Ordering::SeqCst);
        }
        if let Some(entry) = self.ledger.active(gref) {
            entry.store(after.unlocked().0, Ordering::Release);
        }
    }
}

/// Undoes every part that a dead user has in a domain's grants. False when a living one holds an
/// entry this moment: call again soon.
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

/// A table's grants by kind, for audits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Count {
    /// Entries that grant something.
    pub(super) grants: usize,
    /// Entries that somebody maps or copies.
    pub(super) in_use: usize,
    /// Pins: one for each entry, process and kind of access.
    pub(super) pins: usize,
}

/// Counts them.
pub(super) fn count(granter: Granter<'_>) -> Count {
    let mut c = Count::default();
    for entry in granter.entries() {
        c.grants += usize::from(entry.grants());
        c.in_use += usize::from(entry.is_in_use());
        c.pins += entry.active.pins() as usize + usize::from(entry.active.locked_by().is_some());
    }
    c
}

/// An entry of a grant table, as it is at one moment.
pub(super) struct Entry {
    /// Its number.
    pub(super) gref: u32,
    /// Who holds it.
    pub(super) active: Active,
    /// To whom it grants what. The frame is not read.
    pub(super) grant: GrantEntryV1,
}

impl Entry {
    /// Whether it grants anything.
    pub(super) fn grants(&self) -> bool {
        self.grant.flags & GTF_TYPE_MASK != 0
    }

    /// Whether somebody maps or copies it.
    pub(super) fn is_in_use(&self) -> bool {
        self.active != Active::NONE || self.grants() && self.grant.flags & (GTF_READING | GTF_WRITING) != 0
    }
}
