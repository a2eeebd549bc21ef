//! Whether a front lends its back pages that others of the guest use too. The toolstack decides,
//! and the front's owner.
//!
//! ```text
//!   `trusted` of the front's directory --.
//!   FrontConfig::trusted ----------------+--> Trust::lends --> TX: frames in pieces (tx_pieces)
//!                                                         '-> RX: frames that stay in their pages (recv_lent)
//! ```
//! Invariant: one decision holds for both directions of a connection, and is made at its set-up. To
//! a back that is not trusted a front shows pages that were zeroed when they were granted, and in
//! them the bytes of frames, unless its owner gives it memory to send from (`use_memory`); of what
//! it receives by `recv_lent` nothing stays in pages that the back has. A consumer that reads
//! frames by reference (`recv_by_reference`) copies what it wants to be sure of.
//!
//! What a back may do: nothing about this. The key is in the guest's directory, which the toolstack
//! and the guest write.

use crate::xenbus::bus::DeviceBus;

/// The toolstack's key, in the front's directory.
pub const TRUSTED: &str = "trusted";

/// Whether the back may see pages that hold other data of the guest, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// The back gets only pages that were made for it, with copies of the frames.
    #[default]
    Copies,
    /// The back gets the guest's pages that hold the frames, and may see other data in them.
    Lends,
}

impl Trust {
    /// Decides as xen-netfront does: the back is trusted unless the front's owner or the toolstack
    /// says 0. A key that is missing, or does not begin with a number, counts as "trusted".
    pub fn of(owner: bool, key: Option<&str>) -> Self {
        if owner && !key.is_some_and(is_zero) { Self::Lends } else { Self::Copies }
    }

    /// Like [`of`](Self::of), with the key's current value.
    pub fn read<B: DeviceBus>(owner: bool, bus: &mut B) -> Result<Self, B::Error> {
        Ok(Self::of(owner, bus.own_text(TRUSTED)?.as_deref()))
    }

    /// True if the back may get pages that hold other data of the guest, too.
    #[inline(always)]
    pub fn lends(self) -> bool {
        self == Self::Lends
    }
}

/// Reads a number as Linux does: it ends at the first character that is no digit.
fn is_zero(text: &str) -> bool {
    let digits = text.trim_start().bytes().take_while(u8::is_ascii_digit);
    let mut seen = digits.map(|digit| digit == b'0').peekable();
    seen.peek().is_some() && seen.all(|is_zero| is_zero)
}

#[cfg(test)]
mod tests {
    use super::Trust;

    #[test]
    fn a_back_is_trusted_unless_the_owner_or_the_toolstack_says_0() {
        for says_0 in ["0", "00", " 0", "0\n", "0\0", "0 (untrusted)", "0x1"] {
            assert_eq!(Trust::of(true, Some(says_0)), Trust::Copies, "{says_0:?}");
        }
        for other in ["1", "2", "01", "10", "", " ", "-0", "yes", "no", "\0"] {
            assert_eq!(Trust::of(true, Some(other)), Trust::Lends, "{other:?}");
        }
        assert_eq!(Trust::of(true, None), Trust::Lends);
        for key in [None, Some("0"), Some("1"), Some("yes")] {
            assert_eq!(Trust::of(false, key), Trust::Copies, "{key:?}");
        }
        assert!(!Trust::default().lends() && Trust::Lends.lends());
    }
}
