//! Frames on their way to a tap, through a ring: each with its header in one descriptor's memory, which is its own until it came back.
//!
//! ```text
//!   area:  | sent, not back: header, frame | header, frame | ... |   free   |
//!            ^ oldest                                            ^ next, which begins anew at the end, and where none is out
//! ```
//! Memory: the area, 512 KiB a queue, of which the first lines are enough as long as the worker keeps up.

use super::virtqueue::{Buffer, Lie, Virtqueue};
use crate::mapping::Mapping;
use crate::ports::tap::header::HEADER;
use pregrant::port::MAX_FRAME;
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
}

impl Sender {
    /// With these bytes for frames.
    pub fn new(ring: Virtqueue, memory: Arc<Mapping>, area: Range<usize>) -> Self {
        let sent = VecDeque::with_capacity(ring.nr_free());
        Self { ring, memory, next: area.start, area, sent }
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
        let len = HEADER + frame.len();
        let Some(at) = self.room(len.next_multiple_of(64)).filter(|_| frame.len() <= MAX_FRAME) else {
            return false;
        };
        let buffer = Buffer { address: self.memory.address() + at as u64, len: len as u32, writable: false };
        if self.ring.nr_free() == 0 {
            return false;
        }
        self.memory.write(at, header);
        self.memory.write(at + HEADER, frame);
        // SAFETY: the bytes are the area's, which stays as long as the ring, and no other frame has them until this one is back.
        let Some(head) = (unsafe { self.ring.push(std::iter::once(buffer)) }) else { return false };
        self.sent.push_back(Sent { head, at, len, is_back: false });
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
            match self.sent.front() {
                Some(oldest) if oldest.head == used.head => {
                    self.sent.pop_front();
                }
                _ => {
                    let of = |sent: &&mut Sent| sent.head == used.head && !sent.is_back;
                    if let Some(sent) = self.sent.iter_mut().find(of) {
                        sent.is_back = true;
                    }
                }
            }
            while self.sent.front().is_some_and(|oldest| oldest.is_back) {
                self.sent.pop_front();
            }
        }
        Ok(())
    }

    /// Frames that are out.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Takes those that are not back, in order, each behind its header. Only when the worker was stopped.
    pub fn left(&mut self, mut each: impl FnMut(&[u8])) {
        let mut bytes = vec![0; HEADER + MAX_FRAME];
        for sent in self.sent.drain(..).filter(|sent| !sent.is_back) {
            let frame = &mut bytes[..sent.len];
            self.memory.read(sent.at, frame);
            each(frame);
        }
    }
}
