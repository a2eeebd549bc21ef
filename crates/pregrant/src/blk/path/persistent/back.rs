//! `persistent` at the back: pages are mapped when they are first seen, and stay mapped.
//!
//! Invariants: a page is held from a request's begin to its end, and never purged meanwhile; no
//! more pages are kept than the limit allows, except that pages which were held when the limit was
//! lowered are unmapped as soon as they are no longer held. A page that finds no place is mapped
//! for its request alone; if [no more pages may be mapped](crate::blk::path), that request is
//! copied. A full store unmaps [one page in `PURGE_PART`](PURGE_PART), the least recently used
//! ones, at most once in [`PURGE_EACH_NS`].
//!
//! What a front may do: name more pages than the store takes (each costs the front a map and an
//! unmap, as with `map`), or pages that cannot be mapped (the request fails), or grant a page
//! read-only (the page is mapped read-only, for writes to the disk, and not kept).

use crate::blk::disk::{IoMemory, MappedPiece};
use crate::blk::path::back::{
    BackPath, Direction, Held, MapOf, PageTransfer, Part, copy_list, map_parts, unhold,
};
use crate::blk::path::path_name::PathName;
use crate::blk::path::request_pages::RequestPages;
use crate::error::PlatformError;
use crate::grants::MappedPages;
use crate::platform::{Access, Clock, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A purge unmaps one page in this many: 5 %, as Linux's does.
pub const PURGE_PART: usize = 20;
/// Nanoseconds between two purges; the interval at which Linux checks.
pub const PURGE_EACH_NS: u64 = 100_000_000;

/// The pages of one queue that are kept mapped.
pub struct PersistentPath<P: Platform> {
    store: MappedPages<Arc<MapOf<P>>>,
    done: Vec<MapOf<P>>,
    /// Segments of the current request whose pages are not in the store.
    missing: Vec<Part>,
    /// For each segment, whether it is among the missing ones.
    is_missing: Vec<bool>,
    /// Fragments and references of the missing segments.
    others: Vec<MappedPiece>,
    refs: Vec<GrantRef>,
    overflows: u64,
    alone: RequestPages,
    /// There was no room for a page since the last purge.
    full: bool,
    purged_ns: Option<u64>,
}

impl<P: Platform> PersistentPath<P> {
    /// Keeps at most `limit` pages.
    pub fn new(limit: usize) -> Result<Self, PlatformError> {
        Ok(Self {
            store: MappedPages::new(limit)?,
            done: Vec::new(),
            missing: Vec::new(),
            is_missing: Vec::new(),
            others: Vec::new(),
            refs: Vec::new(),
            overflows: 0,
            alone: RequestPages::default(),
            full: false,
            purged_ns: None,
        })
    }

    /// Maps a page and keeps it, if there is room and it can be mapped.
    fn keep(&mut self, p: &P, of: DomId, gref: GrantRef) -> bool {
        // Checked first: a page that is mapped and then finds no room would count for nothing.
        if !self.store.has_place(gref) {
            self.overflows += 1;
            // If only its hash bucket was full, a purge would not help.
            self.full |= self.store.len() >= self.store.limit();
            return false;
        }
        let Ok(map) = p.peer().map(of, &[gref], Access::ReadWrite) else { return false };
        match self.store.insert(gref, Arc::new(map)) {
            Ok(()) => self.store.hold(gref),
            Err(map) => {
                self.done.extend(Arc::into_inner(map));
                false
            }
        }
    }

    fn let_go(&mut self, unused: Vec<Arc<MapOf<P>>>) {
        self.done.extend(unused.into_iter().filter_map(Arc::into_inner));
    }

    fn release(&mut self, memory: IoMemory, held: &mut Held<P>) {
        let memory = self.alone.end(memory, held);
        unhold(memory, held, &mut self.done);
        held.kept.drain(..).for_each(|gref| self.store.release(gref));
    }
}

impl<P: Platform> BackPath<P> for PersistentPath<P> {
    const NAME: PathName = PathName::Persistent;

    fn read_list(&mut self, p: &P, of: DomId, refs: &[u32], out: &mut [u8]) -> bool {
        let mut pages = refs.iter().zip(out.chunks(PAGE_SIZE));
        if !pages.all(|(&gref, _)| self.store.has(GrantRef(gref))) {
            refs.iter().for_each(|&gref| self.store.want(GrantRef(gref)));
            self.store.map_wanted(|gref| p.peer().map(of, &[gref], Access::ReadWrite).ok().map(Arc::new));
            return copy_list(p, of, refs, out);
        }
        let mut pages = refs.iter().zip(out.chunks_mut(PAGE_SIZE));
        pages.all(|(&gref, out)| self.store.find(GrantRef(gref)).is_some_and(|page| page.copy_out(0, out)))
    }

    fn begin(
        &mut self,
        p: &P,
        of: DomId,
        way: Direction,
        parts: &[Part],
        held: &mut Held<P>,
    ) -> Option<IoMemory> {
        self.store.begin_batch();
        self.missing.clear();
        self.is_missing.clear();
        for part in parts {
            let is_there = self.store.hold(part.gref) || self.keep(p, of, part.gref);
            self.is_missing.push(!is_there);
            if is_there {
                held.kept.push(part.gref);
            } else {
                self.missing.push(*part);
            }
        }
        if !self.missing.is_empty() && !self.alone.takes(self.missing.len(), held) {
            self.release(IoMemory::default(), held);
            return self.alone.begin_copy(p, of, way, parts, held);
        }
        let mut pieces = core::mem::take(&mut held.spare);
        let Self { store, missing, others, refs, .. } = self;
        let acc = way.access();
        let mut there = missing.is_empty() || map_parts(p, of, acc, (missing, refs), held, others);
        let mut others = others.drain(..);
        for (part, is_missing) in parts.iter().zip(&self.is_missing) {
            if !there {
                break;
            }
            let piece = if *is_missing {
                others.next()
            } else {
                let page = store.find(part.gref).map(Arc::clone);
                page.and_then(|page| MappedPiece::new(page, part.at.into(), part.len.into()))
            };
            match piece {
                Some(piece) => pieces.push(piece),
                None => there = false,
            }
        }
        drop(others);
        let memory = IoMemory::Mapped(pieces);
        if !there {
            self.release(memory, held);
            return None;
        }
        Some(memory)
    }

    fn fetch<'a>(&mut self, p: &P, of: DomId, batch: &mut [PageTransfer], parts: impl Fn(u32) -> &'a [Part]) {
        self.alone.fetch(p, of, batch, parts);
    }

    fn deliver<'a>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        self.alone.deliver(p, of, batch, parts);
    }

    fn end(&mut self, memory: IoMemory, held: &mut Held<P>) {
        self.release(memory, held);
    }

    fn settle(&mut self, p: &P) {
        if self.store.len() > self.store.limit() {
            let mut unused = Vec::new();
            self.store.purge_excess(&mut unused);
            self.let_go(unused);
        }
        if self.full {
            let now_ns = p.clock().now_ns();
            if self.purged_ns.is_none_or(|before| now_ns.saturating_sub(before) >= PURGE_EACH_NS) {
                self.purged_ns = Some(now_ns);
                self.full = false;
                let mut unused = Vec::new();
                self.store.purge(self.store.limit().div_ceil(PURGE_PART), &mut unused);
                self.let_go(unused);
            }
        }
        if !self.done.is_empty() {
            p.peer().unmap(&mut self.done);
        }
    }

    fn pages(&self) -> Option<usize> {
        Some(self.store.len())
    }

    fn limit_pages(&mut self, p: &P, pages: usize, alone: usize) {
        self.alone.limit_pages(alone);
        let mut unused = Vec::new();
        self.store.set_limit(pages, &mut unused);
        self.let_go(unused);
        p.peer().unmap(&mut self.done);
    }

    fn overflows(&self) -> u64 {
        self.overflows
    }
}
