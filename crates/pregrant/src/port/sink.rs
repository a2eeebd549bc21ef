//! The receiver of frames at the front.
//!
//! ```text
//!   memory of slots --take, once--> Arena: one byte area
//!                               '-> a kernel's buffers: memory of each frame's own, in pieces or not
//! ```
//! What a peer may do: change bytes while they are copied. Only the copy counts, so a sink reads
//! each fragment once, and parses its own copy.

use super::{Arena, Offload, Token};
use crate::shm::Piece;

/// A receiver of frames.
pub trait Sink {
    /// Number of frames that the sink has room for now, of any length; 0: none.
    fn takes(&self) -> usize;
    /// Takes a frame of `len` bytes by copying its fragments, in order. False: the sink cannot, and
    /// has copied nothing that counts; the frame stays on its ring.
    ///
    /// A large segment may arrive with a checksum that is not blank: a sink that is no
    /// [arena](Self::arena) must handle that (Linux: `rx_gso_checksum_fixup`).
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool;
    /// Says where the frame that was taken last is: in the buffer of `slot`, which has `bytes`
    /// bytes, from `offset` on. It can be [sent on](crate::net::front::RxHalf::send_on).
    #[inline(always)]
    fn in_buffer(&mut self, slot: u16, offset: u16, bytes: usize) {
        let _ = (slot, offset, bytes);
    }
    /// The sink itself, if it is an arena, which is filled and checked many frames at a time.
    #[inline(always)]
    fn arena(&mut self) -> Option<&mut Arena> {
        None
    }
}

/// A sink that can take a frame's payload in place, in the pages that the back wrote to. It has its
/// own references to the pages, as a kernel's buffers do, so a page is not freed under it.
///
/// What a peer may do: change these bytes at any time, if it keeps the pages mapped. The head is a
/// copy.
pub trait LentSink: Sink {
    /// True if the sink wants a frame of `len` bytes in `pages` pages in place.
    fn wants(&self, len: usize, pages: usize) -> bool;
    /// Takes a frame: both parts of its `head` by a copy, `rest` by reference. The first part has
    /// all headers, and is private already. False: it took no reference to the rest, but the frame
    /// counts as taken.
    fn take_lent<'a>(
        &mut self,
        len: usize,
        offload: Offload,
        head: [Piece<'a>; 2],
        rest: impl Iterator<Item = Piece<'a>>,
    ) -> bool;
    /// Reports the token by which the pages of the last frame are released.
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
