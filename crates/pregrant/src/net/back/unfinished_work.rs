//! What a backend had in flight when it ended, as its successor finds it (docs/protocol 1.1, R7).
//!
//! ```text
//!   guest --ring--> [ in hand ] --> port      taken again from the ring: the port may get it twice
//!   guest <--ring-- [ in hand ] <-- port      gone from the port, and not on the ring: lost
//! ```
//! The redo pages count it; the counts are only reported.

use core::fmt;

/// The work in flight over all queues of a vif.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interrupted {
    /// Frames of the guest that the port may get twice.
    pub twice: u32,
    /// Frames for the guest that are lost.
    pub lost: u32,
    /// Number of queues that were taking frames from their ports: up to a burst of each is lost
    /// besides.
    pub asking: u32,
    /// Number of queues without a redo page, whose work is unknown.
    pub unknown: u32,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { twice, lost, asking, unknown } = self;
        write!(f, "{twice} frame(s) of its guest may come twice, {lost} for it are lost")?;
        if *asking > 0 {
            write!(f, " (and what it was just taking from {asking} port(s), a burst at most)")?;
        }
        if *unknown > 0 {
            write!(
                f,
                "; {unknown} queue(s) had no redo page, and their repeated or lost frames are unknown"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn in_words() {
        let some = Interrupted { twice: 5, lost: 12, ..Interrupted::default() };
        assert_eq!(some.to_string(), "5 frame(s) of its guest may come twice, 12 for it are lost");
        let all = Interrupted { asking: 1, unknown: 2, ..some }.to_string();
        assert!(all.contains("from 1 port(s)") && all.contains("2 queue(s) had no redo page"), "{all}");
    }
}
