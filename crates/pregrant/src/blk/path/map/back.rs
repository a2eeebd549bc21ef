//! The back: mapped for a request, unmapped with its batch.

use crate::blk::disk::IoMemory;
use crate::blk::path::back::{BackPath, Held, MapOf, Part, Way, map_parts, unhold};
use crate::blk::path::name::PathName;
use crate::platform::{PeerMem, Platform};
use crate::units::{DomId, GrantRef};
use alloc::vec::Vec;

/// What is to be unmapped.
pub struct MapPath<P: Platform> {
    done: Vec<MapOf<P>>,
    /// Of the request at hand.
    refs: Vec<GrantRef>,
}

impl<P: Platform> Default for MapPath<P> {
    fn default() -> Self {
        Self { done: Vec::new(), refs: Vec::new() }
    }
}

impl<P: Platform> BackPath<P> for MapPath<P> {
    const NAME: PathName = PathName::Map;

    fn begin(&mut self, p: &P, of: DomId, way: Way, parts: &[Part], held: &mut Held<P>) -> Option<IoMemory> {
        let mut pieces = core::mem::take(&mut held.spare);
        let there = map_parts(p, of, way.access(), (parts, &mut self.refs), held, &mut pieces);
        let memory = IoMemory::Mapped(pieces);
        if !there {
            unhold(memory, held, &mut self.done);
            return None;
        }
        Some(memory)
    }

    fn end(&mut self, memory: IoMemory, held: &mut Held<P>) {
        unhold(memory, held, &mut self.done);
    }

    fn settle(&mut self, p: &P) {
        if !self.done.is_empty() {
            p.peer().unmap(&mut self.done);
        }
    }
}
