//! The platform of a guest's kernel: grants, event channels and the clock, behind C functions.
//!
//! A grant ends in one atomic step (docs/protocol 8.1); while the back maps the page, that fails,
//! and is tried again later. A front maps and copies no memory of its back.

use crate::channel::Channel;
use crate::shim;
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::time::Duration;
use pregrant::platform::{
    Access, Clock, CopyOp, Events, GrantOps, GrantPool, GrantTable, InUse, LocalBytes, MapError, NoMemory,
    PeerMem, Platform, ReadySet,
};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE, PlatformError};

const NO_MEMORY: i32 = 12;
const NOT_SUPPORTED: i32 = 95;

/// One device's view of the kernel.
pub struct Kernel {
    pub device: shim::Device,
}
// SAFETY: C locks what it has; the device outlives its front.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Memory that is granted to the backend.
pub struct Region {
    base: NonNull<u8>,
    pages: usize,
    pub refs: Vec<GrantRef>,
}
// SAFETY: the memory is the region's alone, whichever thread has it.
unsafe impl Send for Region {}
// SAFETY: pages of the kernel's until `release`; a region that is dropped without is leaked.
unsafe impl SharedBytes for Region {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
}

impl Region {
    /// Address of one of its pages.
    pub fn page(&self, page: usize) -> Result<*mut u8, PlatformError> {
        if page >= self.pages {
            return Err(PlatformError { op: "grant a page that is not there", code: 22 });
        }
        // SAFETY: inside the region.
        Ok(unsafe { self.base.as_ptr().add(page * PAGE_SIZE) })
    }

    /// Frees the pages. An error: some are still granted.
    pub fn free(self) -> Result<(), InUse<Self>> {
        if !self.refs.is_empty() {
            return Err(InUse(self));
        }
        // SAFETY: of `pages`, and no one uses it any more.
        unsafe { shim::pk_free_pages(self.base.as_ptr(), self.pages) };
        Ok(())
    }
}

impl Platform for Kernel {
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

impl Clock for Kernel {
    fn now_ns(&self) -> u64 {
        // SAFETY: it reads a clock.
        unsafe { shim::pk_now_ns() }
    }
}

/// Zeroed pages, and room for the references of their grants.
pub fn pages_to_grant(n: usize) -> Result<Region, PlatformError> {
    let mut refs = Vec::new();
    let no_room = |_| PlatformError { op: "allocate a list of grants", code: NO_MEMORY };
    refs.try_reserve_exact(n).map_err(no_room)?;
    Ok(Region { refs, ..pages(n)? })
}

/// Allocates zeroed pages.
pub fn pages(n: usize) -> Result<Region, PlatformError> {
    // SAFETY: null where there are none.
    let base = NonNull::new(unsafe { shim::pk_pages(n) });
    let base = base.ok_or(PlatformError { op: "allocate pages to grant", code: NO_MEMORY })?;
    Ok(Region { base, pages: n, refs: Vec::new() })
}

fn grant(to: DomId, region: &Region, page: usize, acc: Access) -> Result<GrantRef, PlatformError> {
    let at = region.page(page)?;
    // SAFETY: a page of ours.
    match unsafe { shim::pk_grant(to.0, at, acc == Access::ReadOnly) } {
        gref if gref > 0 => Ok(GrantRef(gref as u32)),
        code => Err(PlatformError { op: "grant a page", code: -code }),
    }
}

fn end(gref: GrantRef) -> bool {
    // SAFETY: a grant of ours, ended once, by the owner of its number.
    unsafe { shim::pk_grant_end(gref.0) }
}

// SAFETY: `pages` gives zeroed memory of its own; it is freed when every grant has ended.
unsafe impl GrantPool for Kernel {
    type Region = Region;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Region, PlatformError> {
        let mut region = pages_to_grant(refs.len())?;
        for (page, out) in refs.iter_mut().enumerate() {
            match grant(to, &region, page, acc) {
                Ok(gref) => {
                    *out = gref;
                    region.refs.push(gref);
                }
                Err(e) => {
                    let _ = self.release(region); // no peer has seen these
                    return Err(e);
                }
            }
        }
        Ok(region)
    }
    fn release(&self, mut region: Region) -> Result<(), InUse<Region>> {
        region.refs.retain(|gref| !end(*gref));
        region.free()
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Region>> {
        Some(self)
    }
}

impl GrantTable for Kernel {
    type Region = Region;
    fn pages(&self, n: usize) -> Result<Region, PlatformError> {
        pages(n)
    }
    fn grant(&self, to: DomId, region: &Region, page: usize, acc: Access) -> Result<GrantRef, PlatformError> {
        grant(to, region, page, acc)
    }
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        if end(gref) { Ok(()) } else { Err(InUse(gref)) }
    }
}

// SAFETY: it maps nothing.
unsafe impl PeerMem for Kernel {
    type Map = NoMemory;
    fn map(&self, _: DomId, _: &[GrantRef], _: Access) -> Result<NoMemory, MapError> {
        Err(MapError { index: None, status: GrantStatus::GENERAL_ERROR })
    }
    fn unmap(&self, done: &mut Vec<NoMemory>) {
        done.clear();
    }
    fn copy(&self, _: DomId, _: LocalBytes<'_>, _: &mut [CopyOp]) -> Result<(), PlatformError> {
        Err(PlatformError { op: "copy by grants in a front", code: NOT_SUPPORTED })
    }
    fn grant_ops(&self) -> GrantOps {
        GrantOps::default()
    }
}

impl Events for Kernel {
    type Chan = Channel;
    fn offer(&self, _: DomId) -> Result<(Channel, EvtchnPort), PlatformError> {
        let mut port = 0;
        // SAFETY: of this device, whose back it is for; null where there is none.
        let at = unsafe { shim::pk_channel_offer(self.device, &mut port) };
        let at = NonNull::new(at).ok_or(PlatformError { op: "offer an event channel", code: NO_MEMORY })?;
        let port = EvtchnPort(port);
        Ok((Channel::of(at, port), port))
    }
    fn bind(&self, _: DomId, _: EvtchnPort) -> Result<Channel, PlatformError> {
        Err(PlatformError { op: "bind an event channel in a front", code: NOT_SUPPORTED })
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
