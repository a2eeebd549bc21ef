//! The pages that a device has granted to its back, from the first connection to the end of the
//! device.
//!
//! ```text
//!   rings, lists, buffers, pages  <--take-- Regions (one back) --release--> the platform, when the vif is over
//!                                 --put-->
//! ```
//! A back that closes and keeps its mappings must not get new pages at each turn, and what a
//! platform says about a release does not help: Linux's gntalloc takes every page back, and the
//! kernel keeps those that are in use, beyond any limit. So between two connections nothing is
//! released. The next one gets the same pages with the same grants, zeroed; new ones are granted
//! only where none of that size and access is there. Where there is no memory for those, as when a
//! back takes more queues than the last, the idle ones are released, for a bounded number of pages
//! in the vif's life. So a back can make us grant the pages of one connection with all of our
//! requests, and that number of pages. Where rings of several pages are requested it may allow
//! fewer each time, and each time half of them: less than twice as much.
//!
//! A page goes to no other back (a store has one for its life), and never with more access than it
//! had: its grant stays as it is. A back sees in it only bytes that it was shown in the last
//! connection. Where it still maps a page, it may write to it as soon as it is zeroed, before the
//! vif is connected and after; but that is what any back may do to any page that it is granted. A
//! front believes nothing that a ring says: its own indices are private and begin at 0, and each
//! answer is copied once and checked against what was asked, however many hands wrote it. The worst
//! is a fault or a damaged frame, of this vif.
//!
//! A platform that knows whether the back has a page, as a kernel does, can release idle ones when
//! memory is short. Those that the back has stay, and are not used again.
//!
//! Pages that no back knows of (a plan that memory was too short for) are released at once.
//! Only before the first connection: references can be guessed, so later ones are put by like all
//! others.

use crate::error::PlatformError;
use crate::platform::{Access, GrantPool, InUse, Platform};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// The region of a platform's grant pool.
pub type Region<P> = <<P as Platform>::Grants as GrantPool>::Region;

/// How pages are granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granting {
    /// Once, at set-up.
    Standing,
    /// For each frame, as an ordinary netfront does; standing where the platform cannot.
    PerFrame,
}

/// The grants of a region's pages.
#[derive(Debug)]
pub struct Grants {
    refs: Box<[GrantRef]>,
    to: DomId,
    acc: Access,
    /// Each page is granted while a frame is in it.
    per_frame: bool,
}

impl Grants {
    /// The first page's.
    pub fn first(&self) -> GrantRef {
        self.refs.first().copied().unwrap_or(GrantRef::NONE)
    }

    /// By page.
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
        let mut refs = vec![GrantRef::NONE; n].into_boxed_slice();
        let region = match p.grants().per_frame().filter(|_| per_frame) {
            Some(table) => table.pages(n)?,
            None => p.grants().alloc(to, acc, &mut refs)?,
        };
        Ok(Self { region, grants: Grants { refs, to, acc, per_frame } })
    }

    /// The memory, and its grants.
    pub fn into_parts(self) -> (Region<P>, Grants) {
        (self.region, self.grants)
    }

    /// The reverse of [`into_parts`](Self::into_parts).
    pub fn from_parts(region: Region<P>, grants: Grants) -> Self {
        Self { region, grants }
    }

    /// Pages.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.grants.refs.len()
    }

    /// The memory.
    #[inline(always)]
    pub fn bytes(&self) -> &Region<P> {
        &self.region
    }

    /// The grants that there are, by page.
    pub fn refs(&self) -> &[GrantRef] {
        &self.grants.refs
    }

    /// The grant of a page, made now where grants are per frame and it has none.
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

    /// Ends a page's grant where grants are per frame. False: the peer still uses it, and the grant
    /// stands.
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

    /// Ends what grants per frame can be ended. True: none is left of them.
    fn settle_all(&mut self, p: &P) -> bool {
        let busy = (0..self.count()).filter(|&page| !self.settle(p, page)).count();
        busy == 0
    }

    /// Ends all grants. While the peer still uses a page, and the platform says so, everything
    /// comes back, with the grants that are left: try again.
    pub fn release(mut self, p: &P) -> Result<(), InUse<Self>> {
        if !self.settle_all(p) {
            return Err(InUse(self));
        }
        let Self { region, grants } = self;
        p.grants().release(region).map_err(|InUse(region)| InUse(Self { region, grants }))
    }
}

/// The pages of one vif that are not in use at present.
pub struct Regions<P: Platform> {
    to: DomId,
    kept: Vec<Granted<P>>,
    /// Released, but for pages that the back still has: some of their grants have ended.
    spent: Vec<Granted<P>>,
    /// The back may know of pages.
    exposed: bool,
    /// Pages that may still be released for others.
    spare: usize,
    may_make_room: bool,
}

/// Pages that one vif may release, in its life, to have others: a quarter of a grant table of
/// version 1. Where the back kept them mapped, and the platform does not say so, that is what it
/// costs at most, beside one connection and the plans that it tries.
const SPARE_PAGES: usize = 8192;

impl<P: Platform> Regions<P> {
    /// None yet; all will be for domain `to`.
    pub fn new(to: DomId) -> Self {
        Self {
            to,
            kept: Vec::new(),
            spent: Vec::new(),
            exposed: false,
            spare: SPARE_PAGES,
            may_make_room: false,
        }
    }

    /// The back.
    pub fn to(&self) -> DomId {
        self.to
    }

    /// `n` pages, zeroed: such as the back had before, else new ones. Where memory is short,
    /// standing ones may serve for those per frame, and more for fewer.
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
        Granted::new(p, self.to, acc, n, per_frame)
            .or_else(|e| self.again(acc, n..=usize::MAX, false).ok_or(e))
    }

    /// `n` standing pages, as [`take`](Self::take), and never more: for a ring, whose size both
    /// ends find out by counting its pages.
    pub fn take_exactly(&mut self, p: &P, acc: Access, n: usize) -> Result<Granted<P>, PlatformError> {
        let again = self.again(acc, n..=n, false);
        again.map_or_else(|| Granted::new(p, self.to, acc, n, false), Ok)
    }

    /// The smallest region of such a size.
    fn again(&mut self, acc: Access, pages: RangeInclusive<usize>, per_frame: bool) -> Option<Granted<P>> {
        let fits = |granted: &Granted<P>| {
            let Grants { refs, acc: had, per_frame: was, .. } = &granted.grants;
            pages.contains(&refs.len()) && (*had, *was) == (acc, per_frame)
        };
        let mut fitting = self.kept.iter().enumerate().filter(|(_, granted)| fits(granted));
        // Of one size any will do: there may be thousands of pages by themselves.
        let (at, _) = match pages.start() == pages.end() {
            true => fitting.next(),
            false => fitting.min_by_key(|(_, granted)| granted.count()),
        }?;
        let granted = self.kept.swap_remove(at);
        granted.region.zero();
        Some(granted)
    }

    /// From now on the back may know of what was taken.
    pub fn mark_exposed(&mut self) {
        self.exposed = true;
    }

    /// Pages that are not used any more.
    pub fn put(&mut self, p: &P, mut granted: Granted<P>) {
        if self.exposed {
            let _ = granted.settle_all(p); // the others stand, and are posted as they are
            self.kept.push(granted);
        } else if let Err(InUse(granted)) = granted.release(p) {
            self.kept.push(granted);
        }
    }

    /// A connection begins: whether it may [make room](Self::make_room). One that may can do so
    /// until it has its queues: a plan that is given up must not leave its pages in the way of the
    /// next.
    pub fn begin(&mut self) {
        self.may_make_room = self.spare > 0;
    }

    /// Releases what is kept, for there is no memory for pages of other sizes.
    pub fn make_room(&mut self, p: &P) {
        if self.may_make_room {
            self.spare = self.spare.saturating_sub(self.pages());
            self.release(p);
        }
    }

    /// The vif is over: ends all grants. A page that the back still uses stays, where the platform
    /// says so; call this again.
    pub fn release(&mut self, p: &P) {
        self.spent = in_use(p, core::mem::take(&mut self.spent));
        let mut kept = in_use(p, core::mem::take(&mut self.kept));
        if kept.capacity() > self.spent.capacity() {
            core::mem::swap(&mut kept, &mut self.spent);
        }
        self.spent.append(&mut kept);
    }

    /// Releases what is kept, for others need memory. Only where the platform's answer is the
    /// back's; what that still has is bounded as [room](Self::make_room) is.
    pub fn release_idle(&mut self, p: &P) {
        if count(&self.spent) < SPARE_PAGES {
            self.release(p);
        }
    }

    /// Pages that are kept.
    pub fn pages(&self) -> usize {
        count(&self.kept) + count(&self.spent)
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.spent.is_empty()
    }
}

/// Releases these, but for those that the peer uses, which stay in the memory that they have: none
/// is taken where others need it.
#[inline(never)]
fn in_use<P: Platform>(p: &P, all: Vec<Granted<P>>) -> Vec<Granted<P>> {
    all.into_iter().filter_map(|granted| granted.release(p).err().map(|e| e.0)).collect()
}

fn count<P: Platform>(all: &[Granted<P>]) -> usize {
    all.iter().map(Granted::count).sum()
}
