//! The table of one queue's gref mappings in memory that outlives the process (docs/protocol 1.1,
//! R4).
//!
//! ```text
//!   copy 0, copy 1:   word 0 magic "PGG1"   1 number of the change   2 checksum of all other words   3 entries
//!                     then two words each: reference, flags
//!   behind both:      version of copy 0, version of copy 1
//! ```
//! Change number n is written to copy n % 2, whole; it counts once the control page, which has the
//! answer too, says so. So a death before that leaves the table as it was, and the request on
//! the ring. Number 0 is the empty table and is not written. Little-endian, words of 4 bytes; a
//! change of the layout is a change of the version.
//!
//! Private to the back's domain: no peer can write it. It is checked as if one could.

use super::LIMIT_MAX;
use crate::memory;
use crate::record_checksum;
use crate::record_version::{RecordVersion, UnknownRecord};
use crate::ring::crash::{self, Point};
use crate::shm::SharedBytes;
use crate::wire::netif_ctrl::GrefEntry;
use alloc::boxed::Box;
use core::sync::atomic::{Ordering, compiler_fence};

/// Length in bytes of the memory for one table's record.
pub const GREF_PAGE_BYTES: usize = 2 * COPY_BYTES + 2 * 4;

const COPY_BYTES: usize = (ENTRIES + 2 * LIMIT_MAX) * 4;
const KIND: RecordVersion = RecordVersion::new("table of gref mappings", *b"PGG1", 1);
const CHECKSUM: usize = 2;
const COUNT: usize = 3;
const ENTRIES: usize = 4;

/// A record, in memory that outlives the process, of which pages are in a queue's table.
pub struct GrefPage {
    memory: Box<dyn SharedBytes + Send>,
}

impl GrefPage {
    /// Uses the first [`GREF_PAGE_BYTES`] of `memory`; None if the memory is shorter.
    pub fn new<S: SharedBytes + Send + 'static>(memory: S) -> Option<Self> {
        let long = memory.len() >= GREF_PAGE_BYTES;
        long.then(|| Self { memory: Box::new(memory) })
    }

    /// Checks whether the copy of the table that change number `version` wrote can be read.
    /// Ok(false): it was never written.
    ///
    /// # Errors
    /// The copy cannot be read: the vif must not be resumed.
    pub fn check(&self, version: u32) -> Result<bool, UnknownRecord> {
        let word = |at: usize| self.memory.load_u32(at).unwrap_or(0);
        if version == 0 { Ok(false) } else { KIND.check(word(copy(version)), word(layout_of(version))) }
    }

    /// The table as change number `version` left it; None: the record does not have all of it, or
    /// there is no memory to read it.
    pub fn load(&self, version: u32) -> Option<Box<[GrefEntry]>> {
        if version == 0 {
            return Some(Box::default());
        }
        let word = |i: usize| self.memory.load_u32(copy(version) + i * 4).unwrap_or(0);
        let n = word(COUNT) as usize;
        if self.check(version) != Ok(true) || word(1) != version || n > LIMIT_MAX {
            return None;
        }
        let entries = (0..n).map(|k| [word(ENTRIES + 2 * k), word(ENTRIES + 2 * k + 1)]);
        let entries = memory::collected(entries).ok()?;
        let right = checksum(version, entries.iter().copied()) == word(CHECKSUM);
        let entry = |[gref, flags]: &[u32; 2]| GrefEntry { gref: *gref, flags: *flags as u16, status: 0 };
        if right { memory::collected(entries.iter().map(entry)).ok() } else { None }
    }

    /// Writes the table as of change number `version`: references with their flags.
    pub fn store(&self, version: u32, entries: impl Iterator<Item = (u32, u16)> + Clone) {
        let entries = entries.take(LIMIT_MAX).map(|(gref, flags)| [gref, u32::from(flags)]);
        let put = |i: usize, word: u32| {
            let fits = self.memory.store_u32(copy(version) + i * 4, word);
            debug_assert!(fits, "a copy is inside its memory");
        };
        let fits = self.memory.store_u32(layout_of(version), KIND.version);
        debug_assert!(fits, "it is behind both copies");
        put(0, KIND.magic);
        put(1, version);
        crash::here(Point::InRecord);
        put(COUNT, entries.clone().count() as u32);
        for (k, [gref, flags]) in entries.clone().enumerate() {
            put(ENTRIES + 2 * k, gref);
            put(ENTRIES + 2 * k + 1, flags);
        }
        // Against one's own death the compiler is the only danger, as against a signal.
        compiler_fence(Ordering::SeqCst);
        put(CHECKSUM, checksum(version, entries));
        compiler_fence(Ordering::SeqCst);
    }
}

fn copy(version: u32) -> usize {
    (version % 2) as usize * COPY_BYTES
}

/// Offset of the layout version in the copy that change number `version` writes.
fn layout_of(version: u32) -> usize {
    2 * COPY_BYTES + (version % 2) as usize * 4
}

fn checksum(version: u32, entries: impl Iterator<Item = [u32; 2]> + Clone) -> u32 {
    let len = entries.clone().count() as u32;
    record_checksum::of([KIND.magic, version, len].into_iter().chain(entries.flatten()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::local::Pages;
    use alloc::vec::Vec;

    fn table(n: u32) -> impl Iterator<Item = (u32, u16)> + Clone {
        (0..n).map(move |k| (8 + k * n, (k % 2) as u16))
    }

    fn loaded(page: &GrefPage, version: u32) -> Option<Vec<(u32, u16)>> {
        page.load(version).map(|entries| entries.iter().map(|e| (e.gref, e.flags)).collect())
    }

    #[test]
    fn what_counts_is_there_until_the_next_change_counts() {
        let memory = Pages::new(GREF_PAGE_BYTES.div_ceil(crate::PAGE_SIZE));
        let page = GrefPage::new(memory.clone()).expect("long enough");
        assert_eq!((loaded(&page, 0), loaded(&page, 1)), (Some(Vec::new()), None));
        let sizes = [3, 20, 0, LIMIT_MAX as u32, 7].into_iter().take(if cfg!(miri) { 2 } else { 5 });
        for (version, n) in (1..).zip(sizes) {
            let before = loaded(&page, version - 1);
            page.store(version, table(n));
            assert_eq!(loaded(&page, version), Some(table(n).collect()), "{n} entries");
            assert_eq!(loaded(&page, version - 1), before, "the change does not count yet");
        }
    }

    #[test]
    fn damage_is_not_believed() {
        let memory = Pages::new(GREF_PAGE_BYTES.div_ceil(crate::PAGE_SIZE));
        let page = GrefPage::new(memory.clone()).expect("long enough");
        page.store(2, table(5));
        for i in 0..ENTRIES + 10 {
            let right = memory.load_u32(i * 4).expect("a word");
            for wrong in [right ^ 1, !right] {
                assert!(memory.store_u32(i * 4, wrong));
                assert_eq!(loaded(&page, 2), None, "word {i}");
            }
            assert!(memory.store_u32(i * 4, right));
        }
        assert_eq!(loaded(&page, 2), Some(table(5).collect()));
        assert!(GrefPage::new(Pages::new(1)).is_none());
    }
}
