//! `persistent` at the back: bytes are copied directly from or to pages that were mapped at first
//! use.
//!
//! A slot whose page is not mapped goes to the next path; its page is then mapped for the next
//! time, a bounded number in each batch.
//!
//! What a front may do: change a page at any time (the copy is used); name more pages than the
//! store takes, or pages that cannot be mapped (`copy` serves or refuses these); post one page for
//! two RX frames (either frame may be in it in the end: those whose pages are mapped are written
//! first).

use crate::array::within;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::grants::{MappedPages, MappedStats, PURGED_AT_ONCE};
use crate::memory;
use crate::net::ahead::SHORT;
use crate::net::batch::{BATCH_SLOTS, RxBatch, Todo, TxBatch, TxSlot, bits};
use crate::net::path::BackPath;
use crate::net::path::held::{HeldFrames, Place};
use crate::platform::{Access, PeerMem, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef};
use alloc::boxed::Box;

/// The path `persistent`: pages of one direction of a queue that stay mapped.
pub struct PersistentPath<P: Platform> {
    store: MappedPages<<P::Peer as PeerMem>::Map>,
    acc: Access,
    /// RX: for each slot of the batch the index of its page.
    places: Box<[u32; BATCH_SLOTS]>,
    /// Pages that are about to be unmapped, some at a time.
    unused: Bounded<<P::Peer as PeerMem>::Map>,
    pub(crate) held: HeldFrames,
}

impl<P: Platform> PersistentPath<P> {
    /// Keeps at most `limit` pages mapped; `acc` is read-only for TX.
    pub fn new(limit: usize, acc: Access) -> Result<Self, PlatformError> {
        let (store, places) = (MappedPages::new(limit)?, memory::array(0)?);
        Ok(Self { store, acc, places, unused: Bounded::new(PURGED_AT_ONCE)?, held: HeldFrames::default() })
    }

    /// Number of pages that were mapped since the connect and stay mapped.
    pub fn pages(&self) -> usize {
        self.store.len()
    }

    /// Counters of the pages that stay mapped.
    pub fn kept(&self) -> MappedStats {
        self.store.figures()
    }

    /// Sets how many pages may stay mapped from now on, and unmaps those beyond that.
    pub fn limit_pages(&mut self, p: &P, pages: usize) {
        self.store.set_limit_only(pages);
        self.unmap_excess(p);
    }

    /// Unmaps the pages beyond the limit that no port reads.
    #[cold]
    fn unmap_excess(&mut self, p: &P) {
        while self.store.purge_some(self.store.excess(), &mut self.unused) > 0 {
            p.peer().unmap(self.unused.to_drain());
        }
    }

    /// Fragment `k` of frame `i`; None: another path serves the frame, or it has no such fragment.
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.held.piece(i, k, |place, len| {
            self.store.at(self.store.locate(GrantRef(place.page))?)?.piece(place.at as usize, len)
        })
    }

    /// Marks long frames whose pages are all mapped, so that the port reads them there.
    #[cold]
    #[inline(never)]
    fn lend(&mut self, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let store = &self.store;
        let place_of = |slot: &TxSlot| {
            store.has(GrantRef(slot.gref)).then(|| Place { page: slot.gref, at: slot.offset.into() })
        };
        let page = |page| store.locate(GrantRef(page)).and_then(|at| store.at(at));
        let copy = |place: Place, to: &mut [u8]| {
            page(place.page).is_some_and(|page| page.copy_out(place.at as usize, to))
        };
        let lent = self.held.lend(batch, todo, out, place_of, copy);
        for i in bits(lent) {
            for slot in batch.slots_of(i) {
                self.store.find(GrantRef(slot.gref)); // it was used
            }
        }
        lent
    }

    /// Maps the pages that the batch named and that are not mapped.
    #[cold]
    #[inline(never)]
    fn map_wanted(&mut self, p: &P, of: DomId) {
        let acc = self.acc;
        self.store.map_wanted(|gref| p.peer().map(of, &[gref], acc).ok());
    }
}

impl<P: Platform> BackPath<P> for PersistentPath<P> {
    fn retire(&mut self, p: &P, done: &mut Bounded<Token>) {
        self.held.retire(done);
        if self.store.len() > self.store.limit() {
            self.unmap_excess(p);
        }
    }

    #[inline(always)]
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        self.store.begin_batch();
        let todo = if batch.standing.is_some() { todo & !self.lend(batch, todo, out) } else { todo };
        for i in bits(todo) {
            let slot = *batch.first_slot(i);
            if usize::from(slot.len) <= SHORT
                && let Some(page) = self.store.find(GrantRef(slot.gref))
            {
                page.prefetch_read(slot.offset as usize, slot.len as usize);
            }
        }
        let (mut rest, mut missed): (Todo, bool) = (0, false);
        for i in bits(todo) {
            let mut at = out.desc(i).at as usize;
            for slot in batch.slots_of(i) {
                let len = slot.len as usize;
                if slot.fetched < slot.len {
                    let gref = GrantRef(slot.gref);
                    match self.store.find(gref) {
                        Some(page) => {
                            let had = slot.fetched as usize;
                            let to = out.part_mut(at + had, len - had);
                            let copied = to.is_some_and(|to| page.copy_out(slot.offset as usize + had, to));
                            debug_assert!(copied, "a fragment ends with its page");
                            if copied {
                                slot.fetched = slot.len;
                            }
                        }
                        None if gref != GrantRef::NONE => {
                            self.store.want(gref);
                            missed = true;
                        }
                        None => {}
                    }
                }
                if slot.fetched < slot.len {
                    rest |= 1 << i;
                }
                at += len;
            }
        }
        if missed {
            self.map_wanted(p, of);
        }
        rest
    }

    #[inline(always)]
    fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        // This direction's pages are mapped read-only, so every frame goes to the next path.
        if self.acc == Access::ReadOnly {
            return todo;
        }
        self.store.begin_batch();
        let (mut rest, mut missed): (Todo, bool) = (0, false);
        for i in bits(todo) {
            let first = usize::from(batch.frame(i).first_slot);
            for (k, slot) in (first..).zip(batch.slots_of(i)).filter(|(_, slot)| slot.len > 0) {
                let gref = GrantRef(slot.gref);
                if let Some(place) = self.store.find_place(gref) {
                    self.places[within::<BATCH_SLOTS>(k)] = place;
                    if usize::from(slot.len) <= SHORT
                        && let Some(page) = self.store.at(place)
                    {
                        page.prefetch_write(slot.offset as usize, slot.len as usize);
                    }
                    continue;
                }
                rest |= 1 << i;
                if gref != GrantRef::NONE {
                    self.store.want(gref);
                    missed = true;
                }
            }
        }
        batch.copy_in(frames, todo & !rest, |k, _| self.store.at(self.places[within::<BATCH_SLOTS>(k)]));
        if missed {
            self.map_wanted(p, of);
        }
        rest
    }
}

/// Keeps the pages of a frame mapped while the port holds the frame, even if the limit is lowered.
impl<P: Platform> PersistentPath<P> {
    /// Marks frame `i` as kept by the port; None: another path serves the frame.
    pub fn hold(&mut self, i: usize) -> Option<Token> {
        let Self { held, store, .. } = self;
        held.hold(i, |page| {
            let is_held = store.hold(GrantRef(page));
            debug_assert!(is_held, "a page that is lent is there");
        })
    }

    /// Notes that the port has completed the frames with these tokens; `None`: all frames.
    pub fn complete(&mut self, tokens: Option<&[Token]>) {
        let Self { held, store, .. } = self;
        held.complete(tokens, |page| store.release(GrantRef(page)));
    }
}
