//! The front's staging buffers of one direction: granted once, from set-up to disconnect
//! (docs/protocol 3).
//!
//! ```text
//!   page 0: | id 0 | id 1 | ... |   page 1: | ... |        buffers of `len` bytes, as many to a page as fit
//! ```
//! Their list has a page for each 512 of them. The loop that fills them is `TxSlots::send_run`
//! ([`front`](crate::net::path::front)); this says where the bytes of an id are.

use super::keys::{DataKeys, DataRequest, FIRST_SLOTS_SINCE, Lists, SENT_ON_SINCE};
use super::list::{self, DataLen, LIST_ENTRIES_MAX, colour};
use super::wanted::Buffers;
use crate::error::PlatformError;
use crate::net::ahead::short_staged;
use crate::net::features::BackFeatures;
use crate::net::front::queue_memory::{ACCESS, QueueMemory, RX, TX};
use crate::net::front::regions::{Granted, Granting, Region, Regions};
use crate::net::front::{FrontQueue, FrontVif};
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::{AnyFrontPath, FrontChain, FrontPath, PathName};
use crate::platform::{Access, Platform};
use crate::port::Source;
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::staging::{ENTRIES_PER_PAGE, StagingEntry};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The place of an absent buffer: beyond the end of any memory.
const NOWHERE: usize = usize::MAX / 2;

/// Buffers of one direction, and the list that tells the back of them.
pub struct StagingArea<P: Platform> {
    buffers: Granted<P>,
    list: Granted<P>,
    len: DataLen,
    /// By id: where the buffer starts in the region (no division on the data path).
    places: Box<[u32]>,
    first_slots: bool,
    /// No frame has several slots, and a buffer is as long as a slot.
    of_one_slot: bool,
    /// RX: the heads of longer frames are here. They may be, and are.
    may_rx_heads: bool,
    rx_heads: bool,
    /// There are more than slots need.
    rest: bool,
    /// The front wants to send received buffers on, and the back takes them.
    may_send_on: bool,
    sent_on: bool,
}

impl<P: Platform> StagingArea<P> {
    /// Grants `entries` buffers with access `acc` (read-only for TX), and writes their list, whose
    /// ids begin at `first_id`.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        acc: Access,
        len: DataLen,
        entries: u32,
        first_id: u16,
    ) -> Result<Self, PlatformError> {
        let per_page = len.buffers_in_page();
        let buffers = regions.take(p, acc, entries.div_ceil(per_page) as usize, Granting::Standing)?;
        let list_pages = (entries as usize).div_ceil(ENTRIES_PER_PAGE);
        let list = match regions.take(p, Access::ReadOnly, list_pages, Granting::Standing) {
            Ok(list) => list,
            Err(e) => {
                regions.put(p, buffers);
                return Err(e);
            }
        };
        let bytes = len.buffer_bytes() as u32;
        let places =
            (0..entries).map(|id| id / per_page * PAGE_SIZE as u32 + id % per_page * bytes).collect();
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

    /// The negotiated length.
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

    /// No frame is over several slots: where buffers have 4096 bytes, each is in one.
    pub fn set_no_sg(&mut self) {
        self.of_one_slot = self.is_page();
    }

    /// Whether a buffer has 4096 bytes, and longer frames go by grants.
    fn is_page(&self) -> bool {
        !self.len.copy_only() && usize::from(self.len.buffer_bytes()) == PAGE_SIZE
    }

    /// RX: whether heads of longer frames are here, as both ends must know.
    pub fn set_rx_heads(&mut self, both_know: bool) {
        self.rx_heads = both_know && !self.len.copy_only();
    }

    /// Bytes of shared memory that the buffers and their list take.
    pub fn memory_bytes(&self) -> usize {
        self.buffers.bytes().len() + self.list.bytes().len()
    }

    /// Buffers, and entries of the list.
    pub fn entries(&self) -> u32 {
        self.places.len() as u32
    }

    /// The buffers and their list, for [`Regions::put`].
    pub fn into_granted(self) -> [Granted<P>; 2] {
        [self.buffers, self.list]
    }
}

/// Staging buffers of a queue, and what its keys say of them.
pub(super) fn take_buffers<P: Platform>(
    asked: Buffers,
    queue: &mut QueueMemory<'_, P>,
) -> Result<Lists, PlatformError> {
    let (mut first_id, slots) = (0, queue.slots);
    let mut requests = [DataRequest::None, DataRequest::None];
    for (dir, len) in [(TX, asked.tx), (RX, asked.rx)] {
        let Some(len) = len else { continue };
        // Those that are sent on stay away until they are answered: as many as can be on TX.
        let spare = if dir == RX && asked.sent_on { first_id.min(slots[TX]) } else { 0 };
        let least = (slots[dir] + spare).min(LIST_ENTRIES_MAX as u32);
        let entries = asked.entries(len, least, queue.queues);
        let (p, regions) = (queue.p, &mut *queue.regions);
        let mut area = StagingArea::new(p, regions, ACCESS[dir], len, entries, first_id as u16)?;
        (area.may_send_on, area.rest) = (asked.sent_on, entries > least);
        area.may_rx_heads = dir == RX && asked.rx_heads;
        if !queue.sg[dir] {
            area.set_no_sg();
        }
        first_id = entries;
        requests[dir] = DataRequest::Keys(DataKeys { list_refs: area.list_refs().to_vec(), len });
        queue.chains[dir].insert(AnyFrontPath::Staging(area));
    }
    let [tx, rx] = requests;
    Ok(Lists { tx, rx })
}

impl<P: Platform> FrontChain<P> {
    /// Staging, where there is some, then pages; these may be missing where staging carries every
    /// frame.
    pub fn new(staging: Option<StagingArea<P>>, pages: Option<OrdinaryPages<P>>) -> Self {
        let mut chain = Self::default();
        let staging = staging.map(AnyFrontPath::Staging);
        staging.into_iter().chain(pages.map(AnyFrontPath::Copy)).for_each(|path| chain.insert(path));
        chain
    }

    /// The staging buffers.
    pub fn staging(&self) -> Option<&StagingArea<P>> {
        self.paths().iter().find_map(|path| match path {
            AnyFrontPath::Staging(area) => Some(area),
            _ => None,
        })
    }

    /// Its staging buffers and its pages, as two values.
    pub fn into_parts(self) -> (Option<StagingArea<P>>, Option<OrdinaryPages<P>>) {
        let (mut staging, mut pages) = (None, None);
        for path in self.into_paths() {
            match path {
                AnyFrontPath::Staging(area) => staging = Some(area),
                path => pages = path.into_pages().ok().or(pages),
            }
        }
        (staging, pages)
    }
}

impl<P: Platform> FrontQueue<P> {
    /// Bytes of a frame that fit a staging buffer, TX and RX; None: ordinary grants.
    pub fn staging_lens(&self) -> (Option<DataLen>, Option<DataLen>) {
        let of = |chain: &FrontChain<P>| chain.staging().map(StagingArea::data_len);
        (of(self.tx().chain()), of(self.rx().chain()))
    }

    /// Staging buffers, TX and RX; 0: ordinary grants.
    pub fn staging_buffers(&self) -> (u32, u32) {
        (self.tx().chain().buffers(), self.rx().chain().buffers())
    }
}

impl<P: Platform> FrontVif<P> {
    /// Whether the back accepted all staging lists of queue `i`;
    /// [`staging_lens`](FrontQueue::staging_lens) says which it did.
    pub fn staging_accepted(&self, i: usize) -> bool {
        self.queue(i).is_some_and(|q| {
            let Buffers { tx, rx, .. } = q.asked().staging;
            (tx, rx) != (None, None) && self.is_live() && q.staging_lens() == (tx, rx)
        })
    }
}

impl<P: Platform> FrontPath<P> for StagingArea<P> {
    const NAME: PathName = PathName::Staging;
    const GRANTS: bool = false;

    fn ids(&self) -> u32 {
        self.entries()
    }
    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        usize::from(self.len.buffer_bytes())
    }
    #[inline(always)]
    fn carries_all(&self) -> bool {
        self.len.copy_only() || self.of_one_slot
    }
    #[inline(always)]
    fn of_one_slot(&self) -> bool {
        self.of_one_slot
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.buffers.bytes()
    }
    #[inline(always)]
    fn start(&self, id: u16) -> usize {
        // One that goes on after the back's fault may ask for a slot whose buffer is gone: it is
        // nowhere, and a fault again.
        self.places.get(usize::from(id)).map_or(NOWHERE, |place| *place as usize)
    }
    /// Consecutive buffers start in different L1 sets where the frame leaves room for it.
    #[inline(always)]
    fn offset(&self, id: u16, len: usize) -> usize {
        colour(id, len, self.slot_bytes())
    }
    #[inline(always)]
    fn asked_bytes(&self) -> usize {
        short_staged(self.places.len())
    }
    /// 0 says that the bytes are in the buffer.
    #[inline(always)]
    fn grant(&mut self, _p: &P, _id: u16) -> Result<u32, PlatformError> {
        Ok(0)
    }
    #[inline(always)]
    fn takes_first(&self) -> bool {
        self.first_slots
    }
    #[inline(always)]
    fn holds_heads(&self) -> bool {
        self.rx_heads || self.first_slots
    }
    /// The grants describe the whole frame; its first N bytes are in the first id's buffer too, for
    /// a back that splits headers off (docs/protocol 3.3). Or they are there alone, if this path
    /// [takes them](FrontPath::takes_first).
    #[inline(always)]
    fn head(&mut self, id: u16, frame: &impl Source) {
        let to = self.bytes().piece_mut(self.start(id), frame.len().min(self.slot_bytes()));
        debug_assert!(to.is_some(), "a buffer lies in its region");
        if let Some(to) = to {
            frame.copy_to(0, to);
        }
    }
    fn is_offered(&self, back: &BackFeatures) -> bool {
        back.staging.sizes.contains(&self.len)
    }
    fn go_live(&mut self, back: &BackFeatures) {
        self.set_first_slots(back.staging.revision >= FIRST_SLOTS_SINCE);
        self.set_rx_heads(self.may_rx_heads && back.staging.rx_heads);
        self.sent_on = self.may_send_on && back.staging.revision >= SENT_ON_SINCE;
    }
    fn buffers(&self) -> u32 {
        self.entries()
    }
    fn buffers_rest(&self) -> bool {
        self.rest
    }
    fn is_sent_on(&self) -> bool {
        self.sent_on
    }
    fn into_memory(self) -> Vec<Granted<P>> {
        Vec::from(self.into_granted())
    }
}
