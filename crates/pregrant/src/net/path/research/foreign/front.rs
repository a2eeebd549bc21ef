//! The front's pages, named by their frame numbers: ordinary pages, without grants.
//!
//! What a back may do: anything, to these pages and to all others of the guest. Its answers are
//! validated as for any path.

use crate::error::PlatformError;
use crate::net::front::regions::Region;
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::front::FrontPath;
use crate::net::path::path_name::PathName;
use crate::platform::Platform;
use crate::wire::netif::{RX_FOREIGN, TXF_FOREIGN};

/// One page for each id, which requests name by its frame number in the guest's memory.
pub struct ForeignPages<P: Platform> {
    pages: OrdinaryPages<P>,
    first: u32,
    mark: u32,
}

impl<P: Platform> ForeignPages<P> {
    /// Uses `pages`, and sets bit `mark` in each frame number. Returns the pages if the platform
    /// cannot name their frames.
    pub fn over(p: &P, pages: OrdinaryPages<P>, mark: u32) -> Result<Self, OrdinaryPages<P>> {
        let count = pages.ids();
        // Pages that come and go have no numbers in a row.
        match pages.first_frame(p).filter(|_| pages.room().1 == 0) {
            Some(first) if first.checked_add(count).is_some_and(|end| end <= RX_FOREIGN) => {
                Ok(Self { pages, first, mark })
            }
            _ => Err(pages),
        }
    }
}

impl<P: Platform> ForeignPages<P> {
    /// Number of ids that have a page.
    pub fn ids(&self) -> u32 {
        self.pages.ids()
    }

    /// The pages, as ordinary ones.
    pub fn pages(&self) -> &OrdinaryPages<P> {
        &self.pages
    }

    /// Takes this apart and returns the pages, to be used as ordinary ones.
    pub fn into_pages(self) -> OrdinaryPages<P> {
        self.pages
    }
}

impl<P: Platform> FrontPath<P> for ForeignPages<P> {
    const NAME: PathName = PathName::Foreign;
    const TX_FLAGS: u16 = TXF_FOREIGN;
    const IN_PAGES: bool = true;

    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        self.pages.slot_bytes()
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.pages.bytes()
    }
    #[inline(always)]
    fn start(&self, id: u16) -> usize {
        self.pages.start(id)
    }
    #[inline(always)]
    fn place(&mut self, _p: &P, id: u16) -> Result<u32, PlatformError> {
        Ok((self.first + u32::from(id)) | self.mark)
    }
    #[inline(always)]
    fn holds(&self, _total: usize, _nr_slots: usize) -> bool {
        true
    }
}
