//! The front's pages, named by their frames: ordinary pages, and nothing is granted.
//!
//! What a back may do: everything, to these pages and to all others. What it answers is judged as
//! ever.

use crate::error::PlatformError;
use crate::net::front::regions::{Granted, Region};
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::{FrontPath, PathName};
use crate::net::stats::Counted;
use crate::platform::Platform;
use crate::wire::netif::{RX_FOREIGN, TXF_FOREIGN};
use alloc::vec::Vec;

/// One page for each id.
pub struct ForeignPages<P: Platform> {
    pages: OrdinaryPages<P>,
    first: u32,
    mark: u32,
}

impl<P: Platform> ForeignPages<P> {
    /// These, with `mark` beside each frame; they come back where they have no frames that can be
    /// named.
    pub fn over(p: &P, pages: OrdinaryPages<P>, mark: u32) -> Result<Self, OrdinaryPages<P>> {
        let count = FrontPath::<P>::ids(&pages);
        match pages.first_frame(p) {
            Some(first) if first.checked_add(count).is_some_and(|end| end <= RX_FOREIGN) => {
                Ok(Self { pages, first, mark })
            }
            _ => Err(pages),
        }
    }

    /// The pages.
    pub fn pages(&self) -> &OrdinaryPages<P> {
        &self.pages
    }

    /// The same, as ordinary ones.
    pub fn into_pages(self) -> OrdinaryPages<P> {
        self.pages
    }
}

impl<P: Platform> FrontPath<P> for ForeignPages<P> {
    const NAME: PathName = PathName::Foreign;
    const COUNTED: Counted = Counted::Foreign;
    const TX_FLAGS: u16 = TXF_FOREIGN;
    const LENDS: bool = true;

    fn ids(&self) -> u32 {
        self.pages.ids()
    }
    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        self.pages.slot_bytes()
    }
    #[inline(always)]
    fn carries_all(&self) -> bool {
        true
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
    fn grant(&mut self, _p: &P, id: u16) -> Result<u32, PlatformError> {
        Ok((self.first + u32::from(id)) | self.mark)
    }
    fn into_memory(self) -> Vec<Granted<P>> {
        self.pages.into_memory()
    }
}
