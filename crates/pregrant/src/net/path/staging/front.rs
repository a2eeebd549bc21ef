//! The front's staging buffers of one direction: granted once, from set-up to disconnect
//! (docs/protocol 3).
//!
//! ```text
//!   page 0: | id 0 | id 1 | ... |   page 1: | ... |        buffers of `len` bytes, as many to a page as fit
//! ```
//! The list of the buffers has a page for each 512 of them. The loop that fills them is
//! `TxSlots::send_run` ([`front`](crate::net::path::front)); this file says where the bytes of an
//! id are.

use super::keys::{FIRST_SLOTS_SINCE, Offer, SENT_ON_SINCE};
use super::list::{self, DataLen, colour};
use crate::error::PlatformError;
use crate::memory;
use crate::net::ahead::short_staged;
use crate::net::front::regions::{Granted, Granting, Region, Regions};
use crate::net::path::front::FrontPath;
use crate::net::path::path_name::PathName;
use crate::platform::{Access, Platform};
use crate::port::Source;
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::staging::{ENTRIES_PER_PAGE, StagingEntry};
use alloc::boxed::Box;

/// The place of an absent buffer: beyond the end of any memory.
const NOWHERE: usize = usize::MAX / 2;

/// Staging buffers of one direction, and the list by which the back learns their grants.
pub struct StagingArea<P: Platform> {
    buffers: Granted<P>,
    list: Granted<P>,
    len: DataLen,
    /// For each id the offset of its buffer in the region. (A table, to avoid a division for each
    /// frame.)
    places: Box<[u32]>,
    first_slots: bool,
    /// No frame has more than one slot, and a buffer has the length of a slot.
    of_one_slot: bool,
    /// RX: the front can receive the heads of longer frames in buffers, and the back puts them
    /// there.
    pub(super) may_rx_heads: bool,
    rx_heads: bool,
    /// There are more buffers than slots, so that each buffer rests before its next use.
    pub(super) rest: bool,
    /// The front wants to send received buffers without a copy, and the back supports it.
    pub(super) may_send_on: bool,
    sent_on: bool,
}

impl<P: Platform> StagingArea<P> {
    /// Grants `entries` buffers with access `acc` (read-only for TX), and writes their list. Ids
    /// begin at `first_id`.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        acc: Access,
        len: DataLen,
        entries: u32,
        first_id: u16,
    ) -> Result<Self, PlatformError> {
        let (per_page, bytes) = (len.buffers_in_page(), len.buffer_bytes() as u32);
        let place = |id: usize| id as u32 / per_page * PAGE_SIZE as u32 + id as u32 % per_page * bytes;
        let places = memory::collected((0..entries as usize).map(place))?;
        let buffers = regions.take(p, acc, entries.div_ceil(per_page) as usize, Granting::Standing)?;
        let list_pages = (entries as usize).div_ceil(ENTRIES_PER_PAGE);
        let list = match regions.take(p, Access::ReadOnly, list_pages, Granting::Standing) {
            Ok(list) => list,
            Err(e) => {
                regions.put(p, buffers);
                return Err(e);
            }
        };
        let area = Self {
            buffers,
            list,
            len,
            places,
            first_slots: false,
            of_one_slot: false,
            may_rx_heads: false,
            rx_heads: false,
            rest: false,
            may_send_on: false,
            sent_on: false,
        };
        let list_entries = (0..entries).map(|id| {
            let place = area.start(id as u16);
            StagingEntry {
                id: first_id + id as u16,
                gref: area.buffers.refs().get(place / PAGE_SIZE).map_or(GrantRef::NONE.0, |gref| gref.0),
                offset: (place % PAGE_SIZE) as u16,
            }
        });
        let fits = list::write(area.list.bytes(), list_entries);
        debug_assert!(fits, "a page for each 512 entries");
        Ok(area)
    }

    /// The negotiated length of a buffer.
    pub fn data_len(&self) -> DataLen {
        self.len
    }

    /// The grants of the list's pages, for the keys `{tx,rx}-data-ref%u`.
    pub fn list_refs(&self) -> &[GrantRef] {
        self.list.refs()
    }

    /// Whether the first slot of a frame over several is staged where buffers have 4096 bytes, as
    /// both ends must know.
    pub fn set_first_slots(&mut self, both_know: bool) {
        self.first_slots = both_know && !self.of_one_slot && self.is_page();
    }

    /// Notes that frames have one slot each: buffers of 4096 bytes then hold every frame.
    pub fn set_no_sg(&mut self) {
        self.of_one_slot = self.is_page();
    }

    /// True if a buffer has 4096 bytes, and longer frames go by grants.
    fn is_page(&self) -> bool {
        !self.len.copy_only() && usize::from(self.len.buffer_bytes()) == PAGE_SIZE
    }

    /// RX: sets whether the heads of longer frames are in the buffers, as both ends must know.
    pub fn set_rx_heads(&mut self, both_know: bool) {
        self.rx_heads = both_know && !self.len.copy_only();
    }

    /// Bytes of shared memory that the buffers and their list use.
    pub fn memory_bytes(&self) -> usize {
        self.buffers.bytes().len() + self.list.bytes().len()
    }

    /// Number of buffers, which is also the number of entries of the list.
    pub fn entries(&self) -> u32 {
        self.places.len() as u32
    }

    /// Takes this apart and returns the buffers and their list, for [`Regions::put`].
    pub fn into_granted(self) -> [Granted<P>; 2] {
        [self.buffers, self.list]
    }

    /// RX: the length in bytes up to which frames are prefetched whole, before the batch is read.
    #[inline(always)]
    pub fn asked_bytes(&self) -> usize {
        short_staged(self.places.len())
    }

    /// True if the path carries frames of any length; false if it carries only those that fit in
    /// one slot.
    #[inline(always)]
    pub fn carries_all(&self) -> bool {
        self.len.copy_only() || self.of_one_slot
    }

    /// True if the path carries every frame because no frame has more than one slot.
    #[inline(always)]
    pub fn of_one_slot(&self) -> bool {
        self.of_one_slot
    }

    /// TX: whether the first slot of a frame over several is in a buffer, though another path
    /// carries the others.
    #[inline(always)]
    pub fn takes_first(&self) -> bool {
        self.first_slots
    }

    /// RX: whether the first bytes of a longer frame are in its slot's buffer.
    #[inline(always)]
    pub fn holds_heads(&self) -> bool {
        self.rx_heads || self.first_slots
    }

    /// TX: writes the head of a longer frame, whose rest another path carries, to the buffer of
    /// `id`.
    ///
    /// The grants describe the whole frame; its first N bytes are in the first id's buffer too, for
    /// a back that splits headers off (docs/protocol 3.3). Or they are there alone, if this path
    /// [takes them](Self::takes_first).
    #[inline(always)]
    pub fn head(&mut self, id: u16, frame: &impl Source) {
        let to = self.bytes().piece_mut(self.start(id), frame.len().min(self.slot_bytes()));
        debug_assert!(to.is_some(), "a buffer lies in its region");
        if let Some(to) = to {
            frame.copy_to(0, to);
        }
    }

    /// True if a back with this offer supports this length.
    pub fn is_offered(&self, offer: &Offer) -> bool {
        offer.sizes.contains(&self.len)
    }

    /// Called when the queue goes live with a back that made this offer.
    pub fn go_live(&mut self, offer: &Offer) {
        self.set_first_slots(offer.revision >= FIRST_SLOTS_SINCE);
        self.set_rx_heads(self.may_rx_heads && offer.rx_heads);
        self.sent_on = self.may_send_on && offer.revision >= SENT_ON_SINCE;
    }

    /// RX: true if there are more buffers than slots, so that each buffer rests before it is used
    /// again.
    pub fn buffers_rest(&self) -> bool {
        self.rest
    }

    /// Whether a buffer in which a frame was received may be sent on by TX, as both ends know.
    pub fn is_sent_on(&self) -> bool {
        self.sent_on
    }
}

impl<P: Platform> FrontPath<P> for StagingArea<P> {
    const NAME: PathName = PathName::Staging;
    const IN_BUFFERS: bool = true;

    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        usize::from(self.len.buffer_bytes())
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.buffers.bytes()
    }
    #[inline(always)]
    fn start(&self, id: u16) -> usize {
        // After a fault of the back this may be asked for a slot whose buffer is gone. The offset
        // NOWHERE makes that a fault again.
        self.places.get(usize::from(id)).map_or(NOWHERE, |place| *place as usize)
    }
    /// Offset in the buffer of `id` at which a frame starts: consecutive buffers use different L1
    /// sets, if the frame leaves room for that.
    #[inline(always)]
    fn offset(&self, id: u16, len: usize) -> usize {
        colour(id, len, self.slot_bytes())
    }
    /// Returns reference 0, which tells the back that the bytes are in the buffer.
    #[inline(always)]
    fn place(&mut self, _p: &P, _id: u16) -> Result<u32, PlatformError> {
        Ok(0)
    }
    #[inline(always)]
    fn holds(&self, total: usize, nr_slots: usize) -> bool {
        self.len.copy_only() || nr_slots == 1 && total <= self.slot_bytes()
    }
}
