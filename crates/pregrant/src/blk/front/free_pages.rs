//! The pages of a queue, and which of them are free: the last that came back goes first.
//!
//! ```text
//!   take --> [ 7 3 12 ... ] <-- give back        the top: used last, warm in the cache, and mapped at a back that keeps pages
//!                  ^ grow: 16 more, below all others, when a request finds too few; never more than the bound
//! ```
//! So a disk with little to do has few pages, uses few of those, and a back may let go of the cold
//! ones. Pages that came stay until the queue ends. Where they are granted for each request
//! ([`Granting::PerFrame`]) the grant ends when the page comes back; one that the back still uses
//! is not used again until it has let go. A page is shown to one back only, and only what that back
//! has seen before is outside of a request's bytes.
//!
//! A platform that refuses more pages is asked again after [`REFUSALS`] requests that found too
//! few.

use crate::error::PlatformError;
use crate::grants::regions::{Granted, Granting, Regions};
use crate::platform::{Access, Platform};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::blkif::{SEGMENTS_MAX, SEGMENTS_PER_INDIRECT_PAGE};
use alloc::vec::Vec;

/// Bytes of a page that are asked for ahead.
const PREFETCHED_BYTES: usize = 1024;
/// Pages that come at once, but for the rest of the bound. Steps are alike, so that the next
/// connection finds them again ([`Regions`]).
pub const STEP_PAGES: usize = 16;
/// Requests that go without more pages after a refusal: to ask is a system call.
pub const REFUSALS: u32 = 1024;

// With the first step a queue has a request without a list.
const _: () = assert!(STEP_PAGES >= SEGMENTS_MAX);

/// See the module.
pub struct FreePages<P: Platform> {
    /// Page `k` is page `k % STEP_PAGES` of step `k / STEP_PAGES`.
    steps: Vec<Granted<P>>,
    /// Pages at most.
    most: usize,
    granting: Granting,
    /// The next one at the end.
    free: Vec<u32>,
    /// Came back, while the back still uses them.
    busy: Vec<u32>,
    /// More pages were refused: requests until they are asked for again.
    refused: Option<u32>,
}

impl<P: Platform> FreePages<P> {
    /// One step, and later as many as `most` pages take.
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
        // All of them come back some time.
        self.free.reserve(count - self.free.len());
        self.free.splice(0..0, (first..count as u32).rev());
        Ok(())
    }

    /// Gets more pages, until `n` are free. There may be fewer afterwards.
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

    /// Pages that are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that came back while the back still used them.
    pub fn busy(&self) -> usize {
        self.busy.len()
    }

    /// All of them.
    pub fn count(&self) -> usize {
        self.most.min(self.steps.len() * STEP_PAGES)
    }

    /// Segments of a request at most: its pages, and those of its list, are no more than there can
    /// be. Each list page serves for 512 others.
    pub fn segments_most(&self) -> usize {
        let pages = if self.refused.is_some() { self.count() } else { self.most };
        pages - pages.div_ceil(SEGMENTS_PER_INDIRECT_PAGE + 1)
    }

    /// The step of a page, and its place there.
    #[inline(always)]
    fn place(page: u32) -> (usize, usize) {
        let page = page as usize;
        (page / STEP_PAGES, page % STEP_PAGES)
    }

    /// Copies bytes into a page. False: it is none of these, or they are too many.
    #[inline(always)]
    pub fn copy_in(&self, page: u32, from: &[u8]) -> bool {
        let (step, page) = Self::place(page);
        self.steps.get(step).is_some_and(|step| step.bytes().copy_in(page * PAGE_SIZE, from))
    }

    /// Copies bytes out of a page, as [`copy_in`](Self::copy_in).
    #[inline(always)]
    pub fn copy_out(&self, page: u32, to: &mut [u8]) -> bool {
        let (step, page) = Self::place(page);
        self.steps.get(step).is_some_and(|step| step.bytes().copy_out(page * PAGE_SIZE, to))
    }

    /// The next page, and its grant; None: there is none.
    pub fn take(&mut self, p: &P) -> Result<Option<(u32, GrantRef)>, PlatformError> {
        let Some(&page) = self.free.last() else { return Ok(None) };
        let (step, at) = Self::place(page);
        let gref = self.steps[step].grant(p, at)?;
        self.free.pop();
        Ok(Some((page, gref)))
    }

    /// Prefetches the first cache lines of the next page, which is written to soon. The processor
    /// prefetches the lines behind them by itself.
    #[inline(always)]
    pub fn prefetch_next(&self) {
        if let Some(&page) = self.free.last() {
            let (step, page) = Self::place(page);
            self.steps[step].bytes().prefetch_write(page * PAGE_SIZE, PREFETCHED_BYTES);
        }
    }

    /// The same of a page that is read soon.
    #[inline(always)]
    pub fn prefetch(&self, page: u32) {
        let (step, page) = Self::place(page);
        self.steps[step].bytes().prefetch_read(page * PAGE_SIZE, PREFETCHED_BYTES);
    }

    /// It is free again, or will be.
    pub fn give_back(&mut self, p: &P, page: u32) {
        let (step, at) = Self::place(page);
        if self.steps[step].settle(p, at) {
            self.free.push(page);
        } else {
            self.busy.push(page);
        }
    }

    /// Checks again at those that the back used.
    pub fn recheck(&mut self, p: &P) {
        for page in core::mem::take(&mut self.busy) {
            self.give_back(p, page);
        }
    }

    /// Puts the pages by.
    pub fn end(self, p: &P, regions: &mut Regions<P>) {
        self.steps.into_iter().for_each(|step| regions.put(p, step));
    }
}
