//! A bound of an interface's MTU while the vif's other end takes no longer packets
//! ([`one_slot`](pregrant::net::one_slot)): at a back for a guest's front, in a guest for the back.
//!
//! ```text
//!   9000 --an end of one slot connects--> 1500 --another end connects--> 9000
//!                                           |--somebody sets 8000--> 8000 --the next look--> 1500, and 8000 afterwards
//!                                           '--somebody sets 1400--> 1400, now and afterwards
//! ```

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
    /// It is as long as the other end takes, and was longer.
    Lowered {
        /// Before.
        from: u32,
        /// Now.
        to: u32,
    },
    /// It is as before.
    Restored(u32),
}

impl MtuLimit {
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
                self.lowered = Some((mtu, most));
                Ok(Some(MtuChange::Lowered { from: mtu, to: most }))
            }
            (None, Some((before, bound))) => {
                self.lowered = None;
                if mtu != bound {
                    return Ok(None);
                }
                interface.set_mtu(before)?;
                Ok(Some(MtuChange::Restored(before)))
            }
            _ => Ok(None),
        }
    }
}
