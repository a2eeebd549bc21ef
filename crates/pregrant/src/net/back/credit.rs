//! The `rate` of a vif: how many bytes its guest may send per how many microseconds
//! (docs/protocol 6, "Credit").
//!
//! ```text
//!   frame <= left: left -= frame                     (no clock is read)
//!   frame >  left, window over:     a new window, left += bytes, try again
//!   frame >  left, window not over: nothing is taken before its end; the worker may sleep until then
//! ```
//! The rules are Linux's: `left` grows to max(128 KiB, bytes) at most, so that the longest frame
//! passes some day; a frame counts with the length in its first request, even if it is refused
//! later. Unlike in Linux, the credit belongs to the vif and not to each queue, so more queues do
//! not make a guest faster. The queue that comes first changes with each window.
//!
//! What a guest may do: send more. Its requests wait on its ring, and use no memory of the back.

use core::fmt;

/// Smallest limit of the saved credit, in bytes; a window of more bytes is the limit itself.
const BURST: u64 = 131_072;

/// The rate that the toolstack allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Bytes per window.
    pub bytes: u64,
    /// Length of a window in microseconds.
    pub usec: u64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} microseconds", self.bytes, self.usec)
    }
}

/// The text is not a valid `rate`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRate;

impl fmt::Display for BadRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected \"bytes,microseconds\", two decimal numbers; the guest is not limited")
    }
}

impl Rate {
    /// Next to nothing: holds back a guest's frames while its vif changes hands.
    pub const HELD: Self = Self { bytes: 1, usec: 100_000_000 };

    /// Parses the key `rate`: `"bytes,usec"`. None: no limit, which 0 microseconds also mean.
    ///
    /// # Errors
    ///
    /// The text is not of this form.
    pub fn parse(text: &str) -> Result<Option<Self>, BadRate> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|_| digits).ok_or(BadRate)
        };
        let (bytes, usec) = text.trim_end_matches('\0').trim().split_once(',').ok_or(BadRate)?;
        let (bytes, usec) = (number(bytes)?, number(usec)?);
        Ok((usec > 0).then_some(Self { bytes, usec }))
    }
}

/// The credit of one vif.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    rate: Rate,
    /// Bytes that may be sent now.
    pub(super) left: u64,
    window_start_ns: u64,
    /// The time before which no frame is taken, and the number of windows that have passed by then.
    until: Option<(u64, u64)>,
    /// Number of times a frame had to wait.
    waits: u64,
}

impl Credit {
    /// Starts with the bytes of one window.
    pub fn new(rate: Rate, now_ns: u64) -> Self {
        Self { rate, left: rate.bytes, window_start_ns: now_ns, until: None, waits: 0 }
    }

    /// The allowed rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    fn window_ns(&self) -> u64 {
        self.rate.usec.saturating_mul(1000)
    }

    fn add(&mut self, windows: u64) {
        let more = self.rate.bytes.saturating_mul(windows);
        self.left = self.left.saturating_add(more).min(self.rate.bytes.max(BURST));
    }

    /// Whether no frame may be taken now.
    pub(super) fn waits(&mut self, now_ns: u64) -> bool {
        match self.until {
            Some((until, _)) if now_ns < until => return true,
            Some((until, windows)) => {
                (self.until, self.window_start_ns) = (None, until);
                self.add(windows);
            }
            None => {}
        }
        false
    }

    /// Handles a frame of `size` bytes, which is more than is left. True: the frame must wait.
    pub(super) fn is_short(&mut self, size: u64, now_ns: u64) -> bool {
        if now_ns >= self.window_start_ns.saturating_add(self.window_ns()) {
            self.window_start_ns = now_ns;
            self.add(1);
        }
        let missing = size.saturating_sub(self.left);
        if missing == 0 {
            return false;
        }
        // For short windows, wait for several, so that waking up is worth it.
        let windows = missing
            .checked_div(self.rate.bytes)
            .map_or(u64::MAX, |n| n + u64::from(!missing.is_multiple_of(self.rate.bytes)));
        let until = self.window_start_ns.saturating_add(self.window_ns().saturating_mul(windows));
        self.until = Some((until, windows));
        self.waits += 1;
        true
    }

    /// Time at which the waiting frames may be taken, if any wait.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.until.map(|(until, _)| until)
    }

    /// Number of times a frame had to wait.
    pub fn nr_waits(&self) -> u64 {
        self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_two_numbers() {
        let rate = |bytes, usec| Ok(Some(Rate { bytes, usec }));
        assert_eq!(Rate::parse("1250000,50000"), rate(1_250_000, 50_000));
        assert_eq!(Rate::parse("1,2\0"), rate(1, 2));
        assert_eq!(Rate::parse("0,1"), rate(0, 1));
        assert_eq!(Rate::parse("100,0"), Ok(None));
        for bad in [
            "",
            "1",
            ",",
            "1,",
            ",1",
            "1,2,3",
            "x,1",
            "1,x",
            "-1,1",
            "+1,1",
            "1 ,2",
            "99999999999999999999,1",
        ] {
            assert_eq!(Rate::parse(bad), Err(BadRate), "{bad:?}");
        }
    }

    /// Takes frames of `size` bytes from the time `now` on until one must wait; returns how many.
    fn take(c: &mut Credit, size: u64, now: u64) -> u64 {
        let mut n = 0;
        while !c.waits(now) && (size <= c.left || !c.is_short(size, now)) {
            c.left -= size;
            n += 1;
        }
        n
    }

    #[test]
    fn a_window_gives_its_bytes_and_the_next_begins_where_it_ends() {
        let mut c = Credit::new(Rate { bytes: 3000, usec: 10 }, 0);
        assert_eq!((take(&mut c, 1000, 0), c.deadline_ns()), (3, Some(10_000)));
        assert_eq!(take(&mut c, 1000, 9_999), 0);
        assert_eq!((take(&mut c, 1000, 10_000), c.deadline_ns()), (3, Some(20_000)));
        // Woken late: it gets one window's bytes, then those of the window that began meanwhile.
        assert_eq!((take(&mut c, 1000, 39_000), c.deadline_ns()), (6, Some(49_000)));
    }

    #[test]
    fn rest_is_not_saved_up_beyond_a_window() {
        let mut c = Credit::new(Rate { bytes: 3000, usec: 10 }, 0);
        // After a second without frames: what was left, and one window.
        assert_eq!(take(&mut c, 1000, 1_000_000_000), 6);
        assert_eq!(c.left, 0);
    }

    #[test]
    fn the_longest_frame_passes_any_rate_and_waits_for_as_many_windows_as_it_needs() {
        let mut c = Credit::new(Rate { bytes: 100, usec: 10 }, 0);
        assert_eq!((take(&mut c, 65_535, 0), c.deadline_ns()), (0, Some(655 * 10_000)));
        assert_eq!((take(&mut c, 65_535, 655 * 10_000), c.left), (1, 65));
        let mut none = Credit::new(Rate { bytes: 0, usec: 1 }, 0);
        assert_eq!((take(&mut none, 1, 5_000), none.deadline_ns()), (0, Some(u64::MAX)));
        // There are never more than 128 KiB or one window's bytes left, whichever is more.
        let mut big = Credit::new(Rate { bytes: 100_000, usec: 1 }, 0);
        big.add(5);
        assert_eq!(big.left, BURST);
        let mut bigger = Credit::new(Rate { bytes: 200_000, usec: 1 }, 0);
        bigger.add(5);
        assert_eq!(bigger.left, 200_000);
    }
}
