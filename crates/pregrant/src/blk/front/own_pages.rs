//! Requests whose bytes are in pages of the guest's own: granted for a request each, and nothing is
//! copied, as an ordinary blkfront has it.
//!
//! ```text
//!   memory --FrontVbd::use_memory--> submit_own: a grant for each page --> ring
//!                                    answer: the grants end --> its bytes are the guest's again
//! ```
//! Only where the platform grants page by page, and where the front has not promised that a
//! reference goes on naming its page (`feature-persistent`). A page of a write is granted to be
//! read.
//!
//! Invariant: a request is answered when the back has let go of all of its pages, so that what the
//! guest does there next is its own.
//!
//! What a back may do: see all of a page of which it is asked for a part, so such memory is to have
//! this disk's bytes alone; write to a read's pages at any time before the answer; keep a page
//! mapped. Then the answer waits, and no event says when it has come; other requests go on.

use crate::blk::disk::SECTOR_BYTES;
use crate::error::PlatformError;
use crate::platform::{Access, GrantPool, Platform};
use crate::units::{GrantRef, PAGE_SIZE};
use alloc::vec::Vec;
use core::ops::Range;

/// A request for bytes in the guest's own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnAsk {
    /// The disk's bytes come to the memory; else those of the memory go to the disk.
    pub reads: bool,
    /// The first sector.
    pub sector: u64,
    /// How many.
    pub sectors: u32,
    /// Where their bytes begin in the memory: a multiple of 512.
    pub at: usize,
}

impl OwnAsk {
    /// Bytes that travel.
    pub(super) fn len(&self) -> usize {
        self.sectors as usize * SECTOR_BYTES
    }

    /// The pages in which they are, of a memory of `bytes` bytes. None: they are not all there, or
    /// are none.
    pub(super) fn pages(&self, bytes: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(self.len())?;
        let fits = self.sectors > 0 && self.at.is_multiple_of(SECTOR_BYTES) && end <= bytes;
        fits.then_some(self.at / PAGE_SIZE..end.div_ceil(PAGE_SIZE))
    }

    pub(super) fn access(&self) -> Access {
        if self.reads { Access::ReadWrite } else { Access::ReadOnly }
    }
}

/// This front cannot have requests from memory of the guest's own.
pub(super) const REFUSED: PlatformError = PlatformError {
    op: "grant pages of the guest's own for a request: it has given no memory, the platform grants no single pages, or \
         the front has said that it keeps to its pages (feature-persistent)",
    code: 95,
};

/// Ends grants. Those that the back still uses stay in the list.
pub(super) fn end_grants<P: Platform>(p: &P, grefs: &mut Vec<GrantRef>) {
    if let Some(table) = p.grants().per_frame() {
        grefs.retain(|gref| table.revoke(*gref).is_err());
    }
}
