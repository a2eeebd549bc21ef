//! A vif as the switch knows it: its rules and its queues.
//!
//! Its variable part is replaced as a whole ([`fabric`](super::fabric)). Its counters and queues
//! stay the same objects as long as it exists, and any worker adds to them.

use super::inbox::Inbox;
use super::stats::Counters;
use crate::ports::mac_table::MAX_PORTS;
use pregrant::net::headers::{IpHeaders, IpVersion, MacAddr, PROTOCOL_TCP, PROTOCOL_UDP};
use pregrant::port::{Offloads, Steering};
use std::sync::Arc;

/// The source addresses that a guest may use. Another port's pinned address, or a group address, is
/// never allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sources {
    /// Any source address that is not known at another port is allowed, since the vif's own address
    /// is unknown.
    #[default]
    Learnt,
    /// Only this source address is allowed. It is pinned to the vif's port.
    Own(MacAddr),
    /// Any source address is allowed, even one that was learnt at another port. The vif's own
    /// address, if it is known, is pinned to its port.
    Any(Option<MacAddr>),
}

impl Sources {
    /// Returns the pinned address.
    pub fn pinned(self) -> Option<MacAddr> {
        match self {
            Self::Learnt => None,
            Self::Own(mac) => Some(mac),
            Self::Any(own) => own,
        }
    }
}

/// The error that the switch has no room for another port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the switch has {MAX_PORTS} ports already; give this vif another switch (another bridge)")]
pub struct SwitchFull;

/// The facts about a vif that senders need.
#[derive(Clone)]
pub struct Vif {
    /// A number that no other vif ever has, not even one at the same index.
    pub id: u64,
    /// The offloads that the vif's guest supports.
    pub caps: Offloads,
    /// The source addresses that the vif may use.
    pub sources: Sources,
    /// The guest's rule for distributing its frames to queues. None: frames are distributed by
    /// flow.
    pub steering: Option<Arc<dyn Steering>>,
    /// The inboxes of the vif's queues.
    pub inboxes: Arc<[Arc<Inbox>]>,
    pub counters: Arc<Counters>,
}

/// The vifs of a switch, by index.
pub type View = Vec<Option<Arc<Vif>>>;

impl Vif {
    /// Returns the index of the queue for a frame to the guest.
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

/// Returns a hash that is equal for all frames of a flow: of MAC and IP addresses, and of ports if
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
