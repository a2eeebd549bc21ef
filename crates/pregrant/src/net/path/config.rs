//! The operator's settings of a back, for each path.

use super::gref_mapping;
use super::path_name::PathName;
use super::persistent;
use super::staging::Heads;
use crate::net::batch::Thresholds;

/// Ordinary pages that a vif may have mapped at most, as a back says: sixteen of one guest have as
/// many.
const MAPPED_PAGES: usize = 896;

/// See the module: each path has a field with its settings, if it has any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// The path of frames that no memory was shared for before: `map`, or `copy` as for any other.
    pub fallback: PathName,
    /// Which frames are copied where they need not be.
    pub thresholds: Thresholds,
    /// How staging treats the heads of frames that are longer than a buffer.
    pub staging: Heads,
    /// Whether all memory of a guest that asks for it may be mapped, which leaves nothing between
    /// it and this back (docs/protocol 4.6); only where the platform can.
    pub foreign: bool,
    /// Whether pages of this domain are lent for RX to a guest that wants to copy itself
    /// (docs/protocol 4.7); only where the platform says that a page is still mapped when it is to
    /// be released.
    pub guest_copy: bool,
    /// How many pages of each queue the front may have mapped by request; 0: such requests are not
    /// supported.
    pub gref_mapping: usize,
    /// How many pages of each queue and direction may stay mapped once they were seen.
    pub persistent: usize,
}

impl PathConfig {
    /// What a back with these settings says of a vif's pages, in `mapped-pages-max`: as many as
    /// each path that keeps ordinary pages mapped has room for; 0: none does.
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
