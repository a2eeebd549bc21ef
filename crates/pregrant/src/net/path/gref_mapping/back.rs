//! `gref-mapping` at the back: bytes of requests whose references are in the queue's table are
//! copied from or to the table's pages.
//!
//! A frame with a slot that is not in the table goes to the next path; of a TX frame, the slots
//! that are in the table are fetched here. TX uses any page of the table, RX those that are mapped
//! for writing.
//!
//! What a front may do: change a page at any time (the copy is used); post one page for two RX
//! frames (either frame may be in it in the end: those whose pages are in the table are written
//! first).

use super::exchange::GrefExchange;
use super::table::GrefTable;
use crate::array::within;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::memory;
use crate::net::ahead::SHORT;
use crate::net::batch::{BATCH_SLOTS, RxBatch, Todo, TxBatch, TxSlot, bits};
use crate::net::path::BackPath;
use crate::net::path::held::{HeldFrames, Place};
use crate::platform::{PeerMem, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef};
use alloc::boxed::Box;
use alloc::sync::Arc;

/// The page is not in the table.
const NOWHERE: u32 = u32::MAX;

type Table<P> = GrefTable<<<P as Platform>::Peer as PeerMem>::Map>;
type Exchange<P> = GrefExchange<<<P as Platform>::Peer as PeerMem>::Map>;

/// One direction of a queue. The queue's table moves between its two directions: the one that runs
/// has it.
pub struct GrefMappingPath<P: Platform> {
    table: Option<Box<Table<P>>>,
    /// Mailbox by which the vif's owner changes the table.
    exchange: Option<Arc<Exchange<P>>>,
    /// For each slot of the batch the index of its page in the table.
    places: Box<[u32; BATCH_SLOTS]>,
    pub(crate) held: HeldFrames,
}

impl<P: Platform> GrefMappingPath<P> {
    /// A path that has the table, or gets it later.
    pub fn new(table: Option<Box<Table<P>>>) -> Result<Self, PlatformError> {
        let places = memory::array(NOWHERE)?;
        Ok(Self { table, exchange: None, places, held: HeldFrames::default() })
    }

    /// Like [`new`](Self::new), with the mailbox by which the vif's owner changes the table.
    pub fn with_exchange(
        table: Option<Box<Table<P>>>,
        exchange: Arc<Exchange<P>>,
    ) -> Result<Self, PlatformError> {
        Ok(Self { exchange: Some(exchange), ..Self::new(table)? })
    }

    /// The mailbox by which the vif's owner changes the table.
    pub fn exchange(&self) -> Option<Arc<Exchange<P>>> {
        self.exchange.clone()
    }

    /// Takes the table from the queue's other direction, if that has it.
    #[inline(always)]
    pub fn take_over(&mut self, from: &mut Self) {
        if self.table.is_none() {
            self.table = from.table.take();
        }
    }

    /// Executes the owner's commands, between two batches, in the direction that has the table.
    /// Returns true if pages were given back.
    pub fn apply_config(&mut self) -> bool {
        match (&self.exchange, self.table.as_deref_mut()) {
            (Some(exchange), Some(table)) => exchange.apply(table),
            _ => false,
        }
    }

    /// Whether to call [`apply_config`](Self::apply_config) again without a new request.
    pub fn waits(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.waits())
    }

    /// Fragment `k` of frame `i`; None: another path serves the frame, or it has no such fragment.
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.held.piece(i, k, |place, len| {
            let table = self.table.as_deref()?;
            table.at(table.locate(GrantRef(place.page))?)?.map.piece(place.at as usize, len)
        })
    }

    /// The table, if this direction has it.
    pub fn table_mut(&mut self) -> Option<&mut Table<P>> {
        self.table.as_deref_mut()
    }
}

impl<P: Platform> BackPath<P> for GrefMappingPath<P> {
    #[inline(always)]
    fn fetch(&mut self, _p: &P, _of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let Some(table) = self.table.as_deref().filter(|table| !table.is_empty()) else { return todo };
        let todo = if batch.standing.is_some() {
            todo & !lend(&mut self.held, table, batch, todo, out)
        } else {
            todo
        };
        for i in bits(todo) {
            let first = usize::from(batch.frame(i).first_slot);
            for (k, slot) in (first..).zip(batch.slots_of(i)) {
                let place = table.locate(GrantRef(slot.gref));
                self.places[within::<BATCH_SLOTS>(k)] = place.unwrap_or(NOWHERE);
                if usize::from(slot.len) <= SHORT
                    && let Some(page) = place.and_then(|place| table.at(place))
                {
                    page.map.prefetch_read(slot.offset as usize, slot.len as usize);
                }
            }
        }
        let mut rest: Todo = 0;
        for i in bits(todo) {
            let first = usize::from(batch.frame(i).first_slot);
            let mut at = out.desc(i).at as usize;
            for (k, slot) in (first..).zip(batch.slots_of(i)) {
                let len = slot.len as usize;
                if slot.fetched < slot.len
                    && let Some(page) = table.at(self.places[within::<BATCH_SLOTS>(k)])
                {
                    let had = slot.fetched as usize;
                    let to = out.part_mut(at + had, len - had);
                    let copied = to.is_some_and(|to| page.map.copy_out(slot.offset as usize + had, to));
                    debug_assert!(copied, "a fragment ends with its page");
                    if copied {
                        slot.fetched = slot.len;
                    }
                }
                if slot.fetched < slot.len {
                    rest |= 1 << i;
                }
                at += len;
            }
        }
        rest
    }

    fn retire(&mut self, _p: &P, done: &mut Bounded<Token>) {
        self.held.retire(done);
    }

    #[inline(always)]
    fn deliver(&mut self, _p: &P, _of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        let Some(table) = self.table.as_deref().filter(|table| table.nr_writable() > 0) else { return todo };
        let mut rest: Todo = 0;
        for i in bits(todo) {
            let first = usize::from(batch.frame(i).first_slot);
            for (k, slot) in (first..).zip(batch.slots_of(i)) {
                let place = table.locate(GrantRef(slot.gref));
                let page = place.and_then(|place| table.at(place)).filter(|page| page.writable);
                match page {
                    Some(page) if usize::from(slot.len) <= SHORT => {
                        page.map.prefetch_write(slot.offset as usize, slot.len as usize);
                    }
                    Some(_) => {}
                    None if slot.len > 0 => rest |= 1 << i,
                    None => {}
                }
                self.places[within::<BATCH_SLOTS>(k)] = place.unwrap_or(NOWHERE);
            }
        }
        let place = |k| self.places[within::<BATCH_SLOTS>(k)];
        batch.copy_in(frames, todo & !rest, |k, _| table.at(place(k)).map(|page| &page.map));
        rest
    }
}

/// Marks long frames whose pages are all in the table, so that the port reads them there.
#[cold]
#[inline(never)]
fn lend<M: SharedBytes>(
    held: &mut HeldFrames,
    table: &GrefTable<M>,
    batch: &mut TxBatch,
    todo: Todo,
    out: &mut Arena,
) -> Todo {
    let page = |gref| table.locate(GrantRef(gref)).and_then(|place| table.at(place));
    let place_of = |slot: &TxSlot| {
        let stays = page(slot.gref).is_some_and(|page| !page.leaves);
        stays.then(|| Place { page: slot.gref, at: slot.offset.into() })
    };
    let copy = |place: Place, to: &mut [u8]| {
        page(place.page).is_some_and(|page| page.map.copy_out(place.at as usize, to))
    };
    held.lend(batch, todo, out, place_of, copy)
}

/// Keeps the pages of a frame in the table while the port holds the frame. When the queue ends, the
/// other direction may have the table and thereby these pages.
impl<P: Platform> GrefMappingPath<P> {
    /// Marks frame `i` as kept by the port; None: another path serves the frame.
    pub fn hold(&mut self, i: usize) -> Option<Token> {
        let Self { held, table, .. } = self;
        held.hold(i, |page| table.iter_mut().for_each(|table| table.hold(page)))
    }

    /// Notes that the port has completed the frames with these tokens; `None`: all frames.
    pub fn complete(&mut self, tokens: Option<&[Token]>) {
        let Self { held, table, .. } = self;
        held.complete(tokens, |page| table.iter_mut().for_each(|table| table.release(page)));
    }
}
