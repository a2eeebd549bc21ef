//! The pauses between restarts of a front.
//!
//! ```text
//!   begin: AT_ONCE in a row, then one each EACH          a front that is left alone earns them back
//! ```
//! What a back may do: cycle through its states without end. Each cycle costs the front a set-up
//! and some xenstore requests, so there are at most two per second.

/// Number of connections that may begin without a pause.
const AT_ONCE: u64 = 8;
/// Nanoseconds until one more connection may begin.
const EACH_NS: u64 = 500_000_000;

/// The restarts of one device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// The time at which all restarts have been earned back.
    settled_ns: u64,
}

impl Backoff {
    /// Accounts for a restart. `Err`: the restart must wait until this time.
    pub fn begin(&mut self, now_ns: u64) -> Result<(), u64> {
        let from = self.settled_ns.saturating_sub((AT_ONCE - 1) * EACH_NS);
        if now_ns < from {
            return Err(from);
        }
        self.settled_ns = self.settled_ns.max(now_ns).saturating_add(EACH_NS);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_in_a_row_then_two_a_second() {
        let mut backoff = Backoff::default();
        let start = 7_000_000_000;
        for _ in 0..AT_ONCE {
            assert_eq!(backoff.begin(start), Ok(()));
        }
        let mut now = start;
        for turn in 1..100 {
            assert_eq!(backoff.begin(now), Err(start + turn * EACH_NS));
            assert_eq!(backoff.begin(start + turn * EACH_NS - 1), Err(start + turn * EACH_NS));
            now = start + turn * EACH_NS;
            assert_eq!(backoff.begin(now), Ok(()));
        }
        // After a long time it may begin [`AT_ONCE`] times again, and no more.
        now += 1000 * EACH_NS;
        assert_eq!((0..20).filter(|_| backoff.begin(now).is_ok()).count() as u64, AT_ONCE);
    }
}
