//! Reads the answers of one received frame: its parts, its offload, or that there is no frame.
//!
//! ```text
//!   first answer [extras] [more answers] --LongFrame::read--> parts: slot, offset, length; offload; or that there is no frame
//! ```
//! Invariants: each answer is copied out of the ring once for a read. If not all answers of a frame
//! are there, nothing is kept: a later call reads it from its first answer.
//!
//! What the back may do: send chains without an end, invalid extras, or a frame with one part in
//! its slots and another in memory that [its responses name](crate::net::path::AnyFlaggedPath).
//! Each is a fault. The path that has the memory validates offsets and lengths.

use crate::error::PeerFault;
use crate::net::gso;
use crate::net::stats::DirStats;
use crate::port::{Arena, MAX_FRAME, Offload};
use crate::ring::{FrontRing, NetRx, RingMem};
use crate::wire::netif::{
    Extra, RXF_CSUM_BLANK, RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxResponse,
};

/// Answers that one frame can have: no honest frame has 65535 bytes in slots of one byte.
const MAX_CHAIN: usize = 32;

/// A slot's part of a frame: where in its memory, how much.
#[derive(Clone, Copy, Default)]
pub struct Part {
    /// Which slot.
    pub slot: u16,
    /// Where in the slot's memory it begins.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
    /// The flags by which its response names memory that is no slot's, where `offset` is what that
    /// says; 0: it is in its slot's.
    pub name: u16,
}

impl Part {
    /// Its bytes ahead of byte `end` of its slot, and those behind. None: there are none ahead.
    #[inline(always)]
    pub fn split(self, end: usize) -> Option<(Self, Self)> {
        let ahead = end.checked_sub(self.offset.into()).filter(|n| *n > 0)?;
        let head = self.len.min(ahead as u16);
        let behind = Self { offset: self.offset + head, len: self.len - head, ..self };
        Some((Self { len: head, ..self }, behind))
    }
}

/// A frame of several slots, with extras, or an error, as its answers have it.
pub struct LongFrame {
    /// The head, where it is in another memory, ahead of those of the slots.
    parts: [Part; 1 + MAX_CHAIN],
    from: usize,
    end: usize,
    /// Answers.
    pub used: u32,
    /// Bytes.
    pub total: usize,
    /// Bytes left free ahead of those.
    pub headroom: usize,
    /// The work left on checksums and segments.
    pub offload: Offload,
    /// An answer says that there is no frame.
    pub error: bool,
    /// The error if it cannot be.
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
    /// Reads the answers of such a frame, the `at`-th and those behind it, of `n` that are there.
    /// False: it is not all there. `names`: the flags by which an answer [names
    /// memory](Part::name).
    ///
    /// # Errors
    /// The answers make no frame: the device is closed.
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
        // All of it is in one memory.
        if !error && parts.iter().take(nr).any(|part| part.name != parts[0].name) {
            return Err(fault);
        }
        (self.from, self.end, self.used, self.total, self.headroom) = (1, 1 + nr, used, total, headroom);
        (self.offload, self.error, self.fault) = (offload, error, fault);
        Ok(true)
    }

    /// Its first part is in another memory than the rest as far as byte `end` of the slot: two
    /// parts then, or one if all of it is. False: nothing of it is.
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

    /// Where its bytes are, in order.
    pub fn parts(&self) -> &[Part] {
        self.parts.get(self.from..self.end).unwrap_or_default()
    }

    /// How its responses [name](Part::name) its memory.
    pub fn name(&self) -> u16 {
        self.parts[1].name
    }
}

/// An answer that cannot be.
pub fn fault(offset: u16, status: i16) -> PeerFault {
    PeerFault::BadResponse { offset, status }
}

/// A frame of one slot, without extras.
#[inline(always)]
pub fn is_plain(rsp: RxResponse) -> bool {
    rsp.flags & (RXF_MORE_DATA | RXF_EXTRA_INFO) == 0 && rsp.status >= 0
}

/// What an answer's flags say of checksums.
#[inline(always)]
pub fn offload_of(flags: u16) -> Offload {
    Offload {
        csum_blank: flags & RXF_CSUM_BLANK != 0,
        csum_ok: flags & (RXF_DATA_VALIDATED | RXF_CSUM_BLANK) != 0,
        gso_type: 0,
        gso_size: 0,
    }
}

/// Makes the checksum of frame `i` blank, where it is a large segment whose is not; one that is
/// none is dropped.
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

/// The same of the newest frame.
pub fn blank_newest(out: &mut Arena, stats: &mut DirStats) {
    if let Some(newest) = out.len().checked_sub(1) {
        blank(out, newest, stats);
    }
}
