//! A bound of an interface's MTU while the vif's other end takes no longer packets
//! ([`one_slot`](pregrant::net::one_slot)): at a back for a guest's front, in a guest for the back.
//!
//! ```text
//!   9000 --an end of one slot connects--> 1500 --another end connects--> 9000
//!                                           |--somebody sets 8000--> 8000 --the next look--> 1500, and 8000 afterwards
//!                                           '--somebody sets 1400--> 1400, now and afterwards
//! ```
//! A process that takes the interface up later knows no MTU of before: it leaves what it finds.
//!
//! What the other end may do: be an end of one slot, and have the MTU lowered and raised with each
//! connection.

use super::netdev_ioctl::Interface;
use std::io;

/// See the module.
#[derive(Debug, Default)]
pub struct MtuLimit {
    /// The MTU of before, and the bound that it has instead.
    lowered: Option<(u32, u32)>,
}

/// A change of an interface's MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MtuChange {
    /// It is as long as the other end takes.
    Limited {
        /// Before.
        from: u32,
        /// Now.
        to: u32,
    },
    /// It is as before.
    Restored(u32),
}

impl MtuLimit {
    /// The MTU that somebody gave it, where it is `mtu` now.
    fn before(&self, mtu: u32) -> u32 {
        self.lowered.filter(|(_, bound)| mtu == *bound).map_or(mtu, |(before, _)| before)
    }

    /// Lowers the MTU to `most`; None: gives it the one of before back, where no one has set
    /// another since.
    ///
    /// # Errors
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
            // Another end, which takes longer ones than the last.
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
