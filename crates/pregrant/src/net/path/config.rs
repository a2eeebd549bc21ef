//! The operator's settings of a back, for each path.

use super::{Negotiation, OfPath, PathName};
use crate::net::batch::Thresholds;

/// Ordinary pages that a vif may have mapped at most, as a back says: sixteen of one guest have as
/// many.
const MAPPED_PAGES: usize = 896;

paths!(with_paths {
    /// See the module: each path has a field with its settings.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct PathConfig(Config, config) {
        /// The path of frames that no memory was shared for before: `map`, or `copy` as for any
        /// other.
        pub fallback: PathName = PathName::Copy,
        /// Which frames are copied where they need not be.
        pub thresholds: Thresholds = Thresholds::USUAL,
    }
});

impl PathConfig {
    /// Pages of each queue and direction that may stay mapped once they were seen, whichever path
    /// keeps them.
    pub fn kept_pages(&self) -> usize {
        let mut most = 0;
        each_path!(Path => most = most.max(Path::kept_pages(OfPath::<Path>::path(self))));
        most
    }

    /// What a back with these settings says of a vif's pages, in `mapped-pages-max`: as many as
    /// each path that keeps ordinary pages mapped has room for; 0: none does.
    pub fn mapped_pages(&self) -> u32 {
        let mut pages: Option<usize> = None;
        each_path!(Path => {
            let own = Path::mapped_pages(OfPath::<Path>::path(self));
            pages = pages.into_iter().chain(own).min();
        });
        pages.map_or(0, |pages| pages.min(MAPPED_PAGES) as u32)
    }
}

impl Default for PathConfig {
    fn default() -> Self {
        Self::start()
    }
}
