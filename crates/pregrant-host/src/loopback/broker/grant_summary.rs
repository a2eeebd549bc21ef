//! The grants of one domain to another, counted by what they allow: what `xl debug-keys g` prints
//! of a real Xen, in a line.

use super::super::ledger::{Active, ZOMBIE};
use super::super::pins::Granter;
use pregrant::DomId;
use pregrant::wire::grant::{GTF_READING, GTF_READONLY, GTF_TYPE_MASK, GTF_WRITING, GrantEntryV1};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantSummary {
    /// The domain whose memory it is.
    pub from: DomId,
    /// The domain that may use it.
    pub to: DomId,
    /// It may only read.
    pub readonly: bool,
    /// Entries of the grant table.
    pub granted: u64,
    /// Those of them that `to` maps or copies this moment.
    pub in_use: u64,
    /// Those of them whose process has ended, and that `to` still uses: they are free once it does
    /// not.
    pub ended: u64,
}

impl GrantSummary {
    /// Those of one domain, by the other and by what they allow.
    pub(super) fn of(from: DomId, granter: Granter<'_>) -> Vec<Self> {
        let mut by: BTreeMap<(u16, bool), Self> = BTreeMap::new();
        for gref in 0..granter.ledger.layout().grants {
            let Some(active) = granter.ledger.active(gref as u32) else { break };
            let active = Active(active.load(Ordering::Acquire));
            let word = granter.table.u32(gref * GrantEntryV1::SIZE).load(Ordering::Acquire);
            let entry = GrantEntryV1::from_words([word, 0]);
            if entry.flags & GTF_TYPE_MASK == 0 {
                continue;
            }
            let (to, readonly) = (DomId(entry.domid), entry.flags & GTF_READONLY != 0);
            let none = Self { from, to, readonly, granted: 0, in_use: 0, ended: 0 };
            let summary = by.entry((to.0, readonly)).or_insert(none);
            summary.granted += 1;
            let in_use = active != Active::NONE || entry.flags & (GTF_READING | GTF_WRITING) != 0;
            summary.in_use += u64::from(in_use);
            let owner = granter.ledger.grant_owner(gref as u32).load(Ordering::Relaxed);
            summary.ended += u64::from(owner == ZOMBIE);
        }
        by.into_values().collect()
    }

    pub(in crate::loopback) fn to_words(self) -> [u64; 6] {
        let Self { from, to, readonly, granted, in_use, ended } = self;
        [from.0.into(), to.0.into(), readonly.into(), granted, in_use, ended]
    }

    /// None: no domains' numbers.
    pub(in crate::loopback) fn from_words(
        [from, to, readonly, granted, in_use, ended, ..]: [u64; 8],
    ) -> Option<Self> {
        let domid = |word: u64| Some(DomId(word.try_into().ok()?));
        Some(Self { from: domid(from)?, to: domid(to)?, readonly: readonly != 0, granted, in_use, ended })
    }
}
