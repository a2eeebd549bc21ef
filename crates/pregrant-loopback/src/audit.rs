//! Counts of a broker's objects.

/// Counts of all objects. Tests compare two of them to find leaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Audit {
    pub domains: usize,
    pub attachments: usize,
    /// Number of grant table entries that grant something.
    pub grants: usize,
    /// Number of grants that are mapped, or that a copy is using at this moment.
    pub maptrack: usize,
    /// Number of pins. A grant has one for each process that uses it and each kind of access.
    pub pins: usize,
    pub channels: usize,
    pub regions: usize,
    /// Number of pages of dead processes that a peer still maps.
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
