//! The list of staging buffers in shared pages: the front writes, the back validates it
//! (docs/protocol 3.2).
//!
//! ```text
//!   front: StagingArea --write--> list page   (granted read-only)   --read--> entries --validate--> Accepted
//! ```
//! The list of a direction is accepted as a whole or not at all: after one bad entry, that
//! direction's frames go by ordinary grants. Below revision 2 the frames of both directions do.
//! What a front may do: change the page while it is read. The page is read once, and the copy
//! validated.

use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::memory;
use crate::shm::SharedBytes;
use crate::sort::sorted;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::staging::{ENTRIES_PER_PAGE, StagingEntry};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// A data length as negotiated: how many bytes of a frame fit a staging buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DataLen(u32);

impl DataLen {
    /// Checks the value of a key. 65535 and 65536 mean the same: every slot is staged. None: no
    /// buffer can have this length.
    pub fn new(len: u32) -> Option<Self> {
        match len {
            16..=4096 => Some(Self(len)),
            65535 | 65536 => Some(Self(65535)),
            _ => None,
        }
    }
    /// The value as keys carry it.
    #[inline]
    pub fn value(self) -> u32 {
        self.0
    }
    /// Length of one buffer in bytes, at most a page. Inlined, because other crates ask for it for
    /// each frame.
    #[inline]
    pub fn buffer_bytes(self) -> u16 {
        self.0.min(PAGE_SIZE as u32) as u16
    }
    /// Number of buffers that fit in one page.
    pub fn buffers_in_page(self) -> u32 {
        PAGE_SIZE as u32 / u32::from(self.buffer_bytes())
    }
    /// Number of buffers that each of a vif's `lists` may have, if the back allows `pages` pages
    /// for all of them.
    pub fn buffers_within(self, pages: u32, lists: u32) -> u32 {
        (pages / lists.max(1)).saturating_mul(self.buffers_in_page()).min(LONG_LIST_MAX as u32)
    }
    /// True if every slot of a frame is staged, so that no ordinary grant is ever needed.
    pub fn copy_only(self) -> bool {
        self.0 > PAGE_SIZE as u32
    }
}

/// Offset in its buffer of `buffer_bytes` at which a frame of `len` bytes starts. Consecutive
/// buffers start at different multiples of 64, so that they use different sets of the L1 cache, if
/// the frame leaves room for that. The sender chooses the offset; the receiver reads it from the
/// slot.
#[inline(always)]
pub fn colour(id: u16, len: usize, buffer_bytes: usize) -> usize {
    let colour = (id as usize & 3) * 64;
    if colour + len <= buffer_bytes { colour } else { 0 }
}

/// Largest number of pages of a list. One page describes 512 buffers, so eight are enough for the
/// largest ring, 4096 slots of TX.
pub const LIST_PAGES_MAX: usize = 8;

/// Number of entries in a list of [`LIST_PAGES_MAX`] pages.
pub const LIST_ENTRIES_MAX: usize = LIST_PAGES_MAX * ENTRIES_PER_PAGE;

/// Largest number of entries of a list that is longer than its ring, which the back must offer
/// first. The ids of both directions share 16 bits.
pub const LONG_LIST_MAX: usize = 32767;

/// Number of pages of a list of [`LONG_LIST_MAX`] entries.
pub const LONG_LIST_PAGES_MAX: usize = LONG_LIST_MAX.div_ceil(ENTRIES_PER_PAGE);

/// An error in a list. `entry` counts from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ListFault {
    /// The list ends before its first entry.
    Empty,
    /// An entry's id is not its place in the list.
    WrongId {
        /// Index of the entry.
        entry: usize,
        /// The id that was found.
        id: u16,
        /// The id that was expected.
        expected: u16,
    },
    /// `offset + length` passes the end of the page.
    PastPage {
        /// Index of the entry.
        entry: usize,
        /// The offset that was found.
        offset: u16,
    },
    /// Two buffers share bytes.
    Overlap {
        /// Index of the entry.
        entry: usize,
        /// Index of the earlier entry.
        other: usize,
    },
    /// There is no memory for the back's copy of the list.
    NoMemory,
}

impl From<PlatformError> for ListFault {
    fn from(_: PlatformError) -> Self {
        Self::NoMemory
    }
}

impl fmt::Display for ListFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("the list has no entry"),
            Self::WrongId { entry, id, expected } => {
                write!(
                    f,
                    "entry {entry} has id {id}; ids are contiguous over both lists, so it must be {expected}"
                )
            }
            Self::PastPage { entry, offset } => {
                write!(f, "entry {entry} at offset {offset} passes the end of its page")
            }
            Self::Overlap { entry, other } => write!(f, "entry {entry} overlaps entry {other}"),
            Self::NoMemory => f.write_str("the backend has no memory for its copy of the list"),
        }
    }
}

impl core::error::Error for ListFault {}

/// Writes a list; false when it does not fit the pages. A list that does not fill the pages gets
/// its terminator.
#[must_use]
pub fn write(pages: &impl SharedBytes, entries: impl Iterator<Item = StagingEntry>) -> bool {
    let mut n = 0;
    for e in entries {
        if !pages.copy_in(n * StagingEntry::SIZE, &e.to_bytes()) {
            return false;
        }
        n += 1;
    }
    n == pages.len() / StagingEntry::SIZE
        || pages.copy_in(n * StagingEntry::SIZE, &StagingEntry::TERMINATOR.to_bytes())
}

/// Copies a list out of shared pages: up to its terminator, the end of the pages, or `most`
/// entries. Reads once.
pub fn read(pages: &impl SharedBytes, most: usize) -> Result<Vec<StagingEntry>, PlatformError> {
    let mut entries = Bounded::new(most.min(pages.len() / StagingEntry::SIZE))?;
    let mut bytes = [0; StagingEntry::SIZE];
    while entries.len() < most && pages.copy_out(entries.len() * StagingEntry::SIZE, &mut bytes) {
        let e = StagingEntry::from_bytes(bytes);
        if e.is_terminator() {
            break;
        }
        entries.put(e); // there is room for all that the pages have
    }
    Ok(entries.into_vec())
}

/// A list that was found good: which grants to map, once each and in this order, and where each
/// buffer is in them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The grants, each once.
    pub refs: Vec<GrantRef>,
    /// For each entry of the list the offset of its buffer in the mapping, bytes.
    pub place: Box<[u32]>,
}

/// Checks a private copy of a list whose ids begin at `first_id`.
pub fn validate(entries: &[StagingEntry], first_id: u16, len: DataLen) -> Result<Accepted, ListFault> {
    if entries.is_empty() {
        return Err(ListFault::Empty);
    }
    let bytes = len.buffer_bytes() as usize;
    for (entry, e) in entries.iter().enumerate() {
        let expected = first_id.wrapping_add(entry as u16);
        if e.id != expected {
            return Err(ListFault::WrongId { entry, id: e.id, expected });
        }
        if e.offset as usize + bytes > PAGE_SIZE {
            return Err(ListFault::PastPage { entry, offset: e.offset });
        }
    }
    let order = sorted(entries.iter().enumerate().map(|(at, e)| (e.gref, e.offset, at)))?;
    for &[(gref, offset, at), (next_gref, next_offset, next)] in order.array_windows() {
        if gref == next_gref && offset as usize + bytes > next_offset as usize {
            return Err(ListFault::Overlap { entry: at.max(next), other: at.min(next) });
        }
    }
    // Grants in the order in which the list first names them: the front's pages are then mapped in
    // their own order. An entry's place is first that of the entry which first names its grant.
    let mut place = memory::list(0u32, entries.len())?;
    let mut nr_refs = 0;
    let mut rest = &order[..];
    while let Some((gref, ..)) = rest.first() {
        let n = rest.iter().take_while(|(other, ..)| other == gref).count();
        let (same, others) = rest.split_at_checked(n).unwrap_or((rest, &[]));
        (rest, nr_refs) = (others, nr_refs + 1);
        let first = same.iter().map(|(.., at)| *at).min().unwrap_or(0);
        for (.., at) in same {
            place.get_mut(*at).into_iter().for_each(|place| *place = first as u32);
        }
    }
    let mut refs = Bounded::new(nr_refs)?;
    for (at, e) in entries.iter().enumerate() {
        let Some(first) = place.get(at).map(|first| *first as usize) else { break };
        let page = match place.get(first) {
            Some(named) if first < at => *named / PAGE_SIZE as u32,
            _ => {
                refs.put(GrantRef(e.gref));
                refs.len() as u32 - 1
            }
        };
        place.get_mut(at).into_iter().for_each(|place| *place = page * PAGE_SIZE as u32 + e.offset as u32);
    }
    Ok(Accepted { refs: refs.into_vec(), place })
}
