//! Grant map and unmap for the backend.
#![expect(unsafe_code, reason = "the platform's traits")]

use crate::copy::{BUSY_TRIES, relax};
use crate::error::errno;
use crate::peer::Peer;
use crate::peer_mappings::Maps;
use crate::pins::PinError;
use crate::reach::Reach;
use crate::window::{FLUSH_PAGES, Stitched, Window};
use pregrant::platform::{Access, CopyBatch, CopyOp, GrantOps, LocalBytes, MapError, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PlatformError};
use pregrant_host::counters::Tally;
use pregrant_host::line_budget::LineBudget;
use pregrant_host::mapping::{Base, Mapping};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Mapped pages of another domain, which are unmapped on drop. [`PeerMem::unmap`] unmaps several at
/// once.
#[derive(Debug)]
pub struct PeerMap {
    peer: Arc<Peer>,
    base: Base,
    grefs: Grefs,
    write: bool,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// The mapping consists of pages of the peer's window, from this frame on.
    Window(u32),
    /// The mapping has its own range of addresses.
    Own(#[expect(dead_code, reason = "unmapped when it is dropped")] Stitched),
    /// The mapping has all memory of the domain, without a grant.
    Whole(Mapping),
    /// The pages are unmapped.
    Nowhere,
}

/// The grant references of a mapping. A mapping of one page needs no allocation.
#[derive(Debug)]
enum Grefs {
    Few(u8, [u32; 18]),
    Many(Box<[u32]>),
}

impl Grefs {
    fn new(refs: &[GrantRef]) -> Self {
        let mut few = [0; 18];
        match few.get_mut(..refs.len()) {
            Some(room) => {
                room.iter_mut().zip(refs).for_each(|(r, gref)| *r = gref.0);
                Self::Few(refs.len() as u8, few)
            }
            None => Self::Many(refs.iter().map(|gref| gref.0).collect()),
        }
    }
    fn as_slice(&self) -> &[u32] {
        match self {
            Self::Few(n, few) => &few[..usize::from(*n)],
            Self::Many(many) => many,
        }
    }
}

impl Maps {
    /// Records one more mapping of a grant. Returns its frame.
    fn pin(&mut self, peer: &Peer, gref: u32, write: bool) -> Result<u32, GrantStatus> {
        let count = self.mapped.get_mut(gref as usize).ok_or(GrantStatus::BAD_GNTREF)?;
        let count = &mut count[usize::from(write)];
        if *count > 0 {
            let more = count.checked_add(1).ok_or(GrantStatus::NO_SPACE)?;
            let frame = peer.ledger.frame(gref).load(Ordering::Relaxed);
            if frame as usize >= peer.ledger.layout().pages {
                return Err(GrantStatus::BAD_PAGE);
            }
            *count = more;
            return Ok(frame);
        }
        let frame = patiently(|| peer.granter().pin(gref, peer.core.user, write))?;
        *count = 1;
        Ok(frame)
    }

    fn unpin(&mut self, peer: &Peer, gref: u32, write: bool) {
        let Some(count) = self.mapped.get_mut(gref as usize) else { return };
        let count = &mut count[usize::from(write)];
        *count = count.saturating_sub(1);
        if *count == 0
            && let Err(status) = patiently(|| peer.granter().unpin(gref, peer.core.user, write))
        {
            // The broker undoes it when this process ends.
            LINES.warn(format_args!(
                "loopback: grant {gref} of {domid} stays in use: {status}",
                domid = peer.domid
            ));
        }
    }

    /// Makes adjacent pages accessible. Returns their address.
    fn show(&mut self, peer: &Peer, first: u32, count: usize, write: bool) -> Result<NonNull<u8>, Errno> {
        let core = &peer.core;
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(Window::open(peer.memory.as_fd(), peer.ledger.layout().pages, &core.paging)?),
        };
        window.show(first, count, write, &core.tally)?;
        Ok(window.address(first, write))
    }

    /// Makes the pages of `run` inaccessible with one TLB flush, then ends the use of their grants.
    /// `tally` is the calling handle's.
    fn hide(&mut self, peer: &Peer, run: &[PeerMap], tally: &Tally) {
        let Some(window) = &mut self.window else {
            return run.iter().for_each(|map| self.let_go(peer, map));
        };
        for map in run {
            if let Place::Window(first) = map.place {
                window.hide(first, map.pages(), map.write, &mut self.hidden);
            }
        }
        match self.hidden.flush(window.paging(), tally) {
            Ok(()) => run.iter().for_each(|map| self.let_go(peer, map)),
            // The pages may still be reachable, so the use of their grants must not end.
            Err(e) => LINES.warn(format_args!(
                "loopback: cannot unmap {pages} page(s), which stay granted: {e}",
                pages = run.iter().map(PeerMap::pages).sum::<usize>()
            )),
        }
    }

    fn let_go(&mut self, peer: &Peer, map: &PeerMap) {
        map.grefs.as_slice().iter().for_each(|gref| self.unpin(peer, *gref, map.write));
    }
}

fn patiently<T>(mut step: impl FnMut() -> Result<T, PinError>) -> Result<T, GrantStatus> {
    for tries in 0..BUSY_TRIES {
        match step() {
            Ok(done) => return Ok(done),
            Err(PinError::Status(status)) => return Err(status),
            Err(PinError::Busy) => relax(tries),
        }
    }
    Err(GrantStatus::EAGAIN)
}

// SAFETY: a map is a range of the peer's window or a range of its own, with the pages of the list,
// or all of the domain's, in their order; both live as long as the `PeerMap` (which holds the peer,
// and with it the window), and its pages show until `unmap` or drop.
unsafe impl PeerMem for Reach {
    type Map = PeerMap;

    #[inline(always)]
    fn grant_ops(&self) -> GrantOps {
        self.core.tally.grant_ops()
    }

    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<PeerMap, MapError> {
        let core = &self.core;
        let whole = |status| MapError { index: None, status };
        if refs.is_empty() {
            return Err(whole(GrantStatus::BAD_GNTREF));
        }
        let peer = Arc::clone(&*self.peer(of).map_err(|_| whole(GrantStatus::BAD_DOMAIN))?);
        let write = acc == Access::ReadWrite;
        let mut few = [0; 18];
        let mut many = Vec::new();
        let frames = match few.get_mut(..refs.len()) {
            Some(room) => room,
            None => {
                many.resize(refs.len(), 0);
                many.as_mut_slice()
            }
        };
        let mut maps = peer.maps();
        let undo = |maps: &mut Maps, n: usize| {
            refs[..n].iter().for_each(|gref| maps.unpin(&peer, gref.0, write));
        };
        for (i, gref) in refs.iter().enumerate() {
            match maps.pin(&peer, gref.0, write) {
                Ok(frame) => frames[i] = frame,
                Err(status) => {
                    undo(&mut maps, i);
                    return Err(MapError { index: Some(i), status });
                }
            }
        }
        let first = frames[0];
        let neighbours = frames.iter().zip(first..).all(|(f, want)| *f == want);
        let shown = if neighbours {
            maps.show(&peer, first, refs.len(), write).map(|base| (base, Place::Window(first)))
        } else {
            Stitched::open(peer.memory.as_fd(), frames, write, &core.tally).map(|s| (s.base.0, Place::Own(s)))
        };
        let (base, place) = shown.map_err(|e| {
            LINES.warn(format_args!("loopback: {} pages of {of} could not be mapped: {e}", refs.len()));
            undo(&mut maps, refs.len());
            whole(GrantStatus::GENERAL_ERROR)
        })?;
        drop(maps);
        core.tally.grant_maps.add(refs.len());
        Ok(PeerMap { peer, base: Base(base), grefs: Grefs::new(refs), write, place })
    }

    fn whole(&self, of: DomId) -> Result<PeerMap, PlatformError> {
        let failed = |e| errno("map all memory of a domain", e);
        let peer = Arc::clone(&*self.peer(of).map_err(failed)?);
        let memory = Mapping::new(&peer.memory, peer.ledger.layout().pages * PAGE_SIZE).map_err(failed)?;
        self.core.tally.syscalls.add(1);
        let base = Base(memory.base());
        Ok(PeerMap { peer, base, grefs: Grefs::new(&[]), write: true, place: Place::Whole(memory) })
    }

    fn unmap(&self, done: &mut Vec<PeerMap>) {
        unmap(&self.core.tally, done);
        done.clear();
    }

    fn copy(&self, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        let peer = match self.peer(of) {
            Ok(peer) => peer,
            Err(Errno::NOENT) => {
                ops.iter_mut().for_each(|op| op.status = GrantStatus::BAD_DOMAIN);
                return Ok(());
            }
            Err(e) => return Err(errno("reach the domain to copy from or to", e)),
        };
        self.copier.copy(&peer, local, ops);
        Ok(())
    }

    fn copy_each(&self, of: DomId, batches: &mut [CopyBatch<'_>]) -> Result<(), PlatformError> {
        let peer = match self.peer(of) {
            Ok(peer) => peer,
            Err(Errno::NOENT) => {
                let ops = batches.iter_mut().flat_map(|batch| batch.ops.iter_mut());
                ops.for_each(|op| op.status = GrantStatus::BAD_DOMAIN);
                return Ok(());
            }
            Err(e) => return Err(errno("reach the domain to copy from or to", e)),
        };
        self.copier.copy_each(&peer, batches);
        Ok(())
    }
}

/// Ends messages about accesses that no safe code can cause.
const REPORT: &str = "a bug in pregrant, please report it";

/// Limits the log lines, which guests that connect again and again could repeat without end.
static LINES: LineBudget = LineBudget::new();

/// Unmaps all maps; each flush covers one peer and at most about 32 pages.
fn unmap(tally: &Tally, mut maps: &mut [PeerMap]) {
    while let Some(first) = maps.first() {
        let (mut n, mut pages) = (0, 0);
        while pages < FLUSH_PAGES && maps.get(n).is_some_and(|map| Arc::ptr_eq(&map.peer, &first.peer)) {
            pages += maps[n].grefs.as_slice().len();
            n += 1;
        }
        let (run, rest) = maps.split_at_mut(n);
        unmap_run(tally, run, pages);
        maps = rest;
    }
}

fn unmap_run(tally: &Tally, run: &mut [PeerMap], pages: usize) {
    tally.grant_unmaps.add(pages);
    for map in run.iter_mut() {
        if let Place::Own(_) | Place::Whole(_) = map.place {
            tally.syscalls.add(1);
            map.place = Place::Nowhere; // unmaps, before the grants end
        }
    }
    if let Some(PeerMap { peer, .. }) = run.first() {
        peer.maps().hide(peer, run, tally);
    }
    run.iter_mut().for_each(|map| map.place = Place::Nowhere);
}

impl PeerMap {
    fn pages(&self) -> usize {
        match &self.place {
            Place::Whole(memory) => memory.len() / PAGE_SIZE,
            _ => self.grefs.as_slice().len(),
        }
    }
}

impl Drop for PeerMap {
    fn drop(&mut self) {
        if !matches!(self.place, Place::Nowhere) {
            // Count it for the handle that made the map: the thread that drops it may have no
            // handle.
            let peer = Arc::clone(&self.peer);
            unmap(&peer.core.tally, std::slice::from_mut(self));
        }
    }
}

// SAFETY: `base` starts `pages` pages that show until the map is hidden, which takes the value
// itself or `&mut` to it from `unmap`, which drops it; moving the value moves no page. Writable
// unless it was mapped read-only, which `is_writable` says.
unsafe impl SharedBytes for PeerMap {
    fn base(&self) -> NonNull<u8> {
        self.base.0
    }
    fn len(&self) -> usize {
        self.pages() * PAGE_SIZE
    }
    #[inline(always)]
    fn is_writable(&self) -> bool {
        self.write
    }
    fn store_refused(&self) {
        let (pages, domid) = (self.pages(), self.peer.domid);
        LINES.warn(format_args!(
            "loopback: refused a write to {pages} page(s) of {domid} that are mapped read-only; {REPORT}"
        ));
    }
}
