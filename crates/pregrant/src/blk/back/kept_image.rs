//! The record of which image a connection's guest has, in memory that outlives the process
//! (docs/protocol 1.1).
//!
//! ```text
//!   connect:   open the image --> record of it --> rings, journal --> the first request
//!   a successor opens what the keys name now --> the same record?  no: refused, and nothing of the journal is done
//! ```
//! Keys name an image by a path, and what is at a path changes: a file is renamed over another, a
//! volume is made again under its name, a medium is changed. A guest with a mounted file system
//! must not get another disk, and the journal's writes must not go there.
//!
//! | byte | what |
//! |---|---|
//! | 0 | magic "PGV1" |
//! | 4 | checksum of all others, as words |
//! | 8 | flags: 1 a successor found another image, and refused; 2 none was recorded |
//! | 12, 16 | the connection: first page of queue 0's ring, its event channel |
//! | 20, 24 | bytes of the image's name, and of its identity |
//! | 28 | version |
//! | 32 | both texts |
//! | 8188 | 1: a flush of this connection has failed ([`FlushFault`]); not in the checksum |
//!
//! A record of another connection counts as no record: then the connection is not resumed, because
//! it is unknown which image its guest has. A change of the layout is a change of the version.
//! Private to the back's domain: no peer can write it. It is checked as if one could, since a
//! predecessor may be another version of this program.
//!
//! [`FlushFault`]: super::flush_fault::FlushFault

use crate::record_checksum;
use crate::record_version::{RecordVersion, UnknownRecord};
use crate::ring::crash::{self, Point};
use crate::shm::SharedBytes;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, compiler_fence};

/// Bytes of the record's memory.
pub const KEPT_IMAGE_BYTES: usize = 8192;

const KIND: RecordVersion = RecordVersion::new("record of the image", *b"PGV1", 1);
/// The index of the version, in words.
const VERSION: usize = 7;
const TEXT: usize = 32;
const REFUSED: u32 = 1;
const UNKNOWN: u32 = 2;
/// Largest number of bytes of an image's name, which is the value of a xenstore key.
const NAME_MOST: usize = 4096;
/// Largest number of bytes of an image's identity.
const IDENTITY_MOST: usize = FLUSH_FAILED - TEXT - NAME_MOST;
/// The offset of the mark of a failed flush.
const FLUSH_FAILED: usize = KEPT_IMAGE_BYTES - 4;

/// An image, and the connection of the guest that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageRecord {
    /// Grant reference of the first page of queue 0's ring, and its event channel.
    pub connection: (u32, u32),
    /// The image's name, as the toolstack wrote it.
    pub name: String,
    /// The image's identity ([`Image::identity`](crate::blk::disk::Image::identity)). Empty: it has
    /// none.
    pub identity: String,
    /// A successor found another image under this name, and refused it.
    pub refused: bool,
    /// There was no record of the image.
    pub unknown: bool,
}

impl ImageRecord {
    /// The record for an image that a guest is given now. Texts that are too long are truncated.
    pub fn new(connection: (u32, u32), name: &str, identity: &str) -> Self {
        let cut = |text: &str, most: usize| {
            let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
            String::from(&text[..end.unwrap_or(0)])
        };
        let (name, identity) = (cut(name, NAME_MOST), cut(identity, IDENTITY_MOST));
        Self { connection, name, identity, refused: false, unknown: false }
    }

    /// The record for a connection whose image is unknown.
    pub fn unknown(connection: (u32, u32)) -> Self {
        Self { unknown: true, ..Self::new(connection, "", "") }
    }

    /// True if both records are known to be about the same image.
    pub fn is_of(&self, other: &Self) -> bool {
        !self.unknown && !other.unknown && (&self.name, &self.identity) == (&other.name, &other.identity)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (name, identity) = (self.name.as_bytes(), self.identity.as_bytes());
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.refused, REFUSED) | flag(self.unknown, UNKNOWN);
        let words = [
            KIND.magic,
            0,
            flags,
            self.connection.0,
            self.connection.1,
            name.len() as u32,
            identity.len() as u32,
            KIND.version,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(identity);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let sum = checksum(&bytes);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a record. None: it is no record, or incomplete.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |i: usize| -> Option<u32> {
            bytes.get(4 * i..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_le_bytes(*word))
        };
        let (name, identity) = (word(5)? as usize, word(6)? as usize);
        if KIND.check(word(0)?, word(VERSION)?) != Ok(true) || name > NAME_MOST || identity > IDENTITY_MOST {
            return None;
        }
        let bytes = bytes.get(..(TEXT + name + identity).next_multiple_of(4))?;
        if word(1)? != checksum(bytes) {
            return None;
        }
        let text =
            |at: usize, len: usize| core::str::from_utf8(bytes.get(at..at + len)?).ok().map(String::from);
        Some(Self {
            connection: (word(3)?, word(4)?),
            name: text(TEXT, name)?,
            identity: text(TEXT + name, identity)?,
            refused: word(2)? & REFUSED != 0,
            unknown: word(2)? & UNKNOWN != 0,
        })
    }
}

/// The checksum of all words except the one that holds it.
fn checksum(bytes: &[u8]) -> u32 {
    let (words, _) = bytes.as_chunks::<4>();
    let others = words.iter().enumerate().filter(|(i, _)| *i != 1);
    record_checksum::of(others.map(|(_, word)| u32::from_le_bytes(*word)))
}

/// The record in memory that outlives the process.
pub struct KeptImage(Box<dyn SharedBytes + Send>);

impl KeptImage {
    /// Uses the first [`KEPT_IMAGE_BYTES`] of `memory`. None: it is shorter.
    pub fn new(memory: Box<dyn SharedBytes + Send>) -> Option<Self> {
        (memory.len() >= KEPT_IMAGE_BYTES).then_some(Self(memory))
    }

    /// Whether a predecessor wrote a record.
    ///
    /// # Errors
    ///
    /// A predecessor wrote a record that this version cannot read, so it is unknown which image the
    /// guest has.
    pub fn check(&self) -> Result<bool, UnknownRecord> {
        let word = |i: usize| self.0.load_u32(4 * i).unwrap_or(0);
        KIND.check(word(0), word(VERSION))
    }

    /// Reads the record of a predecessor. None: there is none that is complete.
    pub fn load(&self) -> Option<ImageRecord> {
        let mut bytes = vec![0; KEPT_IMAGE_BYTES];
        let (magic, rest) = bytes.split_at_mut(4);
        magic.copy_from_slice(&self.0.load_u32(0)?.to_le_bytes());
        if !self.0.copy_out(4, rest) {
            return None;
        }
        ImageRecord::from_bytes(&bytes)
    }

    /// Writes a record. It is valid when this returns; until then there is none.
    pub fn store(&self, record: &ImageRecord) {
        self.clear();
        let bytes = record.to_bytes();
        let fits = self.0.copy_in(4, &bytes[4..]);
        crash::here(Point::InRecord);
        // For the crash of this very process only the compiler's order matters, as with a signal.
        compiler_fence(Ordering::SeqCst);
        let fits = fits && self.0.store_u32(0, KIND.magic);
        debug_assert!(fits, "a record is inside its memory");
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether a flush of the recorded connection has failed.
    pub fn flush_failed(&self) -> bool {
        self.0.load_u32(FLUSH_FAILED) != Some(0)
    }

    /// Sets whether a flush has failed. A new connection clears it.
    pub fn set_flush_failed(&self, failed: bool) {
        let _ = self.0.store_u32(FLUSH_FAILED, failed.into()); // it is that long
        compiler_fence(Ordering::SeqCst);
    }

    /// Removes the record.
    fn clear(&self) {
        let _ = self.0.store_u32(0, 0); // it is that long
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::local::Pages;

    fn kept() -> (Pages, KeptImage) {
        let pages = Pages::new(KEPT_IMAGE_BYTES / 4096);
        (pages.clone(), KeptImage::new(Box::new(pages)).unwrap())
    }

    // Miri cannot store a word atomically over a part of a longer store.
    #[cfg_attr(miri, ignore)]
    #[test]
    fn a_record_is_found_whole_or_not_at_all() {
        let (pages, kept) = kept();
        assert_eq!(kept.load(), None);
        let refused = ImageRecord { refused: true, ..ImageRecord::new((7, 9), "/a", "file 3") };
        let long = ImageRecord::new((1, 2), &"n".repeat(5000), &"\u{e9}".repeat(4000));
        assert_eq!((long.name.len(), long.identity.len()), (NAME_MOST, IDENTITY_MOST));
        for record in [refused, ImageRecord::new((0, 0), "", ""), long] {
            kept.store(&record);
            assert_eq!(kept.load(), Some(record.clone()));
            // Any word may not be written yet, or may have been overwritten by other code.
            let bytes = record.to_bytes().len();
            for at in (0..bytes).step_by(if bytes > 100 { 404 } else { 4 }) {
                let was = pages.load_u32(at).unwrap();
                assert!(pages.store_u32(at, was ^ 0x40));
                assert_eq!(kept.load(), None, "{at}");
                assert!(pages.store_u32(at, was));
            }
        }
        // The format from before records had a version.
        let record = ImageRecord::new((7, 9), "/a", "file 3");
        let mut bytes = record.to_bytes();
        bytes[4 * VERSION..][..4].fill(0);
        let sum = checksum(&bytes);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        assert!(pages.copy_in(0, &bytes));
        assert_eq!((kept.check(), kept.load()), (Ok(true), Some(record)));
        kept.clear();
        assert_eq!(kept.load(), None);
        assert!(KeptImage::new(Box::new(Pages::new(1))).is_none());
    }
}
