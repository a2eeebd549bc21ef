//! The back's pages that it lends to a queue's guest, one for each slot of the RX ring.
//!
//! Invariant: a page is written when a request of its slot is answered, and the guest may read it
//! until that slot is posted again. So no list of pages in use is needed.
//!
//! What a front may do: read its pages at any time; map and keep one (it is not released then, see
//! [`into_region`](GuestCopyPath::into_region)); overwrite the list (its own frames suffer).

use super::{COUNT, GENERATION, LENT_MAX, REFS, flags_of};
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::net::batch::{RxBatch, Todo, TxBatch, bits};
use crate::net::path::BackPath;
use crate::platform::{Access, GrantPool, PeerMem, Platform};
use crate::port::{Arena, Burst, Token};
use crate::shm::SharedBytes;
use crate::sync::{Ordering, fence};
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use alloc::vec;

type Region<P> = <<P as Platform>::Grants as GrantPool>::Region;

/// The pages that the back grants to the guest for one queue, and into which it delivers RX frames.
pub struct GuestCopyPath<P: Platform> {
    region: Region<P>,
    pages: u32,
    ring_size: u32,
    flags: u16,
}

/// Number of pages that the back grants for a ring of `slots` slots.
pub fn lent_pages(slots: u32) -> u32 {
    slots.min(LENT_MAX)
}

/// Ends a predecessor's generation in this list page, and begins and returns the next one, with no
/// pages. Must come before new grants are made: a new grant can have a reference that is still in
/// the list, and a front that copied by it finds out by the generation.
pub fn begin(list: &impl SharedBytes) -> u8 {
    let was = list.load_u32(GENERATION).unwrap_or(0) & 0xFF;
    let generation = if was == 255 { 1 } else { was as u8 + 1 };
    let fits = list.store_u32(GENERATION, generation.into()) && list.store_u32(COUNT, 0);
    debug_assert!(fits, "a list page holds them");
    fence(Ordering::Release);
    generation
}

impl<P: Platform> GuestCopyPath<P> {
    /// Grants pages to domain `to`, and names them in its list page, in which `begin`
    /// [started](begin) this generation.
    pub fn lend(
        p: &P,
        to: DomId,
        (list, generation): (&<P::Peer as PeerMem>::Map, u8),
        ring_size: u32,
    ) -> Result<Self, PlatformError> {
        let pages = lent_pages(ring_size);
        let mut refs = vec![GrantRef::NONE; pages as usize];
        let region = p.grants().alloc(to, Access::ReadOnly, &mut refs)?;
        let mut fits = true;
        for (k, gref) in refs.iter().enumerate() {
            fits &= list.store_u32(REFS + 4 * k, gref.0);
        }
        fits &= list.store_u32(COUNT, pages);
        debug_assert!(fits, "a list page holds them");
        Ok(Self { region, pages, ring_size, flags: flags_of(generation) })
    }

    /// Returns the pages, to be released because the connection is over.
    pub fn into_region(self) -> Region<P> {
        self.region
    }
}

impl<P: Platform> BackPath<P> for GuestCopyPath<P> {
    /// This path is for RX only.
    fn fetch(&mut self, _p: &P, _of: DomId, _batch: &mut TxBatch, todo: Todo, _out: &mut Arena) -> Todo {
        todo
    }

    #[inline(always)]
    fn deliver(&mut self, _p: &P, _of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        let (mask, first, pages) = (self.ring_size - 1, batch.first_index, self.pages);
        let page = |rsp: u16| first.wrapping_add(rsp.into()) & mask;
        let mut rest: Todo = 0;
        for i in bits(todo) {
            // The frame's first slot went by another path; so does the rest of the frame.
            if batch.slots_of(i).iter().any(|slot| slot.len == 0 || page(slot.rsp) >= pages) {
                rest |= 1 << i;
                continue;
            }
            if batch.frames[i].head > 0 {
                batch.whole_again(i); // what is here is here as a whole
            }
            let f = batch.frames[i];
            for k in f.first_slot as usize..(f.first_slot + f.nr_slots) as usize {
                let slot = batch.slots[k];
                let at = page(slot.rsp) as usize * PAGE_SIZE + usize::from(slot.offset);
                let fits = slot.copy_to(frames, &self.region, at);
                debug_assert!(fits, "a piece is in its page");
                batch.rsps[slot.rsp as usize].flags |= self.flags;
            }
        }
        rest
    }

    fn retire(&mut self, _p: &P, _done: &mut Bounded<Token>) {}
}
