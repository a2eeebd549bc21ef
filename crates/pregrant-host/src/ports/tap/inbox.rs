//! Frames that one call read from a tap, on their way to an arena.
//!
//! ```text
//!   slots: | header, frame ...... | header, frame ...... | .... |     a frame of the largest size fits each
//!            pop --> arena          waiting
//! ```
//! How many the next call asks for follows from what the last ones brought: one where frames come
//! alone, up to [`SLOTS`] where calls come back full; never more than the arena takes of the length
//! last seen. So frames wait here only where longer ones follow shorter.
//!
//! Memory: [`SLOTS`] times 64 KiB, 2 MiB a queue of address space; only pages that frames were read
//! into count as used.

use super::header::HEADER;
use pregrant::port::{Arena, MAX_FRAME};

/// Frames that a call reads at most.
pub const SLOTS: usize = 32;
/// From slot to slot: a cache line more than 64 KiB, so that the first lines of all are not in one
/// set.
pub const STRIDE: usize = (HEADER + MAX_FRAME).next_multiple_of(64) + 64;

/// A frame of more bytes is read to where it stays, by a call of its own: a copy from here to an
/// arena is an instruction for 8 bytes, 6.8 thousand for TCP's frames of 54 kB, and what such calls
/// take beyond a request in a ring is 3 to 7 thousand (`cargo xtask rig 32 --profile`).
const LONG: usize = 16 * 1024;

/// Frames that calls for one each bring in a row before a call asks for more.
const ALONE: usize = 2;
/// Frames that the first of these calls asks for.
const FIRST: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct Inbox {
    bytes: Box<[u8]>,
    /// Slots that hold a frame, and bytes there, in the order of their coming.
    came: [(usize, usize); SLOTS],
    popped: usize,
    filled: usize,
    /// Frames that a call asks for when it asks for many; 1: no call does.
    many: usize,
    /// The longest that the last call brought.
    longest: usize,
    /// Frames that came one by one since the last pause.
    alone: usize,
    /// The last burst ended because the arena was full.
    more: bool,
}

impl Inbox {
    /// An empty one.
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

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.filled - self.popped
    }

    /// The oldest frame, behind its header. It goes with [`pop`](Self::pop).
    pub fn oldest(&mut self) -> Option<&mut [u8]> {
        let (slot, len) = *self.came.get(self.popped..self.filled)?.first()?;
        self.bytes.get_mut(slot * STRIDE..slot * STRIDE + len)
    }

    /// Whether the last that came was so long that the next is better read elsewhere.
    pub fn is_long(&self) -> bool {
        self.longest > LONG
    }

    /// One of so many bytes was read elsewhere.
    pub fn passed_by(&mut self, len: usize) {
        self.longest = len;
    }

    /// Forgets the oldest frame.
    pub fn pop(&mut self) {
        self.popped = self.filled.min(self.popped + 1);
    }

    /// A burst begins.
    pub fn begin(&mut self) {
        self.alone = 0;
    }

    /// How many frames the next call is to ask for, with so much room.
    pub fn wanted(&self, into: &Arena) -> usize {
        // After a pause the first call asks for one: mostly there is none.
        if !self.more && self.alone == 0 { 1 } else { self.many.min(into.fits(self.longest)).max(1) }
    }

    /// Where to read `n` frames to; what was there is gone.
    pub fn room(&mut self, n: usize) -> &mut [u8] {
        (self.popped, self.filled, self.longest) = (0, 0, HEADER);
        &mut self.bytes[..n * STRIDE]
    }

    /// A frame came into `slot`.
    pub fn put(&mut self, slot: usize, len: usize) {
        if self.filled < SLOTS {
            self.came[self.filled] = (slot, len);
            self.filled += 1;
            self.longest = self.longest.max(len);
        }
    }

    /// A call that asked for `asked` is over.
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
