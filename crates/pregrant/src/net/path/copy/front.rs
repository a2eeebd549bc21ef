//! Ordinary pages of a queue, one per id: granted for each frame where the platform can grant its own pages, else a
//! standing pool (with Linux's gntalloc an allocation *is* the grant).

use crate::error::PlatformError;
use crate::net::front::regions::{Granted, Granting, Region, Regions};
use crate::platform::{Access, Platform};
use crate::units::GrantRef;

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

    /// Pages, and so ids.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The shared memory; the page of `id` is the `id`-th.
    #[inline(always)]
    pub fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }

    /// The grant of `id`'s page, made now where grants are per frame.
    #[inline(always)]
    pub fn grant(&mut self, p: &P, id: usize) -> Result<GrantRef, PlatformError> {
        self.granted.grant(p, id)
    }

    /// The frame of `id` is answered: ends its grant where grants are per frame. False: the peer still uses the page, so
    /// the id is not free; try again later.
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, id: usize) -> bool {
        self.granted.settle(p, id)
    }

    /// The pages, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }
}
