//! A guest without an operating system: the calls that a unikernel or firmware must provide, and
//! the platform built on them.
//!
//! ```text
//!   yours:  Hypercalls   pages, the grant table's address, event channels, a clock      some 12 functions
//!   here:   BareMetal    Platform over them: grants of version 1 (docs/protocol 8.1), pools, single frames
//!   beside: xenstore::DomainRing, the way to xenstore
//! ```
//! It serves fronts only: it does not map or copy others' memory. Invariants: a page is zeroed
//! before it is granted; a grant ends by one compare-and-exchange of its flags and domid, only
//! while neither `reading` nor `writing` is set; pages that are still granted are never freed.
//!
//! What a peer may do: keep a page mapped, and so its memory; send events at any rate.
#![expect(unsafe_code, reason = "a guest's own pages and its grant table, where no operating system is")]

use super::{
    Access, Clock, CopyOp, Events, GrantOps, GrantPool, GrantTable, InUse, LocalBytes, MapError, NoMemory,
    PeerMem, Platform, ReadySet,
};
use crate::error::PlatformError;
use crate::shm::SharedBytes;
use crate::sync::Lock;
use crate::units::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use crate::wire::grant::{
    GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY, GTF_WRITING, GrantEntryV1, GrantStatus,
};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;

/// The services of Xen that a kernel offers to the platform. On several processors, each call may
/// come from any of them.
///
/// # Safety
/// For the implementor: [`pages`](Self::pages) gives memory that is mapped, page aligned, readable
/// and writable, and used by no one else until [`free`](Self::free) gets it back; frames
/// `frame(base)`, `frame(base) + 1` and so on are its pages. [`grant_table`](Self::grant_table) is
/// this domain's table of version 1, mapped for as long as the program runs, and no one else writes
/// to entries from [`GrantRef::FIRST_FREE`] on but Xen.
pub unsafe trait Hypercalls: Send + Sync + 'static {
    /// Allocates `count` contiguous pages. None: there is no memory left.
    fn pages(&self, count: usize) -> Option<NonNull<u8>>;
    /// Frees pages that [`pages`](Self::pages) allocated.
    fn free(&self, base: NonNull<u8>, count: usize);
    /// The guest's frame number of a page.
    fn frame(&self, page: NonNull<u8>) -> u32;
    /// The grant table (`GNTTABOP_setup_table` or `XENMAPSPACE_grant_table`) and the number of its
    /// entries, 512 per page.
    fn grant_table(&self) -> (NonNull<u8>, usize);
    /// Performs `EVTCHNOP_alloc_unbound`. An error is Xen's, as a positive errno.
    fn alloc_unbound(&self, to: DomId) -> Result<EvtchnPort, i32>;
    /// Performs `EVTCHNOP_bind_interdomain`. A front needs it only in tests.
    fn bind_interdomain(&self, to: DomId, port: EvtchnPort) -> Result<EvtchnPort, i32>;
    /// Performs `EVTCHNOP_close`.
    fn close(&self, port: EvtchnPort);
    /// Performs `EVTCHNOP_send`.
    fn send(&self, port: EvtchnPort);
    /// Appends the ports with an event, and masks each until [`unmask`](Self::unmask). It reads the
    /// pending bits of the shared info page, except for the channels of xenstore and the console.
    fn take(&self, into: &mut Vec<EvtchnPort>);
    /// Unmasks a port, and makes it pending again if an event came meanwhile.
    fn unmask(&self, port: EvtchnPort);
    /// Sleeps until an event of any channel is pending, including xenstore's, or `max` has passed
    /// (`SCHEDOP_block`, or `SCHEDOP_poll` with a timeout). It may return early, and may poll.
    fn block(&self, max: Option<Duration>);
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;
}

/// The platform of a guest without an operating system. A clone is the same domain on another
/// processor and shares everything, also events: only one thread at a time may wait.
pub struct BareMetal<H> {
    domid: DomId,
    shared: Arc<Shared<H>>,
}

struct Shared<H> {
    xen: H,
    /// Free entries of the grant table.
    free: Lock<Vec<GrantRef>>,
}

impl<H: Hypercalls> BareMetal<H> {
    /// Creates the platform for domain `domid`, whose number is at the relative xenstore path
    /// `domid`. Call it once: it owns all free entries of the grant table.
    pub fn new(domid: DomId, xen: H) -> Self {
        let (_, entries) = xen.grant_table();
        let free = (GrantRef::FIRST_FREE.0..entries as u32).rev().map(GrantRef).collect();
        Self { domid, shared: Arc::new(Shared { xen, free: Lock::new(free) }) }
    }

    /// The hypercalls that this platform is built on.
    pub fn xen(&self) -> &H {
        &self.shared.xen
    }
}

impl<H> Clone for BareMetal<H> {
    fn clone(&self) -> Self {
        Self { domid: self.domid, shared: Arc::clone(&self.shared) }
    }
}

impl<H: Hypercalls> Shared<H> {
    /// The two words of an entry: flags with domid, and the frame.
    fn entry(&self, gref: GrantRef) -> [&AtomicU32; 2] {
        let (table, entries) = self.xen.grant_table();
        assert!((gref.0 as usize) < entries, "grant reference {gref:?} of a table of {entries}");
        // SAFETY: an entry of the table, which the implementor of `Hypercalls` vouches for; two
        // aligned words that are only ever accessed as atomics here.
        unsafe {
            let entry = table.as_ptr().add(gref.0 as usize * GrantEntryV1::SIZE).cast();
            [AtomicU32::from_ptr(entry), AtomicU32::from_ptr(entry.add(1))]
        }
    }

    fn grant(&self, to: DomId, frame: u32, acc: Access) -> Result<GrantRef, PlatformError> {
        let none = PlatformError { op: "find a free entry in the grant table", code: 28 };
        let gref = self.free.lock().pop().ok_or(none)?;
        let readonly = if acc == Access::ReadOnly { GTF_READONLY } else { 0 };
        let flags = GTF_PERMIT_ACCESS | readonly;
        let [head, frame] = GrantEntryV1 { flags, domid: to.0, frame }.to_words();
        let [entry_head, entry_frame] = self.entry(gref);
        entry_frame.store(frame, Ordering::Relaxed);
        entry_head.store(head, Ordering::Release);
        Ok(gref)
    }

    /// Ends a grant. False: the peer uses the page.
    fn end(&self, gref: GrantRef) -> bool {
        let [head, _] = self.entry(gref);
        let mut seen = head.load(Ordering::Relaxed);
        while seen & u32::from(GTF_READING | GTF_WRITING) == 0 {
            match head.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => {
                    // The end of the grant comes before any further use of its page.
                    fence(Ordering::SeqCst);
                    self.free.lock().push(gref);
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Allocates zeroed pages that are not granted yet.
    fn region(self: &Arc<Self>, pages: usize) -> Result<BareRegion<H>, PlatformError> {
        let none = PlatformError { op: "allocate pages to grant", code: 12 };
        let base = Some(pages).filter(|n| *n > 0).and_then(|n| self.xen.pages(n)).ok_or(none)?;
        let region = BareRegion { of: Arc::clone(self), base, pages, refs: Vec::new() };
        region.zero();
        Ok(region)
    }
}

/// Pages of the guest, with their grants if [`GrantPool::alloc`] made them. A region that is
/// dropped instead of released stays granted, and its memory is lost.
pub struct BareRegion<H> {
    of: Arc<Shared<H>>,
    base: NonNull<u8>,
    pages: usize,
    refs: Vec<GrantRef>,
}

impl<H: Hypercalls> BareRegion<H> {
    fn frame(&self, page: usize) -> u32 {
        self.of.xen.frame(self.base) + page as u32
    }
}

// SAFETY: the region is the memory's only owner, and accesses are atomic or copies (`shm`).
unsafe impl<H: Hypercalls> Send for BareRegion<H> {}

// SAFETY: `pages` pages that `Hypercalls::pages` gave, freed in `release` alone, which takes the
// region; no reference to them is formed.
unsafe impl<H: Hypercalls> SharedBytes for BareRegion<H> {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
}

// SAFETY: as `Hypercalls::pages`: contiguous, aligned, used by nothing else; zeroed by `region`;
// freed only when every grant has ended.
unsafe impl<H: Hypercalls> GrantPool for BareMetal<H> {
    type Region = BareRegion<H>;

    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<BareRegion<H>, PlatformError> {
        let mut region = self.shared.region(refs.len())?;
        for (page, gref) in refs.iter_mut().enumerate() {
            match self.shared.grant(to, region.frame(page), acc) {
                Ok(granted) => {
                    *gref = granted;
                    region.refs.push(granted);
                }
                Err(e) => {
                    // No peer knows these grants, so they end at once.
                    let _ = self.release(region);
                    return Err(e);
                }
            }
        }
        Ok(region)
    }

    fn release(&self, mut region: BareRegion<H>) -> Result<(), InUse<BareRegion<H>>> {
        region.refs.retain(|gref| !self.shared.end(*gref));
        if !region.refs.is_empty() {
            return Err(InUse(region));
        }
        self.shared.xen.free(region.base, region.pages);
        Ok(())
    }

    fn per_frame(&self) -> Option<&dyn GrantTable<Region = BareRegion<H>>> {
        Some(self)
    }
}

impl<H: Hypercalls> GrantTable for BareMetal<H> {
    type Region = BareRegion<H>;

    fn pages(&self, pages: usize) -> Result<BareRegion<H>, PlatformError> {
        self.shared.region(pages)
    }
    fn grant(
        &self,
        to: DomId,
        region: &BareRegion<H>,
        page: usize,
        acc: Access,
    ) -> Result<GrantRef, PlatformError> {
        self.shared.grant(to, region.frame(page), acc)
    }
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        if self.shared.end(gref) { Ok(()) } else { Err(InUse(gref)) }
    }
}

// SAFETY: it gives no map.
unsafe impl<H: Hypercalls> PeerMem for BareMetal<H> {
    type Map = NoMemory;

    fn map(&self, _: DomId, _: &[GrantRef], _: Access) -> Result<NoMemory, MapError> {
        Err(MapError { index: None, status: GrantStatus::GENERAL_ERROR })
    }
    fn unmap(&self, _: &mut Vec<NoMemory>) {}
    fn copy(&self, _: DomId, _: LocalBytes<'_>, _: &mut [CopyOp]) -> Result<(), PlatformError> {
        Err(PlatformError {
            op: "copy grants of others on a platform for fronts",
            code: super::NOT_SUPPORTED,
        })
    }
    fn grant_ops(&self) -> GrantOps {
        GrantOps::default()
    }
}

/// One end of an event channel, which is closed on drop.
pub struct BareChan<H: Hypercalls> {
    of: Arc<Shared<H>>,
    port: EvtchnPort,
    bound_to: Option<(DomId, EvtchnPort)>,
}

impl<H: Hypercalls> Drop for BareChan<H> {
    fn drop(&mut self) {
        self.of.xen.close(self.port);
    }
}

impl<H: Hypercalls> Events for BareMetal<H> {
    type Chan = BareChan<H>;

    fn offer(&self, to: DomId) -> Result<(BareChan<H>, EvtchnPort), PlatformError> {
        let port = self.shared.xen.alloc_unbound(to);
        let port = port.map_err(|code| PlatformError { op: "allocate an event channel", code })?;
        Ok((BareChan { of: Arc::clone(&self.shared), port, bound_to: None }, port))
    }
    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<BareChan<H>, PlatformError> {
        let near = self.shared.xen.bind_interdomain(to, port);
        let near = near.map_err(|code| PlatformError { op: "bind to a peer's event channel", code })?;
        Ok(BareChan { of: Arc::clone(&self.shared), port: near, bound_to: Some((to, port)) })
    }
    fn adopt(&self, chan: BareChan<H>) -> Result<BareChan<H>, PlatformError> {
        let offered = PlatformError { op: "take over an event channel's end that was offered", code: 22 };
        let (to, port) = chan.bound_to.ok_or(offered)?;
        drop(chan);
        self.bind(to, port)
    }
    fn local(&self, chan: &BareChan<H>) -> EvtchnPort {
        chan.port
    }
    fn notify(&self, chan: &BareChan<H>) {
        self.shared.xen.send(chan.port);
    }
    fn unmask(&self, chan: &BareChan<H>) {
        self.shared.xen.unmask(chan.port);
    }
    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>) {
        ready.ports.clear();
        ready.others = false;
        self.shared.xen.take(&mut ready.ports);
        if ready.ports.is_empty() && max != Some(Duration::ZERO) {
            self.shared.xen.block(max);
            self.shared.xen.take(&mut ready.ports);
        }
    }
}

impl<H: Hypercalls> Clock for BareMetal<H> {
    fn now_ns(&self) -> u64 {
        self.shared.xen.now_ns()
    }
}

impl<H: Hypercalls> Platform for BareMetal<H> {
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
}
