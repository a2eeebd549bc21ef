//! The frame hook: a function that decides on a received frame, before the frame is copied.
//!
//! ```text
//!   slot's memory --first 256 bytes--> HookFrame --closure--> Pass      the caller's arena: head as it is now, the rest copied
//!                                                             Drop      nothing
//!                                                             Tx        the same buffer, or a TX slot
//!                                                             Redirect  Diverted, for another vif
//! ```
//! Invariant: the hook gets a private copy of the first bytes, decides by that copy, and may change
//! it. The bytes after it are copied once, later, and the hook does not see them.
//!
//! What the back may do: change the frame's memory at any time.

use super::rx_pages::lent::RX_HEAD_BYTES;
use crate::port::{Arena, BURST_FRAMES, Burst, Offload};
use core::iter::Sum;
use core::ops::Range;

/// Largest number of bytes that a hook can prepend to a frame.
pub const HOOK_ROOM: usize = 256;

/// A hook's verdict on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookAction {
    /// Pass the frame to the guest's network stack.
    Pass,
    /// Drop the frame.
    Drop,
    /// Send the frame back through the queue on which it arrived.
    Tx,
    /// Send the frame through another vif of the guest. The number's meaning is the owner's.
    Redirect(u32),
}

/// The first bytes of a frame in private memory, as a hook sees and may change them.
pub struct HookFrame {
    bytes: [u8; HOOK_ROOM + RX_HEAD_BYTES],
    at: usize,
    end: usize,
    /// Number of bytes of the frame after the copy.
    rest: usize,
    /// Number of bytes that the hook prepended; negative: removed.
    grown: isize,
    changed: bool,
    /// Checksum and segmentation work; a hook that changes those headers must change it, too.
    pub offload: Offload,
}

impl HookFrame {
    /// Creates a buffer without a frame.
    #[allow(clippy::new_without_default)] // one in each call that receives
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; HOOK_ROOM + RX_HEAD_BYTES],
            at: HOOK_ROOM,
            end: HOOK_ROOM,
            rest: 0,
            grown: 0,
            changed: false,
            offload: Offload::default(),
        }
    }

    /// Starts another frame of `len` bytes; returns the memory for its head, to be filled.
    #[inline(always)]
    pub(super) fn begin(&mut self, len: usize, offload: Offload) -> &mut [u8] {
        let head = len.min(RX_HEAD_BYTES);
        (self.at, self.end, self.rest) = (HOOK_ROOM, HOOK_ROOM + head, len - head);
        (self.grown, self.changed, self.offload) = (0, false, offload);
        &mut self.bytes[HOOK_ROOM..HOOK_ROOM + head]
    }

    /// The first bytes of the frame, up to 256, with what the hook prepended and without what it
    /// removed.
    #[inline(always)]
    pub fn head(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// The first bytes, to be changed.
    #[inline(always)]
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.changed = true;
        &mut self.bytes[self.at..self.end]
    }

    /// Number of bytes of the whole frame.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // a frame has bytes
    pub fn len(&self) -> usize {
        self.end - self.at + self.rest
    }

    /// Prepends `n` zero bytes to the frame. False: there is not enough room.
    #[must_use]
    pub fn grow(&mut self, n: usize) -> bool {
        let Some(at) = self.at.checked_sub(n) else { return false };
        self.bytes[at..self.at].fill(0);
        (self.at, self.grown, self.changed) = (at, self.grown + n as isize, true);
        true
    }

    /// Removes `n` bytes from the start. False: the head has no more than that.
    #[must_use]
    pub fn shrink(&mut self, n: usize) -> bool {
        if n >= self.end - self.at {
            return false;
        }
        (self.at, self.grown) = (self.at + n, self.grown - n as isize);
        true
    }

    /// Number of bytes after the copy.
    #[inline(always)]
    pub(super) fn rest(&self) -> usize {
        self.rest
    }

    /// Number of bytes prepended; negative: removed.
    #[inline(always)]
    pub(super) fn grown(&self) -> isize {
        self.grown
    }

    /// True if the hook has changed the head.
    #[inline(always)]
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }
}

/// Frames that a hook redirected, until their owner has sent them. Memory is allocated once.
pub struct Diverted {
    /// Frames that go to other vifs.
    redirected: Arena,
    to: [Target; BURST_FRAMES],
    /// Frames that must be sent back by a copy, on their way to TX.
    pub(super) back: Arena,
}

/// The owner's number of a vif.
type Target = u32;

impl Default for Diverted {
    fn default() -> Self {
        Self::new()
    }
}

impl Diverted {
    /// Makes an empty value with room for a burst.
    pub fn new() -> Self {
        Self { redirected: Arena::new(), to: [0; BURST_FRAMES], back: Arena::new() }
    }

    /// Removes all frames.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.redirected.clear();
        self.back.clear();
    }

    /// Number of frames for other vifs.
    pub fn len(&self) -> usize {
        self.redirected.len()
    }

    /// True if there are no frames.
    pub fn is_empty(&self) -> bool {
        self.redirected.is_empty()
    }

    /// The frames for other vifs in the order of arrival, as runs of frames for one vif with its
    /// number.
    pub fn runs(&self) -> impl Iterator<Item = (u32, Burst<'_>)> {
        let all = self.redirected.burst();
        let to = &self.to[..all.frames.len()];
        let mut at = 0;
        core::iter::from_fn(move || {
            let vif = *to.get(at)?;
            let n = to[at..].iter().take_while(|other| **other == vif).count();
            let Range { start, end } = at..at + n;
            at = end;
            Some((vif, Burst::of(all.bytes, &all.frames[start..end])))
        })
    }

    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.redirected.has_room() && self.back.has_room()
    }

    /// The arena for a frame to `vif`, which will be added now.
    #[inline(always)]
    pub(super) fn to(&mut self, vif: u32) -> &mut Arena {
        if let Some(to) = self.to.get_mut(self.redirected.len()) {
            *to = vif;
        }
        &mut self.redirected
    }
}

/// Counts of a hook's verdicts on a queue's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HookStats {
    /// Number of frames with [`HookAction::Pass`].
    pub passed: u64,
    /// Number of frames with [`HookAction::Drop`].
    pub dropped: u64,
    /// Number of frames with [`HookAction::Tx`] that were sent in the buffer in which they arrived.
    pub sent_on: u64,
    /// Frames with [`HookAction::Tx`], sent by a copy.
    pub sent_copied: u64,
    /// Number of frames with [`HookAction::Tx`] that were dropped, because there was no room or the
    /// back does not accept such a frame.
    pub unsent: u64,
    /// Number of frames with [`HookAction::Redirect`].
    pub redirected: u64,
}

impl HookStats {
    /// Number of frames that a hook saw.
    pub fn frames(&self) -> u64 {
        self.passed + self.dropped + self.sent_on + self.sent_copied + self.unsent + self.redirected
    }
}

/// Sums up the counters of several queues.
impl Sum for HookStats {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |sum, of| Self {
            passed: sum.passed + of.passed,
            dropped: sum.dropped + of.dropped,
            sent_on: sum.sent_on + of.sent_on,
            sent_copied: sum.sent_copied + of.sent_copied,
            unsent: sum.unsent + of.unsent,
            redirected: sum.redirected + of.redirected,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn a_head_grows_and_shrinks_in_its_own_memory() {
        let mut frame = HookFrame::new();
        frame.begin(1000, Offload::default()).fill(7);
        assert_eq!((frame.len(), frame.head().len(), frame.is_changed()), (1000, RX_HEAD_BYTES, false));
        assert!(!frame.grow(HOOK_ROOM + 1) && !frame.shrink(RX_HEAD_BYTES));
        assert!(frame.shrink(10));
        assert_eq!((frame.len(), frame.grown(), frame.is_changed()), (990, -10, false));
        assert!(frame.grow(14));
        assert_eq!(frame.head()[..15], [[0; 14].as_slice(), &[7]].concat());
        assert_eq!((frame.len(), frame.grown(), frame.is_changed()), (1004, 4, true));
        // The next frame must not see changes of this one.
        frame.begin(60, Offload::default()).fill(9);
        assert!(frame.head() == [9; 60] && frame.grow(HOOK_ROOM) && frame.rest() == 0);
        assert!(frame.head()[..HOOK_ROOM].iter().all(|b| *b == 0) && frame.len() == 60 + HOOK_ROOM);
    }

    #[test]
    fn redirected_frames_come_in_runs() {
        let mut diverted = Diverted::new();
        for (vif, byte) in [(3, 1), (3, 2), (1, 3), (3, 4)] {
            assert!(diverted.to(vif).push(&[byte; 60], Offload::default()));
        }
        let runs: Vec<(u32, Vec<u8>)> =
            diverted.runs().map(|(vif, burst)| (vif, burst.iter().map(|(f, _)| f[0]).collect())).collect();
        assert_eq!(runs, [(3, vec![1, 2]), (1, vec![3]), (3, vec![4])]);
        diverted.clear();
        assert!(diverted.runs().next().is_none());
    }
}
