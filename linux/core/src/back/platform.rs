//! The platform of a back in a kernel: pages of the guest are mapped or copied, its event channels
//! bound. A back grants nothing.
//!
//! Control may wait for a map, and have a range of several pages. What moves frames maps one page
//! at a time, of those that are ready, and never waits.

use super::shim::{self, Copies, Map as MapAt};
use crate::channel::Channel;
use crate::shim::{Device, pk_now_ns};
use alloc::vec::Vec;
use core::cell::Cell;
use core::ptr::NonNull;
use core::time::Duration;
use pregrant::burst_buffer::BurstBuffer;
use pregrant::memory;
use pregrant::platform::{
    Access, Clock, CopyOp, Events, GrantOps, GrantPool, GrantTable, InUse, LentCopies, LocalBytes, MapError,
    NoMemory, PeerMem, Platform, ReadySet,
};
use pregrant::port::{Burst, LentPiece};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE, PlatformError};

const NOT_SUPPORTED: i32 = 95;
/// Maps that are unmapped by one call: PREGRANT_UNMAPS.
const UNMAPS: usize = 16;

/// A handle of one device, for one user at a time.
pub struct Machine {
    pub device: Device,
    copies: Copies,
    ops: Cell<GrantOps>,
    /// It is control's, in process context.
    may_wait: bool,
}
// SAFETY: C locks what it has; the list of copies is this handle's alone, and the device outlives
// its back.
unsafe impl Send for Machine {}

impl Machine {
    /// A handle for control, or for what moves the frames of a queue.
    pub fn new(device: Device, may_wait: bool) -> Self {
        // SAFETY: it waits for memory.
        Self { device, copies: unsafe { shim::pk_copies_new() }, ops: Cell::default(), may_wait }
    }

    fn count(&self, add: impl FnOnce(&mut GrantOps)) {
        let mut ops = self.ops.get();
        add(&mut ops);
        self.ops.set(ops);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: of `new`, and freed here alone.
        unsafe { shim::pk_copies_free(self.copies) }
    }
}

/// Pages of the guest.
pub struct Map {
    at: NonNull<u8>,
    pages: usize,
    map: MapAt,
}
// SAFETY: C's functions take a map from any thread.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}
// SAFETY: the pages stay mapped until the drop.
unsafe impl SharedBytes for Map {
    fn base(&self) -> NonNull<u8> {
        self.at
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
}
impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the one owner's last word. It does not sleep.
        unsafe { shim::pk_unmap(self.map) }
    }
}

impl Platform for Machine {
    type Grants = Self;
    type Peer = Self;
    type Events = Self;
    type Clock = Self;
    fn domid(&self) -> DomId {
        DomId::SELF
    }
    fn grants(&self) -> &Self {
        self
    }
    fn peer(&self) -> &Self {
        self
    }
    fn events(&self) -> &Self {
        self
    }
    fn clock(&self) -> &Self {
        self
    }
}

impl Clock for Machine {
    fn now_ns(&self) -> u64 {
        // SAFETY: it reads a clock.
        unsafe { pk_now_ns() }
    }
}

// SAFETY: it gives no region.
unsafe impl GrantPool for Machine {
    type Region = NoMemory;
    fn alloc(&self, _: DomId, _: Access, _: &mut [GrantRef]) -> Result<NoMemory, PlatformError> {
        Err(PlatformError { op: "grant pages in a back", code: NOT_SUPPORTED })
    }
    fn release(&self, region: NoMemory) -> Result<(), InUse<NoMemory>> {
        match region {}
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = NoMemory>> {
        None
    }
}

/// True if an operation stays within the page and the local bytes.
#[inline(always)]
fn fits(op: &CopyOp, room: usize) -> bool {
    let (at, len) = (op.at as usize, usize::from(op.len));
    usize::from(op.offset) + len <= PAGE_SIZE && at <= room && len <= room - at
}

impl Machine {
    /// Copies between pages of domain `of` and the bytes at an address, of which `lent` are
    /// elsewhere.
    ///
    /// # Safety
    /// The bytes are there, and are the caller's; if they are to be written to, alone.
    unsafe fn copy_with(
        &self,
        of: DomId,
        (base, room): (*mut u8, usize),
        to_peer: bool,
        ops: &mut [CopyOp],
        lent: &[LentPiece<'_>],
    ) {
        for op in ops.iter_mut() {
            op.status = if fits(op, room) { GrantStatus::OKAY } else { GrantStatus::BAD_COPY_ARG };
        }
        let (copies, n, nr_lent) = (ops.as_mut_ptr(), ops.len(), lent.len());
        // SAFETY: C makes those that are OKAY, which are within the caller's bytes.
        let made =
            unsafe { shim::pk_copy(self.copies, of.0, base, to_peer, copies, n, lent.as_ptr(), nr_lent) };
        self.count(|count| count.copies += made as u64);
    }
}

impl LentCopies for Machine {
    fn copy_lent(&self, of: DomId, frames: &Burst<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        let bytes = (frames.bytes.as_ptr().cast_mut(), frames.bytes.len());
        // SAFETY: this call has the bytes, and they are only read.
        unsafe { self.copy_with(of, bytes, true, ops, frames.lent) };
        Ok(())
    }
}

// SAFETY: a map is one range, mapped until it is dropped.
unsafe impl PeerMem for Machine {
    type Map = Map;
    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<Map, MapError> {
        let (pages, readonly) = (refs.len(), acc == Access::ReadOnly);
        let (mut status, mut failed) = (0, 0);
        let (device, grefs, may_wait) = (self.device, refs.as_ptr().cast(), self.may_wait);
        // SAFETY: the references are read. Null, or pages that stay until `pk_unmap`.
        let map =
            unsafe { shim::pk_map(device, of.0, grefs, pages, readonly, may_wait, &mut status, &mut failed) };
        let error = MapError { index: Some(failed as usize), status: GrantStatus(status as i16) };
        if map.is_null() {
            return Err(error);
        }
        // SAFETY: a map that lives.
        let at = NonNull::new(unsafe { shim::pk_map_at(map) }).ok_or(error)?;
        self.count(|ops| ops.maps += pages as u64);
        Ok(Map { at, pages, map })
    }

    fn unmap(&self, done: &mut Vec<Map>) {
        self.count(|ops| ops.unmaps += done.iter().map(|map| map.pages as u64).sum::<u64>());
        for some in done.chunks(UNMAPS) {
            let mut maps = [core::ptr::null_mut(); UNMAPS];
            maps.iter_mut().zip(some).for_each(|(to, map)| *to = map.map);
            // SAFETY: they are forgotten below: it is the owners' last word.
            unsafe { shim::pk_unmap_several(maps.as_mut_ptr(), some.len()) };
        }
        done.drain(..).for_each(core::mem::forget);
    }

    fn copy(&self, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        let (base, room, to_peer) = match local {
            LocalBytes::FromPeer(bytes) => (bytes.as_mut_ptr(), bytes.len(), false),
            // It is only read.
            LocalBytes::ToPeer(bytes) => (bytes.as_ptr().cast_mut(), bytes.len(), true),
        };
        // SAFETY: this call has the bytes, and they are only read if the peer is written to.
        unsafe { self.copy_with(of, (base, room), to_peer, ops, &[]) };
        Ok(())
    }

    fn lent_copies(&self) -> Option<&dyn LentCopies> {
        Some(self)
    }

    fn burst_buffer(&self, bytes: usize) -> Result<BurstBuffer, PlatformError> {
        // SAFETY: it waits for memory.
        let at = unsafe { shim::pk_burst(bytes) };
        match NonNull::new(at) {
            // SAFETY: zeroed memory of its own, which its owner frees.
            Some(base) => Ok(unsafe { BurstBuffer::over(base, bytes, memory::boxed(BurstMemory(base))?) }),
            None => Err(memory::NO_MEMORY),
        }
    }

    fn grant_ops(&self) -> GrantOps {
        self.ops.get()
    }
}

/// The owner of a burst's memory.
struct BurstMemory(NonNull<u8>);
// SAFETY: it only frees.
unsafe impl Send for BurstMemory {}
// SAFETY: as above.
unsafe impl Sync for BurstMemory {}
impl Drop for BurstMemory {
    fn drop(&mut self) {
        // SAFETY: of `pk_burst`, and freed here alone.
        unsafe { shim::pk_burst_free(self.0.as_ptr()) }
    }
}

impl Events for Machine {
    type Chan = Channel;
    fn offer(&self, _: DomId) -> Result<(Channel, EvtchnPort), PlatformError> {
        Err(PlatformError { op: "offer an event channel in a back", code: NOT_SUPPORTED })
    }
    fn bind(&self, _: DomId, remote: EvtchnPort) -> Result<Channel, PlatformError> {
        let (mut port, mut code) = (0, 0);
        // SAFETY: of this device, whose front it is for; null where there is none.
        let at = unsafe { shim::pk_channel_bind(self.device, remote.0, &mut port, &mut code) };
        let at = NonNull::new(at).ok_or(PlatformError { op: "bind an event channel", code: -code })?;
        Ok(Channel::of(at, EvtchnPort(port)))
    }
    fn adopt(&self, chan: Channel) -> Result<Channel, PlatformError> {
        Ok(chan)
    }
    fn local(&self, chan: &Channel) -> EvtchnPort {
        chan.port()
    }
    #[inline(always)]
    fn notify(&self, chan: &Channel) {
        chan.notify();
    }
    #[inline(always)]
    fn unmask(&self, chan: &Channel) {
        chan.unmask(false);
    }
    fn unmask_spurious(&self, chan: &Channel) {
        chan.unmask(true);
    }
    fn wait(&self, ready: &mut ReadySet, _: Option<Duration>) {
        ready.ports.clear(); // interrupts wake, not this
    }
}
