//! The content of a mailbox: a burst for one queue, in memory with one owner.
//!
//! ```text
//!   bytes   | frame | frame |  not this queue's  | frame |  free  |      a power of two, chosen by what was to be put there
//!   frames  ^       ^                            ^
//! ```
//! Mail is moved, never shared: its owner, also the reader, may write to it. So a batch that was
//! fetched for one receiver is forwarded without a copy. [`Pool`] keeps read mail for reuse.
//!
//! A frame may be [zero-copy](Loan): then only its head is in the mail's bytes, which have room for
//! the rest.
//!
//! Invariants: frames are within the bytes. The memory of a pool is bounded ([`POOL_BYTES`]).

use pregrant::net::checksum;
use pregrant::port::{ARENA_BYTES, BURST_FRAMES, FrameDesc, Loan, Offload, Offloads};

/// Smallest memory of a mail, in bytes.
pub const MAIL_BYTES_MIN: usize = 4096;
/// Largest number of bytes of unused mail that one worker keeps for reuse.
pub const POOL_BYTES: usize = 1024 * 1024;

/// Largest number of mails without memory that a worker keeps.
const EMPTY_MAX: usize = 16;

/// Number of memory sizes: from 4 KiB to an arena's, each twice the one before.
const SIZES: usize = (ARENA_BYTES / MAIL_BYTES_MIN).trailing_zeros() as usize + 1;

/// Returns the index of the memory size that holds this number of bytes.
pub fn size_for(bytes: usize) -> usize {
    bytes.max(MAIL_BYTES_MIN).next_power_of_two()
}

fn index_of(size: usize) -> Option<usize> {
    let index = size.checked_div(MAIL_BYTES_MIN)?.trailing_zeros() as usize;
    (index < SIZES && size == MAIL_BYTES_MIN << index).then_some(index)
}

/// The reason why a frame cannot be put into a mail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    Full,
    /// The frame needs a checksum that its headers do not allow.
    Unfinishable,
}

#[derive(Debug)]
pub struct Mail {
    /// The bytes of the frames. They are empty while the memory is in an arena.
    pub bytes: Box<[u8]>,
    /// The mail's number among all mail for its reader, in the order of creation.
    pub number: u64,
    used: usize,
    frames: [FrameDesc; BURST_FRAMES],
    len: usize,
    read: usize,
    /// The zero-copy payload, which is not among the bytes.
    pub lent: Option<Loan>,
}

impl Mail {
    fn new(bytes: Box<[u8]>) -> Self {
        Self {
            bytes,
            number: 0,
            used: 0,
            frames: [FrameDesc::default(); BURST_FRAMES],
            len: 0,
            read: 0,
            lent: None,
        }
    }

    fn clear(&mut self) {
        (self.used, self.len, self.read, self.lent) = (0, 0, 0, None);
    }

    /// Returns the number of frames, including those that were read.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if another frame of `len` bytes fits.
    #[inline(always)]
    pub fn has_room(&self, len: usize) -> bool {
        self.len < BURST_FRAMES && self.used + len <= self.bytes.len()
    }

    /// True if the mail has the largest number of frames, whatever its bytes.
    pub fn is_out_of_frames(&self) -> bool {
        self.len == BURST_FRAMES
    }

    /// Returns the length of the largest frame that fits; 0: none fits.
    pub fn room(&self) -> usize {
        if self.len < BURST_FRAMES { self.bytes.len().saturating_sub(self.used) } else { 0 }
    }

    /// Appends a copy of `frame`, for a reader with the offloads `caps`. The frame must not need
    /// segmentation.
    #[inline(always)]
    pub fn push(&mut self, frame: &[u8], offload: Offload, caps: Offloads) -> Result<(), Refused> {
        let at = self.used;
        let (Some(slot), Some(to)) =
            (self.frames.get_mut(self.len), self.bytes.get_mut(at..at + frame.len()))
        else {
            return Err(Refused::Full);
        };
        to.copy_from_slice(frame);
        let offload = finished(to, offload, caps)?;
        *slot = FrameDesc { at: at as u32, len: frame.len() as u32, offload };
        self.len += 1;
        self.used = (at + frame.len()).next_multiple_of(64);
        Ok(())
    }

    /// Adds a frame that is in the mail's memory already. All of that memory then counts as used.
    #[inline(always)]
    pub fn adopt(&mut self, desc: FrameDesc, caps: Offloads) -> Result<(), Refused> {
        let at = desc.at as usize;
        let (Some(slot), Some(frame)) =
            (self.frames.get_mut(self.len), self.bytes.get_mut(at..at + desc.len as usize))
        else {
            return Err(Refused::Full);
        };
        *slot = FrameDesc { offload: finished(frame, desc.offload, caps)?, ..desc };
        self.len += 1;
        self.used = self.bytes.len();
        Ok(())
    }

    /// Copies the zero-copy payload to its place in the mail's own memory.
    pub fn make_private(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.copy_out(0, &mut self.bytes);
        }
    }

    /// Returns the frames that were not read yet.
    pub fn rest(&self) -> &[FrameDesc] {
        &self.frames[self.read..self.len]
    }

    pub fn rest_bytes(&self) -> usize {
        self.rest().iter().map(|desc| desc.len as usize).sum()
    }

    /// Returns the oldest frame that was not read.
    pub fn front(&self) -> Option<(&[u8], Offload)> {
        let desc = self.rest().first()?;
        Some((&self.bytes[desc.at as usize..(desc.at + desc.len) as usize], desc.offload))
    }

    pub fn pop(&mut self) {
        self.read = (self.read + 1).min(self.len);
    }
}

/// Completes a frame's checksum, unless the reader accepts it blank.
#[inline(always)]
fn finished(frame: &mut [u8], offload: Offload, caps: Offloads) -> Result<Offload, Refused> {
    if !offload.csum_blank || caps.csum {
        return Ok(offload);
    }
    checksum::finish_blank(frame).map_err(|_| Refused::Unfinishable)?;
    Ok(Offload { csum_blank: false, ..offload })
}

/// The memory with which one worker sends. The memory that was returned last is used first.
#[derive(Debug, Default)]
#[allow(clippy::vec_box, reason = "mail is a kilobyte, and goes on as a pointer")]
pub struct Pool {
    by_size: [Vec<Box<Mail>>; SIZES],
    /// Mails whose memory is elsewhere, to which memory is given when they are used.
    empty: Vec<Box<Mail>>,
    bytes: usize,
}

impl Pool {
    /// True if there is unused memory of this size.
    pub fn has(&self, size: usize) -> bool {
        index_of(size).is_some_and(|index| !self.by_size[index].is_empty())
    }

    /// Returns an empty mail with memory of this size.
    pub fn get(&mut self, size: usize) -> Box<Mail> {
        match index_of(size).and_then(|index| self.by_size[index].pop()) {
            Some(mail) => {
                self.bytes -= size;
                mail
            }
            None => self.with(vec![0; size].into_boxed_slice()),
        }
    }

    /// Returns memory of this size without its mail. The sender's queue fetches frames into it
    /// (`FramePort::tx_room`).
    pub fn get_bytes(&mut self, size: usize) -> Box<[u8]> {
        let mut mail = self.get(size);
        let bytes = std::mem::take(&mut mail.bytes);
        // The memory may not come back.
        if self.empty.len() < EMPTY_MAX {
            self.empty.push(mail);
        }
        bytes
    }

    /// Returns an empty mail with this memory.
    pub fn with(&mut self, bytes: Box<[u8]>) -> Box<Mail> {
        match self.empty.pop() {
            Some(mut mail) => {
                mail.bytes = bytes;
                mail
            }
            None => Box::new(Mail::new(bytes)),
        }
    }

    /// Takes back a mail that was read.
    pub fn put(&mut self, mut mail: Box<Mail>) {
        mail.clear();
        let size = mail.bytes.len();
        if let Some(index) = index_of(size)
            && self.bytes + size <= POOL_BYTES
        {
            self.bytes += size;
            self.by_size[index].push(mail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_finished_is_not_in_it() {
        let mut mail = Pool::default().get(MAIL_BYTES_MIN);
        let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
        let arp = [0u8; 60];
        assert_eq!(mail.push(&arp, blank, Offloads::default()), Err(Refused::Unfinishable));
        assert!(mail.front().is_none());
        assert_eq!(mail.push(&arp, blank, Offloads { csum: true, gso: false }), Ok(()));
        assert_eq!(mail.front().map(|(_, offload)| offload), Some(blank));
    }

    #[test]
    fn a_frame_that_passes_the_end_is_refused() {
        let mut mail = Pool::default().get(MAIL_BYTES_MIN);
        let all = Offloads { csum: true, gso: true };
        assert_eq!(mail.push(&[0; MAIL_BYTES_MIN + 1], Offload::default(), all), Err(Refused::Full));
        let desc = FrameDesc { at: 4090, len: 7, offload: Offload::default() };
        assert_eq!(mail.adopt(desc, all), Err(Refused::Full));
        assert_eq!(mail.adopt(FrameDesc { len: 6, ..desc }, all), Ok(()));
        assert!(!mail.has_room(1), "memory of others' frames is not written");
    }

    #[test]
    fn a_pool_is_bounded_and_gives_what_was_used_last() {
        let mut pool = Pool::default();
        let many: Vec<_> = (0..10).map(|_| pool.get(ARENA_BYTES)).collect();
        let last = many[3].bytes.as_ptr();
        many.into_iter().for_each(|mail| pool.put(mail));
        assert_eq!(pool.bytes, POOL_BYTES);
        assert_eq!(pool.get(ARENA_BYTES).bytes.as_ptr(), last);
        assert_eq!((pool.has(8192), pool.get(8192).bytes.len(), size_for(4097)), (false, 8192, 8192));
    }
}
