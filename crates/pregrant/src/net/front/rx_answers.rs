//! Reads the answers of one received frame: its parts and its offload, or that there is no frame.
//!
//! ```text
//!   first answer [extras] [more answers] --LongFrame::read--> parts: slot, offset, length; offload; or that there is no frame
//! ```
//! Invariants: each answer is copied from the ring once per read. If not all answers of a frame are
//! there, nothing is kept: a later call reads the frame from its first answer.
//!
//! What the back may do: send chains without an end, invalid extras, or a frame with one part in
//! its slots and another in memory that [its responses
//! name](crate::net::path::AnyFlaggedPath). Each is a fault. The path that has the memory validates
//! offsets and lengths.

use crate::error::PeerFault;
use crate::net::gso;
use crate::net::stats::DirStats;
use crate::port::{Arena, MAX_FRAME, Offload};
use crate::ring::{FrontRing, NetRx, RingMem};
use crate::wire::netif::{
    Extra, RXF_CSUM_BLANK, RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxResponse,
};

/// Largest number of answers of one frame: no valid frame spreads 65535 bytes over slots of one
/// byte.
const MAX_CHAIN: usize = 32;

/// A part of a frame in one slot's memory.
#[derive(Clone, Copy, Default)]
pub struct Part {
    /// The ring slot.
    pub slot: u16,
    /// Offset in the slot's memory.
    pub offset: u16,
    /// Number of bytes.
    pub len: u16,
    /// Flags by which the response names memory that belongs to no slot, and that `offset` then
    /// describes; 0: the bytes are in the slot's own memory.
    pub name: u16,
}

impl Part {
    /// Splits the part at byte `end` of its slot. None: the part has no byte before `end`.
    #[inline(always)]
    pub fn split(self, end: usize) -> Option<(Self, Self)> {
        let ahead = end.checked_sub(self.offset.into()).filter(|n| *n > 0)?;
        let head = self.len.min(ahead as u16);
        let behind = Self { offset: self.offset + head, len: self.len - head, ..self };
        Some((Self { len: head, ..self }, behind))
    }
}

/// A frame of several slots, with extras, or an error, as its answers describe it.
pub struct LongFrame {
    /// The parts of the frame, from index `from` to before `end`. The first part can be the frame's
    /// first bytes, which a staging buffer has while the slots' pages have the rest.
    parts: [Part; 1 + MAX_CHAIN],
    from: usize,
    end: usize,
    /// Number of answers.
    pub used: u32,
    /// Number of bytes.
    pub total: usize,
    /// Number of bytes left free before the frame's bytes.
    pub headroom: usize,
    /// The checksum and segmentation work left.
    pub offload: Offload,
    /// An answer reports an error instead of a frame.
    pub error: bool,
    /// The fault, if the answers are invalid.
    pub fault: PeerFault,
}

impl Default for LongFrame {
    fn default() -> Self {
        Self {
            parts: [Part::default(); 1 + MAX_CHAIN],
            from: 1,
            end: 1,
            used: 0,
            total: 0,
            headroom: 0,
            offload: Offload::NONE,
            error: false,
            fault: PeerFault::TooManySlots,
        }
    }
}

impl LongFrame {
    /// Reads the answers of a frame of several slots, with extras, or with an error, from number
    /// `at` on, of `n` that are there. False: they are not all there. `names` are the flags by
    /// which an answer [names memory](Part::name).
    ///
    /// # Errors
    ///
    /// The answers are invalid: the device must be closed.
    pub fn read<M: RingMem<Kind = NetRx>>(
        &mut self,
        ring: &FrontRing<NetRx, M>,
        names: impl Fn(&RxResponse) -> Result<u16, PeerFault>,
        first: RxResponse,
        (at, n): (u32, u32),
    ) -> Result<bool, PeerFault> {
        let slot_ahead = |ahead| (ring.rsp_cons().wrapping_add(ahead) & (ring.size() - 1)) as u16;
        let mut used = 1;
        let mut offload = offload_of(first.flags);
        let mut headroom = 0;
        let mut extra = first.flags & RXF_EXTRA_INFO != 0;
        while extra {
            if at + used == n {
                return Ok(false);
            }
            if used as usize == MAX_CHAIN {
                return Err(PeerFault::TooManySlots);
            }
            let words = ring.read(at + used).to_words();
            let (info, more) = Extra::parse(words).map_err(PeerFault::from_extra)?;
            match info {
                Extra::Gso { size, gso_type } => (offload.gso_size, offload.gso_type) = (size, gso_type),
                Extra::Xdp { headroom: bytes } => headroom = usize::from(bytes),
                _ => {}
            }
            used += 1;
            extra = more;
        }
        let [_, parts @ ..] = &mut self.parts;
        let mut nr = 0;
        let mut error = false;
        let mut rsp = first;
        let mut slot = slot_ahead(at);
        let mut total = 0usize;
        loop {
            if rsp.status < 0 {
                error = true;
            } else {
                let name = names(&rsp)?;
                if let Some(part) = parts.get_mut(nr) {
                    *part = Part { slot, offset: rsp.offset, len: rsp.status as u16, name };
                }
                total += rsp.status as usize;
            }
            nr += 1;
            if rsp.flags & RXF_MORE_DATA == 0 {
                break;
            }
            if at + used == n {
                return Ok(false);
            }
            if nr == MAX_CHAIN {
                return Err(PeerFault::TooManySlots);
            }
            slot = slot_ahead(at + used);
            rsp = ring.read(at + used);
            used += 1;
        }
        let fault = fault(first.offset, first.status);
        if !error && total > MAX_FRAME {
            return Err(fault);
        }
        // All bytes of a frame must be in one path's memory.
        if !error && parts.iter().take(nr).any(|part| part.name != parts[0].name) {
            return Err(fault);
        }
        (self.from, self.end, self.used, self.total, self.headroom) = (1, 1 + nr, used, total, headroom);
        (self.offload, self.error, self.fault) = (offload, error, fault);
        Ok(true)
    }

    /// Splits off the head, which is in another memory and ends at byte `end` of the first part's
    /// slot. The first part becomes two parts, or stays one if all of it belongs to the head.
    /// Returns false if none of its bytes belong to the head.
    pub fn split_head(&mut self, end: usize) -> bool {
        let [ahead, first, ..] = &mut self.parts;
        let Some((head, behind)) = first.split(end) else { return false };
        if behind.len == 0 {
            *first = head;
        } else {
            (*ahead, *first, self.from) = (head, behind, 0);
        }
        true
    }

    /// The parts of the frame, in order.
    pub fn parts(&self) -> &[Part] {
        self.parts.get(self.from..self.end).unwrap_or_default()
    }

    /// The [memory](Part::name) that the responses of this frame name.
    pub fn name(&self) -> u16 {
        self.parts[1].name
    }
}

/// The fault for an invalid answer.
pub fn fault(offset: u16, status: i16) -> PeerFault {
    PeerFault::BadResponse { offset, status }
}

/// True if the response is a frame of one slot without extras.
#[inline(always)]
pub fn is_plain(rsp: RxResponse) -> bool {
    rsp.flags & (RXF_MORE_DATA | RXF_EXTRA_INFO) == 0 && rsp.status >= 0
}

/// The checksum state in an answer's flags.
#[inline(always)]
pub fn offload_of(flags: u16) -> Offload {
    Offload {
        csum_blank: flags & RXF_CSUM_BLANK != 0,
        csum_ok: flags & (RXF_DATA_VALIDATED | RXF_CSUM_BLANK) != 0,
        gso_type: 0,
        gso_size: 0,
    }
}

/// Makes the checksum of frame `i` blank if it is a large segment with another checksum; an invalid
/// one is dropped.
pub fn blank(out: &mut Arena, i: usize, stats: &mut DirStats) {
    let offload = out.desc(i).offload;
    if offload.gso_type != 0 && !offload.csum_blank {
        stats.gso_checksum_fixups += 1;
        if gso::blank_checksum(out, i).is_err() {
            out.drop_frame(i);
            stats.dropped += 1;
        }
    }
}

/// Like [`blank`], for the newest frame of `out`.
pub fn blank_newest(out: &mut Arena, stats: &mut DirStats) {
    if let Some(newest) = out.len().checked_sub(1) {
        blank(out, newest, stats);
    }
}
