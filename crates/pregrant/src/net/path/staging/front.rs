//! The front's staging buffers of one direction: granted once, from set-up to disconnect (docs/protocol 3).
//!
//! ```text
//!   page 0: | id 0 | id 1 | ... |   page 1: | ... |        buffers of `len` bytes, as many to a page as fit
//! ```

use super::list::{self, DataLen};
use crate::error::PlatformError;
use crate::net::front::regions::Granting;
use crate::net::front::regions::{Granted, Region, Regions};
use crate::platform::{Access, Platform};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::staging::StagingEntry;
use alloc::boxed::Box;

/// Buffers of one direction, and the list that tells the back of them.
pub struct StagingArea<P: Platform> {
    buffers: Granted<P>,
    list: Granted<P>,
    len: DataLen,
    /// By id: where the buffer starts in the region (no division on the data path).
    places: Box<[u32]>,
}

impl<P: Platform> StagingArea<P> {
    /// Grants `entries` buffers with access `acc` (read-only for TX), and writes their list, whose ids begin at
    /// `first_id`.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        acc: Access,
        len: DataLen,
        entries: u32,
        first_id: u16,
    ) -> Result<Self, PlatformError> {
        let per_page = (PAGE_SIZE / len.buffer_bytes() as usize) as u32;
        let buffers = regions.take(p, acc, entries.div_ceil(per_page) as usize, Granting::Standing)?;
        let list = match regions.take(p, Access::ReadOnly, 1, Granting::Standing) {
            Ok(list) => list,
            Err(e) => {
                regions.put(p, buffers);
                return Err(e);
            }
        };
        let bytes = len.buffer_bytes() as u32;
        let places =
            (0..entries).map(|id| id / per_page * PAGE_SIZE as u32 + id % per_page * bytes).collect();
        let area = Self { buffers, list, len, places };
        let list_entries = (0..entries).map(|id| {
            let place = area.place(id) as usize;
            StagingEntry {
                id: first_id + id as u16,
                gref: area.buffers.refs()[place / PAGE_SIZE].0,
                offset: (place % PAGE_SIZE) as u16,
            }
        });
        let fits = list::write(area.list.bytes(), list_entries);
        debug_assert!(fits, "one list page holds 512 entries");
        Ok(area)
    }

    /// Where the buffer of `id` starts in the region, bytes.
    #[inline(always)]
    pub fn place(&self, id: u32) -> u32 {
        self.places[id as usize]
    }

    /// The shared memory of the buffers.
    #[inline(always)]
    pub fn bytes(&self) -> &Region<P> {
        self.buffers.bytes()
    }

    /// Bytes of one buffer.
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
        self.list.refs()[0]
    }

    /// Bytes of shared memory that the buffers and their list take.
    pub fn memory_bytes(&self) -> usize {
        self.buffers.bytes().len() + self.list.bytes().len()
    }

    /// Buffers.
    pub fn entries(&self) -> u32 {
        self.places.len() as u32
    }

    /// The buffers and their list, for [`Regions::put`].
    pub fn into_granted(self) -> [Granted<P>; 2] {
        [self.buffers, self.list]
    }
}
