//! The numbered frame that measurements send. It is cheap to make, and shows losses, repeats and
//! wrong bytes.
//!
//! ```text
//!    0       6       12     14     16          24        28       32
//!   | dst   | src   | 88B5 | "PG" | seq (LE)  | length  | check  | pattern, 8 bytes a word, from seq ..
//! ```
//!
//! The EtherType is IEEE's first for local experiments; the addresses are locally administered.
//! `length` is that of the whole frame, and `check` a mix of length and number, so that a truncated
//! frame or one with a wrong number counts as damaged and not as late. Each word of the pattern
//! depends on the number and on its offset, so bytes of another frame, or from another offset, are
//! detected.

use std::collections::VecDeque;

use pregrant::net::headers::MacAddr;

pub const ETHERTYPE: u16 = 0x88B5;
/// Length in bytes of the shortest frame that carries a number.
pub const MIN_LEN: usize = 32;
/// The default source address.
pub const SOURCE: MacAddr = MacAddr([0x02, 0x50, 0x47, 0, 0, 0x01]);
/// The default destination address.
pub const DESTINATION: MacAddr = MacAddr([0x02, 0x50, 0x47, 0, 0, 0x02]);

/// The EtherType and the magic number in bytes 12..16 of a numbered frame.
const MARK: [u8; 4] = [(ETHERTYPE >> 8) as u8, ETHERTYPE as u8, b'P', b'G'];
/// Odd constants without structure (the fractions of the golden ratio and of e).
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
const STEP: u64 = 0xB7E1_5162_8AED_2A6B;

/// The reason why a frame does not count as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The frame does not carry a number.
    Foreign,
    /// The frame is numbered, with a wrong length, number or pattern.
    Damaged,
}

/// The first bytes of a frame, which are the same in all frames and computed once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head([[u8; 8]; 2]);

impl Default for Head {
    fn default() -> Self {
        Self::new(DESTINATION, SOURCE)
    }
}

#[inline(always)]
fn length_and_check(seq: u64, len: usize) -> u64 {
    let check = (seq ^ (len as u64)).wrapping_mul(BASE) >> 32;
    len as u64 | check << 32
}

#[inline(always)]
fn base_of(seq: u64) -> u64 {
    seq.wrapping_mul(BASE) ^ STEP
}

/// Writes the pattern of frame `seq`, in a plain loop that the compiler vectorises.
#[inline(always)]
fn pattern_into(payload: &mut [u8], seq: u64) {
    let mut value = base_of(seq);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for w in words {
        *w = value.to_le_bytes();
        value = value.wrapping_add(STEP);
    }
    let last = value.to_le_bytes();
    let n = rest.len();
    rest.copy_from_slice(&last[..n]);
}

#[inline(always)]
fn pattern_matches(payload: &[u8], seq: u64) -> bool {
    let mut value = base_of(seq);
    let (words, rest) = payload.as_chunks::<8>();
    let mut wrong = 0;
    for w in words {
        wrong |= u64::from_le_bytes(*w) ^ value;
        value = value.wrapping_add(STEP);
    }
    wrong == 0 && *rest == value.to_le_bytes()[..rest.len()]
}

impl Head {
    /// Builds the head of frames from `src` to `dst`.
    pub fn new(dst: MacAddr, src: MacAddr) -> Self {
        let mut head = [0; 16];
        head[..6].copy_from_slice(&dst.0);
        head[6..12].copy_from_slice(&src.0);
        head[12..].copy_from_slice(&MARK);
        let (words, _) = head.as_chunks::<8>();
        Self([words[0], words[1]])
    }

    /// Writes all of frame number `seq`. Does nothing if the frame is shorter than [`MIN_LEN`].
    #[inline(always)]
    pub fn fill(&self, frame: &mut [u8], seq: u64) {
        // The smallest frame is common and has its own code, without loops.
        if let Ok(smallest) = <&mut [u8; 64]>::try_from(&mut *frame) {
            self.fill_sized(smallest, seq);
        } else {
            self.fill_sized(frame, seq);
        }
    }

    /// Writes the head of frame number `seq` and leaves the rest, so that only [`number`] accepts
    /// it.
    #[inline(always)]
    pub fn fill_head(&self, frame: &mut [u8], seq: u64) {
        let len = frame.len();
        if let Some(head) = frame.first_chunk_mut::<MIN_LEN>() {
            let (words, _) = head.as_chunks_mut::<8>();
            words[0] = self.0[0];
            words[1] = self.0[1];
            words[2] = seq.to_le_bytes();
            words[3] = length_and_check(seq, len).to_le_bytes();
        }
    }

    /// Changes the number of a [filled](Self::fill) frame. Its pattern stays the old one, so only
    /// [`number`] accepts it.
    #[inline(always)]
    pub fn renumber(frame: &mut [u8], seq: u64) {
        let len = frame.len();
        if let Some(head) = frame.first_chunk_mut::<MIN_LEN>() {
            let (words, _) = head.as_chunks_mut::<8>();
            words[2] = seq.to_le_bytes();
            words[3] = length_and_check(seq, len).to_le_bytes();
        }
    }

    #[inline(always)]
    fn fill_sized(&self, frame: &mut [u8], seq: u64) {
        let len = frame.len();
        let Some((head, payload)) = frame.split_first_chunk_mut::<MIN_LEN>() else { return };
        let (words, _) = head.as_chunks_mut::<8>();
        words[0] = self.0[0];
        words[1] = self.0[1];
        words[2] = seq.to_le_bytes();
        words[3] = length_and_check(seq, len).to_le_bytes();
        pattern_into(payload, seq);
    }
}

/// Writes frame number `seq`, with the default addresses, to `frame`.
pub fn fill(frame: &mut [u8], seq: u64) {
    Head::default().fill(frame, seq);
}

/// Returns the number of `frame` if its head is valid. The pattern is not checked.
#[inline(always)]
pub fn number(frame: &[u8]) -> Result<u64, Wrong> {
    number_of(frame, frame.len())
}

/// Returns the number of a frame of `len` bytes, of which `frame` has the first ones.
#[inline(always)]
pub fn number_of(frame: &[u8], len: usize) -> Result<u64, Wrong> {
    let Some(head) = frame.first_chunk::<MIN_LEN>() else { return Err(Wrong::Foreign) };
    if head[12..16] != MARK {
        return Err(Wrong::Foreign);
    }
    let (words, _) = head.as_chunks::<8>();
    let seq = u64::from_le_bytes(words[2]);
    if u64::from_le_bytes(words[3]) != length_and_check(seq, len) {
        return Err(Wrong::Damaged);
    }
    Ok(seq)
}

/// Returns the number of `frame` if every byte after the addresses is valid.
#[inline(always)]
pub fn check(frame: &[u8]) -> Result<u64, Wrong> {
    let seq = number(frame)?;
    let right = match <&[u8; 64]>::try_from(frame) {
        Ok(smallest) => pattern_matches(&smallest[MIN_LEN..], seq),
        Err(_) => pattern_matches(&frame[MIN_LEN..], seq),
    };
    if right { Ok(seq) } else { Err(Wrong::Damaged) }
}

/// Largest number of gaps that are remembered to tell a late frame from a repeat. The oldest gap is
/// forgotten first; its frames remain lost.
const GAPS: usize = 1024;

/// Finds losses, late frames and repeats in the numbers of received frames.
#[derive(Clone, Debug)]
pub struct Tracker {
    next: u64,
    /// Ranges below `next` that were not received: half-open, ascending.
    gaps: VecDeque<(u64, u64)>,
    lost: u64,
    reordered: u64,
    duplicated: u64,
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new()
    }
}

impl Tracker {
    /// Creates a tracker that expects 0 first.
    pub fn new() -> Self {
        Self { next: 0, gaps: VecDeque::with_capacity(GAPS), lost: 0, reordered: 0, duplicated: 0 }
    }

    /// Records that `seq` was received.
    #[inline(always)]
    pub fn note(&mut self, seq: u64) {
        if seq == self.next {
            self.next = seq.wrapping_add(1);
        } else {
            self.note_out_of_order(seq);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_out_of_order(&mut self, seq: u64) {
        if seq > self.next {
            self.lost += seq - self.next;
            self.remember((self.next, seq), self.gaps.len());
            self.next = seq.wrapping_add(1);
            return;
        }
        let at = self.gaps.partition_point(|&(_, end)| end <= seq);
        match self.gaps.get(at).copied() {
            Some((start, end)) if start <= seq => {
                self.lost -= 1;
                self.reordered += 1;
                match (start == seq, seq + 1 == end) {
                    (true, true) => drop(self.gaps.remove(at)),
                    (true, false) => self.gaps[at].0 = seq + 1,
                    (false, true) => self.gaps[at].1 = seq,
                    (false, false) => {
                        self.gaps[at].1 = seq;
                        self.remember((seq + 1, end), at + 1);
                    }
                }
            }
            _ => self.duplicated += 1,
        }
    }

    fn remember(&mut self, gap: (u64, u64), mut at: usize) {
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
            at = at.saturating_sub(1);
        }
        self.gaps.insert(at, gap);
    }

    /// Returns the number that is expected next: the highest received number, plus 1.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns how many numbers below [`Tracker::next`] were not received.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns how many of the first `sent` numbers were not received, including those at the end.
    pub fn lost_of(&self, sent: u64) -> u64 {
        self.lost + sent.saturating_sub(self.next)
    }

    /// Returns the number of frames received after one with a higher number.
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Returns the number of frames that were received before, or so late that their gap is
    /// forgotten.
    pub fn duplicated(&self) -> u64 {
        self.duplicated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_flipped_bit_behind_the_addresses_shows() {
        for len in [32, 33, 60, 64, 65, 100, 1500] {
            let mut frame = vec![0; len];
            fill(&mut frame, 0x1234_5678_9ABC);
            assert_eq!(check(&frame), Ok(0x1234_5678_9ABC));
            for bit in 12 * 8..len * 8 {
                frame[bit / 8] ^= 1 << (bit % 8);
                assert!(check(&frame).is_err(), "bit {bit} of a frame of {len}");
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(check(&frame[..len - 1]).is_err());
        }
        assert_eq!(check(&[0; 64]), Err(Wrong::Foreign));
        assert_eq!(check(&[0; 5]), Err(Wrong::Foreign));
    }

    #[test]
    fn a_piece_of_another_frame_shows() {
        let (mut a, mut b) = (vec![0; 4096], vec![0; 4096]);
        for other in [1u64, 64, 256, 4096, 1 << 32] {
            fill(&mut a, 5000);
            fill(&mut b, 5000 + other);
            a[1024..1088].copy_from_slice(&b[1024..1088]);
            assert_eq!(check(&a), Err(Wrong::Damaged), "64 bytes of the frame {other} later");
        }
        fill(&mut a, 5000);
        a.copy_within(1024..1088, 2048);
        assert_eq!(check(&a), Err(Wrong::Damaged), "64 bytes of another place");
    }

    #[test]
    fn the_tracker_agrees_with_a_set() {
        let mut dice = 99u64;
        let mut roll = |below: u64| {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (dice >> 33) % below
        };
        let mut tracker = Tracker::new();
        let (mut seen, mut late, mut repeats) = (HashSet::new(), 0, 0);
        let mut high = 0;
        for _ in 0..50_000 {
            let seq = match roll(20) {
                0 => high + 1 + roll(3),
                1 | 2 => high.saturating_sub(roll(40)),
                _ => high,
            };
            if seq < high {
                if seen.contains(&seq) { repeats += 1 } else { late += 1 }
            }
            seen.insert(seq);
            high = high.max(seq + 1);
            tracker.note(seq);
        }
        assert_eq!(tracker.next(), high);
        // No gap is forgotten while fewer than GAPS are open; the mix above only guarantees that
        // for recent ones.
        assert_eq!(tracker.lost(), high - seen.len() as u64);
        assert_eq!((tracker.reordered(), tracker.duplicated()), (late, repeats));
        assert_eq!(tracker.lost_of(high + 10), tracker.lost() + 10);
    }

    #[test]
    fn the_trackers_memory_is_bounded() {
        let mut tracker = Tracker::new();
        for n in 0..100_000 {
            tracker.note(2 * n + 1);
        }
        assert_eq!((tracker.lost(), tracker.gaps.len(), tracker.gaps.capacity()), (100_000, GAPS, GAPS));
        tracker.note(0); // forgotten: counted as a repeat, still lost
        assert_eq!((tracker.lost(), tracker.duplicated()), (100_000, 1));
        tracker.note(199_998);
        assert_eq!((tracker.lost(), tracker.reordered()), (99_999, 1));
    }
}
