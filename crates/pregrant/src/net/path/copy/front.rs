//! Ordinary pages of a queue, one per id: granted for each frame where the platform can grant its
//! own pages, else a standing pool (with Linux's gntalloc an allocation *is* the grant).

use crate::error::PlatformError;
use crate::net::front::regions::{Granted, Granting, Region, Regions};
use crate::net::path::{FrontPath, PathName};
use crate::platform::{Access, GrantPool, Platform};
use crate::units::{GrantRef, PAGE_SIZE};
use alloc::vec;
use alloc::vec::Vec;

/// One page for each id.
pub struct OrdinaryPages<P: Platform> {
    granted: Granted<P>,
    /// Those that ids have; there may be more.
    count: u32,
}

impl<P: Platform> OrdinaryPages<P> {
    /// `n` pages.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        acc: Access,
        n: u32,
        granting: Granting,
    ) -> Result<Self, PlatformError> {
        Ok(Self { granted: regions.take(p, acc, n as usize, granting)?, count: n })
    }

    /// The grants of the ids' pages, where they stand.
    pub fn refs(&self) -> &[GrantRef] {
        &self.granted.refs()[..self.count as usize]
    }

    /// Which of this domain's frames the first page is.
    pub fn first_frame(&self, p: &P) -> Option<u32> {
        p.grants().first_frame(self.granted.bytes())
    }

    /// The pages, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }
}

impl<P: Platform> FrontPath<P> for OrdinaryPages<P> {
    const NAME: PathName = PathName::Copy;
    const LENDS: bool = true;

    fn ids(&self) -> u32 {
        self.count
    }
    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        PAGE_SIZE
    }
    #[inline(always)]
    fn carries_all(&self) -> bool {
        true
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }
    #[inline(always)]
    fn start(&self, id: u16) -> usize {
        usize::from(id) * PAGE_SIZE
    }
    #[inline(always)]
    fn grant(&mut self, p: &P, id: u16) -> Result<u32, PlatformError> {
        Ok(self.granted.grant(p, usize::from(id))?.0)
    }
    #[inline(always)]
    fn settle(&mut self, p: &P, id: u16) -> bool {
        self.granted.settle(p, usize::from(id))
    }
    fn into_memory(self) -> Vec<Granted<P>> {
        vec![self.granted]
    }
}
