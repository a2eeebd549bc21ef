//! Counts of a broker's objects.

/// How much of everything there is; a test compares two of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Audit {
    /// Domains.
    pub domains: usize,
    /// Attached processes and threads.
    pub attachments: usize,
    /// Grant table entries that grant something.
    pub grants: usize,
    /// Grants that somebody maps or copies this moment.
    pub maptrack: usize,
    /// Pins: one for each grant, process and kind of access.
    pub pins: usize,
    /// Event channel ends.
    pub channels: usize,
    /// Persistent regions.
    pub regions: usize,
    /// Pages of dead processes that a peer still maps.
    pub zombie_pages: usize,
}

impl Audit {
    pub(in crate::loopback) fn to_words(self) -> [u64; 8] {
        let Self { domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages } = self;
        [domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages].map(|n| n as u64)
    }

    pub(in crate::loopback) fn from_words(words: [u64; 8]) -> Self {
        let [domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages] =
            words.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        Self { domains, attachments, grants, maptrack, pins, channels, regions, zombie_pages }
    }
}
