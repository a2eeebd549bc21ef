//! The answers of one received frame: where its parts are, and what is said of it.
//!
//! ```text
//!   first answer [extras] [more answers] --LongFrame::read--> parts: slot, offset, length; offload; or that there is no frame
//! ```
//! Each answer is copied out of the ring once. Invariant: a frame whose answers are not all there is read anew by a later call, and
//! nothing of it is kept till then.
//!
//! What the back may do: chains without an end, extras that make no sense, a frame that is half in a [data
//! ring](crate::net::path::data_ring) or in pages of two backs. Each is a fault. Offsets and lengths are judged by whoever has the memory.

use crate::error::PeerFault;
use crate::net::path::guest_copy::front::BorrowedPiece;
use crate::net::path::guest_copy::generation_of;
use crate::port::{MAX_FRAME, Offload};
use crate::ring::{FrontRing, NetRx, RingMem};
use crate::wire::netif::{
    Extra, RXF_CSUM_BLANK, RXF_DATA_RING, RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxResponse,
};

/// Answers that one frame can have: 65535 bytes in slots of one byte are nobody's honest frame.
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
    /// It is in the data ring, and `offset` is in lines of it.
    pub in_area: bool,
    /// It is in the lent page of its slot, of this generation; 0: it is not.
    pub generation: u8,
}

impl Part {
    /// In the lent page.
    pub fn borrowed(self) -> BorrowedPiece {
        let Self { slot, offset, len, generation, .. } = self;
        BorrowedPiece { slot, offset, len, generation }
    }
}

/// A frame of several slots, with extras, or an error, as its answers have it.
pub struct LongFrame {
    parts: [Part; MAX_CHAIN],
    nr: usize,
    /// Answers.
    pub used: u32,
    /// Bytes.
    pub total: usize,
    /// Bytes left free ahead of those.
    pub headroom: usize,
    /// What is to be done about checksums and segments.
    pub offload: Offload,
    /// An answer says that there is no frame.
    pub error: bool,
    /// What is wrong if it cannot be.
    pub fault: PeerFault,
}

/// What a queue's back may name beside its slots' own memory.
#[derive(Clone, Copy)]
pub struct Lends {
    /// A data ring.
    pub area: bool,
    /// Pages of its own.
    pub pages: bool,
}

impl LongFrame {
    /// Reads the answers of such a frame, the `at`-th and those behind it, of `n` that are there. None: it is not all there.
    ///
    /// # Errors
    /// The answers make no frame: the device is closed.
    pub fn read<M: RingMem<Kind = NetRx>>(
        ring: &FrontRing<NetRx, M>,
        lends: Lends,
        first: RxResponse,
        (at, n): (u32, u32),
    ) -> Result<Option<Self>, PeerFault> {
        let slot_ahead = |ahead| (ring.rsp_cons().wrapping_add(ahead) & (ring.size() - 1)) as u16;
        let mut used = 1;
        let mut offload = offload_of(first.flags);
        let mut headroom = 0;
        let mut extra = first.flags & RXF_EXTRA_INFO != 0;
        while extra {
            if at + used == n {
                return Ok(None);
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
        let mut parts = [Part::default(); MAX_CHAIN];
        let mut nr = 0;
        let mut error = false;
        let mut rsp = first;
        let mut slot = slot_ahead(at);
        let mut total = 0usize;
        loop {
            if rsp.status < 0 {
                error = true;
            } else {
                let in_area = rsp.flags & RXF_DATA_RING != 0;
                let generation = if in_area || !lends.pages { 0 } else { generation_of(rsp.flags) };
                if generation != 0 && BorrowedPiece::of(slot, &rsp).is_none() {
                    return Err(fault(rsp.offset, rsp.status));
                }
                parts[nr] = Part { slot, offset: rsp.offset, len: rsp.status as u16, in_area, generation };
                total += rsp.status as usize;
            }
            nr += 1;
            if rsp.flags & RXF_MORE_DATA == 0 {
                break;
            }
            if at + used == n {
                return Ok(None);
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
        // In the data ring as a whole or not at all.
        let in_area = parts[..nr].iter().filter(|part| part.in_area).count();
        if !error && in_area > 0 && (in_area < nr || !lends.area) {
            return Err(fault);
        }
        // So it is with pages that are lent, which are of one back.
        let generation = parts[0].generation;
        if !error && parts[..nr].iter().any(|part| part.generation != generation) {
            return Err(fault);
        }
        Ok(Some(LongFrame { parts, nr, used, total, headroom, offload, error, fault }))
    }

    /// Where its bytes are, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts[..self.nr]
    }

    /// Whether it is in the data ring.
    pub fn in_area(&self) -> bool {
        self.parts[0].in_area
    }

    /// Whether it is in lent pages.
    pub fn is_borrowed(&self) -> bool {
        self.parts[0].generation != 0
    }
}

/// An answer that cannot be.
pub fn fault(offset: u16, status: i16) -> PeerFault {
    PeerFault::BadResponse { offset, status }
}

/// A frame of one slot, without extras, that is in the data ring.
#[inline(always)]
pub fn is_plain_in_area(rsp: RxResponse) -> bool {
    rsp.flags & (RXF_MORE_DATA | RXF_EXTRA_INFO | RXF_DATA_RING) == RXF_DATA_RING && rsp.status >= 0
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
