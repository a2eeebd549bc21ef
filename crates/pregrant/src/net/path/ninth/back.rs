//! The back: pages that it has seen before are copied from or to directly.
//!
//! A frame with a page that is not there is left to the next path, and the page is mapped for the
//! next time. What a front may do: change a page at any time (what was copied counts); name pages
//! that are too many, or cannot be mapped (`copy` serves or refuses them).

use crate::grants::{MappedPages, MappedStats};
use crate::net::batch::{RxBatch, Todo, TxBatch, bits};
use crate::net::path::{BackPath, PathName};
use crate::platform::{Access, PeerMem, Platform};
use crate::port::{Arena, Burst, Token};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef};
use alloc::vec::Vec;

/// The pages of one direction of a queue.
pub struct NinthPath<P: Platform> {
    store: MappedPages<<P::Peer as PeerMem>::Map>,
    acc: Access,
}

impl<P: Platform> NinthPath<P> {
    /// For at most `limit` pages; `acc` is read-only for TX.
    pub fn new(limit: usize, acc: Access) -> Self {
        Self { store: MappedPages::new(limit), acc }
    }

    /// The page of a slot, if it was seen before; from now on it was.
    fn seen(&mut self, gref: u32) -> Option<&<P::Peer as PeerMem>::Map> {
        let gref = GrantRef(gref);
        if gref != GrantRef::NONE && !self.store.has(gref) {
            self.store.want(gref);
        }
        self.store.find(gref)
    }

    /// Maps what the batch named and was not there.
    fn map_wanted(&mut self, p: &P, of: DomId) {
        let acc = self.acc;
        self.store.map_wanted(|gref| p.peer().map(of, &[gref], acc).ok());
    }
}

impl<P: Platform> BackPath<P> for NinthPath<P> {
    const NAME: PathName = PathName::Ninth;

    fn pages(&self) -> Option<usize> {
        Some(self.store.len())
    }

    fn kept(&self) -> Option<MappedStats> {
        Some(self.store.figures())
    }

    fn limit_pages(&mut self, p: &P, pages: usize) {
        let mut unused = Vec::new();
        self.store.set_limit(pages, &mut unused);
        p.peer().unmap(&mut unused);
    }

    fn retire(&mut self, p: &P, _done: &mut Vec<Token>) {
        if self.store.len() > self.store.limit() {
            let mut unused = Vec::new();
            self.store.purge_excess(&mut unused);
            p.peer().unmap(&mut unused);
        }
    }

    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        self.store.begin_batch();
        let mut rest: Todo = 0;
        for i in bits(todo) {
            let mut at = out.desc(i).at as usize;
            for slot in batch.slots_of(i) {
                let (had, len) = (slot.fetched as usize, slot.len as usize);
                if had < len {
                    let to = &mut out.bytes_mut()[at + had..at + len];
                    match self.seen(slot.gref) {
                        Some(page) if page.copy_out(slot.offset as usize + had, to) => {
                            slot.fetched = slot.len
                        }
                        _ => rest |= 1 << i,
                    }
                }
                at += len;
            }
        }
        self.map_wanted(p, of);
        rest
    }

    fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        self.store.begin_batch();
        let mut rest: Todo = 0;
        for i in bits(todo) {
            for slot in batch.slots_of(i).iter().filter(|slot| slot.len > 0) {
                if self.seen(slot.gref).is_none() {
                    rest |= 1 << i;
                }
            }
        }
        // Found above, and counted as used.
        let store = &self.store;
        batch.copy_in(frames, todo & !rest, |_, slot| store.at(store.locate(GrantRef(slot.gref))?));
        self.map_wanted(p, of);
        rest
    }
}
