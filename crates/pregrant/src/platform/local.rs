//! Xen within one process: domains are values, grants are a table behind a lock, memory is on the
//! heap.
//!
//! ```text
//!   LocalXen --domain(1)--> LocalDomain (Platform)        threads may be domains
//!            --domain(5)--> LocalDomain
//! ```
//!
//! It serves unit tests, Miri, fuzzing and examples: it needs nothing of an operating system but
//! threads, and is as strict as the loopback (wrong domain, read-only, double unmap, revoke while
//! mapped). A mapping is the granter's own memory, so there is one limit: a list of pages can be
//! mapped as one range only if the pages are adjacent, as those of one allocation are.
#![expect(unsafe_code, reason = "the allocation that stands for a domain's pages")]

use super::{
    Access, Clock, CopyOp, Events, GrantOps, GrantPool, GrantTable, InUse, LocalBytes, MapError, PeerMem,
    Platform, ReadySet,
};
use crate::error::PlatformError;
use crate::shm::{SharedBytes, copy_from_shared, copy_to_shared};
use crate::units::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use crate::wire::grant::GrantStatus;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;
use std::vec::Vec;

/// Counts of the whole machine since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LocalCounts {
    /// Grant copy operations.
    pub copies: u64,
    /// Pages mapped.
    pub maps: u64,
    /// Pages unmapped.
    pub unmaps: u64,
    /// Notifications sent.
    pub notifications: u64,
    /// Grants that exist now.
    pub grants: usize,
    /// Pages that are mapped now.
    pub mapped: usize,
    /// The most pages that were mapped at one time.
    pub most_mapped: usize,
    /// Channel ends that exist now.
    pub channels: usize,
    /// Maps of whole domains that exist now.
    pub wholes: usize,
}

impl LocalCounts {
    /// The operations since `before`, and the objects that exist now.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            copies: self.copies - before.copies,
            maps: self.maps - before.maps,
            unmaps: self.unmaps - before.unmaps,
            notifications: self.notifications - before.notifications,
            ..*self
        }
    }
}

/// A machine with its domains.
#[derive(Clone)]
pub struct LocalXen {
    state: Arc<(Mutex<State>, Condvar)>,
    start: Instant,
}

#[derive(Default)]
struct State {
    grants: HashMap<(DomId, GrantRef), Grant>,
    next_ref: HashMap<DomId, u32>,
    free_refs: HashMap<DomId, Vec<GrantRef>>,
    channels: HashMap<(DomId, EvtchnPort), Channel>,
    next_port: u32,
    handles: u32,
    /// The memory of domains with numbered frames.
    numbered: HashMap<DomId, Numbered>,
    /// Limits of the number of grants, by domain.
    grants_most: HashMap<DomId, usize>,
    counts: LocalCounts,
    /// Counts of each domain's first handle.
    ops: HashMap<DomId, Arc<HandleOps>>,
    /// Lists of earlier maps for reuse, so that mapping needs no allocation in the long run.
    spare: Vec<Vec<GrantRef>>,
    /// The time, if the clock was stopped.
    clock_ns: Option<u64>,
}

struct Grant {
    to: DomId,
    acc: Access,
    pages: Pages,
    mapped: u32,
}

/// The memory of a domain with numbered frames.
struct Numbered {
    pages: Pages,
    /// For each frame, whether a region has it.
    used: Vec<bool>,
    /// Frames from this one on were never part of a region.
    fresh: usize,
}

/// Frames of a numbered memory, which are freed on drop.
struct Frames {
    xen: LocalXen,
    domid: DomId,
    first: usize,
    count: usize,
}

impl Drop for Frames {
    fn drop(&mut self) {
        if let Some(memory) = self.xen.lock().numbered.get_mut(&self.domid) {
            memory.used[self.first..self.first + self.count].fill(false);
        }
    }
}

struct Channel {
    /// The handle that gets the events of this end.
    owner_handle: u32,
    remote_dom: DomId,
    remote: Option<EvtchnPort>,
    pending: bool,
    masked: bool,
}

/// A part of an allocation, which is freed with its last part.
#[derive(Clone)]
pub struct Pages {
    owner: Arc<Allocation>,
    first: usize,
    pages: usize,
}

struct Allocation {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory that is only touched through atomics and shm's copies.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `Pages::new` with this layout, and no `Pages` is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

impl Pages {
    /// Allocates zeroed pages.
    pub fn new(pages: usize) -> Pages {
        let layout =
            Layout::from_size_align(pages.max(1) * PAGE_SIZE, PAGE_SIZE).expect("a sane number of pages");
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory for a test");
        Pages { owner: Arc::new(Allocation { base, layout }), first: 0, pages }
    }

    fn page(&self, page: usize) -> Pages {
        assert!(page < self.pages);
        Pages { owner: self.owner.clone(), first: self.first + page, pages: 1 }
    }
}

// SAFETY: `first + pages` pages are inside the allocation, which `owner` keeps alive; no one forms
// references to it.
unsafe impl SharedBytes for Pages {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: inside the allocation.
        unsafe { self.owner.base.add(self.first * PAGE_SIZE) }
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
}

impl Default for LocalXen {
    fn default() -> Self {
        Self::new()
    }
}

impl LocalXen {
    /// Creates a machine without domains.
    pub fn new() -> Self {
        Self { state: Arc::default(), start: Instant::now() }
    }

    /// A handle of a domain. A second call with the same number returns a handle that works like a
    /// clone: both get the domain's events, except those of [another](Platform::another) handle's
    /// channels.
    pub fn domain(&self, domid: u16) -> LocalDomain {
        let ops = Arc::clone(self.lock().ops.entry(DomId(domid)).or_default());
        LocalDomain { xen: self.clone(), domid: DomId(domid), handle: 0, ops }
    }

    /// Counts of operations, and of the objects that exist now.
    pub fn counts(&self) -> LocalCounts {
        let s = self.lock();
        LocalCounts {
            grants: s.grants.len(),
            mapped: s.grants.values().map(|g| g.mapped as usize).sum(),
            channels: s.channels.len(),
            ..s.counts
        }
    }

    /// Gives a domain, once, a memory of this many numbered frames: from now on it allocates there,
    /// and a peer can map [all of it](PeerMem::whole). Without this, each allocation is separate,
    /// so that Miri finds accesses after its release.
    pub fn number_frames(&self, domid: DomId, frames: usize) {
        let memory = || Numbered { pages: Pages::new(frames), used: std::vec![false; frames], fresh: 0 };
        self.lock().numbered.entry(domid).or_insert_with(memory);
    }

    /// Limits the number of grants of a domain, including those that it has.
    pub fn limit_grants(&self, domid: DomId, most: usize) {
        self.lock().grants_most.insert(domid, most);
    }

    /// Stops the machine's clock at a time. Tests advance it by calling this again.
    pub fn stop_clock(&self, now_ns: u64) {
        self.lock().clock_ns = Some(now_ns);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // If a thread of a test panicked, the test has failed already.
        self.state.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// One domain of a [`LocalXen`], with all of a platform's services.
#[derive(Clone)]
pub struct LocalDomain {
    xen: LocalXen,
    domid: DomId,
    handle: u32,
    ops: Arc<HandleOps>,
}

/// Counts of the grant operations that were requested through one handle.
#[derive(Default)]
struct HandleOps {
    copies: AtomicU64,
    maps: AtomicU64,
    unmaps: AtomicU64,
}

impl Platform for LocalDomain {
    type Grants = Self;
    type Peer = Self;
    type Events = Self;
    type Clock = Self;
    fn domid(&self) -> DomId {
        self.domid
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
    fn another(&self) -> Result<Self, PlatformError> {
        let mut s = self.xen.lock();
        s.handles += 1;
        Ok(Self { handle: s.handles, ops: Arc::default(), ..self.clone() })
    }
}

impl Clock for LocalDomain {
    fn now_ns(&self) -> u64 {
        let stopped = self.xen.lock().clock_ns;
        stopped.unwrap_or_else(|| self.xen.start.elapsed().as_nanos() as u64)
    }
}

/// A region with its grants, if it has any.
#[derive(Clone)]
pub struct LocalRegion {
    pages: Pages,
    refs: Vec<GrantRef>,
    frames: Option<Arc<Frames>>,
}

// SAFETY: as `Pages`.
unsafe impl SharedBytes for LocalRegion {
    fn base(&self) -> NonNull<u8> {
        self.pages.base()
    }
    fn len(&self) -> usize {
        self.pages.len()
    }
}

impl LocalDomain {
    fn region(&self, count: usize) -> Result<LocalRegion, PlatformError> {
        let mut s = self.xen.lock();
        let Some(Numbered { pages, used, fresh }) = s.numbered.get_mut(&self.domid) else {
            drop(s);
            return Ok(LocalRegion { pages: Pages::new(count), refs: Vec::new(), frames: None });
        };
        let none = PlatformError { op: "find free neighbouring frames", code: 12 };
        let first = used.windows(count.max(1)).position(|run| !run.contains(&true)).ok_or(none)?;
        used[first..first + count].fill(true);
        let pages = Pages { owner: pages.owner.clone(), first, pages: count };
        if first < *fresh {
            pages.zero();
        }
        *fresh = first.max(*fresh).max(first + count);
        let frames = Frames { xen: self.xen.clone(), domid: self.domid, first, count };
        Ok(LocalRegion { pages, refs: Vec::new(), frames: Some(Arc::new(frames)) })
    }

    fn grant_page(
        &self,
        s: &mut State,
        to: DomId,
        pages: Pages,
        acc: Access,
    ) -> Result<GrantRef, PlatformError> {
        if let Some(&most) = s.grants_most.get(&self.domid)
            && s.grants.keys().filter(|(domid, _)| *domid == self.domid).count() >= most
        {
            return Err(PlatformError { op: "find a free entry in the grant table", code: 28 });
        }
        let gref = s.free_refs.entry(self.domid).or_default().pop().unwrap_or_else(|| {
            let next = s.next_ref.entry(self.domid).or_insert(GrantRef::FIRST_FREE.0);
            *next += 1;
            GrantRef(*next - 1)
        });
        s.grants.insert((self.domid, gref), Grant { to, acc, pages, mapped: 0 });
        Ok(gref)
    }

    fn end_grant(&self, s: &mut State, gref: GrantRef) -> bool {
        match s.grants.get(&(self.domid, gref)) {
            Some(g) if g.mapped > 0 => false,
            Some(_) => {
                s.grants.remove(&(self.domid, gref));
                s.free_refs.entry(self.domid).or_default().push(gref);
                true
            }
            None => true,
        }
    }

    /// Finds the grant `gref` of `of`, if this domain may use it in this way.
    fn find<'a>(
        &self,
        s: &'a mut State,
        of: DomId,
        gref: GrantRef,
        write: bool,
    ) -> Result<&'a mut Grant, GrantStatus> {
        match s.grants.get_mut(&(of, gref)) {
            None => Err(GrantStatus::BAD_GNTREF),
            Some(g) if g.to != self.domid => Err(GrantStatus::PERMISSION_DENIED),
            Some(g) if write && g.acc == Access::ReadOnly => Err(GrantStatus::PERMISSION_DENIED),
            Some(g) => Ok(g),
        }
    }
}

// SAFETY: `Pages::new` gives zeroed, aligned, contiguous memory of its own; `release` frees it only
// after all grants ended.
unsafe impl GrantPool for LocalDomain {
    type Region = LocalRegion;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<LocalRegion, PlatformError> {
        let region = self.region(refs.len())?;
        let mut s = self.xen.lock();
        for i in 0..refs.len() {
            match self.grant_page(&mut s, to, region.pages.page(i), acc) {
                Ok(gref) => refs[i] = gref,
                Err(e) => {
                    for gref in &refs[..i] {
                        let ended = self.end_grant(&mut s, *gref);
                        debug_assert!(ended, "no one knows of it");
                    }
                    drop(s); // the region's frames take the lock
                    return Err(e);
                }
            }
        }
        Ok(LocalRegion { refs: refs.to_vec(), ..region })
    }
    fn release(&self, mut region: LocalRegion) -> Result<(), InUse<LocalRegion>> {
        let mut s = self.xen.lock();
        region.refs.retain(|r| !self.end_grant(&mut s, *r));
        if region.refs.is_empty() { Ok(()) } else { Err(InUse(region)) }
    }
    fn first_frame(&self, region: &LocalRegion) -> Option<u32> {
        region.frames.as_ref().map(|frames| frames.first as u32)
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = LocalRegion>> {
        Some(self)
    }
}

impl GrantTable for LocalDomain {
    type Region = LocalRegion;
    fn pages(&self, pages: usize) -> Result<LocalRegion, PlatformError> {
        self.region(pages)
    }
    fn grant(
        &self,
        to: DomId,
        region: &LocalRegion,
        page: usize,
        acc: Access,
    ) -> Result<GrantRef, PlatformError> {
        self.grant_page(&mut self.xen.lock(), to, region.pages.page(page), acc)
    }
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        if self.end_grant(&mut self.xen.lock(), gref) { Ok(()) } else { Err(InUse(gref)) }
    }
}

/// Mapped pages of another domain.
pub struct LocalMap {
    by: LocalDomain,
    of: DomId,
    /// The first grant. None: the whole domain is mapped.
    first: Option<GrantRef>,
    /// The other grants.
    rest: Vec<GrantRef>,
    pages: Pages,
    write: bool,
}

// SAFETY: as `Pages`.
unsafe impl SharedBytes for LocalMap {
    fn base(&self) -> NonNull<u8> {
        self.pages.base()
    }
    fn len(&self) -> usize {
        self.pages.len()
    }
    fn is_writable(&self) -> bool {
        self.write
    }
}

impl Drop for LocalMap {
    fn drop(&mut self) {
        let mut s = self.by.xen.lock();
        let Some(first) = self.first else {
            s.counts.wholes -= 1;
            return;
        };
        for r in self.rest.iter().chain([&first]) {
            if let Some(g) = s.grants.get_mut(&(self.of, *r)) {
                g.mapped -= 1;
            }
        }
        s.counts.unmaps += 1 + self.rest.len() as u64;
        self.by.ops.unmaps.fetch_add(1 + self.rest.len() as u64, Ordering::Relaxed);
        let mut rest = core::mem::take(&mut self.rest);
        if rest.capacity() > 0 {
            rest.clear();
            s.spare.push(rest);
        }
    }
}

// SAFETY: a map's range is the granter's memory, kept alive by `Pages`; contiguity is checked.
unsafe impl PeerMem for LocalDomain {
    type Map = LocalMap;
    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<LocalMap, MapError> {
        let mut s = self.xen.lock();
        let mut whole: Option<Pages> = None;
        for (i, &r) in refs.iter().enumerate() {
            let fail = |status| MapError { index: Some(i), status };
            let g = self.find(&mut s, of, r, acc == Access::ReadWrite).map_err(fail)?;
            match &mut whole {
                None => whole = Some(g.pages.clone()),
                Some(w) if Arc::ptr_eq(&w.owner, &g.pages.owner) && w.first + w.pages == g.pages.first => {
                    w.pages += 1
                }
                Some(_) => return Err(fail(GrantStatus::GENERAL_ERROR)),
            }
        }
        let nothing = MapError { index: None, status: GrantStatus::GENERAL_ERROR };
        let (pages, (first, rest)) = whole.zip(refs.split_first()).ok_or(nothing)?;
        for r in refs {
            if let Some(g) = s.grants.get_mut(&(of, *r)) {
                g.mapped += 1;
            }
        }
        s.counts.maps += refs.len() as u64;
        self.ops.maps.fetch_add(refs.len() as u64, Ordering::Relaxed);
        s.counts.most_mapped = s.counts.most_mapped.max((s.counts.maps - s.counts.unmaps) as usize);
        let mut list = if rest.is_empty() { Vec::new() } else { s.spare.pop().unwrap_or_default() };
        list.extend_from_slice(rest);
        let write = acc == Access::ReadWrite;
        Ok(LocalMap { by: self.clone(), of, first: Some(*first), rest: list, pages, write })
    }
    fn whole(&self, of: DomId) -> Result<LocalMap, PlatformError> {
        let mut s = self.xen.lock();
        let none = PlatformError { op: "map a whole domain whose frames have no numbers", code: 95 };
        let pages = s.numbered.get(&of).ok_or(none)?.pages.clone();
        s.counts.wholes += 1;
        Ok(LocalMap { by: self.clone(), of, first: None, rest: Vec::new(), pages, write: true })
    }
    fn unmap(&self, done: &mut Vec<LocalMap>) {
        done.iter_mut().for_each(|map| map.by.ops = Arc::clone(&self.ops));
        done.clear();
    }
    fn grant_ops(&self) -> GrantOps {
        let HandleOps { copies, maps, unmaps } = &*self.ops;
        let [copies, maps, unmaps] = [copies, maps, unmaps].map(|n| n.load(Ordering::Relaxed));
        GrantOps { copies, maps, unmaps }
    }
    fn copy(&self, of: DomId, mut local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        let mut s = self.xen.lock();
        self.ops.copies.fetch_add(ops.len() as u64, Ordering::Relaxed);
        for op in ops {
            s.counts.copies += 1;
            let (at, len, offset) = (op.at as usize, op.len as usize, op.offset as usize);
            let room = match &local {
                LocalBytes::FromPeer(b) => b.len(),
                LocalBytes::ToPeer(b) => b.len(),
            };
            if offset + len > PAGE_SIZE || at > room || len > room - at {
                op.status = GrantStatus::BAD_COPY_ARG;
                continue;
            }
            if len == 0 {
                op.status = GrantStatus::OKAY; // Xen does not check the reference then (XSA-448)
                continue;
            }
            let g = match self.find(&mut s, of, op.gref, matches!(local, LocalBytes::ToPeer(_))) {
                Ok(g) => g,
                Err(status) => {
                    op.status = status;
                    continue;
                }
            };
            // SAFETY: `offset + len` stays in the page, `at + len` in the local bytes (both checked
            // above).
            unsafe {
                let shared = g.pages.base().as_ptr().add(offset);
                match &mut local {
                    LocalBytes::FromPeer(b) => copy_from_shared(shared, b.as_mut_ptr().add(at), len),
                    LocalBytes::ToPeer(b) => copy_to_shared(b.as_ptr().add(at), shared, len),
                }
            }
            op.status = GrantStatus::OKAY;
        }
        Ok(())
    }
}

/// One end of a channel.
pub struct LocalChan {
    by: LocalDomain,
    port: EvtchnPort,
    /// The peer's end; None if this end was offered.
    bound_to: Option<(DomId, EvtchnPort)>,
}

impl Drop for LocalChan {
    fn drop(&mut self) {
        let mut s = self.by.xen.lock();
        if let Some(c) = s.channels.remove(&(self.by.domid, self.port))
            && let Some(remote) = c.remote
            && let Some(peer) = s.channels.get_mut(&(c.remote_dom, remote))
        {
            peer.remote = None; // unbound, waiting for the closer's domid
        }
    }
}

impl Events for LocalDomain {
    type Chan = LocalChan;
    fn offer(&self, to: DomId) -> Result<(LocalChan, EvtchnPort), PlatformError> {
        let mut s = self.xen.lock();
        s.next_port += 1;
        let port = EvtchnPort(s.next_port);
        let owner_handle = self.handle;
        let chan = Channel { owner_handle, remote_dom: to, remote: None, pending: false, masked: false };
        s.channels.insert((self.domid, port), chan);
        Ok((LocalChan { by: self.clone(), port, bound_to: None }, port))
    }
    fn bind(&self, to: DomId, remote: EvtchnPort) -> Result<LocalChan, PlatformError> {
        let mut s = self.xen.lock();
        let port = EvtchnPort(s.next_port + 1);
        match s.channels.get_mut(&(to, remote)) {
            Some(c) if c.remote_dom == self.domid && c.remote.is_none() => c.remote = Some(port),
            _ => {
                return Err(PlatformError {
                    op: "bind an event channel that is not offered to us",
                    code: 22,
                });
            }
        }
        s.next_port += 1;
        let owner_handle = self.handle;
        let chan =
            Channel { owner_handle, remote_dom: to, remote: Some(remote), pending: true, masked: false };
        s.channels.insert((self.domid, port), chan);
        self.xen.state.1.notify_all();
        Ok(LocalChan { by: self.clone(), port, bound_to: Some((to, remote)) })
    }
    fn adopt(&self, chan: LocalChan) -> Result<LocalChan, PlatformError> {
        let op = "take over an event channel's end that was offered, not bound";
        let (to, remote) = chan.bound_to.ok_or(PlatformError { op, code: 22 })?;
        drop(chan);
        self.bind(to, remote)
    }
    fn local(&self, chan: &LocalChan) -> EvtchnPort {
        chan.port
    }
    fn notify(&self, chan: &LocalChan) {
        let mut s = self.xen.lock();
        s.counts.notifications += 1;
        let Some(c) = s.channels.get(&(self.domid, chan.port)) else { return };
        if let Some(remote) = c.remote {
            let key = (c.remote_dom, remote);
            if let Some(peer) = s.channels.get_mut(&key) {
                peer.pending = true;
                self.xen.state.1.notify_all();
            }
        }
    }
    fn unmask(&self, chan: &LocalChan) {
        if let Some(c) = self.xen.lock().channels.get_mut(&(self.domid, chan.port)) {
            c.masked = false;
        }
    }
    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>) {
        let until = max.map(|m| Instant::now() + m);
        ready.ports.clear();
        let mut s = self.xen.lock();
        loop {
            for ((dom, port), c) in s.channels.iter_mut() {
                if *dom == self.domid && c.owner_handle == self.handle && c.pending && !c.masked {
                    c.pending = false;
                    c.masked = true;
                    ready.ports.push(*port);
                }
            }
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            if !ready.ports.is_empty() || left == Some(Duration::ZERO) {
                return;
            }
            s = match left {
                Some(left) => {
                    self.xen.state.1.wait_timeout(s, left).map(|r| r.0).unwrap_or_else(|e| e.into_inner().0)
                }
                None => self.xen.state.1.wait(s).unwrap_or_else(|e| e.into_inner()),
            };
        }
    }
}
