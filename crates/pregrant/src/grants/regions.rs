//! The pages that a device has granted to its back, from the first connection to the end of the
//! device.
//!
//! ```text
//!   rings, lists, buffers, pages  <--take-- Regions (one back) --release--> the platform, when the vif is over
//!                                 --put-->
//! ```
//! A back that closes without unmapping must not get new pages each time, and a platform's answer
//! to a release proves nothing: Linux's gntalloc takes every page back, and the kernel keeps those
//! in use, beyond any limit. So nothing is released between two connections. The next one gets the
//! same pages with the same grants, zeroed; new ones are granted only if there are none of that
//! size and access. If there is no memory for new ones, as when a back takes more queues than the
//! last one, idle pages are released, for a bounded number of pages in the vif's life. So a back
//! can make us grant the pages of one connection with all of our requests, plus that number of
//! pages. If rings of several pages are requested, the back may allow half as many at each
//! connection, which costs less than twice as much.
//!
//! A page is never granted to another back (a store has one back for its life), nor with more
//! access than before, since its grant does not change. A back sees in it only bytes that it was
//! shown in the last connection. If it still maps a page, it may write to it as soon as it is
//! zeroed, before and after the vif is connected; but any back may do that to any page that it is
//! granted. A front believes nothing that a ring contains: its own indices are private and start at
//! 0, and each answer is copied once and checked against what was asked, no matter who wrote it.
//! The worst result is a fault or a damaged frame, of this vif.
//!
//! A platform that knows whether the back still uses a page, as a kernel does, can release idle
//! ones when memory is short. Pages that the back still uses stay, and are not reused.
//!
//! Pages that no back knows of (of a plan for which memory was too short) are released at once, but
//! only before the first connection: references can be guessed, so later ones are kept like all
//! others.

use crate::error::PlatformError;
use crate::memory;
use crate::platform::{Access, GrantPool, InUse, Platform};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// The region type of a platform's grant pool.
pub type Region<P> = <<P as Platform>::Grants as GrantPool>::Region;

/// When pages are granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granting {
    /// Pages are granted once, at set-up.
    Standing,
    /// Pages are granted for each frame, as in an ordinary netfront; once at set-up if the platform
    /// cannot.
    PerFrame,
}

/// The grants of a region's pages.
#[derive(Debug)]
pub struct Grants {
    refs: Box<[GrantRef]>,
    to: DomId,
    acc: Access,
    /// Each page is granted only while it has a frame.
    per_frame: bool,
}

impl Grants {
    /// The grant of the first page.
    pub fn first(&self) -> GrantRef {
        self.refs.first().copied().unwrap_or(GrantRef::NONE)
    }

    /// The grants by page.
    pub fn refs(&self) -> &[GrantRef] {
        &self.refs
    }
}

const NO_PAGE: PlatformError = PlatformError { op: "grant a page that the region does not have", code: 22 };

/// Pages that are granted, or can be.
pub struct Granted<P: Platform> {
    region: Region<P>,
    grants: Grants,
}

impl<P: Platform> Granted<P> {
    fn new(p: &P, to: DomId, acc: Access, n: usize, per_frame: bool) -> Result<Self, PlatformError> {
        let mut refs = memory::list(GrantRef::NONE, n)?;
        let region = match p.grants().per_frame().filter(|_| per_frame) {
            Some(table) => table.pages(n)?,
            None => p.grants().alloc(to, acc, &mut refs)?,
        };
        Ok(Self { region, grants: Grants { refs, to, acc, per_frame } })
    }

    /// The memory and its grants.
    pub fn into_parts(self) -> (Region<P>, Grants) {
        (self.region, self.grants)
    }

    /// The reverse of [`into_parts`](Self::into_parts).
    pub fn from_parts(region: Region<P>, grants: Grants) -> Self {
        Self { region, grants }
    }

    /// Number of pages.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.grants.refs.len()
    }

    /// The memory.
    #[inline(always)]
    pub fn bytes(&self) -> &Region<P> {
        &self.region
    }

    /// The existing grants, by page.
    pub fn refs(&self) -> &[GrantRef] {
        &self.grants.refs
    }

    /// The grant of a page. The grant is made now if grants are per frame and the page has none.
    #[inline(always)]
    pub fn grant(&mut self, p: &P, page: usize) -> Result<GrantRef, PlatformError> {
        let grants = &mut self.grants;
        let gref = grants.refs.get_mut(page).ok_or(NO_PAGE)?;
        if grants.per_frame
            && *gref == GrantRef::NONE
            && let Some(table) = p.grants().per_frame()
        {
            *gref = table.grant(grants.to, &self.region, page, grants.acc)?;
        }
        Ok(*gref)
    }

    /// Ends a page's grant if grants are per frame. False: the peer still uses it, and the grant
    /// remains.
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, page: usize) -> bool {
        if !self.grants.per_frame {
            return true;
        }
        let Some(gref) = self.grants.refs.get_mut(page).filter(|gref| **gref != GrantRef::NONE) else {
            return true;
        };
        match p.grants().per_frame().map(|table| table.revoke(*gref)) {
            Some(Err(InUse(_))) => false,
            _ => {
                *gref = GrantRef::NONE;
                true
            }
        }
    }

    /// Ends the grants per frame that can be ended. True: none is left.
    fn settle_all(&mut self, p: &P) -> bool {
        let busy = (0..self.count()).filter(|&page| !self.settle(p, page)).count();
        busy == 0
    }

    /// Ends all grants. If the platform reports that the peer still uses a page, everything is
    /// returned with the grants that are left: try again later.
    pub fn release(mut self, p: &P) -> Result<(), InUse<Self>> {
        if !self.settle_all(p) {
            return Err(InUse(self));
        }
        let Self { region, grants } = self;
        p.grants().release(region).map_err(|InUse(region)| InUse(Self { region, grants }))
    }
}

/// The pages of one vif that are not in use.
pub struct Regions<P: Platform> {
    to: DomId,
    /// The regions that are not in use. The list has room for all regions that are in use, so that
    /// giving pages back takes no memory.
    kept: Vec<Kept<P>>,
    /// Number of regions that are in use.
    taken: usize,
    /// Whether the back may know the references of pages that this store has handed out.
    exposed: bool,
    /// Number of pages that may still be released to make room.
    spare: usize,
    may_make_room: bool,
}

/// A region that is not in use.
struct Kept<P: Platform> {
    granted: Granted<P>,
    /// The region was released except for pages that the back still uses: some of its grants have
    /// ended.
    is_spent: bool,
}

/// Number of pages that one vif may release in its life to make room for others: a quarter of a
/// grant table of version 1. If the back kept them mapped, and the platform does not report it,
/// that is the most memory it costs, besides that of one connection and of the plans that it tries.
const SPARE_PAGES: usize = 8192;

impl<P: Platform> Regions<P> {
    /// An empty store for domain `to`.
    pub fn new(to: DomId) -> Self {
        Self { to, kept: Vec::new(), taken: 0, exposed: false, spare: SPARE_PAGES, may_make_room: false }
    }

    /// The domain of the back.
    pub fn to(&self) -> DomId {
        self.to
    }

    /// Takes `n` pages, zeroed: ones that the back had before, or else new ones. If memory is
    /// short, pages with standing grants may be returned for grants per frame, and more pages than
    /// asked for.
    pub fn take(
        &mut self,
        p: &P,
        acc: Access,
        n: usize,
        granting: Granting,
    ) -> Result<Granted<P>, PlatformError> {
        let per_frame = granting == Granting::PerFrame && p.grants().per_frame().is_some();
        if let Some(granted) = self.again(acc, n..=n, per_frame) {
            return Ok(granted);
        }
        self.new_ones(p, acc, n, per_frame).or_else(|e| self.again(acc, n..=usize::MAX, false).ok_or(e))
    }

    /// Takes exactly `n` pages with standing grants, as [`take`](Self::take): for a ring, whose
    /// size both ends derive from its number of pages.
    pub fn take_exactly(&mut self, p: &P, acc: Access, n: usize) -> Result<Granted<P>, PlatformError> {
        match self.again(acc, n..=n, false) {
            Some(granted) => Ok(granted),
            None => self.new_ones(p, acc, n, false),
        }
    }

    fn new_ones(
        &mut self,
        p: &P,
        acc: Access,
        n: usize,
        per_frame: bool,
    ) -> Result<Granted<P>, PlatformError> {
        memory::grow(&mut self.kept, self.taken + 1)?;
        let granted = Granted::new(p, self.to, acc, n, per_frame)?;
        self.taken += 1;
        Ok(granted)
    }

    /// The smallest kept region of a size in this range.
    fn again(&mut self, acc: Access, pages: RangeInclusive<usize>, per_frame: bool) -> Option<Granted<P>> {
        let fits = |kept: &Kept<P>| {
            let Grants { refs, acc: had, per_frame: was, .. } = &kept.granted.grants;
            !kept.is_spent && pages.contains(&refs.len()) && (*had, *was) == (acc, per_frame)
        };
        let mut fitting = self.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
        // Of one size any will do: there may be thousands of single pages.
        let (at, _) = match pages.start() == pages.end() {
            true => fitting.next(),
            false => fitting.min_by_key(|(_, kept)| kept.granted.count()),
        }?;
        let granted = self.kept.swap_remove(at).granted;
        self.taken += 1;
        granted.region.zero();
        Some(granted)
    }

    /// Notes that the back may know of the pages taken.
    pub fn mark_exposed(&mut self) {
        self.exposed = true;
    }

    /// Returns pages that are not used any more.
    pub fn put(&mut self, p: &P, mut granted: Granted<P>) {
        if self.exposed {
            let _ = granted.settle_all(p); // the others stand, and are posted as they are
            self.keep(granted);
        } else if let Err(InUse(granted)) = self.end(p, granted) {
            self.keep(granted);
        }
    }

    fn keep(&mut self, granted: Granted<P>) {
        debug_assert!(self.kept.len() < self.kept.capacity(), "there is room for all that are taken");
        self.taken = self.taken.saturating_sub(1);
        self.kept.push(Kept { granted, is_spent: false });
    }

    /// Ends the grants of pages that were taken and are not wanted again, and frees them. If the
    /// platform reports that the peer still uses a page, they come back, and are taken as before.
    pub fn end(&mut self, p: &P, granted: Granted<P>) -> Result<(), InUse<Granted<P>>> {
        granted.release(p)?;
        self.taken = self.taken.saturating_sub(1);
        Ok(())
    }

    /// Starts a connection. Until its queues exist, [`make_room`](Self::make_room) may release
    /// pages, if the vif may still release any: the pages of a plan that was given up must not be
    /// in the way of the next plan.
    pub fn begin(&mut self) {
        self.may_make_room = self.spare > 0;
    }

    /// Releases the kept pages, because there is no memory for pages of other sizes.
    pub fn make_room(&mut self, p: &P) {
        if self.may_make_room {
            self.spare = self.spare.saturating_sub(self.pages());
            self.release(p);
        }
    }

    /// The vif has ended: ends all grants. If the platform reports that the back still uses a page,
    /// that page stays; call this again. No memory is allocated.
    #[inline(never)]
    pub fn release(&mut self, p: &P) {
        // From the last on: what the back still uses comes behind those that were not looked at.
        for at in (0..self.kept.len()).rev() {
            if let Err(InUse(granted)) = self.kept.swap_remove(at).granted.release(p) {
                self.kept.push(Kept { granted, is_spent: true });
            }
        }
    }

    /// Releases the kept pages because others need memory. Only call this if the platform reports
    /// pages that the back uses; those are bounded as for [`make_room`](Self::make_room).
    pub fn release_idle(&mut self, p: &P) {
        let spent = self.kept.iter().filter(|kept| kept.is_spent);
        if spent.map(|kept| kept.granted.count()).sum::<usize>() < SPARE_PAGES {
            self.release(p);
        }
    }

    /// Number of kept pages.
    pub fn pages(&self) -> usize {
        self.kept.iter().map(|kept| kept.granted.count()).sum()
    }

    /// Whether no page is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}
