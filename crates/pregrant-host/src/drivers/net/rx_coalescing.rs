//! Fewer events for received frames: a front that sleeps asks for the event of a later answer than
//! the next one, and bounds by time how late a frame may be.
//!
//! ```text
//!   round took frames --> event at the n-th answer from here, or after RX_DELAY --> round
//!   round took none   --> event at the next answer (the usual final check)      --> round
//! ```
//! | coalescing | n |
//! |---|---|
//! | `off` | 1 |
//! | a number | that |
//! | `load` | as many frames as came since the last sleep: bursts are waited for, single frames are not |
//!
//! What a back may do: send fewer frames than are waited for. Each round of them is late by
//! [`RX_DELAY`] at most.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest delay of a frame that waits for others.
pub const RX_DELAY: Duration = Duration::from_micros(100);
/// Largest number of frames to wait for.
pub const FRAMES_MAX: u32 = 128;
/// Largest number of frames to wait for if the load decides.
const BY_LOAD_MAX: u64 = 32;

/// The number of frames that must arrive before the guest's end is woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RxCoalescing {
    /// The next frame causes an event.
    #[default]
    Off,
    /// An event is sent after this number of frames.
    Frames(u32),
    /// An event is sent after as many frames as arrived since the last sleep.
    Load,
}

impl RxCoalescing {
    /// Returns the number of answers after which the event is requested. `came` is the number of
    /// frames received since the last sleep.
    pub fn ahead(self, came: u64) -> u32 {
        match self {
            _ if came == 0 => 1,
            Self::Off => 1,
            Self::Frames(n) => n,
            Self::Load => came.min(BY_LOAD_MAX) as u32,
        }
    }
}

impl fmt::Display for RxCoalescing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Frames(n) => write!(f, "{n}"),
            Self::Load => f.write_str("load"),
        }
    }
}

impl FromStr for RxCoalescing {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("off", _) => Ok(Self::Off),
            ("load", _) => Ok(Self::Load),
            (_, Ok(n @ 2..=FRAMES_MAX)) => Ok(Self::Frames(n)),
            _ => Err(format!("off, load, or a number of frames from 2 to {FRAMES_MAX}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_got_nothing_waits_for_the_next_frame() {
        for (text, of_0, of_1, of_9, of_200) in
            [("off", 1, 1, 1, 1), ("32", 1, 32, 32, 32), ("load", 1, 1, 9, 32)]
        {
            let coalescing: RxCoalescing = text.parse().unwrap();
            assert_eq!(coalescing.to_string(), text);
            assert_eq!([0, 1, 9, 200].map(|came| coalescing.ahead(came)), [of_0, of_1, of_9, of_200]);
        }
        assert!(["1", "129", "on"].iter().all(|text| text.parse::<RxCoalescing>().is_err()));
    }
}
