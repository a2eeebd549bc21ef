//! The operator's settings of a back, for each path.

use super::{Negotiation, OfPath, PathName};
use crate::net::batch::Thresholds;

paths!(with_paths {
    /// See the module: each path has a field with its settings.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct PathConfig(Config, config) {
        /// What fetches frames that no memory was shared for before: `map`, or `copy` as for any
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
}

impl Default for PathConfig {
    fn default() -> Self {
        Self::start()
    }
}
