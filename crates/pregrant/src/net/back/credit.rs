//! The `rate` of a vif: how many bytes its guest may send in how many microseconds
//! (docs/protocol 6, "Credit").
//!
//! ```text
//!   frame <= left: left -= frame                     (no clock is read)
//!   frame >  left, window over:     a new window, left += bytes, try again
//!   frame >  left, window not over: nothing is taken before its end; the worker may sleep until then
//! ```
//! Linux's rules: `left` grows to max(128 KiB, bytes) at most, so that the longest frame always
//! passes one day; a frame counts with the length that its first request claims, also when it is
//! refused afterwards. Other than Linux's, the credit is the vif's and not each queue's: more
//! queues do not make a guest faster. Which queue comes first changes with each window.
//!
//! What a guest may do: ask for more. Its requests wait on its ring; nothing is kept for it.

use core::fmt;

/// Bytes that `left` may always reach.
const BURST: u64 = 131_072;

/// What the toolstack allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Bytes in a window.
    pub bytes: u64,
    /// A window's length.
    pub usec: u64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} microseconds", self.bytes, self.usec)
    }
}

/// A `rate` that is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRate;

impl fmt::Display for BadRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected \"bytes,microseconds\", two decimal numbers; its guest is not limited")
    }
}

impl Rate {
    /// From the key `rate`: `"bytes,usec"`. None: no limit, which is also what 0 microseconds say.
    ///
    /// # Errors
    /// Something else stands there.
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

/// One vif's account.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    rate: Rate,
    /// Bytes that may be taken now.
    pub(super) left: u64,
    window_start_ns: u64,
    /// Nothing is taken before this; then so many windows have passed.
    until: Option<(u64, u64)>,
    /// Times that it was waited for.
    waits: u64,
}

impl Credit {
    /// With one window's bytes.
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

    /// Whether nothing is to be taken now.
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

    /// There is a frame of `size` bytes, more than is left. True: it has to wait.
    pub(super) fn is_short(&mut self, size: u64, now_ns: u64) -> bool {
        if now_ns >= self.window_start_ns.saturating_add(self.window_ns()) {
            self.window_start_ns = now_ns;
            self.add(1);
        }
        let missing = size.saturating_sub(self.left);
        if missing == 0 {
            return false;
        }
        // Short windows: so many of them that it is worth while to wake.
        let windows = missing
            .checked_div(self.rate.bytes)
            .map_or(u64::MAX, |n| n + u64::from(!missing.is_multiple_of(self.rate.bytes)));
        let until = self.window_start_ns.saturating_add(self.window_ns().saturating_mul(windows));
        self.until = Some((until, windows));
        self.waits += 1;
        true
    }

    /// When frames may be taken again, where they wait.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.until.map(|(until, _)| until)
    }

    /// How often a frame had to wait.
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

    /// Takes frames of `size` from `now` on until one has to wait; how many.
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
        // Awake late: that is one window's bytes, and then the one that began meanwhile.
        assert_eq!((take(&mut c, 1000, 39_000), c.deadline_ns()), (6, Some(49_000)));
    }

    #[test]
    fn rest_is_not_saved_up_beyond_a_window() {
        let mut c = Credit::new(Rate { bytes: 3000, usec: 10 }, 0);
        // A second of rest: what was left, and one window.
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
        // More than 128 KiB is never left, nor less than a window's bytes.
        let mut big = Credit::new(Rate { bytes: 100_000, usec: 1 }, 0);
        big.add(5);
        assert_eq!(big.left, BURST);
        let mut bigger = Credit::new(Rate { bytes: 200_000, usec: 1 }, 0);
        bigger.add(5);
        assert_eq!(bigger.left, 200_000);
    }
}
