//! Which directions of a queue have a path, as the back's key says it to a front.
//!
//! ```text
//!   asked both:  "1" both   "tx"   "rx"   "0" neither          asked one:  "1"   "0"
//! ```
//! What a peer may do: write any word. An unknown word means neither.

/// Directions of a queue (TX, RX) for which the front asks for, or the back accepted, a staging
/// list or a half of the data ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ActiveLists {
    /// The direction TX.
    pub tx: bool,
    /// The direction RX.
    pub rx: bool,
}

impl ActiveLists {
    /// Both directions.
    pub const BOTH: Self = Self { tx: true, rx: true };

    /// Neither direction.
    pub const NONE: Self = Self { tx: false, rx: false };

    /// True if at least one direction is in the set.
    pub fn any(self) -> bool {
        self.tx || self.rx
    }

    /// The directions that are in `self` and in `other`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { tx: self.tx && other.tx, rx: self.rx && other.rx }
    }

    /// The value of the key for a front that asked for `asked`: `1` if all of that was accepted,
    /// `tx` or `rx` if one direction was, `0` if none was.
    pub fn text(self, asked: Self) -> &'static str {
        match self.and(asked) {
            active if active == asked && asked.any() => "1",
            Self { tx: true, .. } => "tx",
            Self { rx: true, .. } => "rx",
            Self::NONE => "0",
        }
    }

    /// Reads the key's value for a front that asked for `asked`. An unknown word counts as "nothing
    /// accepted".
    pub fn parse(text: Option<&str>, asked: Self) -> Self {
        let said = match text.unwrap_or_default().trim_end_matches('\0').trim() {
            "1" => asked,
            "tx" => Self { tx: true, rx: false },
            "rx" => Self { tx: false, rx: true },
            _ => Self::NONE,
        };
        said.and(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_list_can_be_active_without_the_other() {
        let lists = |tx, rx| ActiveLists { tx, rx };
        let both = lists(true, true);
        for (active, asked, text) in [
            (both, both, "1"),
            (lists(true, false), both, "tx"),
            (lists(false, true), both, "rx"),
            (ActiveLists::NONE, both, "0"),
            (lists(true, false), lists(true, false), "1"),
            (lists(false, true), lists(false, true), "1"),
            (ActiveLists::NONE, lists(false, true), "0"),
            (ActiveLists::NONE, ActiveLists::NONE, "0"),
        ] {
            assert_eq!(active.text(asked), text, "{active:?} of {asked:?}");
            assert_eq!(ActiveLists::parse(Some(text), asked), active, "{text} of {asked:?}");
        }
        // A direction that was not asked for is never accepted, and an unknown word accepts
        // nothing.
        assert_eq!(ActiveLists::parse(Some("rx"), lists(true, false)), ActiveLists::NONE);
        assert_eq!(ActiveLists::parse(Some("tx\0"), both), lists(true, false));
        for text in ["", "2", "TX", "tx rx", "tx,rx", "11", "both"] {
            assert_eq!(ActiveLists::parse(Some(text), both), ActiveLists::NONE, "{text}");
        }
        assert_eq!(ActiveLists::parse(None, both), ActiveLists::NONE);
    }
}
