//! Counts of a broker's objects.

/// Counts of all objects. Tests compare two of them to find leaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Audit {
    pub domains: usize,
    pub attachments: usize,
    /// Entries of grant tables that grant something.
    pub grants: usize,
    /// Grants that are mapped, or that a copy is using at this moment.
    pub maptrack: usize,
    /// Pins: one per grant, process and kind of access.
    pub pins: usize,
    pub channels: usize,
    pub regions: usize,
    /// Pages of dead processes that a peer still maps.
    pub zombie_pages: usize,
}

impl Audit {
    pub(crate) fn to_words(self) -> [u64; 8] {
        let Self { domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages } = self;
        [domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages].map(|n| n as u64)
    }

    pub(crate) fn from_words(words: [u64; 8]) -> Self {
        let [domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages] =
            words.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        Self { domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages }
    }
}
