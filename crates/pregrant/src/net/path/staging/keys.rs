//! The keys of staging (docs/protocol 3.1): what a back offers, what a front asks for, and which of its lists were accepted.
//!
//! ```text
//!   back's directory:   feature-staging-grants = "1", staging-grants-sizes = "64;128;...", staging-grants-revision = "2"
//!   front's directory:  the first and the last of these, and beside its rings' keys {tx,rx}-data-ref%u, {tx,rx}-data-len
//!   back's directory:   staging-grants-active = "1", "tx", "rx" or "0", at the same relative place
//! ```
//! What a peer may do: write anything. What makes no sense means no staging for that direction, never no vif.

use super::list::{DataLen, LIST_PAGES_MAX};
use crate::units::GrantRef;
use crate::xenbus::key_source::{KeySource, decimal, stated};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// All lengths that our back offers.
pub const ALL_DATA_LENS: [u32; 6] = [64, 128, 256, 2048, 4096, 65535];

/// The key, in either end's directory, that says which staging rules it knows; absent: those of revision 1.
pub const REVISION_KEY: &str = "staging-grants-revision";

/// The rules that we know. Both ends go by the lower of their revisions.
pub const STAGING_REVISION: u32 = 3;

/// Since this revision lists are accepted one without the other (docs/decisions/0002).
pub const APART_SINCE: u32 = 2;

/// Since this one the first slot of a long frame is in a buffer of 4096 bytes (the same decision).
pub const FIRST_SLOTS_SINCE: u32 = 2;

/// Since this one an RX buffer can be sent on by TX (docs/decisions/0027).
pub const SENT_ON_SINCE: u32 = 3;

/// An end's revision, by its keys. Garbled means that it knows no other.
pub(in crate::net) fn revision<S: KeySource>(keys: &mut S) -> Result<u32, S::Error> {
    let said = keys.text(REVISION_KEY)?.as_deref().and_then(decimal).unwrap_or(1);
    Ok(said.clamp(1, STAGING_REVISION))
}

/// `"128;256;65535"`. A size that means nothing is left out; the others stand.
pub(in crate::net) fn parse_sizes(text: &str) -> Vec<DataLen> {
    text.trim_end_matches('\0')
        .split(';')
        .filter_map(|s| s.trim().parse().ok().and_then(DataLen::new))
        .take(64)
        .collect()
}

/// One direction's staging list: `{tx,rx}-data-ref%u`, `{tx,rx}-data-len`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataKeys {
    /// Grants of the list pages.
    pub list_refs: Vec<GrantRef>,
    /// Bytes of a frame that fit a buffer.
    pub len: DataLen,
}

/// What a front asks for in one direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataRequest {
    /// No staging.
    None,
    /// Staging.
    Keys(DataKeys),
    /// Staging, with keys that are of no use: the front has to hear that it does not get it.
    Bad {
        /// Which key, below the front's directory.
        key: String,
        /// What stands there.
        value: Option<String>,
        /// What should.
        expected: &'static str,
    },
}

impl DataRequest {
    /// The keys, if they can be used.
    pub fn keys(&self) -> Option<&DataKeys> {
        match self {
            Self::Keys(keys) => Some(keys),
            _ => None,
        }
    }
}

impl From<Option<DataKeys>> for DataRequest {
    fn from(keys: Option<DataKeys>) -> Self {
        keys.map_or(Self::None, Self::Keys)
    }
}

/// Which of a queue's two staging lists, or halves of its data ring, are asked for, or were accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ActiveLists {
    /// That of TX.
    pub tx: bool,
    /// That of RX.
    pub rx: bool,
}

impl ActiveLists {
    /// Both.
    pub const BOTH: Self = Self { tx: true, rx: true };

    /// Neither.
    pub const NONE: Self = Self { tx: false, rx: false };

    /// What a queue asks for, with keys that are of use or not.
    pub fn asked(tx: &DataRequest, rx: &DataRequest) -> Self {
        Self { tx: *tx != DataRequest::None, rx: *rx != DataRequest::None }
    }

    /// Whether there is either.
    pub fn any(self) -> bool {
        self.tx || self.rx
    }

    /// Those of `self` that `other` has too.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { tx: self.tx && other.tx, rx: self.rx && other.rx }
    }

    /// As the key says it to a front that asked for `asked`: 1 is all of it, `tx` or `rx` that one alone, 0 nothing.
    pub fn text(self, asked: Self) -> &'static str {
        match self.and(asked) {
            active if active == asked && asked.any() => "1",
            Self { tx: true, .. } => "tx",
            Self { rx: true, .. } => "rx",
            Self::NONE => "0",
        }
    }

    /// What the key says to a front that asked for `asked`. A word that nobody knows means nothing was accepted.
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

/// One direction's staging keys. A front may leave a direction out: then it has neither key. With one queue the keys may
/// also stand in `queue-0/`, as the RFC has them.
pub(in crate::net) fn data_keys<S: KeySource>(
    keys: &mut S,
    at: &str,
    dir: &str,
    offered: &[DataLen],
) -> Result<DataRequest, S::Error> {
    let places: &[&str] = if at.is_empty() { &["", "queue-0/"] } else { &[at] };
    for at in places {
        let len_key = format!("{at}{dir}-data-len");
        let list_key = |k: usize| format!("{at}{dir}-data-ref{k}");
        let text = stated(keys, &len_key)?;
        let first = stated(keys, &list_key(0))?;
        if text.is_none() && first.is_none() {
            continue;
        }
        let bad = |key, value, expected| Ok(DataRequest::Bad { key, value, expected });
        let len = text.as_deref().and_then(decimal).and_then(DataLen::new);
        let Some(len) = len.filter(|l| offered.contains(l)) else {
            return bad(len_key, text, "one of the back's staging-grants-sizes");
        };
        let mut list_refs = Vec::new();
        let mut next = first;
        while list_refs.len() < LIST_PAGES_MAX
            && let Some(text) = next
        {
            let Some(r) = decimal(&text) else {
                return bad(list_key(list_refs.len()), Some(text), "a grant reference, a decimal number");
            };
            list_refs.push(GrantRef(r));
            next = stated(keys, &list_key(list_refs.len()))?;
        }
        if list_refs.is_empty() {
            return bad(list_key(0), None, "a grant reference, a decimal number");
        }
        return Ok(DataRequest::Keys(DataKeys { list_refs, len }));
    }
    Ok(DataRequest::None)
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
        // Nothing that was not asked for, and nothing by words that nobody knows.
        assert_eq!(ActiveLists::parse(Some("rx"), lists(true, false)), ActiveLists::NONE);
        assert_eq!(ActiveLists::parse(Some("tx\0"), both), lists(true, false));
        for text in ["", "2", "TX", "tx rx", "tx,rx", "11", "both"] {
            assert_eq!(ActiveLists::parse(Some(text), both), ActiveLists::NONE, "{text}");
        }
        assert_eq!(ActiveLists::parse(None, both), ActiveLists::NONE);
    }

    #[test]
    fn sizes_that_mean_nothing_are_left_out() {
        let lens = |text| parse_sizes(text).iter().map(|l| l.value()).collect::<Vec<_>>();
        assert_eq!(lens("128;256;2048;4096"), [128, 256, 2048, 4096]);
        assert_eq!(lens("65536"), [65535]);
        assert_eq!(lens("x;0;70000;256\0"), [256]);
        assert!(lens("").is_empty());
    }
}
