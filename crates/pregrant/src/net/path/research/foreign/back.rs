//! `foreign` at the back: bytes from and to any page of a guest that is mapped whole, from connect
//! to disconnect (docs/protocol 4.6).
//!
//! TX serves the frames whose requests say that they name frames of memory
//! ([`NamesFrames`]), RX the slots whose references have the [mark](RX_FOREIGN). The next
//! path serves the other slots of an RX frame. After a death there is no state to restore.
//!
//! What a front may do: change bytes while they are copied (the copy is used); name memory that it
//! does not have (an ERROR for the frame), its rings or its grant table (its own: they are
//! validated when they are read).

use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::net::ahead::SHORT;
use crate::net::batch::{Claim, RxBatch, Todo, TxBatch, bits};
use crate::net::path::BackPath;
use crate::platform::{PeerMem, Platform};
use crate::port::{Arena, Burst, Token};
use crate::shm::SharedBytes;
use crate::units::{DomId, PAGE_SIZE};
use crate::wire::netif::{RX_FOREIGN, TXF_FOREIGN, TxRequest};
use alloc::sync::Arc;

/// TX requests that name frames of the guest's memory; a flag says so.
pub const CLAIM: Claim = Claim::new(1);

/// Whether requests of a queue may name frames. Where this was not agreed on the flag means
/// nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NamesFrames(bool);

impl NamesFrames {
    /// Requests of the queue may name frames of the guest's memory.
    pub const ALLOWED: Self = Self(true);

    /// True if requests of the queue may name frames.
    #[inline(always)]
    pub fn any(self) -> bool {
        self.0
    }

    /// True if the request's flag says that the request names a frame. The request may name any
    /// frame; the fetch checks that the guest has it.
    #[inline(always)]
    pub fn claims(self, req: &TxRequest) -> bool {
        self.0 && req.flags & TXF_FOREIGN != 0
    }
}

/// The mapping of a guest's whole memory, for one direction of one queue.
pub struct ForeignPath<P: Platform> {
    memory: Arc<<P::Peer as PeerMem>::Map>,
}

/// Offset of a frame's byte in the mapping of the guest's memory; beyond its end if the guest has
/// no such frame.
#[inline(always)]
fn place(frame: u32, offset: u16) -> usize {
    (frame as usize).saturating_mul(PAGE_SIZE).saturating_add(usize::from(offset))
}

impl<P: Platform> ForeignPath<P> {
    /// Maps the domain's whole memory, for both directions of one queue.
    pub fn pair(p: &P, of: DomId) -> Result<[Self; 2], PlatformError> {
        let memory = Arc::new(p.peer().whole(of)?);
        Ok([Self { memory: Arc::clone(&memory) }, Self { memory }])
    }
}

impl<P: Platform> BackPath<P> for ForeignPath<P> {
    #[inline(always)]
    fn fetch(&mut self, _p: &P, _of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let ours = todo & batch.claimed(CLAIM);
        for i in bits(ours) {
            let slot = batch.slots[batch.frames[i].first_slot as usize];
            if usize::from(slot.len) <= SHORT {
                self.memory.prefetch_read(place(slot.gref, slot.offset), slot.len.into());
            }
        }
        for i in bits(ours) {
            let mut at = out.desc(i).at as usize;
            let mut found = true;
            for slot in batch.slots_of(i) {
                let len = usize::from(slot.len);
                let to = &mut out.bytes_mut()[at..at + len];
                // A fragment of no bytes is legal and needs no page (XSA-448).
                found &= len == 0 || self.memory.copy_out(place(slot.gref, slot.offset), to);
                slot.fetched = slot.len;
                at += len;
            }
            if !found {
                batch.fail(i, out);
            }
        }
        todo & !ours
    }

    #[inline(always)]
    fn deliver(&mut self, _p: &P, _of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        for i in bits(todo) {
            for slot in batch
                .slots_of(i)
                .iter()
                .filter(|slot| usize::from(slot.len) <= SHORT && slot.gref & RX_FOREIGN != 0)
            {
                self.memory.prefetch_write(place(slot.gref & !RX_FOREIGN, slot.offset), slot.len.into());
            }
        }
        let mut rest: Todo = 0;
        for i in bits(todo) {
            if let Some((_, slot)) = batch.long_ahead(i, todo)
                && slot.gref & RX_FOREIGN != 0
            {
                self.memory.prefetch_write(place(slot.gref & !RX_FOREIGN, slot.offset), slot.len.into());
            }
            let f = batch.frames[i];
            for k in f.first_slot as usize..(f.first_slot + f.nr_slots) as usize {
                let slot = batch.slots[k];
                if slot.len == 0 {
                    continue;
                }
                if slot.gref & RX_FOREIGN == 0 {
                    rest |= 1 << i;
                    continue;
                }
                let place = place(slot.gref & !RX_FOREIGN, slot.offset);
                if !slot.copy_to(frames, &*self.memory, place) {
                    batch.fail(i);
                    rest &= !(1 << i);
                    break;
                }
                batch.slots[k].len = 0; // the others are left to the next path, if there are any
            }
        }
        rest
    }

    fn retire(&mut self, _p: &P, _done: &mut Bounded<Token>) {}
}
