//! The two versions of grant tables, and the layout of their entries.

use pregrant::GrantRef;
use pregrant::wire::grant::{GrantEntryV1, GrantEntryV2, V1_PER_PAGE, V2_PER_PAGE};

pregrant::named! {
    /// The version of the grant tables of a machine's domains.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    GrantTableVersion {
        /// Version 1, as Linux guests use it.
        #[default]
        V1 = "v1",
        /// Version 2, whose status of use is a word apart from the grant.
        V2 = "v2",
    }
}

impl GrantTableVersion {
    /// Returns the number of entries in one page of the table.
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

    /// Returns the byte offset of an entry in the table, and that of the frame number in an entry.
    #[inline(always)]
    pub(super) fn place(self, gref: u32) -> (usize, usize) {
        match self {
            Self::V1 => (gref as usize * GrantEntryV1::SIZE, 4),
            Self::V2 => (gref as usize * GrantEntryV2::SIZE, 8),
        }
    }
}

const _: () = assert!(GrantRef::FIRST_FREE.0 < V2_PER_PAGE as u32);
