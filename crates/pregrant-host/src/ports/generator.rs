//! A port that always has numbered frames for the guest.
//!
//! Each burst fills the arena with frames of one size ([`super::sequence`]), numbered from 0
//! without a gap. Frames from the guest are dropped. Other threads read the counters and pause it
//! through [`Generator::control`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pregrant::port::{Arena, Burst, FramePort, MAX_FRAME, Offload, Offloads};

use super::sequence::{Head, MIN_LEN};

/// Counters and settings for other threads.
#[derive(Debug)]
pub struct GeneratorControl {
    made: AtomicU64,
    limit: AtomicU64,
    paused: AtomicBool,
}

impl GeneratorControl {
    /// Returns the number of frames made so far.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Stops the generator, which returns no frames while `paused` is true, or lets it continue.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Sets the total number of frames after which the generator stops.
    pub fn set_limit(&self, frames: u64) {
        self.limit.store(frames, Ordering::Relaxed);
    }
}

/// The part of each frame that the generator writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Filling {
    /// Every byte is written, for a receiver that checks each one.
    #[default]
    Whole,
    /// Only the head with the number ([`MIN_LEN`] bytes) is written. The other bytes are those that
    /// the arena held before.
    Head,
}

#[derive(Debug)]
pub struct Generator {
    head: Head,
    filling: Filling,
    frame_len: usize,
    next: u64,
    dropped: u64,
    control: Arc<GeneratorControl>,
}

impl Generator {
    /// Makes frames of `frame_len` bytes, clamped to 32..=65535.
    pub fn new(head: Head, frame_len: usize) -> Self {
        Self {
            head,
            filling: Filling::Whole,
            frame_len: frame_len.clamp(MIN_LEN, MAX_FRAME),
            next: 0,
            dropped: 0,
            control: Arc::new(GeneratorControl {
                made: AtomicU64::new(0),
                limit: AtomicU64::new(u64::MAX),
                paused: AtomicBool::new(false),
            }),
        }
    }

    /// Returns a handle for other threads.
    pub fn control(&self) -> Arc<GeneratorControl> {
        Arc::clone(&self.control)
    }

    /// Sets how much of each further frame is written.
    pub fn set_filling(&mut self, filling: Filling) {
        self.filling = filling;
    }

    pub fn made(&self) -> u64 {
        self.next
    }

    /// Appends up to `most` frames, as many as fit. Returns how many.
    #[inline(always)]
    pub fn fill(&mut self, into: &mut Arena, most: u64) -> u64 {
        let (first, end) = (self.next, self.next.saturating_add(most));
        while self.next < end {
            let Some(frame) = into.room(self.frame_len, Offload::default()) else { break };
            match self.filling {
                Filling::Whole => self.head.fill(frame, self.next),
                Filling::Head => self.head.fill_head(frame, self.next),
            }
            self.next += 1;
        }
        self.control.made.store(self.next, Ordering::Relaxed);
        self.next - first
    }

    /// Returns the number of frames from the guest that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl FramePort for Generator {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.dropped += frames.frames.len() as u64;
        frames.frames.len()
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        if self.control.paused.load(Ordering::Relaxed) {
            return 0;
        }
        let left = self.control.limit.load(Ordering::Relaxed).saturating_sub(self.next);
        self.fill(into, left) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::sequence;

    #[test]
    fn frames_are_numbered_without_a_gap_across_bursts() {
        for len in [32, 64, 1500, MAX_FRAME] {
            let mut generator = Generator::new(Head::default(), len);
            let mut arena = Arena::new();
            let mut expected = 0;
            for _ in 0..5 {
                arena.clear();
                let n = generator.rx_burst(&mut arena);
                assert!(n > 0 && n == arena.len());
                for (frame, offload) in arena.burst().iter() {
                    assert_eq!((frame.len(), offload), (len, Offload::default()));
                    assert_eq!(sequence::check(frame), Ok(expected));
                    expected += 1;
                }
            }
            assert_eq!(generator.control().made(), expected);
        }
    }

    #[test]
    fn a_head_alone_has_the_number_and_not_the_pattern() {
        for len in [64, 65, 1500] {
            let mut generator = Generator::new(Head::default(), len);
            let mut arena = Arena::new();
            generator.set_filling(Filling::Head);
            assert_eq!((generator.fill(&mut arena, 3), arena.len()), (3, 3));
            for (seq, (frame, _)) in arena.burst().iter().enumerate() {
                assert_eq!(sequence::number(frame), Ok(seq as u64));
                assert_eq!(sequence::check(frame), Err(sequence::Wrong::Damaged));
            }
        }
    }

    #[test]
    fn it_appends_pauses_and_ends() {
        let mut generator = Generator::new(Head::default(), 64);
        let control = generator.control();
        let mut arena = Arena::new();
        assert!(arena.push(&[7; 60], Offload::default()));
        control.set_limit(10);
        assert_eq!(generator.rx_burst(&mut arena), 10);
        assert_eq!(arena.len(), 11);
        assert_eq!(arena.burst().frame(0), [7; 60]);
        assert_eq!(generator.rx_burst(&mut arena), 0);
        control.set_limit(20);
        control.pause(true);
        assert_eq!(generator.rx_burst(&mut arena), 0);
        control.pause(false);
        assert_eq!(generator.rx_burst(&mut arena), 10);
    }
}
