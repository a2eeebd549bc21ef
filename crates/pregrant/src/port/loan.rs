//! Zero-copy frames for a guest: the payload is still in the pages of its sender, another guest, or
//! in a kernel's buffers.
//!
//! ```text
//!   sender's memory   [ payload ][ payload ]                      who lends: Lender
//!                         ^          ^
//!   arena's bytes     [head| - - - - - - - |head| whole frame ]   pieces have the places of what is missing
//!                        '--------'--copy_to, one copy--> receiver's pages
//!                              '--make_private--> its place in the arena, for who needs it there
//! ```
//! Invariants: an arena has the head of such a frame, with all headers, and room for the rest. The
//! rest is only read by [`Lender::read`], within one call, since it may be gone afterwards; it is
//! copied once and never parsed. When the last frame was read or dropped, the sender's requests may
//! be answered, or a kernel's buffers freed ([`Lender::release`], when the [`Loan`] is dropped).
//!
//! What a guest may do: as the sender, change payload while it is copied. As the receiver, have no
//! slots: then the frames are copied to private memory
//! ([`FramePort::rx_stands`](super::FramePort::rx_stands)), unless they are in such memory
//! ([`Lender::may_wait`]).

use super::{Burst, FrameDesc, ZeroCopyBurst};
use crate::shm::{Piece, SharedBytes};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

/// A fragment that belongs at byte `at` of its burst. A kernel makes lists of them: the fields are
/// in this order, as C's structures have them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LentPiece<'a> {
    /// Offset in the frame.
    pub at: u32,
    /// The bytes.
    pub piece: Piece<'a>,
}

impl LentPiece<'_> {
    /// The offset after the fragment's last byte.
    #[inline(always)]
    fn end(&self) -> usize {
        self.at as usize + self.piece.len()
    }
}

/// The owner of some frames' zero-copy payload.
pub trait Lender: Send + Sync {
    /// Calls `read` with the fragments by their offsets. They are valid during that call only.
    fn read(&self, read: &mut dyn FnMut(&[LentPiece<'_>]));
    /// Called when the payload is not read any more.
    fn release(&self);
    /// Whether the payload may wait until its receiver has slots: no peer can write to it, and no
    /// sender waits for it.
    fn may_wait(&self) -> bool {
        false
    }
}

/// Zero-copy payload with its one reader. Dropping it [releases](Lender::release) the payload.
pub struct Loan(Arc<dyn Lender>);

impl Loan {
    /// Creates the handle of the one reader.
    pub fn new(payload: Arc<dyn Lender>) -> Self {
        Self(payload)
    }

    /// See [`Lender::may_wait`].
    pub fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    /// Calls [`Lender::read`].
    pub fn read(&self, mut read: impl FnMut(&[LentPiece<'_>])) {
        self.0.read(&mut read);
    }

    /// Copies the payload that belongs at byte `from` and after it to its place in `bytes`.
    pub fn copy_out(&self, from: usize, bytes: &mut [u8]) {
        self.read(|pieces| {
            for lent in pieces.iter().filter(|lent| lent.at as usize >= from) {
                if let Some(to) = bytes.get_mut(lent.at as usize..lent.end()) {
                    lent.piece.copy_out(to);
                }
            }
        });
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").finish_non_exhaustive()
    }
}

impl Burst<'_> {
    /// Copies `len` bytes at `at`, wherever they are, to byte `place` of a peer's memory. False:
    /// they exceed that memory, or are not there; a part may have been copied.
    #[inline(always)]
    #[must_use]
    pub fn copy_to(&self, at: usize, len: usize, to: &(impl SharedBytes + ?Sized), place: usize) -> bool {
        if self.lent.is_empty() {
            let bytes = self.bytes.get(at..).and_then(|bytes| bytes.get(..len));
            return bytes.is_some_and(|bytes| to.copy_in(place, bytes));
        }
        self.copy_lent_to(at, len, to, place)
    }

    #[inline(never)]
    fn copy_lent_to(&self, at: usize, len: usize, to: &(impl SharedBytes + ?Sized), place: usize) -> bool {
        let (mut from, end) = (at, at + len);
        let behind = self.lent.partition_point(|lent| lent.end() <= at);
        let mut lent = self.lent.iter().skip(behind).peekable();
        while from < end {
            let place = place + (from - at);
            let next = lent.peek().map_or(end, |lent| lent.at as usize);
            let n = if next > from {
                let n = next.min(end) - from;
                if !self.bytes.get(from..from + n).is_some_and(|bytes| to.copy_in(place, bytes)) {
                    return false;
                }
                n
            } else {
                let Some(lent) = lent.next() else { return false };
                let piece = lent.piece.part(from - next, end - from);
                if !to.copy_piece_in(place, piece) {
                    return false;
                }
                piece.len()
            };
            from += n;
        }
        true
    }
}

impl ZeroCopyBurst<'_> {
    /// The frames. If a frame is not [whole](Self::is_whole), only its head is in the bytes.
    pub fn frames(&self) -> &[FrameDesc] {
        self.arena.burst().frames
    }

    /// The bytes of the frames.
    pub fn bytes(&self) -> &[u8] {
        self.arena.burst().bytes
    }

    /// Whether these bytes are the memory that the port [provided](super::FramePort::tx_room).
    pub fn is_in_room(&self) -> bool {
        self.arena.moved_in
    }

    /// The memory that the port provided, with all heads, as by
    /// [`Arena::move_out`](super::Arena::move_out). Afterwards no byte of a frame may be read
    /// through this burst.
    pub fn move_out(&mut self) -> Option<Box<[u8]>> {
        self.arena.move_out()
    }
}
