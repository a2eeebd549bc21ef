//! Frames on their way from one guest to another whose payload is still in the sender's pages.
//!
//! ```text
//!   sender's pages    [ payload ][ payload ]                      who lends: Lender
//!                         ^          ^
//!   arena's bytes     [head| - - - - - - - |head| whole frame ]   pieces have the places of what is missing
//!                        '--------'--copy_to, one copy--> receiver's pages
//!                              '--make_private--> its place in the arena, for who needs it there
//! ```
//! Invariants: what an arena has of a lent frame is its head, which has all headers, and room for
//! the rest. The rest is read by [`Lender::read`] alone, in one call, for afterwards it may be
//! gone; it is copied once, and never parsed. When the last is read, or dropped, the sender's
//! requests may be answered ([`Lender::release`], by [`Loan`]'s end).
//!
//! What a guest may do: as the sender, change payload while it is copied. As the receiver, have no
//! slots: then frames become private ([`FramePort::rx_stands`](super::FramePort::rx_stands)).

use super::{Arena, Burst, FrameDesc, ZeroCopyBurst};
use crate::shm::{Piece, SharedBytes};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

/// Payload that belongs at byte `at` of its burst's bytes.
#[derive(Clone, Copy, Debug)]
pub struct LentPiece<'a> {
    /// Where.
    pub at: u32,
    /// The bytes.
    pub piece: Piece<'a>,
}

impl LentPiece<'_> {
    /// One past its last byte's place.
    #[inline(always)]
    fn end(&self) -> usize {
        self.at as usize + self.piece.len()
    }
}

/// The lender of some frames' payload.
pub trait Lender: Send + Sync {
    /// Calls `read` with it, in the order of its places: there is none for longer than that call.
    fn read(&self, read: &mut dyn FnMut(&[LentPiece<'_>]));
    /// No one reads it any more.
    fn release(&self);
}

/// Lent payload in the hands of its one reader; [released](Lender::release) when it is
/// dropped.
pub struct Loan(Arc<dyn Lender>);

impl Loan {
    /// Its one reader.
    pub fn new(payload: Arc<dyn Lender>) -> Self {
        Self(payload)
    }

    /// As [`Lender::read`].
    pub fn read(&self, mut read: impl FnMut(&[LentPiece<'_>])) {
        self.0.read(&mut read);
    }

    /// Copies what belongs at byte `from` and behind to its place in `bytes`.
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
    /// Copies the `len` bytes at `at`, wherever they are, to byte `place` of a peer's memory.
    /// False: they pass its end, or are not there; some may be copied then.
    #[inline(always)]
    #[must_use]
    pub fn copy_to(&self, at: usize, len: usize, to: &(impl SharedBytes + ?Sized), place: usize) -> bool {
        if self.lent.is_empty() {
            return to.copy_in(place, &self.bytes[at..at + len]);
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

impl Arena {
    /// Whether frames that are moved in may have payload that is [lent](Loan): its owner copies
    /// them to a guest, and does nothing else with their payload.
    pub fn take_lent(&mut self, takes: bool) {
        self.takes_lent = takes;
    }

    /// As [`take_lent`](Self::take_lent) said it last.
    #[inline(always)]
    pub fn takes_lent(&self) -> bool {
        self.takes_lent
    }

    /// As [`move_in_filled`](Self::move_in_filled), and some payload is not there but `lent`. Taken
    /// at once where this arena takes none such.
    pub fn move_in_lent(&mut self, bytes: Box<[u8]>, frames: &[FrameDesc], lent: Option<Loan>) {
        self.move_in_filled(bytes, frames);
        self.lent = lent;
        if !self.takes_lent {
            self.make_private(0);
        }
    }

    /// What its frames have elsewhere.
    #[inline(always)]
    pub fn lent(&self) -> Option<&Loan> {
        self.lent.as_ref()
    }

    /// Its frames are read.
    #[inline(always)]
    pub fn end_loan(&mut self) {
        self.lent = None;
    }

    /// Copies what is lent of frame `first` and those behind it. Nothing is lent any more: of those
    /// before it there are heads alone.
    #[cold]
    pub fn make_private(&mut self, first: usize) {
        if let Some(lent) = self.lent.take()
            && let Some(frame) = self.frames.iter().take(self.n).nth(first)
        {
            lent.copy_out(frame.at as usize, &mut self.bytes);
        }
    }
}

impl ZeroCopyBurst<'_> {
    /// The frames. Of one that is not [whole](Self::is_whole) only the head is in the bytes.
    pub fn frames(&self) -> &[FrameDesc] {
        self.arena.burst().frames
    }

    /// The bytes that they are in.
    pub fn bytes(&self) -> &[u8] {
        self.arena.burst().bytes
    }

    /// Whether that is the memory that the port [gave](super::FramePort::tx_room).
    pub fn is_in_room(&self) -> bool {
        self.arena.moved_in
    }

    /// As [`Arena::move_out`]: the memory that the port gave, with all heads. No byte of a frame is
    /// to be asked for afterwards.
    pub fn move_out(&mut self) -> Option<Box<[u8]>> {
        self.arena.move_out()
    }
}
