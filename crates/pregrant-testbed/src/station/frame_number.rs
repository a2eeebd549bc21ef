//! A number behind a frame, so that an observer on its way can tell a lost frame from a repeated
//! one.
//!
//! ```text
//!   | Ethernet header | IP packet, as long as its own header says | "PGnr" | number, 8 bytes LE |
//! ```
//! Bytes behind an IP packet are padding to every stack, and travel with the frame. Not for
//! segments that are cut on their way. A sender numbers its frames from 0, as it makes them.

use pregrant_host::ports::sequence::Tracker;

/// Length of a number in bytes.
pub const LEN: usize = 12;
const MARK: [u8; 4] = *b"PGnr";

/// Writes `number` into the last bytes of `frame`.
pub fn write(frame: &mut [u8], number: u64) {
    if let Some(tail) = frame.last_chunk_mut::<LEN>() {
        tail[..4].copy_from_slice(&MARK);
        tail[4..].copy_from_slice(&number.to_le_bytes());
    }
}

/// Returns the number in a frame, if it has one.
pub fn read(frame: &[u8]) -> Option<u64> {
    let tail = frame.last_chunk::<LEN>().filter(|tail| tail[..4] == MARK)?;
    tail[4..].first_chunk().map(|number| u64::from_le_bytes(*number))
}

/// Counts the numbers of the frames that a station sent, and of those that it received from the
/// other station.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    sent: u64,
    came: Tracker,
}

impl Numbers {
    /// Returns the number for the next frame that is sent.
    pub fn take(&mut self) -> u64 {
        self.sent += 1;
        self.sent - 1
    }

    pub fn note(&mut self, frame: &[u8]) {
        if let Some(number) = read(frame) {
            self.came.note(number);
        }
    }

    /// Returns the number of frames that were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    pub fn came(&self) -> &Tracker {
        &self.came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_makes_up_for_no_loss() {
        let mut numbers = Numbers::default();
        let frame = |n| {
            let mut frame = vec![0; 60];
            write(&mut frame, n);
            frame
        };
        for n in [0, 1, 1, 3] {
            numbers.note(&frame(n));
        }
        numbers.note(&[0; 60]); // another's
        let came = numbers.came();
        assert_eq!((came.lost(), came.duplicated(), came.lost_of(5)), (1, 1, 2));
        assert_eq!((read(&[0; 5]), read(&frame(7))), (None, Some(7)));
    }
}
