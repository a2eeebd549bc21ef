//! RX memory at the front that no slot has: a response names it by its flags.
//!
//! ```text
//!   response, flags of a path --recv_run--> frames of one slot each: copied, or noted and fetched before the slots are posted
//!                             --recv_long-> one over several slots     --copy--> some bytes of it, for a hook
//! ```
//! Frames whose responses have none of these flags are in their slots' memory
//! ([`FrontPath`](super::FrontPath)).
//!
//! What the back may do: name any place. Each path validates the places of its own frames; an
//! invalid one is a fault.

use crate::error::PeerFault;
use crate::net::front::regions::{Granted, OwnRing};
use crate::net::front::rx_answers::Part;
use crate::net::path::PathName;
use crate::net::stats::DirStats;
use crate::platform::Platform;
use crate::port::{Arena, Offload, Sink};
use crate::ring::{FrontRing, NetRx};
use crate::wire::netif::RxResponse;
use alloc::vec::Vec;

/// Answers that are there.
pub struct Answers<'a, P: Platform> {
    /// Where they are.
    pub ring: &'a FrontRing<NetRx, OwnRing<NetRx, P>>,
    /// The first that is asked about, from the oldest on.
    pub at: u32,
    /// How many there are, from the oldest on.
    pub n: u32,
    /// Counters.
    pub stats: &'a mut DirStats,
}

impl<P: Platform> Answers<'_, P> {
    /// The `k`-th behind the first, read now.
    #[inline(always)]
    pub fn read(&self, k: u32) -> Option<RxResponse> {
        (self.at + k < self.n).then(|| self.ring.read(self.at + k))
    }

    /// The slot of the `k`-th behind the first.
    #[inline(always)]
    pub fn slot(&self, k: u32) -> u16 {
        (self.ring.rsp_cons().wrapping_add(self.at + k) & (self.ring.size() - 1)) as u16
    }
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The frame was received.
    Whole,
    /// The same, but that its bytes come when they are [fetched](FlaggedPath::fetch).
    Noted,
    /// There is no room for it.
    NoRoom,
}

/// Such memory of one queue.
pub trait FlaggedPath<P: Platform> {
    /// Which path.
    const NAME: PathName;
    /// Frames are [fetched](Self::fetch), many at once: they are received into an arena alone.
    const FETCHES: bool = false;
    /// A response with one of these flags names it.
    const FLAGS: u16;
    /// Those of them that name it whether a queue has such memory or not.
    const ALWAYS: u16 = 0;

    /// Whether a piece of a frame over several slots can be there, as its response says it; where
    /// that is found out later, true.
    fn can_have(&self, rsp: &RxResponse) -> bool {
        let _ = rsp;
        true
    }
    /// Receives frames of one slot each, without extras: `rsp`, the first of `answers`, and those
    /// behind it that are such too, until `to` takes no more. Returns how many.
    fn recv_run(
        &mut self,
        answers: Answers<'_, P>,
        rsp: RxResponse,
        to: &mut impl Sink,
    ) -> Result<u32, PeerFault>;
    /// Receives a frame of these parts.
    fn recv_long(&mut self, frame: (&[Part], Offload), to: &mut impl Sink) -> Result<Received, PeerFault>;
    /// Copies from byte `skip` of a part on as much as `dst` has room for; checks all of the
    /// part. False: it is lost.
    fn copy(&self, p: &P, part: &Part, skip: usize, dst: &mut [u8]) -> Result<bool, PeerFault>;
    /// A call begins that receives into an arena.
    fn begin(&mut self) {}
    /// Fetches what such a call received, before its slots are posted again.
    fn fetch(&mut self, p: &P, out: &mut Arena, stats: &mut DirStats) {
        let _ = (p, out, stats);
    }
    /// Its pages, to be given back.
    fn into_memory(self) -> Vec<Granted<P>>;
}
