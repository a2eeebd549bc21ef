//! A vif as the switch knows it: its rules, its queues.
//!
//! Its variable part is replaced as a whole ([`fabric`](super::fabric)); its counters and queues
//! are the same ones for as long as it is there, and any worker adds to them.

use super::inbox::Inbox;
use super::stats::Counters;
use crate::ports::mac_table::MAX_PORTS;
use pregrant::net::headers::{IpHeaders, IpVersion, MacAddr, PROTOCOL_TCP, PROTOCOL_UDP};
use pregrant::port::{Offloads, Steering};
use std::sync::Arc;

/// With which source addresses a guest may send. Another port's pinned address is never among them,
/// nor is a group's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sources {
    /// Any that is not believed to be another port's: no one said which is its own.
    #[default]
    Learnt,
    /// This one alone, which is pinned.
    Own(MacAddr),
    /// Any, also one that was learnt at another port; its own, if it has one, is pinned.
    Any(Option<MacAddr>),
}

impl Sources {
    /// The one that is pinned, if one is.
    pub fn pinned(self) -> Option<MacAddr> {
        match self {
            Self::Learnt => None,
            Self::Own(mac) => Some(mac),
            Self::Any(own) => own,
        }
    }
}

/// No further port fits into the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the switch has {MAX_PORTS} ports already; give this vif another switch (another bridge)")]
pub struct SwitchFull;

/// A vif as senders see it.
#[derive(Clone)]
pub struct Vif {
    /// No other has it, also none that was, or will be, at the same place.
    pub id: u64,
    /// Offloads that its guest takes unfinished.
    pub caps: Offloads,
    /// With which addresses it may send.
    pub sources: Sources,
    /// Where the guest wants its frames; None: by flow.
    pub steering: Option<Arc<dyn Steering>>,
    /// One a queue.
    pub inboxes: Arc<[Arc<Inbox>]>,
    /// Counts of its frames.
    pub counters: Arc<Counters>,
}

/// The vifs, by their index.
pub type View = Vec<Option<Arc<Vif>>>;

impl Vif {
    /// The queue that a frame for the guest goes to.
    #[inline(always)]
    pub fn queue_of(&self, frame: &[u8]) -> u16 {
        let queue = match (self.inboxes.len(), &self.steering) {
            (1, _) => 0,
            (n, Some(steering)) => steering.queue_of(frame) % n,
            (n, None) => flow_hash(frame) as usize % n,
        };
        queue as u16
    }
}

/// A number that is the same for all frames of one flow: MAC and IP addresses, and ports where
/// there are any.
pub fn flow_hash(frame: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64; // FNV-1a
    let mut mix = |bytes: &[u8]| {
        for b in bytes {
            hash = (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3);
        }
    };
    mix(&frame[..frame.len().min(12)]);
    if let Ok(h) = IpHeaders::parse(frame) {
        match h.version {
            IpVersion::V4 => mix(&frame[h.l2_len + 12..h.l2_len + 20]),
            IpVersion::V6 => mix(&frame[h.l2_len + 8..h.l2_len + 40]),
        }
        if matches!(h.protocol, PROTOCOL_TCP | PROTOCOL_UDP) && !h.fragment && h.l4_len() >= 4 {
            mix(&frame[h.l4_at..h.l4_at + 4]);
        }
    }
    hash ^ (hash >> 32)
}
