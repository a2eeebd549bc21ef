//! A large segment cut into frames, once, in memory of the port that sends it.
//!
//! A guest chooses what its frames are cut into. So it is done in its own time and before anybody's
//! lock is taken, and once however many receivers want it cut; each then costs a copy of the
//! frames, as any frame does.
//!
//! Memory: what the frame that needed most is cut into, 410 KiB at most ([`MIN_GSO_SIZE`],
//! [`HEADERS_MAX`]); none until there is one.
//!
//! [`MIN_GSO_SIZE`]: pregrant::net::gso::MIN_GSO_SIZE
//! [`HEADERS_MAX`]: pregrant::net::gso::HEADERS_MAX

use pregrant::net::gso::Segments;
use pregrant::net::headers::HeaderFault;
use pregrant::port::Offload;

/// See the module.
#[derive(Debug, Default)]
pub struct CutFrame {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl CutFrame {
    /// Cuts `frame`; what was here before is gone. Refused: its headers do not allow it.
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

    /// How many frames there are.
    #[allow(clippy::len_without_is_empty, reason = "a frame that was cut is at least one")]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Frame `i`; its checksums are finished.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let begin = i.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.bytes.get(begin..*self.ends.get(i)?)
    }

    /// The frames, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(&0).chain(&self.ends);
        begins.zip(&self.ends).map(|(&begin, &end)| &self.bytes[begin..end])
    }
}
