//! Frames that one call read from a tap, on their way to an arena.
//!
//! ```text
//!   slots: | header, frame ...... | header, frame ...... | .... |     a frame of the largest size fits each
//!            pop --> arena          waiting
//! ```
//! The number of frames that the next call asks for follows from the last ones: one if frames come
//! alone, up to [`SLOTS`] if calls return full, but never more than the arena can take of the last
//! length seen. So frames only wait here if longer ones follow shorter ones.
//!
//! Memory: [`SLOTS`] times 64 KiB, which is 2 MiB of address space per queue; only pages that
//! frames were read to use memory.

use super::header::HEADER;
use pregrant::port::{Arena, MAX_FRAME};

/// Largest number of frames per call.
pub const SLOTS: usize = 32;
/// Distance of slots: a cache line more than 64 KiB, so that the first lines of the slots are
/// spread over the cache's sets.
pub const STRIDE: usize = (HEADER + MAX_FRAME).next_multiple_of(64) + 64;

/// A longer frame is read to its final place by a call of its own. Copying it from here to an arena
/// costs an instruction per 8 bytes, 6.8 thousand for TCP's frames of 54 kB; such a call costs 3 to
/// 7 thousand more than a request in a ring (`cargo xtask rig 32 --profile`).
const LONG: usize = 16 * 1024;

/// After this many calls in a row that got a single frame, calls ask for more than one.
const ALONE: usize = 2;
/// Number of frames that the first such call asks for.
const FIRST: usize = 4;

/// Frames that were read from one queue of a tap and wait for the guest.
#[derive(Debug)]
pub struct Inbox {
    bytes: Box<[u8]>,
    /// The slot and the length of each frame, oldest first.
    came: [(usize, usize); SLOTS],
    popped: usize,
    filled: usize,
    /// Number of frames that a call asks for; 1: calls ask for single frames.
    many: usize,
    /// Length of the longest frame of the last call.
    longest: usize,
    /// Number of calls since the last pause that got a single frame.
    alone: usize,
    /// True if the last burst ended because the arena was full.
    more: bool,
}

impl Inbox {
    pub fn new() -> Self {
        Self {
            bytes: vec![0; SLOTS * STRIDE].into_boxed_slice(),
            came: [(0, 0); SLOTS],
            popped: 0,
            filled: 0,
            many: 1,
            longest: HEADER,
            alone: 0,
            more: false,
        }
    }

    /// Returns the number of waiting frames.
    pub fn len(&self) -> usize {
        self.filled - self.popped
    }

    /// Returns the oldest frame with its header; it stays until [`pop`](Self::pop).
    pub fn oldest(&mut self) -> Option<&mut [u8]> {
        let (slot, len) = *self.came.get(self.popped..self.filled)?.first()?;
        self.bytes.get_mut(slot * STRIDE..slot * STRIDE + len)
    }

    /// Returns true if the last frame was so long that the next one should be read to its final
    /// place.
    pub fn is_long(&self) -> bool {
        self.longest > LONG
    }

    /// Notes that a frame of `len` bytes was read to its final place.
    pub fn passed_by(&mut self, len: usize) {
        self.longest = len;
    }

    /// Drops the oldest frame.
    pub fn pop(&mut self) {
        self.popped = self.filled.min(self.popped + 1);
    }

    /// Starts a burst.
    pub fn begin(&mut self) {
        self.alone = 0;
    }

    /// Returns the number of frames that the next call should ask for, given the room.
    pub fn wanted(&self, into: &Arena) -> usize {
        // After a pause the first call asks for one frame, since mostly there is none.
        if !self.more && self.alone == 0 { 1 } else { self.many.min(into.fits(self.longest)).max(1) }
    }

    /// Returns buffers for `n` frames, which replace the old ones.
    pub fn room(&mut self, n: usize) -> &mut [u8] {
        (self.popped, self.filled, self.longest) = (0, 0, HEADER);
        &mut self.bytes[..n * STRIDE]
    }

    /// Records that a frame was read to `slot`.
    pub fn put(&mut self, slot: usize, len: usize) {
        if self.filled < SLOTS {
            self.came[self.filled] = (slot, len);
            self.filled += 1;
            self.longest = self.longest.max(len);
        }
    }

    /// Adapts to the result of a call that asked for `asked` frames.
    pub fn learn(&mut self, asked: usize) {
        let got = self.filled;
        self.more = got == asked;
        if asked > 1 {
            self.many =
                if got == asked { self.many.max(2 * asked).min(SLOTS) } else { got.next_power_of_two() };
            self.alone = got;
        } else {
            self.alone += got;
            if self.alone >= ALONE {
                self.many = self.many.max(FIRST);
            }
        }
    }
}
