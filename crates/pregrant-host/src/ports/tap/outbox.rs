//! A burst of frames on its way to a tap: each behind its header, so that one request has one
//! piece.
//!
//! ```text
//!   | header, frame | . | header, head of a lent frame | . | header, frame | ...   each on a cache line of its own
//!                              '--> vectors: this, page, page
//! ```
//! Short frames only: to copy one costs less than a second piece. A long one is written from where
//! it is. Of a lent one, of any length, the head is here, and the payload stays with its guest.
//!
//! Memory: 128 KiB a queue, and 5 KiB of vectors.

use super::gather::{Frame, Vector};
use super::header::HEADER;
use super::uring::DEPTH;
use pregrant::port::Piece;

/// Bytes of a frame that is copied, its header included.
const SHORT: usize = 2048;

/// Vectors for which there is room at once: as many as a batch of a guest's has, each frame's own
/// bytes included.
const VECTORS: usize = DEPTH + 256;

/// One frame.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    len: usize,
    /// Its vectors, if it has more than its bytes here.
    first: usize,
    vectors: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    bytes: Box<[u8]>,
    frames: Vec<Place>,
    vectors: Vec<Vector>,
    used: usize,
}

impl Outbox {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; DEPTH * SHORT].into_boxed_slice(),
            frames: Vec::with_capacity(DEPTH),
            vectors: Vec::with_capacity(VECTORS),
            used: 0,
        }
    }

    /// Whether it can have a frame with these bytes, or such a head.
    pub fn takes(bytes: &[u8]) -> bool {
        HEADER + bytes.len() <= SHORT
    }

    /// Appends a frame. False: it is too long, or there is no room.
    #[must_use]
    pub fn put(&mut self, header: &[u8; HEADER], frame: &[u8]) -> bool {
        let len = HEADER + frame.len();
        if !Self::takes(frame) || self.frames.len() == DEPTH {
            return false;
        }
        let to = &mut self.bytes[self.used..self.used + len];
        to[..HEADER].copy_from_slice(header);
        to[HEADER..].copy_from_slice(frame);
        self.frames.push(Place { at: self.used, len, first: 0, vectors: 0 });
        self.used = (self.used + len).next_multiple_of(64);
        true
    }

    /// Appends a frame whose payload is lent. False: its head is too long, or there is no room.
    ///
    /// # Safety
    /// The pieces' memory stays mapped until the outbox is [cleared](Self::clear).
    #[must_use]
    pub unsafe fn put_zero_copy<'p>(
        &mut self,
        header: &[u8; HEADER],
        head: &[u8],
        pieces: impl Iterator<Item = Piece<'p>>,
    ) -> bool {
        if !self.put(header, head) {
            return false;
        }
        let first = self.vectors.len();
        if let Some(place) = self.frames.last_mut() {
            // SAFETY: these bytes stay where they are, and as they are, until they are cleared, the
            // vectors with them.
            self.vectors.push(unsafe { Vector::private(&self.bytes[place.at..place.at + place.len]) });
            // SAFETY: the caller's.
            self.vectors.extend(unsafe { Vector::zero_copy(pieces) });
            (place.first, place.vectors) = (first, self.vectors.len() - first);
        }
        true
    }

    /// The frames, each behind its header, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        self.frames.iter().map(|place| match place.vectors {
            0 => Frame::One(&self.bytes[place.at..place.at + place.len]),
            n => Frame::Many(&self.vectors[place.first..place.first + n]),
        })
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.vectors.clear();
        self.used = 0;
    }
}
