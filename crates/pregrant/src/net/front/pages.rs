//! Ordinary pages of a queue, one per id: granted for each frame where the platform can grant its own pages, else a
//! standing pool (with Linux's gntalloc an allocation *is* the grant).

use super::staging::Region;
use crate::error::PlatformError;
use crate::platform::{Access, GrantPool, InUse, Platform};
use crate::units::{DomId, GrantRef};
use alloc::boxed::Box;
use alloc::vec;

/// How the pages are granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granting {
    /// Once, at set-up.
    Standing,
    /// For each frame, as an ordinary netfront does; standing where the platform cannot.
    PerFrame,
}

/// One page for each id.
pub struct OrdinaryPages<P: Platform> {
    region: Region<P>,
    refs: Box<[GrantRef]>,
    per_frame: bool,
    to: DomId,
    acc: Access,
}

impl<P: Platform> OrdinaryPages<P> {
    /// `n` pages for domain `to`.
    pub fn new(p: &P, to: DomId, acc: Access, n: u32, granting: Granting) -> Result<Self, PlatformError> {
        let mut refs = vec![GrantRef::NONE; n as usize].into_boxed_slice();
        let (region, per_frame) = match (granting, p.grants().per_frame()) {
            (Granting::PerFrame, Some(table)) => (table.pages(n as usize)?, true),
            _ => (p.grants().alloc(to, acc, &mut refs)?, false),
        };
        Ok(Self { region, refs, per_frame, to, acc })
    }

    /// Pages, and so ids.
    pub fn count(&self) -> u32 {
        self.refs.len() as u32
    }

    /// The shared memory; the page of `id` is the `id`-th.
    #[inline(always)]
    pub fn bytes(&self) -> &Region<P> {
        &self.region
    }

    /// The grant of `id`'s page, made now where grants are per frame.
    #[inline(always)]
    pub fn grant(&mut self, p: &P, id: usize) -> Result<GrantRef, PlatformError> {
        if self.per_frame
            && self.refs[id] == GrantRef::NONE
            && let Some(table) = p.grants().per_frame()
        {
            self.refs[id] = table.grant(self.to, &self.region, id, self.acc)?;
        }
        Ok(self.refs[id])
    }

    /// The frame of `id` is answered: ends its grant where grants are per frame. False: the peer still uses the page, so
    /// the id is not free; try again later.
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, id: usize) -> bool {
        if !self.per_frame || self.refs[id] == GrantRef::NONE {
            return true;
        }
        match p.grants().per_frame().map(|table| table.revoke(self.refs[id])) {
            Some(Err(InUse(_))) => false,
            _ => {
                self.refs[id] = GrantRef::NONE;
                true
            }
        }
    }

    /// Ends all grants. While the peer still uses a page everything comes back, with the references that are left: keep it
    /// and try again.
    pub fn release(mut self, p: &P) -> Result<(), InUse<Self>> {
        let mut busy = false;
        for id in 0..self.refs.len() {
            busy |= !self.settle(p, id);
        }
        if busy {
            return Err(InUse(self));
        }
        let Self { region, refs, per_frame, to, acc } = self;
        p.grants().release(region).map_err(|InUse(region)| InUse(Self { region, refs, per_frame, to, acc }))
    }
}
