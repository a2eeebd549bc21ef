//! The interface of a path at the back.
//!
//! ```text
//!   parts (validated) --begin--> IoMemory --fetch, a batch--> the disk, as long as it takes
//!                       the disk --> IoMemory --deliver, a batch--> end --settle: pages of ended requests are let go, together
//! ```
//! A path reads references and lengths only from the queue's private copies, and never touches the
//! ring. No answer is written before [`settle`](BackPath::settle), because a guest may end its
//! grants once it has its answer.

use super::path_name::PathName;
use crate::blk::disk::{IoMemory, MappedPiece};
use crate::platform::{Access, CopyOp, LocalBytes, PeerMem, Platform};
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::blkif::INDIRECT_PAGES_MAX;
use crate::wire::grant::GrantStatus;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The map of a platform.
pub type MapOf<P> = <<P as Platform>::Peer as PeerMem>::Map;

/// The direction of data, as the guest sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Data goes from the disk to the guest's pages.
    Read,
    /// Data goes from the guest's pages to the disk.
    Write,
}

impl Direction {
    /// The access to the guest's pages that a back needs.
    pub fn access(self) -> Access {
        match self {
            Self::Read => Access::ReadWrite,
            Self::Write => Access::ReadOnly,
        }
    }
}

/// A segment: a part of a guest's page, with `at + len <= 4096`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Grant reference of the page.
    pub gref: GrantRef,
    /// Offset of the segment's first byte in the page.
    pub at: u16,
    /// Number of bytes, at least 512.
    pub len: u16,
}

/// A request's memory, while the data of its batch is copied between that memory and the guest's
/// pages.
#[derive(Debug)]
pub struct PageTransfer {
    /// The request's slot in its queue.
    pub place: u32,
    /// The direction.
    pub way: Direction,
    /// The memory of the request's data.
    pub memory: IoMemory,
    /// Whether all pages could be accessed.
    pub good: bool,
}

/// What a path holds for one request, from [`begin`](BackPath::begin) to [`end`](BackPath::end).
pub struct Held<P: Platform> {
    /// Pages mapped for this request alone; entries after the first `nr_maps` are empty, for reuse.
    pub(super) maps: Vec<Arc<Option<MapOf<P>>>>,
    /// Number of maps.
    pub(super) nr_maps: usize,
    /// Number of pages of these maps that count as [mapped alone](super::request_pages).
    pub(super) alone: usize,
    /// Whether the request's data is copied, instead of its pages being mapped.
    pub(super) copied: bool,
    /// References of stored pages that must not be purged while the request uses them; a page used
    /// twice is listed twice.
    pub(super) kept: Vec<GrantRef>,
    /// An empty list of fragments, for the next request.
    pub(super) spare: Vec<MappedPiece>,
}

impl<P: Platform> Default for Held<P> {
    fn default() -> Self {
        Self { maps: Vec::new(), nr_maps: 0, alone: 0, copied: false, kept: Vec::new(), spare: Vec::new() }
    }
}

/// A path, for one queue.
pub trait BackPath<P: Platform> {
    /// The path's name in keys, tables and records.
    const NAME: PathName;

    /// Copies the pages of a segment list, 4096 bytes of each but the last, to `out`, once: the
    /// copy is what is validated. False: a page cannot be accessed.
    fn read_list(&mut self, p: &P, of: DomId, refs: &[u32], out: &mut [u8]) -> bool {
        copy_list(p, of, refs, out)
    }
    /// Prepares the memory for a request's data. None: a page cannot be accessed, and nothing is
    /// held.
    fn begin(
        &mut self,
        p: &P,
        of: DomId,
        way: Direction,
        parts: &[Part],
        held: &mut Held<P>,
    ) -> Option<IoMemory>;
    /// Fetches the data of a batch of requests that have started: afterwards the good ones with
    /// [`Direction::Write`] have their data. `parts` returns the segments of a request by its slot.
    fn fetch<'a>(&mut self, p: &P, of: DomId, batch: &mut [PageTransfer], parts: impl Fn(u32) -> &'a [Part]) {
        let _ = (p, of, batch, parts);
    }
    /// Delivers the data of a batch of requests that the disk has completed: afterwards the guest
    /// has the data that was read, for the good ones.
    fn deliver<'a>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        let _ = (p, of, batch, parts);
    }
    /// Takes back what a request held that has ended.
    fn end(&mut self, memory: IoMemory, held: &mut Held<P>);
    /// Unmaps the pages of requests that have ended or could not begin.
    fn settle(&mut self, p: &P) {
        let _ = p;
    }
    /// Number of pages that the path keeps mapped. None: it never keeps any.
    fn pages(&self) -> Option<usize> {
        None
    }
    /// Sets the most pages that the path keeps mapped, unmapping those in excess, and the most
    /// pages mapped at a time for single requests (`alone`).
    fn limit_pages(&mut self, p: &P, pages: usize, alone: usize) {
        let _ = (p, pages, alone);
    }
    /// Number of times there was no room for a page among those kept mapped.
    fn overflows(&self) -> u64 {
        0
    }
}

/// Copies one batch. False: at least one operation failed.
pub(super) fn copy_all<P: Platform>(p: &P, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> bool {
    // An operation that a platform does not reach has failed.
    ops.iter_mut().for_each(|op| op.status = GrantStatus::GENERAL_ERROR);
    p.peer().copy(of, local, ops).is_ok() && ops.iter().all(|op| op.status.is_okay())
}

/// Implements [`BackPath::read_list`] by grant copy.
pub(super) fn copy_list<P: Platform>(p: &P, of: DomId, refs: &[u32], out: &mut [u8]) -> bool {
    let total = out.len();
    let op = |(k, &gref): (usize, &u32)| {
        let at = k * PAGE_SIZE;
        let len = total.saturating_sub(at).min(PAGE_SIZE) as u16;
        CopyOp { gref: GrantRef(gref), offset: 0, len, at: at as u32, status: GrantStatus::GENERAL_ERROR }
    };
    let mut ops = [CopyOp::NOTHING; INDIRECT_PAGES_MAX];
    let ops = &mut ops[..refs.len().min(INDIRECT_PAGES_MAX)];
    ops.iter_mut().zip(refs.iter().enumerate().map(op)).for_each(|(place, op)| *place = op);
    refs.len() <= INDIRECT_PAGES_MAX && copy_all(p, of, LocalBytes::FromPeer(out), ops)
}

/// Maps the pages of `parts`, as one range if the platform can, and adds their fragments. False: a
/// page cannot be accessed; what was mapped is in `held`.
pub(super) fn map_parts<P: Platform>(
    p: &P,
    of: DomId,
    acc: Access,
    (parts, refs): (&[Part], &mut Vec<GrantRef>),
    held: &mut Held<P>,
    pieces: &mut Vec<MappedPiece>,
) -> bool {
    refs.clear();
    refs.extend(parts.iter().map(|part| part.gref));
    if refs.len() > 1
        && let Ok(map) = p.peer().map(of, refs, acc)
    {
        let map = hold_map(map, held);
        let piece = |(k, part): (usize, &Part)| {
            let page = Arc::clone(&map);
            MappedPiece::new(page, k * PAGE_SIZE + usize::from(part.at), part.len.into())
        };
        let before = pieces.len();
        pieces.extend(parts.iter().enumerate().filter_map(piece));
        return pieces.len() - before == parts.len();
    }
    // One of them is bad, or the platform maps only adjacent pages as one range: mapping each by
    // itself shows which.
    parts.iter().all(|part| {
        let Ok(map) = p.peer().map(of, &[part.gref], acc) else { return false };
        let map = hold_map(map, held);
        let piece = MappedPiece::new(map, part.at.into(), part.len.into());
        piece.map(|piece| pieces.push(piece)).is_some()
    })
}

/// Stores a map for a request, in the place of an earlier one if there is one.
fn hold_map<P: Platform>(map: MapOf<P>, held: &mut Held<P>) -> Arc<Option<MapOf<P>>> {
    let at = held.nr_maps;
    held.nr_maps += 1;
    match held.maps.get_mut(at) {
        Some(place) => match Arc::get_mut(place) {
            Some(empty) => *empty = Some(map),
            None => *place = Arc::new(Some(map)),
        },
        None => held.maps.push(Arc::new(Some(map))),
    }
    Arc::clone(&held.maps[at])
}

/// Takes back a request's memory from the disk, and moves the pages mapped for it to `done`.
pub(super) fn unhold<P: Platform>(memory: IoMemory, held: &mut Held<P>, done: &mut Vec<MapOf<P>>) {
    if let IoMemory::Mapped(mut pieces) = memory
        && pieces.capacity() > 0
    {
        pieces.clear();
        held.spare = pieces;
    }
    for place in &mut held.maps[..held.nr_maps] {
        match Arc::get_mut(place) {
            Some(map) => done.extend(map.take()),
            // Another owner still has it: it is unmapped when that owner drops it.
            None => *place = Arc::new(None),
        }
    }
    held.nr_maps = 0;
}
