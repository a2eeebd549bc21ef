//! The memory that one direction's frames travel in: staging buffers, ordinary pages, or both.

use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::staging::front::StagingArea;
use crate::platform::Platform;

/// Staging serves what it can, pages the rest. One of the two is always there.
pub struct Buffers<P: Platform> {
    /// Granted once; None where the back did not accept the list, or none was wished for.
    pub staging: Option<StagingArea<P>>,
    /// May be missing where staging serves every frame.
    pub pages: Option<OrdinaryPages<P>>,
}

impl<P: Platform> Buffers<P> {
    /// Whether every slot of every frame is staged, so that no ordinary page is ever needed.
    #[inline(always)]
    pub fn copy_only(&self) -> bool {
        self.staging.as_ref().is_some_and(|area| area.data_len().copy_only())
    }

    /// Ids that have memory: as many requests can be in flight.
    pub fn ids(&self) -> u32 {
        let staged = self.staging.as_ref().map(StagingArea::entries);
        let paged = self.pages.as_ref().map(OrdinaryPages::count);
        staged.into_iter().chain(paged).min().unwrap_or(0)
    }
}
