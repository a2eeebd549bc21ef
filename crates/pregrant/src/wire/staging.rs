//! The list of buffers that a front grants before any data is sent (docs/protocol 3.2).
//!
//! ```text
//!   list page(s), at most 512 entries each     data pages
//!   | id 0, gref 8, offset   0 | ------------> [ buffer 0 | buffer 1 | ... ]   several entries share a page
//!   | id 1, gref 8, offset 128 | --------------------------^
//!   | ...                      |
//!   | -, gref 0, -             |   end of the list; a list that fills its pages has none
//! ```
//! Not in Xen's headers. The buffer of a request is chosen by the request's **id**, not by its
//! place on the ring.
//!
//! Invariants: ids are 0, 1, 2 ... over both directions: TX first, RX after; a buffer is within
//! its page.
//!
//! What the peer may do: write anything, and change it after it was read. Copy the pages once,
//! check the copy, and take all of it or nothing.

/// One staging buffer: its granted page and its offset there.
///
/// C: none, the layout is that of the RFC of 2016. Little-endian, **packed**. 8 bytes.
///
/// ```text
/// |  0     1  |  2    3    4    5  |  6     7  |
/// |   id (f)  | gref (f), unaligned| offset (f)|
/// ```
/// * `id`: the entry's own number in the list.
/// * `gref`: granted page; read-only for TX, writable for RX. 0 ends the list.
/// * `offset`: bytes, start of the buffer in the page; offset + buffer length <= 4096.
///
/// # Trust
/// Every field is peer data; the id is redundant and must match the entry's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StagingEntry {
    /// The entry's number in the list.
    pub id: u16,
    /// Grant reference of the page, or 0 at the end of the list.
    pub gref: u32,
    /// Offset of the buffer in the page, in bytes.
    pub offset: u16,
}

/// Number of entries of one list page.
pub const ENTRIES_PER_PAGE: usize = crate::PAGE_SIZE / StagingEntry::SIZE;

const _: () = assert!(ENTRIES_PER_PAGE == 512);
// The alignment of `gref` makes C and Rust agree on 8 bytes only when packed: never transmute this
// struct.
const _: () = assert!(size_of::<StagingEntry>() == StagingEntry::SIZE);

impl StagingEntry {
    /// Bytes of an entry.
    pub const SIZE: usize = 8;
    /// The entry that a front writes after the last buffer, if the page has room.
    pub const TERMINATOR: Self = Self { id: 0, gref: 0, offset: 0 };

    /// Decodes an entry's bytes.
    pub const fn from_bytes(b: [u8; Self::SIZE]) -> Self {
        Self {
            id: u16::from_le_bytes([b[0], b[1]]),
            gref: u32::from_le_bytes([b[2], b[3], b[4], b[5]]),
            offset: u16::from_le_bytes([b[6], b[7]]),
        }
    }
    /// Encodes an entry's bytes.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        let (i, g, o) = (self.id.to_le_bytes(), self.gref.to_le_bytes(), self.offset.to_le_bytes());
        [i[0], i[1], g[0], g[1], g[2], g[3], o[0], o[1]]
    }
    /// Whether the list ends here: gref 0, whatever the other fields say.
    pub const fn is_terminator(self) -> bool {
        self.gref == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gref_0_ends_the_list_whatever_else_it_says() {
        assert!(StagingEntry::TERMINATOR.is_terminator());
        assert!(StagingEntry { id: 7, gref: 0, offset: 128 }.is_terminator());
        assert!(!StagingEntry { id: 0, gref: 8, offset: 0 }.is_terminator());
    }
}
