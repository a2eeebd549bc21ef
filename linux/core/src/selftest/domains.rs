//! Two domains in the memory of one kernel: a grant is an entry of a table, and a mapping is the
//! granting domain's own memory. Event channels do nothing, since the test polls.

use crate::platform::{Region, pages, pages_to_grant};
use crate::shim;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use pregrant::platform::{
    Access, Clock, CopyOp, Events, GrantOps, GrantPool, GrantTable, InUse, LocalBytes, MapError, PeerMem,
    Platform, ReadySet,
};
use pregrant::shm::{SharedBytes, copy_from_shared, copy_to_shared};
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE, PlatformError};
use spin::Mutex;

/// Number of grant references that are reserved, as the first ones are in Xen.
const RESERVED: usize = 8;

struct Grant {
    page: usize,
    to: DomId,
    acc: Access,
    mapped: u32,
}

/// The grant table, which both domains share.
#[derive(Default)]
pub struct Table {
    grants: Vec<Option<Grant>>,
    free: Vec<u32>,
    ports: u32,
    ops: GrantOps,
}

impl Table {
    #[inline(never)]
    fn put(&mut self, g: Grant) -> GrantRef {
        if self.grants.len() < RESERVED {
            self.grants.resize_with(RESERVED, || None);
        }
        match self.free.pop() {
            Some(i) => {
                if let Some(place) = self.grants.get_mut(i as usize) {
                    *place = Some(g);
                }
                GrantRef(i)
            }
            None => {
                self.grants.push(Some(g));
                GrantRef(self.grants.len() as u32 - 1)
            }
        }
    }

    fn end(&mut self, r: GrantRef) -> bool {
        match self.grants.get_mut(r.0 as usize) {
            Some(Some(g)) if g.mapped > 0 => false,
            Some(g @ Some(_)) => {
                *g = None;
                self.free.push(r.0);
                true
            }
            _ => true,
        }
    }

    /// Finds a grant that domain `by` may use with this access.
    fn usable(&mut self, by: DomId, gref: GrantRef, write: bool) -> Result<&mut Grant, GrantStatus> {
        match self.grants.get_mut(gref.0 as usize) {
            Some(Some(g)) if g.to != by || write && g.acc == Access::ReadOnly => {
                Err(GrantStatus::PERMISSION_DENIED)
            }
            Some(Some(g)) => Ok(g),
            _ => Err(GrantStatus::BAD_GNTREF),
        }
    }

    /// The address of the page that a reference names.
    pub fn page(&mut self, gref: GrantRef) -> Option<&mut usize> {
        self.grants.get_mut(gref.0 as usize)?.as_mut().map(|grant| &mut grant.page)
    }

    /// Number of grants that have not ended.
    pub fn left(&self) -> usize {
        self.grants.iter().flatten().count()
    }

    /// Makes room for `grants` grants, so that a front never fails because of the test's own
    /// memory.
    pub fn make_room(&mut self, grants: usize) {
        self.grants.reserve(grants);
        self.free.reserve(grants);
    }

    /// Grant operations requested so far.
    pub fn ops(&self) -> GrantOps {
        self.ops
    }
}

/// One of the two domains.
#[derive(Clone)]
pub struct Domain {
    pub table: Arc<Mutex<Table>>,
    pub number: DomId,
}

impl Domain {
    /// Grants the page at this address, which belongs to no region, for reading.
    pub fn lend(&self, to: DomId, page: usize) -> GrantRef {
        self.table.lock().put(Grant { page, to, acc: Access::ReadOnly, mapped: 0 })
    }
}

/// The references of a mapping. A single one needs no memory: pages are mapped one by one while
/// frames are processed.
enum MappedRefs {
    One(GrantRef),
    Many(Vec<GrantRef>),
}

impl MappedRefs {
    fn of(refs: &[GrantRef]) -> Self {
        match refs {
            [one] => Self::One(*one),
            many => Self::Many(many.to_vec()),
        }
    }

    fn all(&self) -> &[GrantRef] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// A mapping of the other domain's memory.
pub struct Map {
    table: Arc<Mutex<Table>>,
    base: NonNull<u8>,
    refs: MappedRefs,
}
// SAFETY: it is used by one thread at a time.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}
// SAFETY: a region is not freed while one of its grants is mapped.
unsafe impl SharedBytes for Map {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.refs.all().len() * PAGE_SIZE
    }
}
impl Drop for Map {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        table.ops.unmaps += self.refs.all().len() as u64;
        for r in self.refs.all() {
            if let Some(Some(g)) = table.grants.get_mut(r.0 as usize) {
                g.mapped -= 1;
            }
        }
    }
}

impl Platform for Domain {
    type Grants = Self;
    type Peer = Self;
    type Events = Self;
    type Clock = Self;
    fn domid(&self) -> DomId {
        self.number
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

impl Clock for Domain {
    fn now_ns(&self) -> u64 {
        // SAFETY: it reads a clock.
        unsafe { shim::pk_now_ns() }
    }
}

// SAFETY: a region is zeroed memory of its own, freed when no grant of it is mapped.
unsafe impl GrantPool for Domain {
    type Region = Region;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Region, PlatformError> {
        let mut region = pages_to_grant(refs.len())?;
        for (k, r) in refs.iter_mut().enumerate() {
            match self.grant(to, &region, k, acc) {
                Ok(gref) => {
                    *r = gref;
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
        let mut table = self.table.lock();
        region.refs.retain(|r| !table.end(*r));
        region.free()
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Region>> {
        Some(self)
    }
}

impl GrantTable for Domain {
    type Region = Region;
    fn pages(&self, n: usize) -> Result<Region, PlatformError> {
        pages(n)
    }
    fn grant(&self, to: DomId, r: &Region, page: usize, acc: Access) -> Result<GrantRef, PlatformError> {
        // SAFETY: it counts.
        if !unsafe { shim::pk_may_allocate(shim::GRANT) } {
            return Err(PlatformError { op: "grant a page", code: 28 });
        }
        let page = r.page(page)? as usize;
        Ok(self.table.lock().put(Grant { page, to, acc, mapped: 0 }))
    }
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        if self.table.lock().end(gref) { Ok(()) } else { Err(InUse(gref)) }
    }
}

// SAFETY: a map is the granter's own range, which its mapped grants keep.
unsafe impl PeerMem for Domain {
    type Map = Map;
    fn map(&self, _: DomId, refs: &[GrantRef], acc: Access) -> Result<Map, MapError> {
        let mut table = self.table.lock();
        let mut first = 0;
        for (i, r) in refs.iter().enumerate() {
            let bad = |status| MapError { index: Some(i), status };
            let g = table.usable(self.number, *r, acc == Access::ReadWrite).map_err(bad)?;
            if i == 0 {
                first = g.page;
            } else if g.page != first + i * PAGE_SIZE {
                return Err(bad(GrantStatus::GENERAL_ERROR)); // pages that are not one range
            }
        }
        let none = MapError { index: None, status: GrantStatus::GENERAL_ERROR };
        let base = NonNull::new(first as *mut u8).ok_or(none)?;
        for r in refs {
            if let Some(Some(g)) = table.grants.get_mut(r.0 as usize) {
                g.mapped += 1;
            }
        }
        table.ops.maps += refs.len() as u64;
        Ok(Map { table: self.table.clone(), base, refs: MappedRefs::of(refs) })
    }
    fn unmap(&self, done: &mut Vec<Map>) {
        done.clear();
    }
    fn grant_ops(&self) -> GrantOps {
        self.table.lock().ops
    }
    fn copy(&self, _: DomId, mut local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        let mut table = self.table.lock();
        for op in ops {
            table.ops.copies += 1;
            let (at, len, offset) = (op.at as usize, op.len as usize, op.offset as usize);
            let room = match &local {
                LocalBytes::FromPeer(b) => b.len(),
                LocalBytes::ToPeer(b) => b.len(),
            };
            let write = matches!(local, LocalBytes::ToPeer(_));
            op.status = match table.usable(self.number, op.gref, write) {
                _ if offset + len > PAGE_SIZE || at > room || len > room - at => GrantStatus::BAD_COPY_ARG,
                Err(status) => status,
                Ok(g) => {
                    let shared = (g.page + offset) as *mut u8;
                    match &mut local {
                        // SAFETY: both are in their ranges (checked above), and are two.
                        LocalBytes::FromPeer(b) => unsafe {
                            copy_from_shared(shared, b.as_mut_ptr().add(at), len);
                        },
                        // SAFETY: as above.
                        LocalBytes::ToPeer(b) => unsafe { copy_to_shared(b.as_ptr().add(at), shared, len) },
                    }
                    GrantStatus::OKAY
                }
            };
        }
        Ok(())
    }
}

/// Number of event channels that were offered and are not closed. One vif is tested at a time.
pub static CHANNELS: AtomicU32 = AtomicU32::new(0);

/// An end of a channel.
pub struct Channel {
    port: EvtchnPort,
    is_offered: bool,
}
impl Drop for Channel {
    fn drop(&mut self) {
        CHANNELS.fetch_sub(self.is_offered.into(), Ordering::Relaxed);
    }
}

impl Events for Domain {
    type Chan = Channel;
    fn offer(&self, _: DomId) -> Result<(Channel, EvtchnPort), PlatformError> {
        // SAFETY: it counts.
        if !unsafe { shim::pk_may_allocate(shim::CHANNEL) } {
            return Err(PlatformError { op: "offer an event channel", code: 28 });
        }
        let mut table = self.table.lock();
        table.ports += 1;
        CHANNELS.fetch_add(1, Ordering::Relaxed);
        let port = EvtchnPort(table.ports);
        Ok((Channel { port, is_offered: true }, port))
    }
    fn bind(&self, _: DomId, port: EvtchnPort) -> Result<Channel, PlatformError> {
        Ok(Channel { port, is_offered: false })
    }
    fn adopt(&self, chan: Channel) -> Result<Channel, PlatformError> {
        Ok(chan)
    }
    fn local(&self, chan: &Channel) -> EvtchnPort {
        chan.port
    }
    fn notify(&self, _: &Channel) {}
    fn unmask(&self, _: &Channel) {}
    fn wait(&self, ready: &mut ReadySet, _: Option<Duration>) {
        ready.ports.clear();
    }
}
