//! Who may read and write a node.
//!
//! A node has a list of permissions, each a letter and a domain: `n0`, `r7`. The first entry is
//! special: its domain *owns* the node and may do anything, and its letter applies to all domains
//! that are not in the rest of the list. Domain 0 may always do anything. A domain may also act for
//! one other domain, its *target* (a device model for its guest), and then counts as that domain,
//! too.

use crate::units::DomId;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A domain's access to a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// No access (`n`).
    None,
    /// The domain may read (`r`).
    Read,
    /// The domain may write, but not read (`w`).
    Write,
    /// The domain may read and write (`b`).
    Both,
}

impl Access {
    /// The letter of the access.
    pub const fn letter(self) -> char {
        match self {
            Self::None => 'n',
            Self::Read => 'r',
            Self::Write => 'w',
            Self::Both => 'b',
        }
    }

    /// Parses the letter of an access.
    pub const fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'n' => Some(Self::None),
            b'r' => Some(Self::Read),
            b'w' => Some(Self::Write),
            b'b' => Some(Self::Both),
            _ => None,
        }
    }

    /// Whether this access allows reading.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    /// Whether this access allows writing.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

/// One entry of a node's permissions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Permission {
    /// The domain of the entry.
    pub domid: DomId,
    /// The domain's access; in the first entry, that of all domains without an entry.
    pub access: Access,
}

impl Permission {
    /// An entry for `domid`.
    pub const fn new(access: Access, domid: DomId) -> Self {
        Self { domid, access }
    }

    /// Parses an entry without its NUL: a letter and a decimal number.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (&letter, digits) = text.split_first()?;
        Some(Self { access: Access::from_letter(letter)?, domid: parse_domid(digits)? })
    }

    /// Parses a list of entries, each with a NUL. `None`: an entry is malformed, or there is none.
    pub fn parse_list(payload: &[u8]) -> Option<Vec<Self>> {
        let body = payload.strip_suffix(b"\0")?;
        body.split(|&b| b == 0).map(Self::parse).collect()
    }

    /// Encodes a list of entries.
    pub fn list_to_bytes(list: &[Self]) -> Vec<u8> {
        let text: String = list.iter().map(|p| format!("{p}\0")).collect();
        text.into_bytes()
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.access.letter(), self.domid.0)
    }
}

/// Parses a domain's number, a decimal number in all messages of xenstore. Signs and spaces are
/// refused.
pub fn parse_domid(digits: &[u8]) -> Option<DomId> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok().map(DomId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_there_and_back() {
        let list = Permission::parse_list(b"n0\0r7\0b12\0").unwrap();
        assert_eq!(
            list,
            [
                Permission::new(Access::None, DomId(0)),
                Permission::new(Access::Read, DomId(7)),
                Permission::new(Access::Both, DomId(12))
            ]
        );
        assert_eq!(Permission::list_to_bytes(&list), b"n0\0r7\0b12\0");
    }

    #[test]
    fn malformed_entries_are_refused() {
        for bad in [
            &b""[..],
            b"\0",
            b"n0",
            b"n\0",
            b"x0\0",
            b"n-1\0",
            b"n+1\0",
            b"n 1\0",
            b"n65536\0",
            b"n0\0\0",
            b"\xff\xff\0",
        ] {
            assert_eq!(Permission::parse_list(bad), None, "{bad:?}");
        }
    }
}
