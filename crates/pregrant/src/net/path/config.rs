//! The operator's settings of a back, for each path.

use super::gref_mapping;
use super::path_name::PathName;
use super::persistent;
use super::staging::Heads;
use crate::net::batch::Thresholds;

/// Largest number of ordinary pages of a vif that a back keeps mapped, according to its offer.
/// Sixteen vifs of one guest can each have as many.
const MAPPED_PAGES: usize = 896;

/// The operator's settings of the paths: one field for each path that has any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// The path of frames for which no memory was shared before: `map` or `copy`.
    pub fallback: PathName,
    /// Lengths that decide which frames are copied although a mapping would be possible.
    pub thresholds: Thresholds,
    /// How staging treats the head of a frame that is longer than a buffer.
    pub staging: Heads,
    /// Allows to map the whole memory of a guest that asks for it, which removes all isolation
    /// between the guest and this back (docs/protocol 4.6). It works only on a platform that can
    /// map a whole domain.
    pub foreign: bool,
    /// Allows RX by pages that this domain grants to a guest, which then copies by itself
    /// (docs/protocol 4.7). It works only on a platform that reports, when a page is released,
    /// whether the page is still mapped.
    pub guest_copy: bool,
    /// Number of pages of each queue that the front may have mapped by request; 0: the back does
    /// not support such requests.
    pub gref_mapping: usize,
    /// Number of pages of each queue and direction that may stay mapped after the back saw them
    /// first.
    pub persistent: usize,
}

impl PathConfig {
    /// These settings, which allow `path` too, if it is one that is not offered unless the operator
    /// allows it.
    pub fn allowing(self, path: PathName) -> Self {
        match path {
            PathName::Foreign => Self { foreign: true, ..self },
            PathName::GuestCopy => Self { guest_copy: true, ..self },
            PathName::Staging
            | PathName::DataRing
            | PathName::GrefMapping
            | PathName::Persistent
            | PathName::Map
            | PathName::Copy => self,
        }
    }

    /// The value of `mapped-pages-max` that a back with these settings writes for a vif: the pages
    /// that all paths that keep ordinary pages mapped have room for; 0: no path keeps any.
    pub fn mapped_pages(&self) -> u32 {
        let of_both_directions = 2 * self.persistent;
        let kept = [self.gref_mapping, of_both_directions].into_iter().filter(|pages| *pages > 0);
        kept.min().map_or(0, |pages| pages.min(MAPPED_PAGES) as u32)
    }
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            fallback: PathName::Copy,
            thresholds: Thresholds::USUAL,
            staging: Heads::default(),
            foreign: false,
            guest_copy: false,
            gref_mapping: gref_mapping::DEFAULT_LIMIT,
            persistent: persistent::DEFAULT_LIMIT,
        }
    }
}
