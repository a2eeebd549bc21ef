//! A burst of frames on its way to a tap, each with its header in front, so that a request has one
//! vector.
//!
//! ```text
//!   | header, frame | . | header, head of a lent frame | . | header, frame | ...   each on a cache line of its own
//!                              '--> vectors: this, page, page
//! ```
//! Only short frames are copied here, which costs less than a second vector. A long one is written
//! from its place. For a zero-copy frame of any length the head is here, and the payload stays in
//! its guest's pages.
//!
//! Memory: 128 KiB per queue, and 5 KiB of vectors.

use super::gather::{Frame, Vector};
use super::header::HEADER;
use super::uring::DEPTH;
use pregrant::port::Piece;

/// Largest number of bytes of a frame that is copied, including its header.
const SHORT: usize = 2048;

/// Capacity for vectors: as many as a batch of a guest's slots needs, with each frame's own bytes.
const VECTORS: usize = DEPTH + 256;

/// The place of a frame in the outbox.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    len: usize,
    /// The index of the frame's first vector, if it has several.
    first: usize,
    vectors: usize,
}

/// Frames that will be written to the tap together.
#[derive(Debug)]
pub struct Outbox {
    bytes: Box<[u8]>,
    frames: Vec<Place>,
    vectors: Vec<Vector>,
    used: usize,
}

impl Outbox {
    pub fn new() -> Self {
        Self {
            bytes: vec![0; DEPTH * SHORT].into_boxed_slice(),
            frames: Vec::with_capacity(DEPTH),
            vectors: Vec::with_capacity(VECTORS),
            used: 0,
        }
    }

    /// Returns true if a frame with these bytes (or with a head of this length) is short enough for
    /// the outbox.
    pub fn takes(bytes: &[u8]) -> bool {
        HEADER + bytes.len() <= SHORT
    }

    /// Appends a frame. Returns false if it is too long, or there is no room.
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

    /// Appends a frame with zero-copy payload. Returns false if its head is too long, or there is
    /// no room.
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

    /// Returns the frames with their headers, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        self.frames.iter().map(|place| match place.vectors {
            0 => Frame::One(&self.bytes[place.at..place.at + place.len]),
            n => Frame::Many(&self.vectors[place.first..place.first + n]),
        })
    }

    /// Drops the frames.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.vectors.clear();
        self.used = 0;
    }
}
