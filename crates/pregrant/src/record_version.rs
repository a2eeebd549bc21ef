//! The version of each record that a back keeps in memory that outlives its process
//! (docs/protocol 1.1). Its successor may be an older or a newer version of this program.
//!
//! ```text
//!   magic 0            there is no record
//!   the record's own   version 0 or one that is known: it is read      another: UnknownRecord
//!   another            UnknownRecord
//! ```
//! A record that exists and cannot be read is not the same as none: a back that ignored it would
//! execute requests twice or not at all, or give a guest another disk. So a device with such a
//! record is left as it is, for a back that can read it ([`ConnectError::Unknown`]).
//!
//! Each record has a version word of its own, at an offset that no layout changes. It is read
//! before the record's checksum, whose definition depends on the version. Records from before these
//! words have 0 there, and the layout of version 1.
//!
//! [`ConnectError::Unknown`]: crate::xenbus::connect_error::ConnectError::Unknown

use core::fmt;

/// A kind of record, in the version that this program writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordVersion {
    name: &'static str,
    pub magic: u32,
    pub version: u32,
}

/// A predecessor's record that this program cannot read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownRecord {
    /// The name of the record.
    pub name: &'static str,
    /// The version that was found. None: the magic is unknown.
    pub found: Option<u32>,
    /// The record's first word.
    pub magic: u32,
    /// The latest version that this program knows.
    pub known: u32,
}

impl RecordVersion {
    /// A kind of record with this name and magic, whose latest version is `version`.
    pub const fn new(name: &'static str, magic: [u8; 4], version: u32) -> Self {
        Self { name, magic: u32::from_le_bytes(magic), version }
    }

    /// Whether there is a record, given its magic and version.
    ///
    /// # Errors
    ///
    /// There is a record, and it cannot be read.
    pub fn check(&self, magic: u32, version: u32) -> Result<bool, UnknownRecord> {
        let found = match magic {
            0 => return Ok(false),
            magic if magic != self.magic => None,
            _ if version <= self.version => return Ok(true),
            _ => Some(version),
        };
        Err(UnknownRecord { name: self.name, found, magic, known: self.version })
    }
}

impl fmt::Display for UnknownRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, found, magic, known } = self;
        write!(f, "the {name} that an earlier backend kept of this device has ")?;
        match found {
            Some(version) => write!(f, "version {version}")?,
            None => write!(f, "another layout (its first word is {magic:#010x})")?,
        }
        write!(
            f,
            ", and this program reads versions up to {known}; start the version of pregrant that wrote it, or a newer \
             one, which goes on with the guest's connection. To use this one, detach and attach the device"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_record_is_there_or_not_or_is_unknown() {
        const KIND: RecordVersion = RecordVersion::new("page", *b"PGX1", 3);
        let magic = u32::from_le_bytes(*b"PGX1");
        assert_eq!([0, 7].map(|version| KIND.check(0, version)), [Ok(false); 2]);
        assert_eq!([0, 1, 3].map(|version| KIND.check(magic, version)), [Ok(true); 3]);
        let text = format!("{}", KIND.check(magic, 4).expect_err("unknown"));
        assert!(
            text.starts_with("the page that an earlier backend kept of this device has version 4, and"),
            "{text}"
        );
        assert!(
            text.contains("reads versions up to 3; start the version of pregrant that wrote it"),
            "{text}"
        );
        let text = format!("{}", KIND.check(magic + 1, 0).expect_err("unknown"));
        assert!(text.contains("another layout (its first word is 0x"), "{text}");
    }
}
