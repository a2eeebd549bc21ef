//! `copy` at the back: every fragment is copied by grant copy, the whole batch in one call. This
//! path serves every frame, and is the fall-back of all others.

use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::net::batch::{BATCH_SLOTS, RxBatch, Todo, TxBatch, bits};
use crate::net::path::BackPath;
use crate::platform::{CopyOp, LentCopies, LocalBytes, PeerMem, Platform};
use crate::port::{Arena, Burst, Token};
use crate::units::{DomId, GrantRef};
use crate::wire::grant::GrantStatus;

/// The path `copy`, with the operations of the current batch. Its lists are allocated once. Before
/// there is [room](Self::make_room), it serves no frame.
#[derive(Debug, Default)]
pub struct CopyPath {
    ops: Bounded<CopyOp>,
    /// For each operation the frame and the fragment that it copies.
    of: Bounded<(u8, u8)>,
}

impl CopyPath {
    /// Makes room for the operations of a batch.
    pub fn make_room(&mut self) -> Result<(), PlatformError> {
        self.ops = Bounded::new(BATCH_SLOTS)?;
        self.of = Bounded::new(BATCH_SLOTS)?;
        Ok(())
    }
}

impl CopyPath {
    fn begin(&mut self) {
        self.ops.clear();
        self.of.clear();
    }

    /// Delivers the frames in `todo`, some of whose bytes a port lends.
    pub fn deliver_lent(
        &mut self,
        by: &dyn LentCopies,
        of: DomId,
        batch: &mut RxBatch,
        frames: &Burst<'_>,
        todo: Todo,
    ) {
        self.deliver_by(batch, todo, |ops| by.copy_lent(of, frames, ops).is_ok());
    }

    /// Delivers the frames in `todo` by `copy`, which returns false if it could not try.
    #[inline(always)]
    fn deliver_by(&mut self, batch: &mut RxBatch, todo: Todo, copy: impl FnOnce(&mut [CopyOp]) -> bool) {
        self.begin();
        for i in bits(todo) {
            let mut refused = false;
            for (k, slot) in batch.slots_of(i).iter().enumerate() {
                if slot.len > 0 {
                    refused |= !self.push(i, k, slot.gref, slot.offset, slot.len, slot.at);
                }
            }
            if refused {
                batch.fail(i);
            }
        }
        if self.ops.is_empty() {
            return;
        }
        let tried = copy(&mut self.ops);
        for (op, &(i, _)) in self.ops.iter().zip(self.of.iter()) {
            if !tried || op.status != GrantStatus::OKAY {
                batch.fail(i as usize);
            }
        }
    }

    /// Adds the copy of one fragment. False: it names no page, or there is no room. Reference 0 is
    /// never used: in Xen it is the console's, and in staging it means "no page".
    #[inline(always)]
    fn push(&mut self, frame: usize, slot: usize, gref: u32, offset: u16, len: u16, at: u32) -> bool {
        let op = CopyOp { gref: GrantRef(gref), offset, len, at, status: GrantStatus::OKAY };
        gref != GrantRef::NONE.0
            && self.of.push((frame as u8, slot as u8)).is_ok()
            && self.ops.push(op).is_ok()
    }
}

impl<P: Platform> BackPath<P> for CopyPath {
    #[inline(always)]
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        self.begin();
        for i in bits(todo) {
            let mut at = out.desc(i).at;
            let mut refused = 0u32; // a bit for each fragment: a frame has fewer than 32
            for (k, slot) in batch.slots_of(i).iter_mut().enumerate() {
                // A fragment of no bytes is legal and needs no page (XSA-448).
                if slot.fetched < slot.len {
                    let had = slot.fetched;
                    let at = at + u32::from(had);
                    if !self.push(i, k, slot.gref, slot.offset + had, slot.len - had, at) {
                        refused |= 1 << k;
                    }
                }
                at += slot.len as u32;
            }
            for k in bits(refused as Todo) {
                batch.fail_slot(i, k, out);
            }
        }
        if self.ops.is_empty() {
            return 0;
        }
        let tried = p.peer().copy(of, LocalBytes::FromPeer(out.bytes_mut()), &mut self.ops).is_ok();
        for (op, &(i, k)) in self.ops.iter().zip(self.of.iter()) {
            if !tried || op.status != GrantStatus::OKAY {
                batch.fail_slot(i as usize, k as usize, out);
            }
        }
        0
    }

    #[inline(always)]
    fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        self.deliver_by(batch, todo, |ops| p.peer().copy(of, LocalBytes::ToPeer(frames.bytes), ops).is_ok());
        0
    }

    fn retire(&mut self, _p: &P, _done: &mut Bounded<Token>) {}
}
