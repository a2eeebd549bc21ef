//! The pages of a queue, and which of them are free: the last that came back goes first.
//!
//! ```text
//!   take --> [ 7 3 12 ... ] <-- give back        the top: used last, warm in the cache, and mapped at a back that keeps pages
//! ```
//! So a front with little to do uses few pages, and a back may let go of the cold ones. Where pages
//! are granted for each request ([`Granting::PerFrame`]) the grant ends when the page comes back;
//! one that the back still uses is not used again until it has let go. A page is shown to one back
//! only, and only what that back has seen before is outside of a request's bytes.

use crate::error::PlatformError;
use crate::grants::regions::{Granted, Granting, Region, Regions};
use crate::platform::{Access, Platform};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use alloc::vec::Vec;

/// Bytes of a page that are asked for ahead.
const PREFETCHED_BYTES: usize = 1024;

/// See the module.
pub struct FreePages<P: Platform> {
    granted: Granted<P>,
    /// The next one at the end.
    free: Vec<u32>,
    /// Came back, while the back still uses them.
    busy: Vec<u32>,
}

impl<P: Platform> FreePages<P> {
    /// `n` pages.
    pub fn new(p: &P, regions: &mut Regions<P>, n: usize, granting: Granting) -> Result<Self, PlatformError> {
        let granted = regions.take(p, Access::ReadWrite, n, granting)?;
        let free = (0..granted.count() as u32).rev().collect();
        Ok(Self { granted, free, busy: Vec::new() })
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
        self.granted.count()
    }

    /// The memory: page `k` begins at byte 4096 `k`.
    pub fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }

    /// The next page, and its grant; None: there is none.
    pub fn take(&mut self, p: &P) -> Result<Option<(u32, GrantRef)>, PlatformError> {
        let Some(&page) = self.free.last() else { return Ok(None) };
        let gref = self.granted.grant(p, page as usize)?;
        self.free.pop();
        Ok(Some((page, gref)))
    }

    /// Prefetches the first cache lines of the next page, which is written to soon. The processor
    /// prefetches the lines behind them by itself.
    #[inline(always)]
    pub fn prefetch_next(&self) {
        if let Some(&page) = self.free.last() {
            self.bytes().prefetch_write(page as usize * PAGE_SIZE, PREFETCHED_BYTES);
        }
    }

    /// The same of a page that is read soon.
    #[inline(always)]
    pub fn prefetch(&self, page: u32) {
        self.bytes().prefetch_read(page as usize * PAGE_SIZE, PREFETCHED_BYTES);
    }

    /// It is free again, or will be.
    pub fn give_back(&mut self, p: &P, page: u32) {
        if self.granted.settle(p, page as usize) {
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

    /// The pages, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }
}
