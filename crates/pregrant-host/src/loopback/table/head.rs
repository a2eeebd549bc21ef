//! What an entry says at one moment, but its frame: what is granted to whom.
//!
//! What a peer may do: write any bits. Each of them is refused or one of the two versions'.

use pregrant::DomId;
use pregrant::wire::grant::{
    GTF_PERMIT_ACCESS, GTF_READONLY, GTF_SUB_PAGE, GTF_TRANSITIVE, GTF_TYPE_MASK, GrantEntryV1, GrantStatus,
};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Head {
    pub(in super::super) flags: u16,
    pub(in super::super) domid: u16,
}

impl Head {
    #[inline(always)]
    pub(super) fn of(word: u32) -> Self {
        let GrantEntryV1 { flags, domid, .. } = GrantEntryV1::from_words([word, 0]);
        Self { flags, domid }
    }

    /// Whether it grants anything.
    pub(in super::super) fn grants(self) -> bool {
        self.flags & GTF_TYPE_MASK != 0
    }

    /// Whether `user` may use the page like this.
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

    /// The same of version 2, which has more kinds.
    #[inline(always)]
    pub(super) fn allows_whole(self, user: DomId, write: bool) -> Result<(), GrantStatus> {
        if self.flags & GTF_TYPE_MASK == GTF_TRANSITIVE || self.flags & GTF_SUB_PAGE != 0 {
            return Err(GrantStatus::GENERAL_ERROR);
        }
        self.allows(user, write)
    }
}
