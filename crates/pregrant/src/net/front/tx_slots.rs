//! TX slots of one queue: the ring, and the ids in flight on it. Each
//! [path](crate::net::path::FrontPath) sends through them.
//!
//! ```text
//!   free ids --take--> request --write, advance--> ring        answer --> in_flight --give--> free ids
//! ```
//! Ids are used again in the order in which they came back: with more ids than slots, memory rests
//! before it is written again.
//!
//! What the back may do: see [`tx`](super::tx).

use super::regions::OwnRing;
use crate::array;
use crate::error::PlatformError;
use crate::memory;
use crate::net::ahead::{AHEAD, SHORT};
use crate::net::stats::DirStats;
use crate::platform::Platform;
use crate::port::{BURST_FRAMES, Frames, Offload, Source};
use crate::ring::{FrontRing, NetTx, RingMem};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6, TXF_CSUM_BLANK, TXF_DATA_VALIDATED, TxRequest};
use alloc::boxed::Box;

/// How many request ids a queue has, and how many can be in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    /// Number of ids.
    pub all: u32,
    /// Number of ids that can be in flight, which is limited by the path with the least memory.
    pub at_once: u32,
}

/// Ids that are free; the one that was freed first is used first.
pub struct FreeIds {
    /// A ring of a power of two of places.
    ids: Box<[u16]>,
    head: u32,
    tail: u32,
    /// Number of ids that always stay free, if there are more buffers than can be in flight.
    resting: u32,
}

/// Returns a table of `n` places, none of which has an id.
pub(crate) fn table(n: u32) -> Result<Box<[u16]>, PlatformError> {
    memory::list(NO_ID, n as usize)
}

/// Marks a place without an id.
pub(crate) const NO_ID: u16 = u16::MAX;

impl FreeIds {
    pub(crate) fn new(Ids { all, at_once }: Ids) -> Result<Self, PlatformError> {
        let mut ids = table(all.next_power_of_two())?;
        ids.iter_mut().zip(0..all).for_each(|(place, id)| *place = id as u16);
        Ok(Self { ids, head: 0, tail: all, resting: all.saturating_sub(at_once) })
    }
    /// Number of ids that can be taken now.
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.known().wrapping_sub(self.resting)
    }
    /// Number of free ids whose order is known.
    #[inline(always)]
    pub(crate) fn known(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
    #[inline(always)]
    pub(crate) fn take(&mut self) -> u16 {
        let id = self.peek(0);
        self.skip(1);
        id
    }
    /// The id that the request after `ahead` others gets.
    #[inline(always)]
    pub(crate) fn peek(&self, ahead: u32) -> u16 {
        let at = self.head.wrapping_add(ahead) as usize & (self.ids.len() - 1);
        self.ids.get(at).copied().unwrap_or_default()
    }
    /// Takes the next `n` ids, which the caller [looked at](Self::peek) before.
    #[inline(always)]
    pub(crate) fn skip(&mut self, n: u32) {
        self.head = self.head.wrapping_add(n);
    }
    #[inline(always)]
    pub(crate) fn give(&mut self, id: u16) {
        let at = self.tail as usize & (self.ids.len() - 1);
        if let Some(place) = self.ids.get_mut(at) {
            *place = id;
        }
        self.tail = self.tail.wrapping_add(1);
    }
}

/// The content of an id's request that is not answered.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum InFlight {
    /// The id is not in flight.
    #[default]
    Nothing,
    /// A frame, or a part of one, in memory of a path.
    Frame,
    /// A [fragment](super::granted_piece) in a page of the caller.
    Piece,
}

/// The tables of a queue's ids.
pub(crate) struct IdTables {
    free: FreeIds,
    in_flight: Box<[InFlight]>,
}

impl IdTables {
    /// Creates the tables of these ids, all of which are free.
    pub(crate) fn new(ids: Ids) -> Result<Self, PlatformError> {
        let in_flight = memory::list(InFlight::Nothing, ids.all as usize)?;
        Ok(Self { free: FreeIds::new(ids)?, in_flight })
    }
}

/// The ring, and the state of each request id.
pub struct TxSlots<P: Platform> {
    pub(crate) ring: FrontRing<NetTx, OwnRing<NetTx, P>>,
    pub(crate) free: FreeIds,
    /// For each id, the request in flight with it.
    pub(crate) in_flight: Box<[InFlight]>,
    pub(crate) extras_in_flight: u32,
    /// Scratch memory for a burst: where its frames go.
    pub(crate) places: Box<[Place; BURST_FRAMES]>,
    pub(crate) stats: DirStats,
    /// Which frames the back accepts.
    pub(crate) limits: TxLimits,
}

impl<P: Platform> TxSlots<P> {
    /// A ring all of whose ids are free.
    pub(crate) fn new(ring: FrontRing<NetTx, OwnRing<NetTx, P>>, ids: IdTables) -> Self {
        Self {
            ring,
            free: ids.free,
            in_flight: ids.in_flight,
            extras_in_flight: 0,
            places: array::filled(Place::default()),
            stats: DirStats::default(),
            limits: TxLimits::NONE,
        }
    }

    /// Sets the ids; none is in flight.
    pub(crate) fn set_ids(&mut self, ids: IdTables) {
        debug_assert!(self.in_flight.iter().all(|sent| *sent == InFlight::Nothing));
        (self.free, self.in_flight) = (ids.free, ids.in_flight);
    }

    /// Notes that the request of `id` is on the ring.
    #[inline(always)]
    pub(crate) fn note_sent(&mut self, id: u16) {
        self.note(id, InFlight::Frame);
    }

    #[inline(always)]
    pub(crate) fn note(&mut self, id: u16, sent: InFlight) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(id)) {
            *in_flight = sent;
        }
    }

    /// Number of slots that are free for frames.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        self.ring.free().min(self.free.len())
    }
}

/// Which frames the back accepts (docs/protocol 2.8: `feature-sg`, `feature-gso-*`). Others are
/// dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxLimits {
    /// The back accepts frames over several slots.
    pub sg: bool,
    /// The back accepts TCPv4 segments larger than the MTU.
    pub gso_tcpv4: bool,
    /// The back accepts TCPv6 segments larger than the MTU.
    pub gso_tcpv6: bool,
}

impl TxLimits {
    /// The limits of a back that accepts everything.
    pub const NONE: Self = Self { sg: true, gso_tcpv4: true, gso_tcpv6: true };

    pub(crate) fn allow(self, len: usize, gso_type: u8) -> bool {
        let gso = match gso_type {
            0 => true,
            GSO_TYPE_TCPV4 => self.sg && self.gso_tcpv4,
            GSO_TYPE_TCPV6 => self.sg && self.gso_tcpv6,
            _ => false,
        };
        gso && (self.sg || len <= PAGE_SIZE)
    }
}

/// Where a frame's bytes go, and the request that names them.
#[derive(Clone, Copy, Default)]
pub struct Place {
    /// Offset in the region.
    pub(crate) at: u32,
    pub(crate) request: [u32; 3],
}

/// The second pass of a run: copies the frames to their places and writes their requests.
///
/// This is a function of its own and as short as possible: each store waits here for those before
/// it, whose cache lines come from the back's core, so two spilled registers per frame cost a fifth
/// of the throughput (`bench net`, staging, TX, 64 B).
#[inline(never)]
pub(crate) fn fill<M: RingMem<Kind = NetTx>, B: SharedBytes, F: Frames>(
    ring: &FrontRing<NetTx, M>,
    bytes: &B,
    frames: &F,
    places: &[Place],
) {
    for (k, (frame, place)) in frames.first(places.len()).zip(places).enumerate() {
        if let (Some(next), Some(frame)) = (places.get(k + AHEAD), frames.get(k + AHEAD))
            && frame.len() > SHORT
        {
            bytes.prefetch_write(next.at as usize, frame.len());
        }
        let to = bytes.piece_mut(place.at as usize, frame.len());
        debug_assert!(to.is_some(), "a slot is in its region");
        if let Some(to) = to {
            frame.copy_to(0, to);
        }
        ring.write(k as u32, &TxRequest::from_words(place.request));
    }
}

/// The flags of a request that describe the frame's checksum.
#[inline(always)]
pub(crate) fn flags_of(offload: &Offload) -> u16 {
    if offload.csum_blank {
        TXF_CSUM_BLANK | TXF_DATA_VALIDATED
    } else if offload.csum_ok {
        TXF_DATA_VALIDATED
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    #[test]
    fn an_id_rests_until_all_others_had_their_turn() {
        for (all, at_once) in [(4, 4), (5, 4), (8, 4), (1000, 256)] {
            let mut ids = FreeIds::new(Ids { all, at_once }).expect("memory");
            let mut away = VecDeque::new();
            for turn in 0..5 * all {
                while ids.len() > 0 {
                    assert_eq!(ids.peek(0), ids.take_one(&mut away));
                }
                assert_eq!((away.len() as u32, ids.known()), (at_once, all - at_once));
                let id = away.pop_front().unwrap_or_default();
                assert_eq!(u32::from(id), turn % all);
                ids.give(id);
            }
        }
    }

    impl FreeIds {
        fn take_one(&mut self, away: &mut VecDeque<u16>) -> u16 {
            away.push_back(self.take());
            away.back().copied().unwrap_or_default()
        }
    }
}
