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

use crate::net::front::regions::OwnRing;
use crate::net::stats::DirStats;
use crate::platform::Platform;
use crate::ring::{FrontRing, NetRx};
use crate::wire::netif::RxResponse;

/// Responses that the front has not consumed yet.
pub struct Answers<'a, P: Platform> {
    /// The ring.
    pub ring: &'a FrontRing<NetRx, OwnRing<NetRx, P>>,
    /// Index of the first response to look at, counted from the oldest one.
    pub at: u32,
    /// Number of responses, from the oldest on.
    pub n: u32,
    /// Counters of RX.
    pub stats: &'a mut DirStats,
}

impl<P: Platform> Answers<'_, P> {
    /// Reads response number `at + k`. None: it has not arrived.
    #[inline(always)]
    pub fn read(&self, k: u32) -> Option<RxResponse> {
        (self.at + k < self.n).then(|| self.ring.read(self.at + k))
    }

    /// The ring slot of response number `at + k`.
    #[inline(always)]
    pub fn slot(&self, k: u32) -> u16 {
        (self.ring.rsp_cons().wrapping_add(self.at + k) & (self.ring.size() - 1)) as u16
    }
}

/// The result of receiving a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The frame was received.
    Whole,
    /// The frame was noted; its bytes are copied by the next [fetch](super::AnyFlaggedPath::fetch).
    Noted,
    /// The caller's memory has no room for the frame.
    NoRoom,
}
