//! A queue's pages, and which of them are free. The page that came back last is used first.
//!
//! ```text
//!   take --> [ 7 3 12 ... ] <-- give back        the top: used last, warm in the cache, and mapped at a back that keeps pages
//!                  ^ grow: 16 more, below all others, when a request finds too few; never more than the bound
//! ```
//! So a disk with little to do uses few pages, and a back may unmap the cold ones. Pages that were
//! allocated stay until the queue ends. If pages are granted per request ([`Granting::PerFrame`]),
//! the grant ends when the page comes back; a page that the back still uses is not reused before it
//! has let go. A page is only ever granted to one back, and the bytes of a page outside of a
//! request are ones that this back has seen before.
//!
//! When the platform refuses more pages, it is asked again after [`REFUSALS`] requests that had too
//! few.

use crate::error::PlatformError;
use crate::grants::regions::{Granted, Granting, Regions};
use crate::platform::{Access, Platform};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::blkif::{SEGMENTS_MAX, SEGMENTS_PER_INDIRECT_PAGE};
use alloc::vec::Vec;

/// Bytes of a page that are prefetched.
const PREFETCHED_BYTES: usize = 1024;
/// Pages per allocation. All steps have this size, except a last smaller one, so that the next
/// connection can reuse them ([`Regions`]).
pub const STEP_PAGES: usize = 16;
/// Number of requests that do without more pages after a refusal, since asking is a system call.
pub const REFUSALS: u32 = 1024;

// With the first step a queue can send a request without a segment list.
const _: () = assert!(STEP_PAGES >= SEGMENTS_MAX);

/// The pages of one queue.
pub struct FreePages<P: Platform> {
    /// The steps of granted pages. Page `k` is page `k % STEP_PAGES` of step `k / STEP_PAGES`.
    steps: Vec<Granted<P>>,
    /// Largest number of pages.
    most: usize,
    granting: Granting,
    /// Free pages; the next one to use is last.
    free: Vec<u32>,
    /// Pages that were returned while the back still uses them.
    busy: Vec<u32>,
    /// After a refusal: number of requests until more pages are asked for again.
    refused: Option<u32>,
}

impl<P: Platform> FreePages<P> {
    /// Allocates the first step. Further ones, of up to `most` pages in all, are allocated on
    /// demand.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        most: usize,
        granting: Granting,
    ) -> Result<Self, PlatformError> {
        let most = most.max(SEGMENTS_MAX);
        let (steps, free, busy) = (Vec::new(), Vec::new(), Vec::new());
        let mut free_pages = Self { steps, most, granting, free, busy, refused: None };
        free_pages.step(p, regions)?;
        Ok(free_pages)
    }

    fn step(&mut self, p: &P, regions: &mut Regions<P>) -> Result<(), PlatformError> {
        let first = self.count() as u32;
        let n = STEP_PAGES.min(self.most - self.count());
        self.steps.push(regions.take(p, Access::ReadWrite, n, self.granting)?);
        let count = self.count();
        // All of them will be free at some time.
        self.free.reserve(count - self.free.len());
        self.free.splice(0..0, (first..count as u32).rev());
        Ok(())
    }

    /// Allocates steps until `n` pages are free. Fewer are free afterwards if memory is short or
    /// `most` is reached.
    #[cold]
    #[inline(never)]
    pub fn grow(&mut self, p: &P, regions: &mut Regions<P>, n: usize) {
        if let Some(left) = &mut self.refused {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.refused = None;
        }
        while self.free.len() < n && self.count() < self.most {
            if self.step(p, regions).is_err() {
                self.refused = Some(REFUSALS);
                return;
            }
        }
    }

    /// Number of free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of pages that were returned while the back still used them.
    pub fn busy(&self) -> usize {
        self.busy.len()
    }

    /// Number of all pages.
    pub fn count(&self) -> usize {
        self.most.min(self.steps.len() * STEP_PAGES)
    }

    /// Largest number of segments of a request, so that its pages and those of its segment list do
    /// not exceed the maximum. Each list page describes 512 pages.
    pub fn segments_most(&self) -> usize {
        let pages = if self.refused.is_some() { self.count() } else { self.most };
        pages - pages.div_ceil(SEGMENTS_PER_INDIRECT_PAGE + 1)
    }

    /// The step of a page, and the page's index there.
    #[inline(always)]
    fn place(page: u32) -> (usize, usize) {
        let page = page as usize;
        (page / STEP_PAGES, page % STEP_PAGES)
    }

    /// Copies bytes to a page. False: there is no such page, or it is too short.
    #[inline(always)]
    pub fn copy_in(&self, page: u32, from: &[u8]) -> bool {
        let (step, page) = Self::place(page);
        self.steps.get(step).is_some_and(|step| step.bytes().copy_in(page * PAGE_SIZE, from))
    }

    /// Copies bytes from a page. False: there is no such page, or it is too short.
    #[inline(always)]
    pub fn copy_out(&self, page: u32, to: &mut [u8]) -> bool {
        let (step, page) = Self::place(page);
        self.steps.get(step).is_some_and(|step| step.bytes().copy_out(page * PAGE_SIZE, to))
    }

    /// The next free page and its grant. None: there is none.
    pub fn take(&mut self, p: &P) -> Result<Option<(u32, GrantRef)>, PlatformError> {
        let Some(&page) = self.free.last() else { return Ok(None) };
        let (step, at) = Self::place(page);
        let gref = self.steps[step].grant(p, at)?;
        self.free.pop();
        Ok(Some((page, gref)))
    }

    /// Prefetches the first cache lines of the next page, which is written soon. The processor
    /// prefetches the following lines by itself.
    #[inline(always)]
    pub fn prefetch_next(&self) {
        if let Some(&page) = self.free.last() {
            let (step, page) = Self::place(page);
            self.steps[step].bytes().prefetch_write(page * PAGE_SIZE, PREFETCHED_BYTES);
        }
    }

    /// Prefetches a page that is read soon.
    #[inline(always)]
    pub fn prefetch(&self, page: u32) {
        let (step, page) = Self::place(page);
        self.steps[step].bytes().prefetch_read(page * PAGE_SIZE, PREFETCHED_BYTES);
    }

    /// Makes a page free again, now or when the back has stopped using it.
    pub fn give_back(&mut self, p: &P, page: u32) {
        let (step, at) = Self::place(page);
        if self.steps[step].settle(p, at) {
            self.free.push(page);
        } else {
            self.busy.push(page);
        }
    }

    /// Checks the pages again that the back still used.
    pub fn recheck(&mut self, p: &P) {
        for page in core::mem::take(&mut self.busy) {
            self.give_back(p, page);
        }
    }

    /// Returns the pages to `regions`, for the next connection.
    pub fn end(self, p: &P, regions: &mut Regions<P>) {
        self.steps.into_iter().for_each(|step| regions.put(p, step));
    }
}
