//! Ordinary pages of a queue, one per id: granted for each frame where the platform can grant its
//! own pages, else a standing pool (with Linux's gntalloc an allocation *is* the grant).

use super::pages_of_ids::PagesOfIds;
use crate::error::PlatformError;
use crate::net::front::regions::{Granted, Granting, Regions};
use crate::platform::{Access, GrantPool, Platform};
use crate::units::GrantRef;

/// One page for each id, or for each that is in flight.
pub struct OrdinaryPages<P: Platform> {
    pub(super) granted: Granted<P>,
    /// Those that ids have; there may be more.
    pub(super) count: u32,
    /// TX: where there are more ids than pages.
    pub(super) of_ids: Option<PagesOfIds>,
    /// There are more than are in flight, so that each rests before it is written again.
    pub(super) rest: bool,
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
        Ok(Self { granted: regions.take(p, acc, n as usize, granting)?, count: n, of_ids: None, rest: false })
    }

    /// Whether there are more than are in flight, so that each rests before it is written again.
    pub fn rest(&self) -> bool {
        self.rest
    }

    /// The same pages, which are to rest.
    pub fn resting(self) -> Self {
        Self { rest: true, ..self }
    }

    /// The grants of the ids' pages, where they stand.
    pub fn refs(&self) -> &[GrantRef] {
        self.granted.refs().get(..self.count as usize).unwrap_or_default()
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
