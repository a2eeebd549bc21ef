//! Frames on their way to a tap, through a ring: each with its header in one descriptor's memory, which is its own until it came back; of
//! one whose payload is lent the head is there, and further descriptors name the payload, which its guest can still write.
//!
//! ```text
//!   area:  | sent, not back: header, frame | header, frame | ... |   free   |
//!            ^ oldest                                            ^ next, which begins anew at the end, and where none is out
//! ```
//! Who lends is told when the worker has read a frame: a [`Token`] comes [back](Sender::completed) once.
//!
//! Memory: the area, 512 KiB a queue, of which the first lines are enough as long as the worker keeps up.

use super::virtqueue::{Buffer, Lie, Virtqueue};
use crate::mapping::Mapping;
use crate::ports::tap::gather::{Frame, Vector};
use crate::ports::tap::header::HEADER;
use pregrant::port::{MAX_FRAME, Piece, Token};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes for frames that are out.
pub const AREA: usize = 512 * 1024;

/// A frame that is out.
#[derive(Clone, Copy, Debug)]
struct Sent {
    head: u16,
    at: usize,
    len: usize,
    /// Of its payload, beyond what is in the area.
    nr_pieces: usize,
    token: Option<Token>,
    is_back: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Sender {
    pub ring: Virtqueue,
    memory: Arc<Mapping>,
    area: Range<usize>,
    next: usize,
    /// In the order of their coming.
    sent: VecDeque<Sent>,
    /// What is lent of them, in that order.
    pieces: VecDeque<Vector>,
    /// Frames that are out and lent.
    lent: usize,
    completed: Vec<Token>,
}

impl Sender {
    /// With these bytes for frames.
    pub fn new(ring: Virtqueue, memory: Arc<Mapping>, area: Range<usize>) -> Self {
        let most = ring.nr_free();
        Self {
            ring,
            memory,
            next: area.start,
            area,
            sent: VecDeque::with_capacity(most),
            pieces: VecDeque::with_capacity(most),
            lent: 0,
            completed: Vec::with_capacity(most),
        }
    }

    /// Where `len` bytes are free.
    fn room(&self, len: usize) -> Option<usize> {
        let Some(Sent { at: oldest, .. }) = self.sent.front().copied() else {
            return Some(self.area.start);
        };
        if self.next <= oldest {
            return (oldest - self.next > len).then_some(self.next);
        }
        if self.area.end - self.next >= len {
            return Some(self.next);
        }
        // One byte stays free, or full would look like empty.
        (oldest - self.area.start > len).then_some(self.area.start)
    }

    /// Appends a frame to what is published next. False: there is no room.
    #[must_use]
    pub fn put(&mut self, header: &[u8; HEADER], frame: &[u8]) -> bool {
        // SAFETY: nothing is lent.
        unsafe { self.put_lent(header, frame, std::iter::empty(), None) }
    }

    /// As [`put`](Self::put), of a frame whose `pieces` follow its head.
    ///
    /// # Safety
    /// The pieces' memory stays mapped until the token is [completed](Self::completed), or the frame is taken by [`left`](Self::left).
    #[must_use]
    pub unsafe fn put_lent<'p>(
        &mut self,
        header: &[u8; HEADER],
        head: &[u8],
        pieces: impl Iterator<Item = Piece<'p>>,
        token: Option<Token>,
    ) -> bool {
        let len = HEADER + head.len();
        let Some(at) = self.room(len.next_multiple_of(64)).filter(|_| head.len() <= MAX_FRAME) else {
            return false;
        };
        if self.ring.nr_free() == 0 {
            return false;
        }
        self.memory.write(at, header);
        self.memory.write(at + HEADER, head);
        let first = Buffer { address: self.memory.address() + at as u64, len: len as u32, writable: false };
        let before = self.pieces.len();
        // SAFETY: the caller's.
        self.pieces.extend(pieces.map(|piece| unsafe { Vector::lent(piece) }));
        let lent = self.pieces.range(before..).map(Vector::buffer);
        // SAFETY: the first bytes are the area's, which stays as long as the ring, and no other frame has them until this one is back; the
        // others are the caller's.
        let Some(chain) = (unsafe { self.ring.push(std::iter::once(first).chain(lent)) }) else {
            self.pieces.truncate(before);
            return false;
        };
        let nr_pieces = self.pieces.len() - before;
        self.lent += usize::from(token.is_some());
        self.sent.push_back(Sent { head: chain, at, len, nr_pieces, token, is_back: false });
        self.next = at + len.next_multiple_of(64);
        true
    }

    /// Takes back what came back.
    ///
    /// # Errors
    /// The worker did not tell the truth.
    pub fn reclaim(&mut self) -> Result<(), Lie> {
        while let Some(used) = self.ring.pop()? {
            self.ring.free(used.head);
            // Nearly always the oldest.
            let of = |sent: &&mut Sent| sent.head == used.head && !sent.is_back;
            if let Some(sent) = self.sent.iter_mut().find(of) {
                sent.is_back = true;
                if let Some(token) = sent.token {
                    self.completed.push(token);
                    self.lent -= 1;
                }
            }
            while self.sent.front().is_some_and(|oldest| oldest.is_back) {
                let nr_pieces = self.sent.pop_front().map_or(0, |oldest| oldest.nr_pieces);
                self.pieces.drain(..nr_pieces);
            }
        }
        Ok(())
    }

    /// Frames that are lent and not back.
    pub fn nr_lent(&self) -> usize {
        self.lent
    }

    /// Of lent frames, those that nobody reads any more.
    pub fn completed(&mut self) -> &mut Vec<Token> {
        &mut self.completed
    }

    /// Frames that are out.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Takes those that are not back, in order, each behind its header. Only when the worker was stopped.
    pub fn left(&mut self, mut each: impl FnMut(Frame<'_>)) {
        let mut bytes = vec![0; HEADER + MAX_FRAME];
        let mut vectors = Vec::new();
        for sent in self.sent.drain(..) {
            let pieces = self.pieces.drain(..sent.nr_pieces);
            if sent.is_back {
                continue;
            }
            let first = &mut bytes[..sent.len];
            self.memory.read(sent.at, first);
            vectors.clear();
            // SAFETY: the bytes stay as they are until the frame was taken.
            vectors.push(unsafe { Vector::private(first) });
            vectors.extend(pieces);
            each(Frame::Many(&vectors));
            self.completed.extend(sent.token);
        }
        self.lent = 0;
    }
}
