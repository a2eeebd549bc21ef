//! Requests for data in the guest's own pages, which are granted for one request each, without a
//! copy, as in an ordinary blkfront.
//!
//! ```text
//!   memory --FrontVbd::use_memory--> submit_own: a grant for each page --> ring
//!                                    answer: the grants end --> its bytes are the guest's again
//! ```
//! This requires a platform that grants single pages, and a front that has not promised that its
//! references keep naming the same page (`feature-persistent`). A page that is written to the disk
//! is granted read-only.
//!
//! Invariant: a request completes when the back has let go of all its pages, so what the guest does
//! with them next is its own.
//!
//! What a back may do: see all of a page even if the request names a part of it, so such memory
//! should only contain data of this disk; write to a read's pages at any time before the answer;
//! keep a page mapped. Then the answer is delayed, without an event when it can be taken; other
//! requests continue.

use crate::blk::disk::SECTOR_BYTES;
use crate::error::PlatformError;
use crate::platform::{Access, GrantPool, Platform};
use crate::units::{GrantRef, PAGE_SIZE};
use alloc::vec::Vec;
use core::ops::Range;

/// A request for data in the guest's own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnAsk {
    /// Whether data goes from the disk to memory; otherwise from memory to the disk.
    pub reads: bool,
    /// The first sector.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// Offset of the data in the memory, a multiple of 512.
    pub at: usize,
}

impl OwnAsk {
    /// Number of bytes.
    pub(super) fn len(&self) -> usize {
        self.sectors as usize * SECTOR_BYTES
    }

    /// The pages of the data, in a memory of `bytes` bytes. None: the range exceeds the memory, or
    /// is empty.
    pub(super) fn pages(&self, bytes: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(self.len())?;
        let fits = self.sectors > 0 && self.at.is_multiple_of(SECTOR_BYTES) && end <= bytes;
        fits.then_some(self.at / PAGE_SIZE..end.div_ceil(PAGE_SIZE))
    }

    pub(super) fn access(&self) -> Access {
        if self.reads { Access::ReadWrite } else { Access::ReadOnly }
    }
}

/// The error of a front that cannot have requests for the guest's own memory.
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
