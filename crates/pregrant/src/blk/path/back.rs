//! A path at the back.
//!
//! ```text
//!   parts (validated) --begin--> IoMemory --fetch, a batch--> the disk, as long as it takes
//!                       the disk --> IoMemory --deliver, a batch--> end --settle: pages of ended requests are let go, together
//! ```
//! A path reads references and lengths from the queue's private copies only. It never touches the
//! ring, and nothing is answered before [`settle`](BackPath::settle): a guest that has its answer
//! may end its grants.

use super::path_name::PathName;
use crate::blk::disk::{IoMemory, MappedPiece};
use crate::platform::{Access, CopyOp, LocalBytes, PeerMem, Platform};
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::blkif::INDIRECT_PAGES_MAX;
use crate::wire::grant::GrantStatus;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A platform's map.
pub type MapOf<P> = <<P as Platform>::Peer as PeerMem>::Map;

/// Which way the bytes go, as the guest sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the disk into the guest's pages.
    Read,
    /// From the guest's pages to the disk.
    Write,
}

impl Direction {
    /// The properties that a back needs of its pages.
    pub fn access(self) -> Access {
        match self {
            Self::Read => Access::ReadWrite,
            Self::Write => Access::ReadOnly,
        }
    }
}

/// One piece of a guest's page, within it: `at + len <= 4096`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The page.
    pub gref: GrantRef,
    /// First byte.
    pub at: u16,
    /// Bytes, at least 512.
    pub len: u16,
}

/// A request's memory, while the bytes of its batch go between that and its guest's pages.
#[derive(Debug)]
pub struct PageTransfer {
    /// The request's place in its queue.
    pub place: u32,
    /// Which way.
    pub way: Direction,
    /// The memory.
    pub memory: IoMemory,
    /// False: a page was not to be had.
    pub good: bool,
}

/// The state of a path for one request, from [`begin`](BackPath::begin) to [`end`](BackPath::end).
pub struct Held<P: Platform> {
    /// Mapped for it alone; those behind are empty, for the next request's.
    pub(super) maps: Vec<Arc<Option<MapOf<P>>>>,
    /// How many there are.
    pub(super) nr_maps: usize,
    /// Pages of those, as they [count](super::alone).
    pub(super) alone: usize,
    /// Its bytes are copied instead.
    pub(super) copied: bool,
    /// Pages of the store that are not to be purged meanwhile, as often as they are here.
    pub(super) kept: Vec<GrantRef>,
    /// For the next request's pieces.
    pub(super) spare: Vec<MappedPiece>,
}

impl<P: Platform> Default for Held<P> {
    fn default() -> Self {
        Self { maps: Vec::new(), nr_maps: 0, alone: 0, copied: false, kept: Vec::new(), spare: Vec::new() }
    }
}

/// A path, for one queue.
pub trait BackPath<P: Platform> {
    /// Its name in keys, tables and records.
    const NAME: PathName;

    /// Copies what the pages of a list begin with: 4096 bytes of each but the last. Once; what is
    /// validated is the copy. False: a page is not to be had.
    fn read_list(&mut self, p: &P, of: DomId, refs: &[u32], out: &mut [u8]) -> bool {
        copy_list(p, of, refs, out)
    }
    /// Makes memory for a request's bytes. None: a page is not to be had, and nothing is held.
    fn begin(
        &mut self,
        p: &P,
        of: DomId,
        way: Direction,
        parts: &[Part],
        held: &mut Held<P>,
    ) -> Option<IoMemory>;
    /// A batch of requests has started: after this those of [`Direction::Write`] have their bytes,
    /// those that are good. `parts` are a place's.
    fn fetch<'a>(&mut self, p: &P, of: DomId, batch: &mut [PageTransfer], parts: impl Fn(u32) -> &'a [Part]) {
        let _ = (p, of, batch, parts);
    }
    /// The disk has done a batch of requests: after this the guest has the bytes that were read, of
    /// those that are good.
    fn deliver<'a>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        let _ = (p, of, batch, parts);
    }
    /// A request is over: takes back what it held.
    fn end(&mut self, memory: IoMemory, held: &mut Held<P>);
    /// Lets go of what ended requests held, and those that could not begin.
    fn settle(&mut self, p: &P) {
        let _ = p;
    }
    /// Pages that it mapped since the connect and keeps; None: it never does.
    fn pages(&self) -> Option<usize> {
        None
    }
    /// How many that may be from now on, those that are too many are unmapped; and how many may be
    /// mapped at a time for single requests.
    fn limit_pages(&mut self, p: &P, pages: usize, alone: usize) {
        let _ = (p, pages, alone);
    }
    /// How often a page found no place among those.
    fn overflows(&self) -> u64 {
        0
    }
}

/// Copies one batch. False: one of it did not succeed.
pub(super) fn copy_all<P: Platform>(p: &P, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> bool {
    // One that a platform does not come to has not succeeded.
    ops.iter_mut().for_each(|op| op.status = GrantStatus::GENERAL_ERROR);
    p.peer().copy(of, local, ops).is_ok() && ops.iter().all(|op| op.status.is_okay())
}

/// [`BackPath::read_list`] by grant copy.
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

/// Maps the pages of `parts`, in one range where the platform can show them so, and adds their
/// pieces. False: a page is not to be had; what was mapped is in `held`.
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
    // One of them is bad, or a platform shows only neighbours as one range: each on its own says
    // which.
    parts.iter().all(|part| {
        let Ok(map) = p.peer().map(of, &[part.gref], acc) else { return false };
        let map = hold_map(map, held);
        let piece = MappedPiece::new(map, part.at.into(), part.len.into());
        piece.map(|piece| pieces.push(piece)).is_some()
    })
}

/// Keeps a map for a request, where an earlier one's was if there was one.
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

/// Takes back what the disk had, and moves what was mapped for this request to `done`.
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
            // Somebody else has it still: it is unmapped when that one lets go.
            None => *place = Arc::new(None),
        }
    }
    held.nr_maps = 0;
}
