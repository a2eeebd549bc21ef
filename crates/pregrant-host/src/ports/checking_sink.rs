//! A port that receives numbered frames and counts losses, repeats and damage.
//!
//! It does not copy zero-copy payload, unless it must check every byte, and never has a frame for
//! the guest. Its counters are published once per burst; other threads read them through
//! [`CheckingSink::counters`] without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pregrant::port::{Arena, Burst, FramePort, Offloads, Payload, ZeroCopyBurst};

use super::sequence::{self, Tracker, Wrong};

/// The part of each frame that is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Check {
    /// The frame's header and its number are checked.
    #[default]
    Number,
    /// Every byte after the addresses is checked.
    Payload,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SinkReport {
    /// Number of numbered frames that were received undamaged, including repeats.
    pub frames: u64,
    /// Number of bytes of the frames that were received undamaged.
    pub bytes: u64,
    /// The highest number received, plus 1.
    pub next: u64,
    /// Number of frames with a number below `next` that were not received.
    pub lost: u64,
    /// Number of frames that were received a second time.
    pub duplicated: u64,
    /// Number of frames received after one with a higher number.
    pub reordered: u64,
    /// Number of frames with a wrong length, number or byte.
    pub damaged: u64,
    /// Number of frames of other protocols, such as ARP.
    pub foreign: u64,
}

impl SinkReport {
    /// Returns how many of `sent` frames were lost, including those after the last one received.
    pub fn lost_of(&self, sent: u64) -> u64 {
        self.lost + sent.saturating_sub(self.next)
    }
}

/// The counters of [`SinkReport`] for other threads. A reader may see fields of two successive
/// bursts.
#[derive(Debug, Default)]
pub struct SinkCounters {
    fields: [AtomicU64; 8],
}

impl SinkCounters {
    fn publish(&self, r: &SinkReport) {
        let values = [r.frames, r.bytes, r.next, r.lost, r.duplicated, r.reordered, r.damaged, r.foreign];
        for (field, value) in self.fields.iter().zip(values) {
            field.store(value, Ordering::Relaxed);
        }
    }

    pub fn read(&self) -> SinkReport {
        let [frames, bytes, next, lost, duplicated, reordered, damaged, foreign] =
            std::array::from_fn(|i| self.fields[i].load(Ordering::Relaxed));
        SinkReport { frames, bytes, next, lost, duplicated, reordered, damaged, foreign }
    }
}

#[derive(Debug, Default)]
pub struct CheckingSink {
    check: Check,
    tracker: Tracker,
    report: SinkReport,
    counters: Arc<SinkCounters>,
}

impl CheckingSink {
    /// Creates a sink that expects number 0 first.
    pub fn new(check: Check) -> Self {
        Self { check, ..Self::default() }
    }

    /// Sets how much of each further frame is checked.
    pub fn set_check(&mut self, check: Check) {
        self.check = check;
    }

    /// Returns a handle for other threads.
    pub fn counters(&self) -> Arc<SinkCounters> {
        Arc::clone(&self.counters)
    }

    /// Returns the counts of the frames that the sink has received.
    pub fn report(&self) -> SinkReport {
        self.report
    }

    /// Checks the frames of a burst. A front that measures received frames calls this as well.
    pub fn take(&mut self, frames: &Burst<'_>) {
        match self.check {
            Check::Number => self.take_with(frames, sequence::number),
            Check::Payload => self.take_with(frames, sequence::check),
        }
    }

    /// Checks zero-copy frames as [`take`](Self::take) does. Their payload is read only if every
    /// byte must be checked.
    pub fn take_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) {
        match self.check {
            Check::Number => {
                let frames = &*frames;
                let there = (0..frames.len()).map(|i| (frames.head(i), frames.len_of(i)));
                self.take_each(
                    there
                        .filter(|(_, len)| *len > 0)
                        .map(|(head, len)| (sequence::number_of(head, len), len)),
                );
            }
            Check::Payload => self.take(&frames.private()),
        }
    }

    #[inline(always)]
    fn take_with(&mut self, burst: &Burst<'_>, check: impl Fn(&[u8]) -> Result<u64, Wrong>) {
        self.take_each(burst.iter().map(|(frame, _)| (check(frame), frame.len())));
    }

    /// Counts frames that were checked already, for readers that check frames in place.
    #[inline(always)]
    pub fn take_each(&mut self, checked: impl Iterator<Item = (Result<u64, Wrong>, usize)>) {
        let (mut frames, mut bytes) = (0, 0);
        for (number, len) in checked {
            match number {
                Ok(seq) => {
                    frames += 1;
                    bytes += len as u64;
                    self.tracker.note(seq);
                }
                Err(Wrong::Foreign) => self.report.foreign += 1,
                Err(Wrong::Damaged) => self.report.damaged += 1,
            }
        }
        let r = &mut self.report;
        r.frames += frames;
        r.bytes += bytes;
        r.next = self.tracker.next();
        r.lost = self.tracker.lost();
        r.duplicated = self.tracker.duplicated();
        r.reordered = self.tracker.reordered();
        self.counters.publish(r);
    }
}

impl FramePort for CheckingSink {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.take(frames);
        frames.frames.len()
    }

    fn payload(&self) -> Payload {
        Payload::ZeroCopy
    }

    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        self.take_zero_copy(frames);
        frames.len()
    }

    fn rx_burst(&mut self, _into: &mut Arena) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::generator::Generator;
    use crate::ports::sequence::Head;
    use pregrant::port::Offload;

    #[test]
    fn what_the_generator_makes_arrives_whole() {
        for len in [60, 64, 65, 9000] {
            let mut generator = Generator::new(Head::default(), len);
            let mut sink = CheckingSink::new(Check::Payload);
            let mut arena = Arena::new();
            for _ in 0..100 {
                arena.clear();
                generator.rx_burst(&mut arena);
                assert_eq!(sink.tx_burst(&arena.burst()), arena.len());
            }
            let sent = generator.control().made();
            let r = sink.report();
            assert_eq!(r, SinkReport { frames: sent, bytes: sent * len as u64, next: sent, ..r });
            assert_eq!((r.lost_of(sent), r.duplicated, r.reordered, r.damaged, r.foreign), (0, 0, 0, 0, 0));
            assert_eq!(sink.counters().read(), r);
        }
    }

    fn give(sink: &mut CheckingSink, frame: &[u8]) {
        let mut arena = Arena::new();
        assert!(arena.push(frame, Offload::default()));
        sink.tx_burst(&arena.burst());
    }

    #[test]
    fn every_mishap_is_distinguished() {
        let mut frames = vec![vec![0; 100]; 6];
        for (seq, f) in frames.iter_mut().enumerate() {
            sequence::fill(f, seq as u64);
        }
        let mut sink = CheckingSink::new(Check::Payload);
        give(&mut sink, &frames[0]);
        give(&mut sink, &frames[3]); // 1 and 2 are missing
        give(&mut sink, &frames[1]); // late
        give(&mut sink, &frames[1]); // again
        frames[4][80] ^= 1;
        give(&mut sink, &frames[4]); // damaged: not received
        give(&mut sink, &[0; 60]);
        let r = sink.report();
        assert_eq!((r.frames, r.lost, r.reordered, r.duplicated, r.damaged, r.foreign), (4, 1, 1, 1, 1, 1));
        assert_eq!(r.lost_of(6), 3, "2, the damaged 4, and 5 that never came");

        let mut by_number = CheckingSink::new(Check::Number);
        give(&mut by_number, &frames[4]);
        assert_eq!(by_number.report().damaged, 0, "the pattern is not checked");
    }

    #[test]
    fn a_frame_that_was_dropped_on_the_way_is_skipped() {
        let mut generator = Generator::new(Head::default(), 64);
        let mut arena = Arena::new();
        generator.rx_burst(&mut arena);
        arena.drop_frame(5);
        let mut sink = CheckingSink::new(Check::Number);
        sink.tx_burst(&arena.burst());
        assert_eq!((sink.report().lost, sink.report().foreign), (1, 0));
    }
}
