//! The front's copies from pages that its back lends to a queue: the list of these pages, and the
//! pieces to copy.
//!
//! ```text
//!   response --note--> one piece of a grant copy      all that came --fetch--> the arena
//! ```
//! Each reference is read once for each piece, and the hypervisor validates it.
//!
//! What a back may do: name any page in the list, change the list, end its grants, die. Then the
//! copy fails, or the list has another generation, and the frame is dropped.

use super::{COUNT, GENERATION, LENT_MAX, REFS, flags_of, generation_of};
use crate::error::PeerFault;
use crate::grants::regions::Granted;
use crate::net::front::rx_answers::{Part, blank, fault, is_plain, offload_of};
use crate::net::path::named_memory::{Answers, Received};
use crate::net::path::path_name::PathName;
use crate::net::stats::DirStats;
use crate::platform::{CopyOp, LocalBytes, PeerMem, Platform};
use crate::port::{Arena, Offload, Sink};
use crate::shm::SharedBytes;
use crate::sync::{Ordering, fence};
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::grant::GrantStatus;
use crate::wire::netif::{RXF_DATA_RING, RxResponse};
use alloc::vec::Vec;

/// The pages that the back granted to one queue of this guest, which copies from them.
pub struct BackPages<P: Platform> {
    list: Granted<P>,
    of: DomId,
    ops: Vec<CopyOp>,
    /// For each copy the index of its frame in the arena, and the generation of its page.
    whose: Vec<(u16, u8)>,
}

/// True if the bytes that this response names are within one page.
#[inline(always)]
fn is_in_page(rsp: &RxResponse) -> bool {
    u16::try_from(rsp.status).is_ok_and(|len| usize::from(rsp.offset) + usize::from(len) <= PAGE_SIZE)
}

impl<P: Platform> BackPages<P> {
    /// Uses this list page, which is zeroed and which the back `of` may write.
    pub fn new(list: Granted<P>, of: DomId) -> Self {
        Self { list, of, ops: Vec::new(), whose: Vec::new() }
    }

    /// The grant of the list page.
    pub fn list_ref(&self) -> GrantRef {
        self.list.refs().first().copied().unwrap_or(GrantRef::NONE)
    }

    /// Forgets all copies that were noted.
    fn clear(&mut self) {
        self.ops.clear();
        self.whose.clear();
    }

    /// Reads the generation before the entries of the list are read.
    fn generation(&self) -> u32 {
        let generation = self.list.bytes().load_u32(GENERATION).unwrap_or(0);
        fence(Ordering::Acquire);
        generation
    }

    /// Reads the generation again, after entries were read and copies were made by them.
    fn generation_now(&self) -> u32 {
        fence(Ordering::Acquire);
        self.generation()
    }

    /// The copy of `len` bytes of a fragment, from its byte `skip` on, to arena byte `at`. If the
    /// fragment is in none of the back's pages, the copy names no grant and fails.
    fn op(&self, piece: &Part, skip: u16, len: u16, at: u32) -> CopyOp {
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

    /// Notes the copy of a fragment of frame `frame` to arena byte `at`.
    fn note(&mut self, frame: usize, piece: &Part, at: u32) {
        let generation = generation_of(piece.name);
        // Another generation's references are not read.
        let known = self.generation() == u32::from(generation);
        let mut op = self.op(piece, 0, piece.len, at);
        if !known {
            op.gref = GrantRef::NONE;
        }
        self.ops.push(op);
        self.whose.push((frame as u16, generation));
    }

    /// True for a frame of one slot, without extras, that is in a page of the back.
    #[inline(always)]
    fn is_plain(rsp: RxResponse) -> bool {
        is_plain(rsp) && rsp.flags & RXF_DATA_RING == 0 && rsp.flags & Self::FLAGS != 0
    }
}

impl<P: Platform> BackPages<P> {
    /// Flags by which a response names one of the back's pages, of any generation.
    pub const FLAGS: u16 = flags_of(u8::MAX);

    /// True if the bytes that this response names are within one page.
    pub fn can_have(&self, rsp: &RxResponse) -> bool {
        is_in_page(rsp)
    }

    /// Notes the frames of these responses, to be [fetched](Self::fetch).
    #[inline(never)]
    pub fn recv_run(
        &mut self,
        answers: Answers<'_, P>,
        mut rsp: RxResponse,
        to: &mut impl Sink,
    ) -> Result<u32, PeerFault> {
        let Some(out) = to.arena() else { return Ok(0) }; // cannot be, by `FETCHES`
        let mut used = 0;
        loop {
            if !is_in_page(&rsp) {
                return Err(fault(rsp.offset, rsp.status));
            }
            let (name, len) = (rsp.flags & Self::FLAGS, rsp.status as u16);
            let piece = Part { slot: answers.slot(used), offset: rsp.offset, len, name };
            let i = out.len();
            if out.room(usize::from(len), offload_of(rsp.flags)).is_none() {
                break;
            }
            self.note(i, &piece, out.desc(i).at);
            used += 1;
            if !out.has_room() {
                break;
            }
            match answers.read(used) {
                Some(next) if Self::is_plain(next) => rsp = next,
                _ => break, // it is read again, nothing of it is kept
            }
        }
        Ok(used)
    }

    /// Notes the copies of a frame that is made of these parts.
    pub fn recv_long(&mut self, (parts, offload): (&[Part], Offload), to: &mut impl Sink) -> Received {
        let Some(out) = to.arena() else { return Received::NoRoom }; // cannot be, by `FETCHES`
        let i = out.len();
        let total = parts.iter().map(|part| usize::from(part.len)).sum();
        if out.room(total, offload).is_none() {
            return Received::NoRoom;
        }
        let mut at = out.desc(i).at;
        for part in parts {
            self.note(i, part, at);
            at += u32::from(part.len);
        }
        Received::Noted
    }

    /// Copies from byte `skip` of a part on as much as `dst` has room for. False: the part's bytes
    /// are lost.
    pub fn copy(&self, p: &P, part: &Part, skip: usize, dst: &mut [u8]) -> bool {
        if dst.is_empty() {
            return true;
        }
        let generation = u32::from(generation_of(part.name));
        let mut ops = [self.op(part, skip as u16, dst.len() as u16, 0)];
        let tried = self.generation() == generation
            && p.peer().copy(self.of, LocalBytes::FromPeer(dst), &mut ops).is_ok();
        tried && self.generation_now() == generation && Self::is_good(&ops[0])
    }

    /// Forgets the copies that an earlier call noted and did not make, because it ended by a fault:
    /// they were for another arena.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.clear();
    }

    /// Makes all copies that were noted, into the arena. Frames whose pages the back took away are
    /// dropped.
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, out: &mut Arena, stats: &mut DirStats) {
        if !self.ops.is_empty() {
            self.fetch_noted(p, out, stats);
        }
    }

    /// The list page, to be given back.
    pub fn into_granted(self) -> Granted<P> {
        self.list
    }

    fn fetch_noted(&mut self, p: &P, out: &mut Arena, stats: &mut DirStats) {
        let tried = p.peer().copy(self.of, LocalBytes::FromPeer(out.bytes_mut()), &mut self.ops).is_ok();
        let now = self.generation_now();
        let mut pieces = self.ops.iter().zip(&self.whose).peekable();
        while let Some((op, &(frame, generation))) = pieces.next() {
            let mut good = tried && now == u32::from(generation) && Self::is_good(op);
            while let Some((op, &(_, generation))) = pieces.next_if(|(_, whose)| whose.0 == frame) {
                good &= now == u32::from(generation) && Self::is_good(op);
            }
            let i = usize::from(frame);
            if !good {
                out.drop_frame(i);
                stats.errors += 1;
                continue;
            }
            stats.bytes += u64::from(out.desc(i).len);
            stats.handed_on_by(PathName::GuestCopy, 1);
            blank(out, i, stats);
        }
        self.clear();
    }
}
