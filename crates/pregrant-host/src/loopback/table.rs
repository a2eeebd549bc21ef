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

mod v1;
mod v2;

/// The primitives of version 2; loom has its own, with a fence for what it does not model.
mod sync {
    pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// A SeqCst exchange comes before a SeqCst load behind it as it is.
    #[inline(always)]
    pub fn ordered_as_seq_cst() {}
}

use super::ledger::{Active, Ledger};
use crate::mapping::Mapping;
use pregrant::wire::grant::{
    GTF_PERMIT_ACCESS, GTF_READONLY, GTF_SUB_PAGE, GTF_TRANSITIVE, GTF_TYPE_MASK, GrantEntryV1, GrantEntryV2,
    GrantStatus, V1_PER_PAGE, V2_PER_PAGE,
};
use pregrant::{DomId, GrantRef};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Which grant tables the domains of a machine have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum GrantTableVersion {
    /// Version 1, as Linux guests use it.
    #[default]
    V1,
    /// Version 2: use is recorded apart from the grant.
    V2,
}

impl GrantTableVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V1, Self::V2];

    /// As options and results have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }

    /// Entries in a page of the table.
    pub fn entries_per_page(self) -> usize {
        match self {
            Self::V1 => V1_PER_PAGE,
            Self::V2 => V2_PER_PAGE,
        }
    }

    pub(super) fn to_word(self) -> u64 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    pub(super) fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.to_word() == word)
    }

    /// Where an entry begins, and where its frame is in it.
    #[inline(always)]
    fn place(self, gref: u32) -> (usize, usize) {
        match self {
            Self::V1 => (gref as usize * GrantEntryV1::SIZE, 4),
            Self::V2 => (gref as usize * GrantEntryV2::SIZE, 8),
        }
    }
}

/// What becomes of a grant that is in use when it is to end.
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

/// What an entry says at one moment, but its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) flags: u16,
    pub(super) domid: u16,
}

impl Head {
    #[inline(always)]
    fn of(word: u32) -> Self {
        let GrantEntryV1 { flags, domid, .. } = GrantEntryV1::from_words([word, 0]);
        Self { flags, domid }
    }

    /// Whether it grants anything.
    pub(super) fn grants(self) -> bool {
        self.flags & GTF_TYPE_MASK != 0
    }

    /// Whether `user` may use the page like this.
    #[inline(always)]
    fn allows(self, user: DomId, write: bool) -> Result<(), GrantStatus> {
        if self.flags & GTF_TYPE_MASK != GTF_PERMIT_ACCESS {
            return Err(GrantStatus::BAD_GNTREF);
        }
        if self.domid != user.0 || (write && self.flags & GTF_READONLY != 0) {
            return Err(GrantStatus::PERMISSION_DENIED);
        }
        Ok(())
    }

    /// The same of version 2, which has more kinds.
    #[inline(always)]
    fn allows_whole(self, user: DomId, write: bool) -> Result<(), GrantStatus> {
        if self.flags & GTF_TYPE_MASK == GTF_TRANSITIVE || self.flags & GTF_SUB_PAGE != 0 {
            return Err(GrantStatus::GENERAL_ERROR);
        }
        self.allows(user, write)
    }
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

    /// Who uses it. The reference is one of the table.
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
            self.memory.u32(entry + 4).store(0, Ordering::Relaxed); // no part of a page
            self.memory.u32(entry + frame + 4).store(0, Ordering::Relaxed); // upper half of the frame
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
            },
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

const _: () = assert!(GrantRef::FIRST_FREE.0 < V2_PER_PAGE as u32);
