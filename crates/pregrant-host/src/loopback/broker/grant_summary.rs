//! The grants of one domain to another, counted by what they allow: what `xl debug-keys g` prints
//! of a real Xen, in a line.

use super::super::ledger::ZOMBIE;
use super::super::pins::{Entry, Granter};
use pregrant::DomId;
use pregrant::wire::grant::GTF_READONLY;
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
        for entry in granter.entries().filter(Entry::grants) {
            let (to, readonly) = (DomId(entry.grant.domid), entry.grant.flags & GTF_READONLY != 0);
            let none = Self { from, to, readonly, granted: 0, in_use: 0, ended: 0 };
            let summary = by.entry((to.0, readonly)).or_insert(none);
            summary.granted += 1;
            summary.in_use += u64::from(entry.is_in_use());
            let owner = granter.ledger.grant_owner(entry.gref).load(Ordering::Relaxed);
            summary.ended += u64::from(owner == ZOMBIE);
        }
        by.into_values().collect()
    }

    pub(in crate::loopback) fn to_words(self) -> [u64; 6] {
        let Self { from, to, readonly, granted, in_use, ended } = self;
        [from.0.into(), to.0.into(), readonly.into(), granted, in_use, ended]
    }

    pub(in crate::loopback) fn from_words(
        [from, to, readonly, granted, in_use, ended, ..]: [u64; 8],
    ) -> Self {
        let [from, to] = [from, to].map(|word| DomId(u16::try_from(word).unwrap_or(u16::MAX)));
        Self { from, to, readonly: readonly != 0, granted, in_use, ended }
    }
}
