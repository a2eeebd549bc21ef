//! The memory of a queue during its set-up: each path takes its part.
//!
//! ```text
//!   rings --> paths, in the order of the list: buffers, areas, pages of their own --> ordinary pages for the rest
//! ```
//! If set-up fails halfway, the queue releases the memory that is already granted.

use super::regions::{Granted, Granting, Regions};
use crate::error::PlatformError;
use crate::net::path::FrontChain;
use crate::net::path::copy::front::OrdinaryPages;
use crate::platform::{Access, Platform};

/// Numbers of the directions.
pub const TX: usize = 0;
/// See [`TX`].
pub const RX: usize = 1;

/// Pages of a direction at most: an id has 16 bits, and one value says that there is none.
pub const IDS_MAX: u32 = 0x7fff;

/// What the back does with the memory of a direction.
pub const ACCESS: [Access; 2] = [Access::ReadOnly, Access::ReadWrite];

/// See the module; TX and RX, in this order.
pub struct QueueMemory<'a, P: Platform> {
    /// The platform.
    pub p: &'a P,
    /// Where memory comes from.
    pub regions: &'a mut Regions<P>,
    /// The chains built by now: TX, RX.
    pub chains: [FrontChain<P>; 2],
    /// Queues of the vif.
    pub queues: u32,
    /// How many requests are to have memory.
    pub slots: [u32; 2],
    /// Frames may be over several of them.
    pub sg: [bool; 2],
    /// Ordinary pages beyond these.
    pub spare: [u32; 2],
    /// How many may be added later.
    pub more: [u32; 2],
    /// Ordinary pages of a direction at least, if no grant operation goes with them.
    pub pages: u32,
    /// How ordinary pages are granted.
    pub granting: [Granting; 2],
    /// Pages that keys name, and no chain has.
    pub named: alloc::vec::Vec<Granted<P>>,
}

impl<P: Platform> QueueMemory<'_, P> {
    /// Request ids of a direction that the paths of its chain have memory for.
    pub fn ids(&self, dir: usize) -> u32 {
        let chain = &self.chains[dir];
        if chain.is_empty() { self.slots[dir] } else { chain.ids().min(self.slots[dir]) }
    }

    /// Ordinary pages for a direction.
    pub fn pages(&mut self, dir: usize) -> Result<OrdinaryPages<P>, PlatformError> {
        let least = self.slots[dir] + self.spare[dir];
        if self.more[dir] > 0 {
            return OrdinaryPages::pool(self.p, self.regions, ACCESS[dir], least, self.more[dir]);
        }
        let n = least.max(self.pages);
        let pages = OrdinaryPages::new(self.p, self.regions, ACCESS[dir], n, self.granting[dir])?;
        Ok(if n > least { pages.resting() } else { pages })
    }
}
