//! A domain's grant table, of either version, with the operations of the granting domain and of
//! Xen.
//!
//! ```text
//!            | granting domain: grant, end   | Xen: begin_use, end_use       | "in use" is
//!   v1 (v1)  | one store; compare & exchange | compare & exchange, fetch_and | two bits of the entry's flags
//!   v2 (v2)  | one store; store, fence, load | a load; nothing               | the status: a word of Xen's own
//! ```
//! Version 1 is what Linux guests use. Version 2 has the entries, byte for byte, and the memory
//! order of Xen's version 2, where "enabled" and "in use" are separate words. The status is the
//! ledger's active entry, and claiming it is the use: one copy at a time, without a counter and a
//! second word to exchange.
//!
//! A table of version 2 grants fewer pages (256 per frame of the table instead of 512). Grants of a
//! part of a page, and of another domain's grant, are refused. When pages are dropped whose grant
//! is in use, a grant of version 2 ends at once, and its pages are freed later; one of version 1
//! remains until it can end.
//!
//! What a peer may do: write anything into its own table at any time; each word is read once. It
//! cannot write a status.

mod head;
mod sync;
mod v1;
mod v2;

pub(super) use head::Head;

use crate::grant_table_version::GrantTableVersion;
use crate::ledger::{Active, Ledger};
use pregrant::DomId;
use pregrant::wire::grant::{GTF_PERMIT_ACCESS, GTF_READONLY, GrantEntryV1, GrantStatus};
use pregrant_host::mapping::Mapping;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How to treat a grant that should end and is in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// The grant stays; the caller gets its page back.
    Stand,
    /// The grant is to end without a caller that waits for it. A grant of version 2 ends at once
    /// for new uses, and its page is freed later; a grant of version 1 is kept until it can end.
    EndLate,
}

/// A grant table with the statuses of its entries.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    memory: &'a Mapping,
    ledger: &'a Ledger,
}

impl<'a> Table<'a> {
    /// `memory` is the domain's, from its first page on, and contains at least the table.
    #[inline(always)]
    pub(super) fn new(memory: &'a Mapping, ledger: &'a Ledger) -> Self {
        Self { memory, ledger }
    }

    #[inline(always)]
    fn version(&self) -> GrantTableVersion {
        self.ledger.layout().version
    }

    #[inline(always)]
    fn word(&self, gref: u32) -> &'a AtomicU32 {
        self.memory.u32(self.version().place(gref).0)
    }

    /// Returns the frame number of an entry, or its lower half.
    pub(super) fn frame(&self, gref: u32) -> &'a AtomicU32 {
        let (entry, frame) = self.version().place(gref);
        self.memory.u32(entry + frame)
    }

    /// Returns the active entry, which names the grant's user. The reference must be in the table.
    #[inline(always)]
    fn status(&self, gref: u32) -> Option<&'a AtomicU64> {
        self.ledger.active(gref)
    }

    fn is_free(&self, gref: u32) -> bool {
        self.status(gref).is_none_or(v2::is_free)
    }

    /// Reads what an entry grants.
    pub(super) fn head(&self, gref: u32) -> Head {
        Head::of(self.word(gref).load(Ordering::Acquire))
    }

    // The granting domain's part.

    /// Grants a frame by an entry that is free.
    pub(super) fn grant(&self, gref: u32, to: DomId, frame: u32, readonly: bool) {
        let readonly = if readonly { GTF_READONLY } else { 0 };
        let entry = GrantEntryV1 { flags: GTF_PERMIT_ACCESS | readonly, domid: to.0, frame };
        let [head, frame] = entry.to_words();
        if self.version() == GrantTableVersion::V2 {
            let (entry, frame) = self.version().place(gref);
            // Clear the fields for a part of a page and for the upper half of the frame number.
            self.memory.u32(entry + 4).store(0, Ordering::Relaxed);
            self.memory.u32(entry + frame + 4).store(0, Ordering::Relaxed);
        }
        self.frame(gref).store(frame, Ordering::Relaxed);
        self.word(gref).store(head, Ordering::Release);
    }

    /// Ends a grant. Returns false if the grant is in use, and remains.
    pub(super) fn end(&self, gref: u32) -> bool {
        match (self.version(), self.status(gref)) {
            (GrantTableVersion::V2, Some(status)) => v2::end(self.word(gref), status),
            _ => v1::end(self.word(gref)),
        }
    }

    /// Ends the grants that can be ended and passes them to `ended`; the others stay in the list.
    pub(super) fn end_all(&self, grefs: &mut Vec<u32>, busy: Busy, mut ended: impl FnMut(u32)) {
        let version = self.version();
        let mut in_use = Vec::new();
        if version == GrantTableVersion::V2 {
            if busy == Busy::Stand {
                in_use.extend(grefs.extract_if(.., |gref| !self.is_free(*gref)));
            }
            grefs.iter().for_each(|&gref| v2::disable(self.word(gref)));
            v2::before_statuses();
        }
        grefs.retain(|&gref| {
            let done = match version {
                GrantTableVersion::V1 => v1::end(self.word(gref)),
                GrantTableVersion::V2 => self.is_free(gref),
            };
            if done {
                ended(gref);
            } else if version == GrantTableVersion::V2 && busy == Busy::Stand {
                v2::stand(self.word(gref));
            }
            !done
        });
        grefs.append(&mut in_use);
    }

    // Xen's part.

    /// Checks in version 2 whether the entry as it is now allows this use, before it is claimed.
    /// The claim itself counts as a use, so a user without a grant must not make it.
    #[inline(always)]
    pub(super) fn allows(&self, gref: u32, user: DomId, write: bool) -> Result<(), GrantStatus> {
        match self.version() {
            GrantTableVersion::V1 => Ok(()),
            GrantTableVersion::V2 if self.status(gref).is_none() => Err(GrantStatus::BAD_GNTREF),
            GrantTableVersion::V2 => {
                Head::of(self.word(gref).load(Ordering::Relaxed)).allows_whole(user, write)
            }
        }
    }

    /// Checks the entry and marks it as in use, under a claim of its active entry, whose value was
    /// `before`. Returns its frame.
    #[inline(always)]
    pub(super) fn begin_use(
        &self,
        gref: u32,
        user: DomId,
        write: bool,
        before: Active,
    ) -> Result<u32, GrantStatus> {
        let word = self.word(gref);
        match self.version() {
            GrantTableVersion::V1 => v1::begin_use(word, user, write)?,
            GrantTableVersion::V2 => Head::of(v2::claimed(word)).allows_whole(user, write)?,
        }
        let frame = if before.pinned() {
            self.ledger.frame(gref).load(Ordering::Relaxed)
        } else {
            self.frame_now(gref)?
        };
        let layout = self.ledger.layout();
        let inside = (layout.table_frames()..layout.pages).contains(&(frame as usize));
        if inside { Ok(frame) } else { Err(GrantStatus::BAD_PAGE) }
    }

    #[inline(always)]
    fn frame_now(&self, gref: u32) -> Result<u32, GrantStatus> {
        let (entry, frame) = self.version().place(gref);
        let upper = self.version() == GrantTableVersion::V2
            && self.memory.u32(entry + frame + 4).load(Ordering::Relaxed) != 0;
        if upper { Err(GrantStatus::BAD_PAGE) } else { Ok(self.frame(gref).load(Ordering::Relaxed)) }
    }

    /// Ends one use of a grant: clears the marks in the entry that the remaining uses do not need.
    /// `after` is the value that the caller then gives to the active entry.
    #[inline(always)]
    pub(super) fn end_use(&self, gref: u32, after: Active) {
        if self.version() == GrantTableVersion::V1 {
            v1::end_use(self.word(gref), after.pinned(), after.written());
        }
    }

    /// Returns true if the table itself marks the entry as in use.
    pub(super) fn says_in_use(&self, head: Head) -> bool {
        self.version() == GrantTableVersion::V1 && head.grants() && v1::in_use(head.flags)
    }
}
