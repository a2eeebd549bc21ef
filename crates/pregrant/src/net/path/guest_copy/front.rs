//! What a front knows of pages that its back lends to a queue: the list, and what is to be copied from them.
//!
//! ```text
//!   response --note--> one piece of a grant copy      all that came --fetch--> the arena
//! ```
//! What a back may do: name any page in the list, change it, end its grants, die. The copy fails then, or its generation is another's, and
//! the frame is dropped. Each reference is read once for each piece; the hypervisor judges it.

use super::{COUNT, GENERATION, LENT_MAX, REFS, generation_of};
use crate::grants::regions::Granted;
use crate::platform::{CopyOp, LocalBytes, PeerMem, Platform};
use crate::port::Arena;
use crate::shm::SharedBytes;
use crate::sync::{Ordering, fence};
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::grant::GrantStatus;
use crate::wire::netif::RxResponse;
use alloc::vec::Vec;

/// The pages that a back lends to one queue.
pub struct BorrowedPages<P: Platform> {
    list: Granted<P>,
    of: DomId,
    ops: Vec<CopyOp>,
    /// Of each: which frame of the arena, and of which generation.
    whose: Vec<(u16, u8)>,
}

/// A piece of a frame in a lent page.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedPiece {
    /// The slot, and so the page.
    pub slot: u16,
    /// As the response has it.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
    /// As the response has it.
    pub generation: u8,
}

impl BorrowedPiece {
    /// What the response of `slot` says. None: it passes its page.
    #[inline(always)]
    pub fn of(slot: u16, rsp: &RxResponse) -> Option<Self> {
        let len = u16::try_from(rsp.status).ok()?;
        let piece = Self { slot, offset: rsp.offset, len, generation: generation_of(rsp.flags) };
        (usize::from(rsp.offset) + usize::from(len) <= PAGE_SIZE).then_some(piece)
    }
}

impl<P: Platform> BorrowedPages<P> {
    /// By this list page, zeroed, which the back `of` may write.
    pub fn new(list: Granted<P>, of: DomId) -> Self {
        Self { list, of, ops: Vec::new(), whose: Vec::new() }
    }

    /// The grant of the list page.
    pub fn list_ref(&self) -> GrantRef {
        self.list.refs()[0]
    }

    /// The list page, to be given back.
    pub fn into_granted(self) -> Granted<P> {
        self.list
    }

    /// Nothing is to be copied.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.whose.clear();
    }

    /// The generation, before what stands in the list with it is read.
    fn generation(&self) -> u32 {
        let generation = self.list.bytes().load_u32(GENERATION).unwrap_or(0);
        fence(Ordering::Acquire);
        generation
    }

    /// The same, behind what was read and copied by it.
    fn generation_now(&self) -> u32 {
        fence(Ordering::Acquire);
        self.generation()
    }

    /// How a piece is copied, from its byte `skip` on, `len` of them, to byte `at`. One that is in no lent page names no grant.
    fn op(&self, piece: BorrowedPiece, skip: u16, len: u16, at: u32) -> CopyOp {
        let slot = u32::from(piece.slot);
        let bytes = self.list.bytes();
        let count = bytes.load_u32(COUNT).unwrap_or(0).min(LENT_MAX);
        let gref = if slot < count { bytes.load_u32(REFS + 4 * slot as usize) } else { None };
        let gref = GrantRef(gref.unwrap_or(GrantRef::NONE.0));
        CopyOp { gref, offset: piece.offset + skip, len, at, status: GrantStatus::OKAY }
    }

    fn is_good(op: &CopyOp) -> bool {
        op.gref != GrantRef::NONE && op.status == GrantStatus::OKAY
    }

    /// A piece of frame `frame` of the arena, to be copied to its byte `at`.
    pub fn note(&mut self, frame: usize, piece: BorrowedPiece, at: u32) {
        // Another generation's references are not looked at.
        let known = self.generation() == u32::from(piece.generation);
        let mut op = self.op(piece, 0, piece.len, at);
        if !known {
            op.gref = GrantRef::NONE;
        }
        self.ops.push(op);
        self.whose.push((frame as u16, piece.generation));
    }

    /// Copies what was noted into the arena. `done` hears of each frame whether all of it was there, and its place in the arena.
    pub fn fetch(&mut self, p: &P, out: &mut Arena, mut done: impl FnMut(&mut Arena, usize, bool)) {
        if self.ops.is_empty() {
            return;
        }
        let tried = p.peer().copy(self.of, LocalBytes::FromPeer(out.bytes_mut()), &mut self.ops).is_ok();
        let now = self.generation_now();
        let mut pieces = self.ops.iter().zip(&self.whose).peekable();
        while let Some((op, &(frame, generation))) = pieces.next() {
            let mut good = tried && now == u32::from(generation) && Self::is_good(op);
            while let Some((op, &(_, generation))) = pieces.next_if(|(_, whose)| whose.0 == frame) {
                good &= now == u32::from(generation) && Self::is_good(op);
            }
            done(out, usize::from(frame), good);
        }
        self.clear();
    }

    /// Copies from byte `skip` of a piece on now, as much as `dst` has room for. False: it is lost.
    pub fn copy_now(&self, p: &P, piece: BorrowedPiece, skip: usize, dst: &mut [u8]) -> bool {
        if dst.is_empty() {
            return true;
        }
        let is_its = self.generation() == u32::from(piece.generation);
        let mut ops = [self.op(piece, skip as u16, dst.len() as u16, 0)];
        let tried = is_its && p.peer().copy(self.of, LocalBytes::FromPeer(dst), &mut ops).is_ok();
        tried && self.generation_now() == u32::from(piece.generation) && Self::is_good(&ops[0])
    }
}
