//! A limit for an interface's MTU while the vif's peer cannot take longer packets
//! ([`one_slot`](pregrant::net::one_slot)): in a back for the sake of a guest's front, or in a
//! guest for the sake of the back.
//!
//! ```text
//!   9000 --an end of one slot connects--> 1500 --another end connects--> 9000
//!                                           |--somebody sets 8000--> 8000 --the next look--> 1500, and 8000 afterwards
//!                                           '--somebody sets 1400--> 1400, now and afterwards
//! ```
//! A process that takes over the interface later does not know the original MTU, so it keeps the
//! current one.
//!
//! What the peer may do: accept one slot per packet only, so that each of its connections lowers
//! and restores the MTU.

use super::netdev_ioctl::Interface;
use std::io;

/// The state of the limit on one interface.
#[derive(Debug, Default)]
pub struct MtuLimit {
    /// The interface's former MTU, and the lower one that was set instead.
    lowered: Option<(u32, u32)>,
}

/// A change of an interface's MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MtuChange {
    /// The MTU was lowered to what the peer accepts.
    Limited { from: u32, to: u32 },
    /// The MTU is the original one again.
    Restored(u32),
}

impl MtuLimit {
    /// Returns the MTU that the administrator set, given that the current one is `mtu`.
    fn before(&self, mtu: u32) -> u32 {
        self.lowered.filter(|(_, bound)| mtu == *bound).map_or(mtu, |(before, _)| before)
    }

    /// Lowers the MTU to `most`. None: restores the original MTU, unless the administrator has
    /// changed it since.
    ///
    /// # Errors
    ///
    /// The interface is gone, or refuses.
    pub fn apply(&mut self, interface: &Interface, most: Option<u32>) -> io::Result<Option<MtuChange>> {
        if most.is_none() && self.lowered.is_none() {
            return Ok(None);
        }
        let mtu = interface.mtu()?;
        match (most, self.lowered) {
            (Some(most), _) if mtu > most => {
                interface.set_mtu(most)?;
                self.lowered = Some((self.before(mtu), most));
                Ok(Some(MtuChange::Limited { from: mtu, to: most }))
            }
            // The new peer takes longer packets than the last one.
            (Some(most), Some((before, bound))) if mtu == bound && mtu < most.min(before) => {
                let to = most.min(before);
                interface.set_mtu(to)?;
                self.lowered = (to < before).then_some((before, to));
                Ok(Some(MtuChange::Limited { from: mtu, to }))
            }
            (None, Some((before, bound))) => {
                if mtu == bound {
                    interface.set_mtu(before)?;
                }
                self.lowered = None;
                Ok((mtu == bound).then_some(MtuChange::Restored(before)))
            }
            _ => Ok(None),
        }
    }
}
