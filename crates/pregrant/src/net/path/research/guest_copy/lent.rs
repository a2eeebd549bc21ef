//! Takes back the pages that a vif lent to its guest: its queues deliver nothing by them any more,
//! and the guest may still have them mapped.
//!
//! ```text
//!   GuestCopyPath --nothing is delivered by it--> ended --released--> gone
//!                                                   '--the guest has them mapped--> held --tried again--> gone
//! ```
//! Invariants: a region is in one of the two lists until its release succeeds. A held region has
//! frames of this vif's alone, and goes to no other. While one is held, this vif lends nothing
//! more, so the pages of one connection are the most that a guest can hold.
//!
//! What a front may do: map a lent page and keep it. The page then counts among those that the
//! guest has mapped (XSA-300), and its release is tried again.

use crate::platform::{GrantPool, InUse, Platform};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use alloc::vec::Vec;

type Region<P> = <<P as Platform>::Grants as GrantPool>::Region;

/// Pages that were granted to guests and are no longer used, until each guest has unmapped them.
pub struct LentRegions<P: Platform> {
    /// Regions of queues that use another path now. Frames in them can still be fetched.
    ended: Vec<Region<P>>,
    /// Regions that the front has not unmapped.
    held: Vec<Region<P>>,
}

impl<P: Platform> Default for LentRegions<P> {
    fn default() -> Self {
        Self { ended: Vec::new(), held: Vec::new() }
    }
}

impl<P: Platform> LentRegions<P> {
    /// Called when nothing is delivered into these regions any more.
    pub fn end(&mut self, regions: impl IntoIterator<Item = Region<P>>) {
        self.ended.extend(regions);
    }

    /// Frees the ended regions that the front has unmapped.
    pub fn take_back(&mut self, p: &P) {
        self.retry(p);
        for region in core::mem::take(&mut self.ended) {
            // Not zeroed: the guest may be within a copy of a frame.
            self.held.extend(p.grants().release(region).err().map(|InUse(region)| region));
        }
    }

    /// Tries again to release pages that a front had mapped. Returns true if all are released.
    pub fn retry(&mut self, p: &P) -> bool {
        let held = core::mem::take(&mut self.held);
        let still = held.into_iter().filter_map(|region| p.grants().release(region).err());
        self.held = still.map(|InUse(region)| region).collect();
        self.held.is_empty()
    }

    /// Number of regions that the front still has mapped.
    pub fn held_regions(&self) -> usize {
        self.held.len()
    }

    /// Number of pages that the front still has mapped.
    pub fn held_pages(&self) -> usize {
        self.held.iter().map(|region| region.len() / PAGE_SIZE).sum()
    }
}
