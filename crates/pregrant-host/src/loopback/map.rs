//! Grant map and unmap for the backend.

use super::copy::{BUSY_TRIES, relax};
use super::peer::Peer;
use super::pins::{PinError, User};
use super::window::{FLUSH_PAGES, Hidden, Stitched};
use super::{Core, copy};
use crate::counters::add;
use crate::line_budget::LineBudget;
use pregrant::platform::{Access, CopyOp, GrantOps, LocalBytes, MapError, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PlatformError};
use rustix::fd::AsFd;
use std::ptr::NonNull;
use std::rc::Rc;

/// Other domains' memory.
#[derive(Debug)]
pub struct LoopbackPeer(pub(super) Rc<Core>);

/// Mapped pages of another domain; unmapped on drop. Batches go through [`PeerMem::unmap`].
#[derive(Debug)]
pub struct PeerMap {
    core: Rc<Core>,
    peer: Rc<Peer>,
    base: NonNull<u8>,
    grefs: Grefs,
    write: bool,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Pages of the window from this frame on.
    Window(u32),
    /// A range of its own.
    Own(Stitched),
    /// Unmapped already.
    Nowhere,
}

/// References of a mapping; those of one frame need no allocation.
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

impl Peer {
    /// Takes a grant into use for one more mapping. Returns its frame.
    fn pin(&self, gref: u32, user: User, write: bool) -> Result<u32, GrantStatus> {
        let mut mapped = self.mapped.borrow_mut();
        let count = mapped.get_mut(gref as usize).ok_or(GrantStatus::BAD_GNTREF)?;
        let count = &mut count[usize::from(write)];
        if *count > 0 {
            let more = count.checked_add(1).ok_or(GrantStatus::NO_SPACE)?;
            let frame = self.ledger.frame(gref).load(std::sync::atomic::Ordering::Relaxed);
            if frame as usize >= self.ledger.layout().pages {
                return Err(GrantStatus::BAD_PAGE);
            }
            *count = more;
            return Ok(frame);
        }
        let frame = patiently(|| self.granter().pin(gref, user, write))?;
        *count = 1;
        Ok(frame)
    }

    fn unpin(&self, gref: u32, user: User, write: bool) {
        let mut mapped = self.mapped.borrow_mut();
        let Some(count) = mapped.get_mut(gref as usize) else { return };
        let count = &mut count[usize::from(write)];
        *count = count.saturating_sub(1);
        if *count == 0
            && let Err(status) = patiently(|| self.granter().unpin(gref, user, write))
        {
            // The broker undoes it when this process ends.
            LINES.warn(format_args!("loopback: gref {gref} of {} stays in use: {}", self.domid, status));
        }
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

// SAFETY: a map is a range of the peer's window or a range of its own, with the pages of the list in their order; both
// live as long as the `PeerMap` (which holds the peer, and with it the window), and its pages show until `unmap` or drop.
unsafe impl PeerMem for LoopbackPeer {
    type Map = PeerMap;

    #[inline(always)]
    fn grant_ops(&self) -> GrantOps {
        self.0.tally.grant_ops()
    }

    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<PeerMap, MapError> {
        let core = &self.0;
        let whole = |status| MapError { index: None, status };
        if refs.is_empty() {
            return Err(whole(GrantStatus::BAD_GNTREF));
        }
        let peer = core.peer(of).map_err(|_| whole(GrantStatus::BAD_DOMAIN))?;
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
        let undo = |n: usize| refs[..n].iter().for_each(|r| peer.unpin(r.0, core.user, write));
        for (i, gref) in refs.iter().enumerate() {
            match peer.pin(gref.0, core.user, write) {
                Ok(frame) => frames[i] = frame,
                Err(status) => {
                    undo(i);
                    return Err(MapError { index: Some(i), status });
                }
            }
        }
        let first = frames[0];
        let neighbours = frames.iter().zip(first..).all(|(f, want)| *f == want);
        let shown = if neighbours {
            peer.window(core).and_then(|window| {
                window.show(first, refs.len(), write, &core.tally)?;
                Ok((window.address(first, write), Place::Window(first)))
            })
        } else {
            Stitched::open(peer.memory.as_fd(), frames, write, &core.tally).map(|s| (s.base, Place::Own(s)))
        };
        let (base, place) = shown.map_err(|e| {
            LINES.warn(format_args!("loopback: {} pages of {of} could not be mapped: {e}", refs.len()));
            undo(refs.len());
            whole(GrantStatus::GENERAL_ERROR)
        })?;
        add(&core.tally.grant_maps, refs.len());
        let grefs = Grefs::new(refs);
        Ok(PeerMap { core: Rc::clone(core), peer, base, grefs, write, place })
    }

    fn unmap(&self, done: &mut Vec<PeerMap>) {
        unmap(&self.0, done);
        done.clear();
    }

    fn copy(&self, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        copy::copy(&self.0, of, local, ops)
    }
}

/// Of guests that come and go without end.
static LINES: LineBudget = LineBudget::new();

/// Hides the pages of all maps, a flush for each 32 pages, and lets the grants go after their flush.
fn unmap(core: &Core, maps: &mut [PeerMap]) {
    let mut hidden = core.hidden.borrow_mut();
    let (mut first, mut pages) = (0, 0);
    for i in 0..maps.len() {
        maps[i].hide(&mut hidden);
        pages += maps[i].pages();
        if pages < FLUSH_PAGES && i + 1 < maps.len() {
            continue;
        }
        match hidden.flush(&core.paging, &core.tally) {
            Ok(()) => maps[first..=i].iter().for_each(PeerMap::let_go),
            // The pages may still be reachable: their grants must not end.
            Err(e) => LINES
                .warn(format_args!("loopback: {pages} pages could not be unmapped and stay granted: {e}")),
        }
        (first, pages) = (i + 1, 0);
    }
}

impl PeerMap {
    fn pages(&self) -> usize {
        self.grefs.as_slice().len()
    }

    fn hide(&mut self, hidden: &mut Hidden) {
        add(&self.core.tally.grant_unmaps, self.pages());
        match std::mem::replace(&mut self.place, Place::Nowhere) {
            Place::Window(first) => {
                if let Ok(window) = self.peer.window(&self.core) {
                    window.hide(first, self.pages(), self.write, hidden);
                }
            }
            Place::Own(stitched) => {
                add(&self.core.tally.syscalls, 1);
                drop(stitched);
            }
            Place::Nowhere => {}
        }
    }

    fn let_go(&self) {
        for gref in self.grefs.as_slice() {
            self.peer.unpin(*gref, self.core.user, self.write);
        }
    }
}

impl Drop for PeerMap {
    fn drop(&mut self) {
        if !matches!(self.place, Place::Nowhere) {
            let core = Rc::clone(&self.core);
            unmap(&core, std::slice::from_mut(self));
        }
    }
}

// SAFETY: `base` starts `pages` pages that show until the map is hidden, which takes the value itself or `&mut` to it
// from `unmap`, which drops it; moving the value moves no page. Writable unless it was mapped read-only.
unsafe impl SharedBytes for PeerMap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.pages() * PAGE_SIZE
    }
}
