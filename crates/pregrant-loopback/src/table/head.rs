//! The flags and the domain of a grant table entry at one moment: what is granted to whom, without
//! the frame.
//!
//! What a peer may do: write any bits. Each combination is either refused or valid in one of the
//! two versions.

use pregrant::DomId;
use pregrant::wire::grant::{
    GTF_PERMIT_ACCESS, GTF_READONLY, GTF_SUB_PAGE, GTF_TRANSITIVE, GTF_TYPE_MASK, GrantEntryV1, GrantStatus,
};

/// The flags and the domain of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) flags: u16,
    pub(crate) domid: u16,
}

impl Head {
    #[inline(always)]
    pub(super) fn of(word: u32) -> Self {
        let GrantEntryV1 { flags, domid, .. } = GrantEntryV1::from_words([word, 0]);
        Self { flags, domid }
    }

    pub(crate) fn grants(self) -> bool {
        self.flags & GTF_TYPE_MASK != 0
    }

    /// Checks whether `user` may use the page in this way.
    #[inline(always)]
    pub(super) fn allows(self, user: DomId, write: bool) -> Result<(), GrantStatus> {
        if self.flags & GTF_TYPE_MASK != GTF_PERMIT_ACCESS {
            return Err(GrantStatus::BAD_GNTREF);
        }
        if self.domid != user.0 || (write && self.flags & GTF_READONLY != 0) {
            return Err(GrantStatus::PERMISSION_DENIED);
        }
        Ok(())
    }

    /// Like [`allows`](Self::allows) for version 2, which has more kinds of entries.
    #[inline(always)]
    pub(super) fn allows_whole(self, user: DomId, write: bool) -> Result<(), GrantStatus> {
        if self.flags & GTF_TYPE_MASK == GTF_TRANSITIVE || self.flags & GTF_SUB_PAGE != 0 {
            return Err(GrantStatus::GENERAL_ERROR);
        }
        self.allows(user, write)
    }
}
