//! Frames on their way to a tap, through a ring. Each frame and its header are in the memory of one
//! descriptor until it completes. For a zero-copy frame only the head is there, and further
//! descriptors name the payload, which its guest can still write.
//!
//! ```text
//!   area:  | sent, not back: header, frame | header, frame | ... |   free   |
//!            ^ oldest                                            ^ next, which wraps at the end, and where none is out
//! ```
//! When the worker has read a frame, its [`Token`] is [returned](Sender::completed), once.
//!
//! Memory: the area has 512 KiB per queue; only its start is used while the worker keeps up.

use super::virtqueue::{Buffer, Violation, Virtqueue};
use crate::mapping::Mapping;
use crate::ports::tap::gather::{Frame, Vector};
use crate::ports::tap::header::HEADER;
use pregrant::port::{MAX_FRAME, Piece, Token};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Number of bytes of memory for frames in flight.
pub const AREA: usize = 512 * 1024;

/// A frame that the worker has and has not returned.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// The token of the frame, if it is zero-copy.
    token: Option<Token>,
    at: u32,
    len: u32,
    head: u16,
    /// Number of fragments of the payload that are not in the ring's own memory area.
    nr_pieces: u16,
    is_back: bool,
}

/// The ring by which frames are sent to the worker.
#[derive(Debug)]
pub struct Sender {
    pub ring: Virtqueue,
    memory: Arc<Mapping>,
    area: Range<usize>,
    next: usize,
    /// The frames in flight; the oldest is first.
    sent: VecDeque<Sent>,
    /// The fragments of the zero-copy frames in flight, in the order of the frames.
    pieces: VecDeque<Vector>,
    /// Number of zero-copy frames in flight.
    in_flight: usize,
    /// Number of frames that the worker has completed.
    nr_back: u64,
    completed: Vec<Token>,
}

impl Sender {
    /// Creates a ring whose frames are put into these bytes of `memory`.
    pub fn new(ring: Virtqueue, memory: Arc<Mapping>, area: Range<usize>) -> Self {
        let most = ring.nr_free();
        Self {
            ring,
            memory,
            next: area.start,
            area,
            sent: VecDeque::with_capacity(most),
            pieces: VecDeque::with_capacity(most),
            in_flight: 0,
            nr_back: 0,
            completed: Vec::with_capacity(most),
        }
    }

    /// Returns the offset of `len` free bytes.
    #[inline(always)]
    fn room(&self, len: usize) -> Option<usize> {
        let Some(oldest) = self.sent.front().map(|sent| sent.at as usize) else {
            return Some(self.area.start);
        };
        if self.next <= oldest {
            return (oldest - self.next > len).then_some(self.next);
        }
        if self.area.end - self.next >= len {
            return Some(self.next);
        }
        // One byte stays free, to tell a full area from an empty one.
        (oldest - self.area.start > len).then_some(self.area.start)
    }

    /// Copies header and head to the area. Returns their offset and length. None: there is no room.
    #[inline(always)]
    fn write(&mut self, header: &[u8; HEADER], head: &[u8]) -> Option<(usize, usize)> {
        let len = HEADER + head.len();
        if self.ring.nr_free() == 0 || head.len() > MAX_FRAME {
            return None;
        }
        let at = self.room(len.next_multiple_of(64))?;
        self.memory.write(at, header);
        self.memory.write(at + HEADER, head);
        Some((at, len))
    }

    fn buffer(&self, at: usize, len: usize) -> Buffer {
        Buffer { address: self.memory.address() + at as u64, len: len as u32, writable: false }
    }

    /// Appends a frame for the next publish. Returns false if there is no room.
    #[must_use]
    #[inline(always)]
    pub fn put(&mut self, header: &[u8; HEADER], frame: &[u8]) -> bool {
        let Some((at, len)) = self.write(header, frame) else { return false };
        let buffer = self.buffer(at, len);
        // SAFETY: the bytes are the area's, which stays as long as the ring, and no other frame has
        // them until this one is back.
        let Some(head) = (unsafe { self.ring.push_one(buffer) }) else { return false };
        let (at, len) = (at as u32, len as u32);
        self.sent.push_back(Sent { token: None, at, len, head, nr_pieces: 0, is_back: false });
        self.next = (at + len.next_multiple_of(64)) as usize;
        true
    }

    /// Puts a frame as [`put`](Self::put) does, with `pieces` that follow its head.
    ///
    /// # Safety
    /// The pieces' memory stays mapped until the token is [completed](Self::completed).
    #[must_use]
    pub unsafe fn put_zero_copy<'p>(
        &mut self,
        header: &[u8; HEADER],
        head: &[u8],
        pieces: impl Iterator<Item = Piece<'p>>,
        token: Token,
    ) -> bool {
        let Some((at, len)) = self.write(header, head) else { return false };
        let first = self.buffer(at, len);
        let before = self.pieces.len();
        // SAFETY: the caller's.
        self.pieces.extend(unsafe { Vector::zero_copy(pieces) });
        let payload = self.pieces.range(before..).map(Vector::buffer);
        // SAFETY: the first bytes are the area's, as in `put`; the others are the caller's.
        let Some(head) = (unsafe { self.ring.push(std::iter::once(first).chain(payload)) }) else {
            self.pieces.truncate(before);
            return false;
        };
        let nr_pieces = (self.pieces.len() - before) as u16;
        self.in_flight += 1;
        let (at, len) = (at as u32, len as u32);
        self.sent.push_back(Sent { token: Some(token), at, len, head, nr_pieces, is_back: false });
        self.next = (at + len.next_multiple_of(64)) as usize;
        true
    }

    /// Collects completed frames.
    ///
    /// # Errors
    ///
    /// The worker violated the protocol.
    pub fn reclaim(&mut self) -> Result<(), Violation> {
        while let Some(used) = self.ring.pop()? {
            self.ring.free(used.head);
            self.nr_back += 1;
            match self.sent.front() {
                // Nearly always it is the oldest, and has no zero-copy payload.
                Some(Sent { head, token: None, .. }) if *head == used.head => {
                    self.sent.pop_front();
                }
                _ => self.is_back(used.head),
            }
            while self.sent.front().is_some_and(|oldest| oldest.is_back) {
                let nr_pieces = self.sent.pop_front().map_or(0, |oldest| oldest.nr_pieces);
                self.pieces.drain(..usize::from(nr_pieces));
            }
        }
        Ok(())
    }

    fn is_back(&mut self, head: u16) {
        let of = |sent: &&mut Sent| sent.head == head && !sent.is_back;
        let Some(sent) = self.sent.iter_mut().find(of) else { return };
        sent.is_back = true;
        if let Some(token) = sent.token {
            self.completed.push(token);
            self.in_flight -= 1;
        }
    }

    /// Returns the number of frames that the worker has completed.
    pub fn nr_back(&self) -> u64 {
        self.nr_back
    }

    /// Returns the number of zero-copy frames in flight.
    pub fn nr_in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the tokens of zero-copy frames that are not read any more.
    pub fn completed(&mut self) -> &mut Vec<Token> {
        &mut self.completed
    }

    /// Returns the number of frames in flight.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Removes the frames that did not complete, in order, each with its header. Only call this
    /// after the worker was stopped.
    pub fn left(&mut self, mut each: impl FnMut(Frame<'_>)) {
        let mut bytes = vec![0; HEADER + MAX_FRAME];
        let mut vectors = Vec::new();
        for sent in self.sent.drain(..) {
            let pieces = self.pieces.drain(..usize::from(sent.nr_pieces));
            if sent.is_back {
                continue;
            }
            let first = &mut bytes[..sent.len as usize];
            self.memory.read(sent.at as usize, first);
            vectors.clear();
            // SAFETY: the bytes stay as they are until the frame was taken.
            vectors.push(unsafe { Vector::private(first) });
            vectors.extend(pieces);
            each(Frame::Many(&vectors));
            self.completed.extend(sent.token);
        }
        self.in_flight = 0;
    }
}
