//! Frames from a tap, through a ring: the worker writes each into as many buffers as it takes
//! (mergeable buffers), behind one header.
//!
//! ```text
//!   buffer: | header, with the number of buffers | frame ... |   buffer: | ... frame |      each is offered again once it was read
//! ```
//! Memory: a buffer for each descriptor, 1 MiB a queue of address space; only pages that frames
//! came into count as used. A frame that finds no room in an arena waits in its buffers, and those
//! behind it.
//!
//! The worker's number of buffers, and its lengths, are checked: a frame is never longer than what
//! its buffers hold.

use super::virtqueue::{Buffer, Used, Violation, Virtqueue};
use crate::mapping::Mapping;
use crate::ports::tap::cut_frames::CutFrames;
use crate::ports::tap::header::{HEADER, take};
use pregrant::net::placed_offload::Taken;
use pregrant::port::{Arena, MAX_FRAME, Offload};
use std::fmt;
use std::sync::Arc;

/// Bytes of a buffer: sixteen hold the longest frame; an odd number of cache lines, so that the
/// first lines of all are not in one set.
pub const BUFFER: usize = 65 * 64;

/// A violation by the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    Ring(Violation),
    /// A frame in so many buffers; some did not come.
    Buffers(u16),
    /// So many bytes in one buffer.
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

/// See the module.
#[derive(Debug)]
pub struct Receiver {
    pub ring: Virtqueue,
    memory: Arc<Mapping>,
    /// Where the buffers begin.
    at: usize,
    /// The buffer of each descriptor.
    place: Box<[u16]>,
    /// The oldest frame's buffers, if it came; its bytes, the header included; and its header.
    frame: Vec<Used>,
    len: usize,
    header: [u8; HEADER],
}

impl Receiver {
    /// With a buffer for each of the ring's descriptors from byte `at` of `memory` on, all of them
    /// offered.
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

    /// Bytes of memory that the buffers of a ring take.
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

    /// Whether a frame is there.
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
        // A buffer's old bytes are never read: its length is as reported.
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

    /// Moves frames that came, as long as there is room; of one that is to be cut what found none
    /// is left in `cut`, and goes first. Returns how many were malformed.
    ///
    /// # Errors
    /// The worker violated the protocol.
    pub fn unload(&mut self, into: &mut Arena, cut: &mut CutFrames) -> Result<u64, Wrong> {
        let mut malformed = 0;
        // Those that were cut first: they may take the room.
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

    /// The oldest frame, all of it.
    fn copy(&self, mut to: &mut [u8]) {
        let mut skip = HEADER;
        for used in &self.frame {
            let n = (used.len as usize).saturating_sub(skip).min(to.len());
            let (part, rest) = to.split_at_mut(n);
            self.memory.read(self.buffer(*used) + skip, part);
            (to, skip) = (rest, 0);
        }
    }

    /// The oldest frame was read: its buffers are offered again, with what is published next.
    fn done(&mut self) {
        for used in self.frame.drain(..) {
            // SAFETY: the descriptor's own buffer, and no one reads it any more.
            unsafe { self.ring.push_again(used.head) };
        }
    }

    /// Frames that came and wait here, at most: a long one counts once for each of its buffers.
    pub fn held(&self) -> usize {
        usize::from(!self.frame.is_empty()) + self.ring.waiting()
    }
}
