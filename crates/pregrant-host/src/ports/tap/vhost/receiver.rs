//! Frames from a tap, through a ring: the worker writes each to as many buffers as it needs
//! (mergeable buffers), behind one header.
//!
//! ```text
//!   buffer: | header, with the number of buffers | frame ... |   buffer: | ... frame |      each is offered again once it was read
//! ```
//! Memory: a buffer per descriptor, 1 MiB of address space per queue; only pages that frames were
//! written to use memory. A frame that does not fit in an arena waits in its buffers, and so do
//! those after it.
//!
//! The number of buffers and the lengths that the worker reports are checked: a frame is never
//! longer than its buffers.

use super::virtqueue::{Buffer, Used, Violation, Virtqueue};
use crate::mapping::Mapping;
use crate::ports::tap::cut_frames::CutFrames;
use crate::ports::tap::header::{HEADER, take};
use pregrant::net::placed_offload::Taken;
use pregrant::port::{Arena, MAX_FRAME, Offload};
use std::fmt;
use std::sync::Arc;

/// Bytes of a buffer: sixteen hold the longest frame. It is an odd number of cache lines, so that
/// the first lines of the buffers are spread over the cache's sets.
pub const BUFFER: usize = 65 * 64;

/// A violation of the protocol that the worker committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    Ring(Violation),
    /// A frame has this many buffers, and some of them did not arrive.
    Buffers(u16),
    /// The length in one buffer is longer than the buffer, or too short.
    Length(u32),
}

impl From<Violation> for Wrong {
    fn from(violation: Violation) -> Self {
        Self::Ring(violation)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(violation) => violation.fmt(f),
            Self::Buffers(n) => write!(f, "a frame in {n} buffers, some of them missing"),
            Self::Length(n) => write!(f, "{n} bytes in a buffer of {BUFFER}"),
        }
    }
}

/// The ring by which frames are received from the worker.
#[derive(Debug)]
pub struct Receiver {
    pub ring: Virtqueue,
    memory: Arc<Mapping>,
    /// The offset of the first buffer in the memory.
    at: usize,
    /// For each descriptor, the index of its buffer.
    place: Box<[u16]>,
    /// The oldest frame, if there is one: its buffers, its length with the header, and its header.
    frame: Vec<Used>,
    len: usize,
    header: [u8; HEADER],
}

impl Receiver {
    /// Offers a buffer for each descriptor of the ring, from byte `at` of `memory` on.
    pub fn new(mut ring: Virtqueue, memory: Arc<Mapping>, at: usize) -> Self {
        let n = ring.nr_free();
        let mut place = vec![0; n].into_boxed_slice();
        for i in 0..n {
            let address = memory.address() + (at + i * BUFFER) as u64;
            let buffer = Buffer { address, len: BUFFER as u32, writable: true };
            // SAFETY: the bytes are in the mapping, which stays as long as the ring, and are this
            // descriptor's alone.
            if let Some(head) = unsafe { ring.push_one(buffer) } {
                place[usize::from(head)] = i as u16;
            }
        }
        Self { ring, memory, at, place, frame: Vec::with_capacity(n), len: 0, header: [0; HEADER] }
    }

    /// Bytes of memory for the buffers of a ring.
    pub const fn bytes(size: u16) -> usize {
        size as usize * BUFFER
    }

    fn buffer(&self, used: Used) -> usize {
        self.at + usize::from(self.place[usize::from(used.head)]) * BUFFER
    }

    #[inline(always)]
    fn pop(&mut self) -> Result<bool, Wrong> {
        let Some(used) = self.ring.pop()? else { return Ok(false) };
        if used.len as usize > BUFFER {
            return Err(Wrong::Length(used.len));
        }
        self.len += used.len as usize;
        self.frame.push(used);
        Ok(true)
    }

    /// Returns true if there is another frame.
    #[inline(always)]
    fn next(&mut self) -> Result<bool, Wrong> {
        if !self.frame.is_empty() {
            return Ok(true);
        }
        self.len = 0;
        if !self.pop()? {
            return Ok(false);
        }
        let mut header = [0; HEADER];
        // Old bytes in a buffer are never read, since only the reported length is.
        if self.len < HEADER {
            return Err(Wrong::Length(self.len as u32));
        }
        self.memory.read(self.buffer(self.frame[0]), &mut header);
        let nr_buffers = u16::from_le_bytes([header[10], header[11]]);
        for _ in 1..nr_buffers.max(1) {
            if !self.pop()? {
                return Err(Wrong::Buffers(nr_buffers));
            }
        }
        self.header = header;
        Ok(true)
    }

    /// Moves frames while there is room. When a segmented frame does not fit, its rest stays in
    /// `cut` and is moved first in the next call. Returns how many frames were malformed.
    ///
    /// # Errors
    ///
    /// The worker violated the protocol.
    pub fn unload(&mut self, into: &mut Arena, cut: &mut CutFrames) -> Result<u64, Wrong> {
        let mut malformed = 0;
        // Segmented frames go first; they may take all room.
        while cut.unload(into) && into.has_room() && self.next()? {
            let len = self.len - HEADER;
            if len > MAX_FRAME {
                malformed += 1;
            } else if len > 0
                && let Some(to) = into.free_by_pages(len, Offload::default())
            {
                self.copy(to);
                match take(&mut self.header, to) {
                    Some(Taken::Frame(offload)) => into.set_offload(into.len() - 1, offload),
                    Some(Taken::Uncut(offload)) => {
                        malformed += u64::from(cut.cut(to, offload).is_err());
                        into.take_back();
                    }
                    None => {
                        malformed += 1;
                        into.take_back();
                    }
                }
            }
            self.done();
        }
        Ok(malformed)
    }

    /// Copies the whole oldest frame.
    fn copy(&self, mut to: &mut [u8]) {
        let mut skip = HEADER;
        for used in &self.frame {
            let n = (used.len as usize).saturating_sub(skip).min(to.len());
            let (part, rest) = to.split_at_mut(n);
            self.memory.read(self.buffer(*used) + skip, part);
            (to, skip) = (rest, 0);
        }
    }

    /// Drops the oldest frame: its buffers are offered again with the next publish.
    fn done(&mut self) {
        for used in self.frame.drain(..) {
            // SAFETY: the descriptor's own buffer, and no one reads it any more.
            unsafe { self.ring.push_again(used.head) };
        }
    }

    /// Returns an upper bound of the frames that wait here: a long frame counts once for each of
    /// its buffers.
    pub fn held(&self) -> usize {
        usize::from(!self.frame.is_empty()) + self.ring.waiting()
    }
}
