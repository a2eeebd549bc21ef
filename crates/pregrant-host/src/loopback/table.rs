//! A domain's grant table, of one of two versions, as the granting domain and as Xen work on it.
//!
//! ```text
//!            | granting domain: grant, end   | Xen: begin_use, end_use       | "in use" is
//!   v1 (v1)  | one store; compare & exchange | compare & exchange, fetch_and | two bits of the entry's flags
//!   v2 (v2)  | one store; store, fence, load | a load; nothing               | the status: a word of Xen's own
//! ```
//! Version 1 is what Linux guests use. Version 2 has its entries, byte for byte, and the order of
//! Xen's version 2 ("enabled" and "in use" are words apart); the status is the ledger's active
//! entry, whose claim is the use: one copy at a time, no counter, and no second word to exchange.
//!
//! Version 2 cannot grant as many pages (256 a frame of the table, not 512), nor part of a page,
//! nor another domain's grant: such entries are refused. A grant whose pages are dropped while they
//! are in use is ended at once, and its pages are free later (lazy free); one of version 1 stands
//! until it can be ended.
//!
//! What a peer may do: write anything into its own table at any time; each word is read once. It
//! cannot write a status.

mod head;
mod sync;
mod v1;
mod v2;

pub(super) use head::Head;

use super::grant_table_version::GrantTableVersion;
use super::ledger::{Active, Ledger};
use crate::mapping::Mapping;
use pregrant::DomId;
use pregrant::wire::grant::{GTF_PERMIT_ACCESS, GTF_READONLY, GrantEntryV1, GrantStatus};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The outcome for a grant that is in use when it is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// It stands: who asked gets the page back.
    Stand,
    /// No one does. From version 2 on it ends, so that no use begins, and its page is free later;
    /// of version 1 it stands until then.
    EndLate,
}

/// The table, with the statuses of its entries.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    memory: &'a Mapping,
    ledger: &'a Ledger,
}

impl<'a> Table<'a> {
    /// `memory` is the domain's, from its first page on: the table at least.
    #[inline(always)]
    pub(super) fn new(memory: &'a Mapping, ledger: &'a Ledger) -> Self {
        Self { memory, ledger }
    }

    #[inline(always)]
    fn version(&self) -> GrantTableVersion {
        self.ledger.layout().version
    }

    /// Flags and domid.
    #[inline(always)]
    fn word(&self, gref: u32) -> &'a AtomicU32 {
        self.memory.u32(self.version().place(gref).0)
    }

    /// The frame, or the lower half of it.
    pub(super) fn frame(&self, gref: u32) -> &'a AtomicU32 {
        let (entry, frame) = self.version().place(gref);
        self.memory.u32(entry + frame)
    }

    /// Its user. The reference is one of the table.
    #[inline(always)]
    fn status(&self, gref: u32) -> Option<&'a AtomicU64> {
        self.ledger.active(gref)
    }

    fn is_free(&self, gref: u32) -> bool {
        self.status(gref).is_none_or(v2::is_free)
    }

    /// What an entry says.
    pub(super) fn head(&self, gref: u32) -> Head {
        Head::of(self.word(gref).load(Ordering::Acquire))
    }

    // The granting domain's part.

    /// Grants a frame by an entry that grants nothing.
    pub(super) fn grant(&self, gref: u32, to: DomId, frame: u32, readonly: bool) {
        let readonly = if readonly { GTF_READONLY } else { 0 };
        let entry = GrantEntryV1 { flags: GTF_PERMIT_ACCESS | readonly, domid: to.0, frame };
        let [head, frame] = entry.to_words();
        if self.version() == GrantTableVersion::V2 {
            let (entry, frame) = self.version().place(gref);
            // Not a part of a page, and the upper half of the frame.
            self.memory.u32(entry + 4).store(0, Ordering::Relaxed);
            self.memory.u32(entry + frame + 4).store(0, Ordering::Relaxed);
        }
        self.frame(gref).store(frame, Ordering::Relaxed);
        self.word(gref).store(head, Ordering::Release);
    }

    /// Ends a grant. False: it is in use, and it stands.
    pub(super) fn end(&self, gref: u32) -> bool {
        match (self.version(), self.status(gref)) {
            (GrantTableVersion::V2, Some(status)) => v2::end(self.word(gref), status),
            _ => v1::end(self.word(gref)),
        }
    }

    /// Ends those grants that can be ended, and hands them to `ended`; the others stay in the list.
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

    /// Whether a use that asks for a claim would be refused, as the entry is now: where the claim
    /// itself shows as a use, no one makes it who has no grant.
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

    /// Checks the entry and marks it as in use, under a claim of its active entry, which was
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

    /// A use has ended: leaves in the entry what `after` needs. The active entry gets `after` next.
    #[inline(always)]
    pub(super) fn end_use(&self, gref: u32, after: Active) {
        if self.version() == GrantTableVersion::V1 {
            v1::end_use(self.word(gref), after.pinned(), after.written());
        }
    }

    /// Whether the entry itself says that it is in use.
    pub(super) fn says_in_use(&self, head: Head) -> bool {
        self.version() == GrantTableVersion::V1 && head.grants() && v1::in_use(head.flags)
    }
}
