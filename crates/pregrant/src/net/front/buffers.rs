//! The memory that one direction's frames travel in: staging buffers, ordinary pages, or both.

use super::pages::OrdinaryPages;
use super::staging::StagingArea;
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

    /// Goes on without staging, as when the back did not accept the list: gives the buffers back. `pages` are for a
    /// direction that had none. Only before the first frame.
    pub fn without_staging(&mut self, pages: Option<OrdinaryPages<P>>) -> Option<StagingArea<P>> {
        if self.pages.is_none() {
            self.pages = pages;
        }
        self.staging.take()
    }
}
