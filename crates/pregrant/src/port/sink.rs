//! At the front: where received frames go.
//!
//! ```text
//!   memory of slots --take, once--> Arena: one byte area
//!                               '-> a kernel's buffers: memory of each frame's own, in pieces or not
//! ```
//! What a peer may do: change bytes while they are copied. The copy is what counts, so a sink reads
//! each piece once, and parses its own copy.

use super::{Arena, Offload, Token};
use crate::shm::Piece;

/// See the module.
pub trait Sink {
    /// Frames that it takes now, of whatever length; 0: none.
    fn takes(&self) -> usize;
    /// Takes a frame of `len` bytes, by a copy of each of its pieces, in their order. False: it
    /// cannot, and has none of it; the frame stays on its ring.
    ///
    /// A large segment may come with a checksum that is not blank: a sink that is no
    /// [arena](Self::arena) has to cope with it (Linux: `rx_gso_checksum_fixup`).
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool;
    /// The frame that was taken last is in its slot's buffer of so many `bytes`, from the
    /// `offset`-th on: it can be [sent on](crate::net::front::RxHalf::send_on).
    #[inline(always)]
    fn in_buffer(&mut self, slot: u16, offset: u16, bytes: usize) {
        let _ = (slot, offset, bytes);
    }
    /// Itself, where it is an arena: many frames are filled and checked by one call there.
    #[inline(always)]
    fn arena(&mut self) -> Option<&mut Arena> {
        None
    }
}

/// A sink that can have a frame's payload where it is, in the pages that the back wrote to. It has
/// references of its own to them, as a kernel's buffers do: a page is not freed under it.
///
/// What a peer may do: change these bytes at any time, where it keeps the pages mapped. The head is
/// a copy.
pub trait LentSink: Sink {
    /// Whether it would have a frame of so many bytes, in so many pages, that way.
    fn wants(&self, len: usize, pages: usize) -> bool;
    /// Takes a frame: both parts of its `head` by a copy, `rest` by references. The first part has
    /// all headers, and is private already. False: it has none of the rest; the frame is taken all
    /// the same.
    fn take_lent<'a>(
        &mut self,
        len: usize,
        offload: Offload,
        head: [Piece<'a>; 2],
        rest: impl Iterator<Item = Piece<'a>>,
    ) -> bool;
    /// The last frame's pages come back by this.
    fn lent(&mut self, token: Token);
}

impl Sink for Arena {
    #[inline(always)]
    fn takes(&self) -> usize {
        if self.has_room() { super::BURST_FRAMES - self.len() } else { 0 }
    }

    #[inline(always)]
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        let Some(mut to) = self.room(len, offload) else { return false };
        for piece in pieces {
            let copied = piece.copy_out(to);
            to = &mut to[copied..];
        }
        true
    }

    #[inline(always)]
    fn arena(&mut self) -> Option<&mut Arena> {
        Some(self)
    }
}
