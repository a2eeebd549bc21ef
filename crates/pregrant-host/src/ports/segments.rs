//! A large segment, segmented into frames once, in memory of the sending port.
//!
//! The guest chooses how its segments are cut. So this is done in the sender's own time, before any
//! lock is taken, and once however many receivers need it; each receiver then costs a copy of the
//! frames, as any frame does.
//!
//! Memory: as much as the largest segment so far needed, 410 KiB at most ([`MIN_GSO_SIZE`],
//! [`HEADERS_MAX`]); none before the first.
//!
//! [`MIN_GSO_SIZE`]: pregrant::net::gso::MIN_GSO_SIZE
//! [`HEADERS_MAX`]: pregrant::net::gso::HEADERS_MAX

use pregrant::net::gso::Segments;
use pregrant::net::headers::HeaderFault;
use pregrant::port::Offload;

/// A large segment, cut into the frames that a receiver without segmentation gets. It is reused for
/// the next segment.
#[derive(Debug, Default)]
pub struct CutSegment {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl CutSegment {
    /// Segments `frame`, and discards the previous one. Error: its headers do not allow it.
    pub fn cut(&mut self, frame: &[u8], offload: Offload) -> Result<(), HeaderFault> {
        self.ends.clear();
        let plan = Segments::plan(frame, offload)?;
        if self.bytes.len() < plan.total_len() {
            self.bytes.resize(plan.total_len(), 0);
        }
        let mut at = 0;
        for i in 0..plan.count() {
            let end = at + plan.len_of(i);
            plan.write(i, &mut self.bytes[at..end]);
            self.ends.push(end);
            at = end;
        }
        Ok(())
    }

    /// Returns the number of frames.
    #[allow(clippy::len_without_is_empty, reason = "a frame that was cut is at least one")]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns frame `i`, whose checksums are complete.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let begin = i.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.bytes.get(begin..*self.ends.get(i)?)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(&0).chain(&self.ends);
        begins.zip(&self.ends).map(|(&begin, &end)| &self.bytes[begin..end])
    }
}
