//! The granting side: this domain's pages and its grant table, written as a guest writes it.
//!
//! ```text
//!   grant:  frame -> (flags, domid) in one store with release order
//!   revoke: (flags, domid) -> 0 by one exchange, only while neither reading nor writing is set
//! ```
//!
//! Pages and entries of the table belong to one attached process or thread each (the owners in the ledger), so that
//! several workers of a domain never meet; entries are taken 64 at a time and kept in a private free list.
//!
//! What a peer may do: keep a page mapped for ever. Then the grant and its page stay taken; [`GrantPool::release`] gives
//! the region back for another try, a dropped one is parked and tried again at the next allocation.

use super::ledger::{Active, RESERVED};
use super::protocol::{Op, Request};
use super::{Core, errno};
use pregrant::platform::{Access, GrantPool, GrantTable, InUse};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::{GTF_PERMIT_ACCESS, GTF_READONLY, GrantEntryV1};
use pregrant::{DomId, GrantRef, PAGE_SIZE, PlatformError};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

/// Entries of the table that are taken at a time.
const CLAIM: usize = 64;

/// Memory that this domain grants.
#[derive(Debug)]
pub struct LoopbackGrants(pub(super) Rc<Pool>);

/// What this attachment owns of its domain.
#[derive(Debug)]
pub(super) struct Pool {
    core: Rc<Core>,
    /// Entries of the table that are ours and grant nothing.
    free: RefCell<Vec<u32>>,
    /// Frame of each entry that is ours and grants something.
    frame_of: RefCell<Vec<Option<u32>>>,
    /// Grants of each page.
    granted: RefCell<Vec<u16>>,
    /// Regions that were dropped while a peer still used them.
    parked: RefCell<Vec<Parked>>,
    /// Where the search for pages goes on.
    cursor: Cell<usize>,
}

/// First page, pages, and the grants that `alloc` made.
type Parked = (usize, usize, Vec<u32>);

/// Pages of this domain. Dropping one revokes its grants and frees it, later if need be.
#[derive(Debug)]
pub struct Region {
    pool: Rc<Pool>,
    base: NonNull<u8>,
    first: usize,
    pages: usize,
    grefs: RefCell<Vec<u32>>,
}

impl LoopbackGrants {
    pub(super) fn new(core: Rc<Core>) -> Self {
        let layout = core.ledger.layout();
        Self(Rc::new(Pool {
            core,
            free: RefCell::new(Vec::new()),
            frame_of: RefCell::new(vec![None; layout.grants]),
            granted: RefCell::new(vec![0; layout.pages]),
            parked: RefCell::new(Vec::new()),
            cursor: Cell::new(0),
        }))
    }
}

impl Pool {
    /// Takes `pages` neighbouring pages and zeroes them.
    fn take_pages(self: &Rc<Self>, pages: usize) -> Result<Region, PlatformError> {
        if pages == 0 {
            return Err(errno("allocate no pages at all", Errno::INVAL));
        }
        self.retry_parked();
        let found = self.find_pages(pages).or_else(|| {
            // Pages of dead predecessors, whose peers have let go since.
            self.core.call(&Request::new(Op::Reclaim, 0, 0, 0)).ok()?;
            self.find_pages(pages)
        });
        let first =
            found.ok_or(errno("find free neighbouring pages in the domain's memory", Errno::NOMEM))?;
        // SAFETY: the run lies inside of the domain's memory, which is mapped while `core` lives.
        let base = unsafe { self.core.memory.base().add(first * PAGE_SIZE) };
        let region = Region { pool: Rc::clone(self), base, first, pages, grefs: RefCell::new(Vec::new()) };
        region.zero();
        Ok(region)
    }

    fn find_pages(&self, pages: usize) -> Option<usize> {
        let ledger = &self.core.ledger;
        let total = ledger.layout().pages;
        let mine = self.core.user.slot as u8 + 1;
        let mut from = self.cursor.get();
        let mut searched = 0;
        while searched <= total {
            if from + pages > total {
                searched += (total - from.min(total)).max(1);
                from = 0;
                continue;
            }
            let claim =
                |page| ledger.page_owner(page).compare_exchange(0, mine, Ordering::SeqCst, Ordering::Relaxed);
            match (from..from + pages).find(|page| claim(*page).is_err()) {
                None => {
                    self.cursor.set(from + pages);
                    return Some(from);
                }
                Some(taken) => {
                    self.free_pages(from, taken - from);
                    searched += taken + 1 - from;
                    from = taken + 1;
                }
            }
        }
        None
    }

    fn free_pages(&self, first: usize, pages: usize) {
        for page in first..first + pages {
            self.core.ledger.page_owner(page).store(0, Ordering::Release);
        }
    }

    fn take_gref(&self) -> Result<u32, PlatformError> {
        let mut free = self.free.borrow_mut();
        if free.is_empty() {
            self.claim_grefs(&mut free);
        }
        if free.is_empty() {
            let _ = self.core.call(&Request::new(Op::Reclaim, 0, 0, 0));
            self.claim_grefs(&mut free);
        }
        free.pop().ok_or(errno("find a free entry in the domain's grant table", Errno::NOSPC))
    }

    fn claim_grefs(&self, free: &mut Vec<u32>) {
        let ledger = &self.core.ledger;
        let mine = self.core.user.slot as u8 + 1;
        for gref in GrantRef::FIRST_FREE.0..ledger.layout().grants as u32 {
            if ledger.grant_owner(gref).compare_exchange(0, mine, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                free.push(gref);
                if free.len() == CLAIM {
                    break;
                }
            }
        }
        // Lowest first, as readers of traces expect.
        free.reverse();
    }

    fn grant(&self, to: DomId, frame: usize, acc: Access) -> Result<GrantRef, PlatformError> {
        let gref = self.take_gref()?;
        let readonly = if acc == Access::ReadOnly { GTF_READONLY } else { 0 };
        let entry = GrantEntryV1 { flags: GTF_PERMIT_ACCESS | readonly, domid: to.0, frame: frame as u32 };
        let [head, frame_word] = entry.to_words();
        let at = gref as usize * GrantEntryV1::SIZE;
        self.core.memory.u32(at + 4).store(frame_word, Ordering::Relaxed);
        self.core.memory.u32(at).store(head, Ordering::Release);
        self.frame_of.borrow_mut()[gref as usize] = Some(frame as u32);
        self.granted.borrow_mut()[frame] += 1;
        Ok(GrantRef(gref))
    }

    /// Ends a grant. Err: the peer still uses it.
    fn revoke(&self, gref: u32) -> Result<(), InUse<GrantRef>> {
        let frame = self.frame_of.borrow().get(gref as usize).copied().flatten();
        let frame =
            frame.unwrap_or_else(|| panic!("gref {gref} is revoked, but this process did not grant it"));
        let word = self.core.memory.u32(gref as usize * GrantEntryV1::SIZE);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            if GrantEntryV1::from_words([seen, 0]).in_use() {
                return Err(InUse(GrantRef(gref)));
            }
            match word.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // Whatever the owner does with the page next comes after the end of the grant.
        fence(Ordering::SeqCst);
        self.frame_of.borrow_mut()[gref as usize] = None;
        self.granted.borrow_mut()[frame as usize] -= 1;
        self.free.borrow_mut().push(gref);
        Ok(())
    }

    /// Revokes what can be, and frees the pages if nothing is left granted.
    fn give_back(&self, first: usize, pages: usize, grefs: &mut Vec<u32>) -> bool {
        grefs.retain(|gref| self.revoke(*gref).is_err());
        let free = grefs.is_empty() && self.granted.borrow()[first..first + pages].iter().all(|n| *n == 0);
        if free {
            self.free_pages(first, pages);
        }
        free
    }

    fn retry_parked(&self) {
        let parked = std::mem::take(&mut *self.parked.borrow_mut());
        for (first, pages, mut grefs) in parked {
            if !self.give_back(first, pages, &mut grefs) {
                self.parked.borrow_mut().push((first, pages, grefs));
            }
        }
    }
}

// SAFETY: a region is a run of pages that only this attachment owns (exchanged in the ledger, one owner each), inside
// of the domain's memory, page aligned, zeroed by `take_pages`; they are freed by `give_back` alone, after every grant
// of them ended.
unsafe impl GrantPool for LoopbackGrants {
    type Region = Region;

    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Region, PlatformError> {
        let region = self.0.take_pages(refs.len())?;
        for (page, gref) in refs.iter_mut().enumerate() {
            // On an error the region's drop revokes those before.
            *gref = self.0.grant(to, region.first + page, acc)?;
            region.grefs.borrow_mut().push(gref.0);
        }
        Ok(region)
    }

    fn release(&self, region: Region) -> Result<(), InUse<Region>> {
        let freed = region.pool.give_back(region.first, region.pages, &mut region.grefs.borrow_mut());
        if !freed {
            return Err(InUse(region));
        }
        region.defuse();
        Ok(())
    }

    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Region>> {
        Some(self)
    }
}

impl GrantTable for LoopbackGrants {
    type Region = Region;

    fn pages(&self, pages: usize) -> Result<Region, PlatformError> {
        self.0.take_pages(pages)
    }

    /// # Panics
    /// When `page` is not a page of `region`.
    fn grant(&self, to: DomId, region: &Region, page: usize, acc: Access) -> Result<GrantRef, PlatformError> {
        assert!(page < region.pages, "page {page} of a region of {}", region.pages);
        self.0.grant(to, region.first + page, acc)
    }

    /// # Panics
    /// When this process did not grant `gref`, or has revoked it already.
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        self.0.revoke(gref.0)
    }
}

impl Region {
    /// Nothing is left to give back on drop.
    fn defuse(mut self) {
        self.pages = 0;
    }

    /// Number of the first page in the domain.
    pub fn first_frame(&self) -> usize {
        self.first
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.pages == 0 {
            return;
        }
        let mut grefs = self.grefs.take();
        if !self.pool.give_back(self.first, self.pages, &mut grefs) {
            self.pool.parked.borrow_mut().push((self.first, self.pages, grefs));
        }
    }
}

// SAFETY: see `GrantPool` above; the domain's memory stays mapped while `pool` (and in it `core`) lives.
unsafe impl SharedBytes for Region {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
}

const _: () = assert!(super::ledger::SLOTS < RESERVED as usize && Active::NONE.0 == 0);
