//! A burst of frames on its way to a tap: each behind its header, so that one request has one piece.
//!
//! ```text
//!   | header, frame | . | header, frame | . | ....      each on a cache line of its own
//! ```
//! Short frames only: to copy one costs less than a second piece. A long one is written from where it is.
//!
//! Memory: 128 KiB a queue.

use super::header::HEADER;
use super::ring::DEPTH;

/// Bytes of a frame that is copied, its header included.
const SHORT: usize = 2048;

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    bytes: Box<[u8]>,
    /// Where each frame is, and its bytes.
    frames: Vec<(usize, usize)>,
    used: usize,
}

impl Outbox {
    /// An empty one.
    pub fn new() -> Self {
        Self { bytes: vec![0; DEPTH * SHORT].into_boxed_slice(), frames: Vec::with_capacity(DEPTH), used: 0 }
    }

    /// Appends a frame. False: it is too long, or there is no room.
    #[must_use]
    pub fn put(&mut self, header: &[u8; HEADER], frame: &[u8]) -> bool {
        let len = HEADER + frame.len();
        if len > SHORT || self.frames.len() == DEPTH {
            return false;
        }
        let to = &mut self.bytes[self.used..self.used + len];
        to[..HEADER].copy_from_slice(header);
        to[HEADER..].copy_from_slice(frame);
        self.frames.push((self.used, len));
        self.used = (self.used + len).next_multiple_of(64);
        true
    }

    /// The frames, each behind its header, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.frames.iter().map(|&(at, len)| &self.bytes[at..at + len])
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.used = 0;
    }
}
