//! Counts the grants of one domain to another by what they allow. Each line has what `xl debug-keys
//! g` prints on a real Xen.

use crate::grant_table_version::GrantTableVersion;
use crate::ledger::ZOMBIE;
use crate::pins::Granter;
use pregrant::DomId;
use pregrant::wire::grant::GTF_READONLY;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// The grants of one domain to another that allow the same access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantSummary {
    /// The domain whose memory is granted.
    pub from: DomId,
    /// The domain that may use it.
    pub to: DomId,
    /// True if the grants are read-only.
    pub readonly: bool,
    /// Number of grant table entries that grant this access.
    pub granted: u64,
    /// Number of grants that `to` maps, or copies at this moment.
    pub in_use: u64,
    /// Number of grants that were ended, or whose process died, while `to` still uses them. They
    /// are freed when it stops.
    pub ended: u64,
    /// The version of the domain's grant table.
    pub table: GrantTableVersion,
}

impl GrantSummary {
    /// Summarizes the grants of one domain, by peer and access.
    pub(crate) fn of(from: DomId, granter: Granter<'_>) -> Vec<Self> {
        let table = granter.ledger.layout().version;
        let mut by: BTreeMap<(u16, bool), Self> = BTreeMap::new();
        // An ended grant remains an entry while a peer maps it.
        for entry in granter.entries().filter(|entry| entry.grants() || entry.active.pinned()) {
            let to = if entry.active.pinned() { entry.active.domid() } else { entry.head.domid };
            let (to, readonly) = (DomId(to), entry.head.flags & GTF_READONLY != 0);
            let none = Self { from, to, readonly, granted: 0, in_use: 0, ended: 0, table };
            let summary = by.entry((to.0, readonly)).or_insert(none);
            summary.granted += 1;
            summary.in_use += u64::from(entry.is_in_use());
            let owner = granter.ledger.grant_owner(entry.gref).load(Ordering::Relaxed);
            summary.ended += u64::from(owner == ZOMBIE || !entry.grants());
        }
        by.into_values().collect()
    }

    pub(crate) fn to_words(self) -> [u64; 7] {
        let Self { from, to, readonly, granted, in_use, ended, table } = self;
        [from.0.into(), to.0.into(), readonly.into(), granted, in_use, ended, table.to_word()]
    }

    pub(crate) fn from_words([from, to, readonly, granted, in_use, ended, table, ..]: [u64; 8]) -> Self {
        let [from, to] = [from, to].map(|word| DomId(u16::try_from(word).unwrap_or(u16::MAX)));
        let table = GrantTableVersion::from_word(table).unwrap_or_default();
        Self { from, to, readonly: readonly != 0, granted, in_use, ended, table }
    }
}
