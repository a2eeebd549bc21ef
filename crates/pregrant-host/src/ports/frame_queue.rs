//! A bounded queue of frames in one ring of bytes: one copy in, one copy out, no allocation per
//! frame.
//!
//! ```text
//!            oldest.at              head
//!   | free   | frame | frame | .... | free          |      a frame never wraps: when it does not fit before the
//!            ^ 64 B aligned                              end, it starts again at 0
//! ```
//!
//! When the queue becomes empty it starts again at offset 0, so a short queue stays in the CPU's
//! cache.

use std::collections::VecDeque;

use pregrant::net::checksum;
use pregrant::net::gso::Segments;
use pregrant::port::{Arena, FrameDesc, MAX_FRAME, Offload, Offloads};

/// Alignment of a frame's first byte.
const ALIGN: usize = 64;

/// The result of queueing a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Queued {
    /// Number of frames that were added to the queue; more than one if the frame was segmented.
    pub frames: u32,
    /// Number of frames that were dropped because the queue was full.
    pub overflow: u32,
    /// 1 if the frame needs a checksum or segmentation that its headers do not allow.
    pub unfinishable: u32,
}

/// A queue of frames.
#[derive(Debug)]
pub struct FrameQueue {
    bytes: Box<[u8]>,
    frames: VecDeque<FrameDesc>,
    head: usize,
}

impl FrameQueue {
    /// Creates a queue of at least `bytes` bytes, with room for the largest frame.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.max(MAX_FRAME).next_multiple_of(ALIGN);
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
            // Each frame takes at least ALIGN bytes, so this never grows.
            frames: VecDeque::with_capacity(bytes / ALIGN),
            head: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends a frame of `len` bytes and returns its bytes to be filled. None: there is no room,
    /// or `len` is 0.
    pub fn room(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        if len == 0 || len > self.bytes.len() {
            return None;
        }
        let at = match self.frames.front() {
            None => 0,
            Some(oldest) => {
                let tail = oldest.at as usize;
                if self.head > tail {
                    if len <= self.bytes.len() - self.head {
                        self.head
                    } else if len <= tail {
                        0
                    } else {
                        return None;
                    }
                } else if len <= tail - self.head {
                    self.head
                } else {
                    return None;
                }
            }
        };
        self.frames.push_back(FrameDesc { at: at as u32, len: len as u32, offload });
        self.head = (at + len).next_multiple_of(ALIGN);
        Some(&mut self.bytes[at..at + len])
    }

    /// Appends a copy of `frame`; false when there is no room.
    #[must_use]
    pub fn push(&mut self, frame: &[u8], offload: Offload) -> bool {
        match self.room(frame.len(), offload) {
            Some(to) => {
                to.copy_from_slice(frame);
                true
            }
            None => false,
        }
    }

    /// Appends `frame` for a reader that supports the offloads `caps`. The rest is done here: a
    /// blank checksum is completed, and a large segment becomes several frames.
    pub fn push_finished(&mut self, frame: &[u8], offload: Offload, caps: Offloads) -> Queued {
        let mut done = Queued::default();
        // A large segment's checksum is completed after the segmentation, so the reader must
        // support both.
        if offload.gso_type != 0 && !(caps.gso && caps.csum) {
            let Ok(plan) = Segments::plan(frame, offload) else {
                done.unfinishable = 1;
                return done;
            };
            let finished = Offload { csum_ok: true, ..Offload::default() };
            for i in 0..plan.count() {
                match self.room(plan.len_of(i), finished) {
                    Some(to) => {
                        plan.write(i, to);
                        done.frames += 1;
                    }
                    None => {
                        done.overflow = (plan.count() - i) as u32;
                        break;
                    }
                }
            }
            return done;
        }
        let finish = offload.csum_blank && !caps.csum;
        let kept = if finish { Offload { csum_blank: false, ..offload } } else { offload };
        let Some(to) = self.room(frame.len(), kept) else {
            done.overflow = 1;
            return done;
        };
        to.copy_from_slice(frame);
        if finish && checksum::finish_blank(to).is_err() {
            self.take_back();
            done.unfinishable = 1;
        } else {
            done.frames = 1;
        }
        done
    }

    /// Removes the newest frame.
    fn take_back(&mut self) {
        if let Some(newest) = self.frames.pop_back() {
            self.head = newest.at as usize;
        }
    }

    pub fn front(&self) -> Option<(&[u8], Offload)> {
        let d = self.frames.front()?;
        Some((&self.bytes[d.at as usize..(d.at + d.len) as usize], d.offload))
    }

    /// Drops the oldest frame.
    pub fn pop(&mut self) {
        self.frames.pop_front();
    }

    /// Moves as many frames as fit to `arena`. Returns how many.
    pub fn pop_into(&mut self, arena: &mut Arena) -> usize {
        let mut n = 0;
        while let Some((frame, offload)) = self.front() {
            if !arena.push(frame, offload) {
                break;
            }
            self.pop();
            n += 1;
        }
        n
    }

    pub fn clear(&mut self) {
        self.frames.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small pseudo-random generator with a fixed seed, so that failures can be reproduced.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, below: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % below
        }
    }

    #[test]
    fn behaves_like_a_list_of_frames() {
        let mut dice = Dice(7);
        let mut queue = FrameQueue::new(256 * 1024);
        let capacity = queue.frames.capacity();
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        let mut refused = 0;
        for step in 0..20_000u32 {
            if dice.roll(5) < 3 {
                let len = if dice.roll(40) == 0 { 1 + dice.roll(MAX_FRAME) } else { 1 + dice.roll(3000) };
                let frame = vec![step as u8; len];
                if queue.push(&frame, Offload::default()) {
                    model.push_back(frame);
                } else {
                    refused += 1;
                    let held: usize = model.iter().map(|f| f.len().next_multiple_of(ALIGN)).sum();
                    // At the end of the ring, less is wasted than the frame that did not fit there.
                    let room = 256 * 1024 - held;
                    assert!(room < len + MAX_FRAME.max(len) + ALIGN, "refused {len} bytes with {room} free");
                }
            } else {
                assert_eq!(queue.front().map(|(f, _)| f), model.front().map(|f| &f[..]));
                queue.pop();
                model.pop_front();
            }
            assert_eq!(queue.len(), model.len());
        }
        assert!(refused > 0, "the queue was never full");
        assert_eq!(queue.frames.capacity(), capacity);
    }

    #[test]
    fn fills_to_its_last_byte_with_small_frames() {
        let mut queue = FrameQueue::new(128 * 1024);
        let mut n = 0;
        while queue.push(&[1; 60], Offload::default()) {
            n += 1;
        }
        assert_eq!(n, 128 * 1024 / ALIGN);
        queue.pop();
        assert!(queue.push(&[2; 64], Offload::default()));
        assert!(!queue.push(&[2; 1], Offload::default()));
    }

    #[test]
    fn what_cannot_be_finished_is_taken_back() {
        let mut queue = FrameQueue::new(0);
        let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
        let arp = [0u8; 60];
        let q = queue.push_finished(&arp, blank, Offloads::default());
        assert_eq!(q, Queued { unfinishable: 1, ..Queued::default() });
        assert!(queue.is_empty());
        let q = queue.push_finished(&arp, blank, Offloads { csum: true, gso: false });
        assert_eq!(q, Queued { frames: 1, ..Queued::default() });
        assert_eq!(queue.front().map(|(_, o)| o), Some(blank));
    }
}
