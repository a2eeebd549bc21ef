//! The back of `map`: pages are mapped for a request and unmapped with its batch; the data is
//! copied when [no more pages may be mapped](crate::blk::path).

use crate::blk::disk::IoMemory;
use crate::blk::path::back::{BackPath, Direction, Held, MapOf, PageTransfer, Part, map_parts, unhold};
use crate::blk::path::path_name::PathName;
use crate::blk::path::request_pages::RequestPages;
use crate::platform::{PeerMem, Platform};
use crate::units::{DomId, GrantRef};
use alloc::vec::Vec;

/// The path `map`, with a list of mappings that are about to be unmapped together.
pub struct MapPath<P: Platform> {
    done: Vec<MapOf<P>>,
    /// Grants of the current request.
    refs: Vec<GrantRef>,
    alone: RequestPages,
}

impl<P: Platform> Default for MapPath<P> {
    fn default() -> Self {
        Self { done: Vec::new(), refs: Vec::new(), alone: RequestPages::default() }
    }
}

impl<P: Platform> BackPath<P> for MapPath<P> {
    const NAME: PathName = PathName::Map;

    fn begin(
        &mut self,
        p: &P,
        of: DomId,
        way: Direction,
        parts: &[Part],
        held: &mut Held<P>,
    ) -> Option<IoMemory> {
        if !self.alone.takes(parts.len(), held) {
            return self.alone.begin_copy(p, of, way, parts, held);
        }
        let mut pieces = core::mem::take(&mut held.spare);
        let there = map_parts(p, of, way.access(), (parts, &mut self.refs), held, &mut pieces);
        let memory = IoMemory::Mapped(pieces);
        if !there {
            self.end(memory, held);
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
        let memory = self.alone.end(memory, held);
        unhold(memory, held, &mut self.done);
    }

    fn limit_pages(&mut self, _: &P, _: usize, alone: usize) {
        self.alone.limit_pages(alone);
    }

    fn settle(&mut self, p: &P) {
        if !self.done.is_empty() {
            p.peer().unmap(&mut self.done);
        }
    }
}
