//! A device's keys as typed values. A key is written by the peer, or missing, so it is parsed
//! strictly. A value that is invalid becomes an error that names everything needed to find the
//! mistake.

use crate::error::PlatformError;
use crate::memory;
use crate::units::{DomId, EvtchnPort, GrantRef};
use crate::xenstore::XsError;
use alloc::string::String;
use core::fmt;

/// A type of value that a key can have.
pub trait KeyValue: Sized {
    /// A description of valid values, for the user who wrote an invalid one.
    const EXPECTED: &'static str;
    /// Parses the key's text.
    fn parse(text: &str) -> Option<Self>;
}

/// Parses decimal digits only: no sign, no space.
fn decimal<T: core::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

macro_rules! decimal_key {
    ($($t:ty, $expected:literal, $map:expr;)*) => {$(
        impl KeyValue for $t {
            const EXPECTED: &'static str = $expected;
            fn parse(text: &str) -> Option<Self> {
                decimal(text).map($map)
            }
        }
    )*};
}

decimal_key! {
    u16, "a decimal number below 65536", |n: u16| n;
    u32, "a decimal number below 4294967296", |n: u32| n;
    u64, "a decimal number", |n: u64| n;
    GrantRef, "a grant reference, a decimal number", GrantRef;
    EvtchnPort, "an event channel, a decimal number", EvtchnPort;
    DomId, "a domain's number, below 65536", DomId;
}

impl KeyValue for bool {
    const EXPECTED: &'static str = "0 or 1";
    fn parse(text: &str) -> Option<Self> {
        match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
}

impl KeyValue for String {
    const EXPECTED: &'static str = "text";
    fn parse(text: &str) -> Option<Self> {
        Some(text.into())
    }
}

impl KeyValue for [u8; 6] {
    const EXPECTED: &'static str = "a MAC address as 00:16:3e:01:02:03";
    fn parse(text: &str) -> Option<Self> {
        let mut mac = [0; 6];
        let mut parts = text.trim_end_matches('\0').split(':');
        for byte in &mut mac {
            // A part may have one digit, as in Linux's netfront.
            let digits = |p: &&str| matches!(p.len(), 1 | 2) && p.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(digits)?;
            *byte = u8::from_str_radix(part, 16).ok()?;
        }
        parts.next().is_none().then_some(mac)
    }
}

/// A key that is missing or has an invalid value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyError {
    /// The full path of the key.
    pub path: String,
    /// The value, truncated and escaped; `None` if there is no such key.
    pub seen: Option<String>,
    /// The expected value.
    pub expected: &'static str,
    /// The domain that writes the key.
    pub writer: DomId,
}

/// Largest number of characters of an invalid value that are shown.
const SHOWN_CHARS: usize = 64;

impl KeyError {
    /// The error for a value as it was read from xenstore. A text for which there is no memory is
    /// empty.
    pub fn new(path: &str, seen: Option<&[u8]>, expected: &'static str, writer: DomId) -> Self {
        // The peer chose these bytes: they must not reach a terminal unescaped, nor fill more than
        // a line.
        let seen = seen.map(|bytes| memory::text(Shown(bytes)).unwrap_or_default());
        Self { path: memory::text(path).unwrap_or_default(), seen, expected, writer }
    }
}

/// A value of a peer's as it is shown, with its first characters.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(SHOWN_CHARS).try_for_each(|byte| byte.escape_ascii().fmt(f))?;
        match self.0.len().checked_sub(SHOWN_CHARS) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "... ({more} more)"),
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, seen, expected, writer } = self;
        match seen {
            Some(seen) => write!(f, "{path} is \"{seen}\", expected {expected}; ")?,
            None => write!(f, "{path} is missing, expected {expected}; ")?,
        }
        write!(f, "{writer} writes it: check its driver, or remove and attach the device again")
    }
}

impl core::error::Error for KeyError {}

/// An error in the use of a device's directories.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// xenstore refused the operation, or is gone.
    Store(XsError),
    /// A key is missing or invalid.
    Key(KeyError),
    /// There is no memory for the keys.
    Memory(PlatformError),
}

impl From<XsError> for DeviceError {
    fn from(e: XsError) -> Self {
        Self::Store(e)
    }
}

impl From<KeyError> for DeviceError {
    fn from(e: KeyError) -> Self {
        Self::Key(e)
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(e) => e.fmt(f),
            Self::Key(e) => e.fmt(f),
            Self::Memory(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for DeviceError {}

/// Parses the values that a message names as examples; returns how many. A value after "below" must
/// be refused, and the one before it accepted.
#[cfg(test)]
pub(crate) fn examples<V: KeyValue>() -> usize {
    let is_example = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    let words: alloc::vec::Vec<&str> = V::EXPECTED.split([' ', ',']).collect();
    for (i, word) in words.iter().enumerate().filter(|(_, word)| is_example(word)) {
        if i > 0 && words[i - 1] == "below" {
            assert!(V::parse(word).is_none(), "{}: {word}", V::EXPECTED);
            let most = alloc::format!("{}", word.parse::<u64>().unwrap() - 1);
            assert!(V::parse(&most).is_some(), "{}: {most}", V::EXPECTED);
        } else {
            assert!(V::parse(word).is_some(), "{}: {word}", V::EXPECTED);
        }
    }
    words.iter().filter(|word| is_example(word)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn numbers_are_digits_only() {
        assert_eq!(u32::parse("4294967295"), Some(u32::MAX));
        for bad in ["", "+1", "-1", " 1", "1\n", "0x10", "4294967296"] {
            assert_eq!(u32::parse(bad), None, "{bad:?}");
        }
        assert_eq!(bool::parse("1"), Some(true));
        assert_eq!(bool::parse("2"), None);
    }

    #[test]
    fn mac_addresses() {
        assert_eq!(<[u8; 6]>::parse("00:16:3e:aA:0b:ff"), Some([0, 0x16, 0x3e, 0xaa, 0x0b, 0xff]));
        assert_eq!(<[u8; 6]>::parse("0:1:2:3:4:5"), Some([0, 1, 2, 3, 4, 5]));
        assert_eq!(<[u8; 6]>::parse("0:16:3e:a:b:ff\0"), Some([0, 0x16, 0x3e, 0xa, 0xb, 0xff]));
        for bad in [
            "",
            "00:16:3e:aa:0b",
            "00:16:3e:aa:0b:ff:00",
            "0::3e:aa:0b:ff",
            "000:16:3e:aa:0b:ff",
            ":16:3e:aa:0b:ff",
            "00:16:3e:aa:0b:",
            "00:16:3e:aa:0b:+f",
            "00-16-3e-aa-0b-ff",
        ] {
            assert_eq!(<[u8; 6]>::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_a_message_names_is_taken() {
        let named = [examples::<u16>(), examples::<u32>(), examples::<DomId>(), examples::<bool>()];
        assert_eq!(named, [1, 1, 1, 2]);
        assert_eq!(examples::<[u8; 6]>(), 1);
        assert_eq!([examples::<u64>(), examples::<GrantRef>(), examples::<EvtchnPort>()], [0; 3]);
    }

    #[test]
    fn a_hostile_value_is_shown_escaped_and_short() {
        let value = [b"\x1b[2J\n".as_slice(), &[b'x'; 5000]].concat();
        let text = KeyError::new("/a/b", Some(&value), u32::EXPECTED, DomId(7)).to_string();
        assert!(text.starts_with("/a/b is \"\\x1b[2J\\nxxx"), "{text}");
        assert!(text.contains("xxx... (4941 more)\", expected"), "{text}");
        assert!(text.contains("domain 7 writes it"));
        assert!(text.len() < 400 && text.is_ascii() && !text.contains('\n'));
    }
}
