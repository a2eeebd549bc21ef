//! The front's staging buffers of one direction: granted once, from set-up to disconnect (PROTOCOL.md 3).
//!
//! ```text
//!   page 0: | id 0 | id 1 | ... |   page 1: | ... |        buffers of `len` octets, as many to a page as fit
//! ```

use crate::error::PlatformError;
use crate::net::staging_list::{self, DataLen};
use crate::platform::{Access, GrantPool, InUse, Platform};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::staging::StagingEntry;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The region of a platform's grant pool.
pub type Region<P> = <<P as Platform>::Grants as GrantPool>::Region;

/// Buffers of one direction, and the list that tells the back of them.
pub struct StagingArea<P: Platform> {
    region: Region<P>,
    list: Region<P>,
    list_ref: GrantRef,
    len: DataLen,
    /// By id: where the buffer starts in the region (no division on the data path).
    places: Box<[u32]>,
}

impl<P: Platform> StagingArea<P> {
    /// Grants `entries` buffers to `to` with access `acc` (read-only for TX), and writes their list, whose ids begin at
    /// `first_id`.
    pub fn new(
        p: &P,
        to: DomId,
        acc: Access,
        len: DataLen,
        entries: u32,
        first_id: u16,
    ) -> Result<Self, PlatformError> {
        let per_page = (PAGE_SIZE / len.buffer_bytes() as usize) as u32;
        let mut refs = vec![GrantRef::NONE; entries.div_ceil(per_page) as usize];
        let region = p.grants().alloc(to, acc, &mut refs)?;
        let mut list_ref = [GrantRef::NONE];
        let list = match p.grants().alloc(to, Access::ReadOnly, &mut list_ref) {
            Ok(list) => list,
            Err(e) => {
                let _ = p.grants().release(region); // never shown to anybody, so never in use
                return Err(e);
            }
        };
        let bytes = len.buffer_bytes() as u32;
        let places =
            (0..entries).map(|id| id / per_page * PAGE_SIZE as u32 + id % per_page * bytes).collect();
        let area = Self { region, list, list_ref: list_ref[0], len, places };
        let list_entries = (0..entries).map(|id| {
            let place = area.place(id) as usize;
            StagingEntry {
                id: first_id + id as u16,
                gref: refs[place / PAGE_SIZE].0,
                offset: (place % PAGE_SIZE) as u16,
            }
        });
        let fits = staging_list::write(&area.list, list_entries);
        debug_assert!(fits, "one list page holds 512 entries");
        Ok(area)
    }

    /// Where the buffer of `id` starts in the region, octets.
    #[inline(always)]
    pub fn place(&self, id: u32) -> u32 {
        self.places[id as usize]
    }

    /// The shared memory of the buffers.
    #[inline(always)]
    pub fn bytes(&self) -> &Region<P> {
        &self.region
    }

    /// Octets of one buffer.
    #[inline(always)]
    pub fn buffer_bytes(&self) -> usize {
        self.len.buffer_bytes() as usize
    }

    /// The negotiated length.
    pub fn data_len(&self) -> DataLen {
        self.len
    }

    /// The grant of the list page, for the key `{tx,rx}-data-ref0`.
    pub fn list_ref(&self) -> GrantRef {
        self.list_ref
    }

    /// Octets of shared memory that the buffers and their list take.
    pub fn memory_bytes(&self) -> usize {
        self.region.len() + self.list.len()
    }

    /// Buffers.
    pub fn entries(&self) -> u32 {
        self.places.len() as u32
    }

    /// Ends the grants. What the back still uses comes back, to be kept and retried.
    pub fn release(self, p: &P) -> Vec<Region<P>> {
        [self.region, self.list]
            .into_iter()
            .filter_map(|r| match p.grants().release(r) {
                Ok(()) => None,
                Err(InUse(r)) => Some(r),
            })
            .collect()
    }
}
