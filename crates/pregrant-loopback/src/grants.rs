//! Granting memory: this domain's pages and its grant table, written as a guest writes it.
//!
//! ```text
//!   grant:  frame -> (flags, domid) in one store with release order
//!   revoke: by the rules of the table's version (table.rs), only while the page is not in use
//! ```
//!
//! Each page and each entry of the table belongs to one attached process or thread (the owners in
//! the ledger), so several workers of a domain never collide. Entries are claimed 64 at a time and
//! kept in a private free list.
//!
//! What a peer may do: keep a page mapped for ever. Then the grant and its page stay allocated;
//! [`GrantPool::release`] returns the region to its caller, who can try again, and a dropped region
//! is kept and tried again at the next allocation.
#![expect(unsafe_code, reason = "addresses in mapped memory, and the traits of a platform")]

use crate::attachment::Core;
use crate::error::errno;
use crate::ledger::{Active, RESERVED};
use crate::protocol::{Op, Request};
use crate::table::{Busy, Table};
use pregrant::platform::{Access, GrantPool, GrantTable, InUse};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PlatformError};
use pregrant_host::mapping::Base;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of table entries that are claimed at a time.
const CLAIM: usize = 64;

/// Memory that this domain grants. Its regions share the pool; the rest belongs to the handle's
/// thread, so granting and revoking single pages takes no lock.
#[derive(Debug)]
pub struct LoopbackGrants {
    pool: Arc<Pool>,
    /// Table entries that this handle owns and that grant nothing.
    free: RefCell<Vec<u32>>,
    /// For each entry, the frame of a page that was granted by itself.
    frame_of: RefCell<Vec<Option<u32>>>,
    /// The page at which the next search for free pages begins.
    cursor: Cell<usize>,
}

/// The part of its domain that this attachment owns.
#[derive(Debug)]
struct Pool {
    core: Arc<Core>,
    /// Number of single grants of each page. Only the handle's thread changes it, by a load and a
    /// store.
    granted: Box<[AtomicU16]>,
    left: Mutex<Left>,
}

/// What dropped regions leave behind, for the next allocation to collect.
#[derive(Debug, Default)]
struct Left {
    /// Table entries that grant nothing any more.
    free: Vec<u32>,
    /// Regions that a peer was still using when they were dropped.
    parked: Vec<Parked>,
}

/// A region that waits for its peer: its first page, its number of pages, and the grants that
/// `alloc` made for it.
type Parked = (usize, usize, Vec<u32>);

/// Pages of this domain. Dropping a region revokes its grants and frees its pages; if a peer still
/// uses one, that happens later.
#[derive(Debug)]
pub struct Region {
    pool: Arc<Pool>,
    base: Base,
    first: usize,
    pages: usize,
    /// The grants that `alloc` made for the region.
    grefs: Vec<u32>,
}

impl Pool {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free_pages(&self, first: usize, pages: usize) {
        for page in first..first + pages {
            self.core.ledger.page_owner(page).store(0, Ordering::Release);
        }
    }

    fn table(&self) -> Table<'_> {
        Table::new(&self.core.memory, &self.core.ledger)
    }

    /// Revokes the grants that are not in use, appends their references to `free`, and frees the
    /// pages if no grant is left.
    fn give_back(
        &self,
        (first, pages, grefs): (usize, usize, &mut Vec<u32>),
        free: &mut Vec<u32>,
        busy: Busy,
    ) -> bool {
        self.table().end_all(grefs, busy, |gref| free.push(gref));
        let granted = &self.granted[first..first + pages];
        let done = grefs.is_empty() && granted.iter().all(|n| n.load(Ordering::Relaxed) == 0);
        if done {
            self.free_pages(first, pages);
        }
        done
    }
}

impl LoopbackGrants {
    pub(super) fn new(core: Arc<Core>) -> Self {
        let layout = core.ledger.layout();
        let granted = (0..layout.pages).map(|_| AtomicU16::new(0)).collect();
        Self {
            pool: Arc::new(Pool { core, granted, left: Mutex::default() }),
            free: RefCell::new(Vec::new()),
            frame_of: RefCell::new(vec![None; layout.grants]),
            cursor: Cell::new(0),
        }
    }

    /// Allocates `pages` adjacent pages and zeroes them.
    fn take_pages(&self, pages: usize) -> Result<Region, PlatformError> {
        if pages == 0 {
            return Err(errno("allocate no pages at all", Errno::INVAL));
        }
        self.retry_parked();
        let core = &self.pool.core;
        let found = self.find_pages(pages).or_else(|| {
            // Ask the broker for pages of dead processes that peers have unmapped since.
            core.call(&Request::new(Op::Reclaim, 0, 0, 0)).ok()?;
            self.find_pages(pages)
        });
        let first =
            found.ok_or(errno("find free neighbouring pages in the domain's memory", Errno::NOMEM))?;
        // SAFETY: the run is inside the domain's memory, which is mapped while `core` lives.
        let base = unsafe { core.memory.base().add(first * PAGE_SIZE) };
        let base = Base(base);
        let region = Region { pool: Arc::clone(&self.pool), base, first, pages, grefs: Vec::new() };
        region.zero();
        Ok(region)
    }

    fn find_pages(&self, pages: usize) -> Option<usize> {
        let ledger = &self.pool.core.ledger;
        let total = ledger.layout().pages;
        let mine = self.pool.core.user.slot as u8 + 1;
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
                    self.pool.free_pages(from, taken - from);
                    searched += taken + 1 - from;
                    from = taken + 1;
                }
            }
        }
        None
    }

    fn take_gref(&self) -> Result<u32, PlatformError> {
        let mut free = self.free.borrow_mut();
        if free.is_empty() {
            free.append(&mut self.pool.left().free);
        }
        if free.is_empty() {
            self.claim_grefs(&mut free);
        }
        if free.is_empty() {
            let _ = self.pool.core.call(&Request::new(Op::Reclaim, 0, 0, 0));
            self.claim_grefs(&mut free);
        }
        free.pop().ok_or(errno("find a free entry in the domain's grant table", Errno::NOSPC))
    }

    fn claim_grefs(&self, free: &mut Vec<u32>) {
        let ledger = &self.pool.core.ledger;
        let mine = self.pool.core.user.slot as u8 + 1;
        for gref in GrantRef::FIRST_FREE.0..ledger.layout().grants as u32 {
            if ledger.grant_owner(gref).compare_exchange(0, mine, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                free.push(gref);
                if free.len() == CLAIM {
                    break;
                }
            }
        }
        // Lowest reference first, as readers of traces expect.
        free.reverse();
    }

    fn make_grant(&self, to: DomId, frame: usize, acc: Access) -> Result<u32, PlatformError> {
        let gref = self.take_gref()?;
        self.pool.table().grant(gref, to, frame as u32, acc == Access::ReadOnly);
        Ok(gref)
    }

    fn retry_parked(&self) {
        let parked = std::mem::take(&mut self.pool.left().parked);
        for (first, pages, mut grefs) in parked {
            let freed =
                self.pool.give_back((first, pages, &mut grefs), &mut self.free.borrow_mut(), Busy::EndLate);
            if !freed {
                self.pool.left().parked.push((first, pages, grefs));
            }
        }
    }
}

// SAFETY: a region is a run of pages that only this attachment owns (exchanged in the ledger, one
// owner each), inside of the domain's memory, page aligned, zeroed by `take_pages`; they are freed
// by `give_back` alone, after every grant of them ended.
unsafe impl GrantPool for LoopbackGrants {
    type Region = Region;

    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Region, PlatformError> {
        let mut region = self.take_pages(refs.len())?;
        for (page, gref) in refs.iter_mut().enumerate() {
            // If this fails, dropping the region revokes the grants made so far.
            let made = self.make_grant(to, region.first + page, acc)?;
            *gref = GrantRef(made);
            region.grefs.push(made);
        }
        Ok(region)
    }

    fn release(&self, mut region: Region) -> Result<(), InUse<Region>> {
        // Entries of another handle return to that handle.
        let own = Arc::ptr_eq(&region.pool, &self.pool);
        let freed = if own {
            region.give_back(&mut self.free.borrow_mut(), Busy::Stand)
        } else {
            region.give_back_there(Busy::Stand)
        };
        if !freed {
            return Err(InUse(region));
        }
        region.defuse();
        Ok(())
    }

    fn first_frame(&self, region: &Region) -> Option<u32> {
        u32::try_from(region.first).ok()
    }

    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Region>> {
        Some(self)
    }
}

impl GrantTable for LoopbackGrants {
    type Region = Region;

    fn pages(&self, pages: usize) -> Result<Region, PlatformError> {
        self.take_pages(pages)
    }

    /// # Panics
    ///
    /// If `page` is not a page of `region`.
    fn grant(&self, to: DomId, region: &Region, page: usize, acc: Access) -> Result<GrantRef, PlatformError> {
        assert!(page < region.pages, "page {page} of a region of {}", region.pages);
        let frame = region.first + page;
        let gref = self.make_grant(to, frame, acc)?;
        self.frame_of.borrow_mut()[gref as usize] = Some(frame as u32);
        let granted = &self.pool.granted[frame];
        granted.store(granted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(GrantRef(gref))
    }

    /// # Panics
    ///
    /// If this handle did not grant `gref` one by one, or has revoked it already.
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        let mut frame_of = self.frame_of.borrow_mut();
        let frame = frame_of.get_mut(gref.0 as usize);
        let Some((frame_of, frame)) = frame.and_then(|entry| entry.map(|frame| (entry, frame))) else {
            panic!("gref {gref} is revoked, but this process did not grant it", gref = gref.0);
        };
        if !self.pool.table().end(gref.0) {
            return Err(InUse(gref));
        }
        *frame_of = None;
        let granted = &self.pool.granted[frame as usize];
        granted.store(granted.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        self.free.borrow_mut().push(gref.0);
        Ok(())
    }
}

impl Region {
    /// Makes the drop of the region do nothing.
    fn defuse(mut self) {
        self.pages = 0;
    }

    fn give_back(&mut self, free: &mut Vec<u32>, busy: Busy) -> bool {
        self.pool.give_back((self.first, self.pages, &mut self.grefs), free, busy)
    }

    /// Returns the region's pages and grants to the handle that made it, from any thread; see
    /// [`give_back`](Self::give_back).
    fn give_back_there(&mut self, busy: Busy) -> bool {
        let mut free = Vec::new();
        let freed = self.give_back(&mut free, busy);
        self.pool.left().free.append(&mut free);
        freed
    }

    /// Returns the number of the region's first page in the domain.
    pub fn first_frame(&self) -> usize {
        self.first
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.pages == 0 {
            return;
        }
        if !self.give_back_there(Busy::EndLate) {
            let grefs = std::mem::take(&mut self.grefs);
            self.pool.left().parked.push((self.first, self.pages, grefs));
        }
    }
}

// SAFETY: see `GrantPool` above; the domain's memory stays mapped while `pool` (and in it `core`)
// lives.
unsafe impl SharedBytes for Region {
    fn base(&self) -> NonNull<u8> {
        self.base.0
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
}

const _: () = assert!(crate::ledger::SLOTS < RESERVED as usize && Active::NONE.0 == 0);
