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

/// Index of TX in arrays by direction.
pub const TX: usize = 0;
/// Index of RX in arrays by direction.
pub const RX: usize = 1;

/// Largest number of pages of a direction: an id has 16 bits, and one value means "none".
pub const IDS_MAX: u32 = 0x7fff;

/// Access of the back to the memory of a direction.
pub const ACCESS: [Access; 2] = [Access::ReadOnly, Access::ReadWrite];

/// The memory of a queue that is being set up. Arrays have TX and RX, in this order.
pub struct QueueMemory<'a, P: Platform> {
    /// The platform that grants pages.
    pub p: &'a P,
    /// The pool from which memory is allocated.
    pub regions: &'a mut Regions<P>,
    /// The chains of paths built so far: TX, RX.
    pub chains: [FrontChain<P>; 2],
    /// Number of queues of the vif.
    pub queues: u32,
    /// Number of requests for which memory is allocated, by direction.
    pub slots: [u32; 2],
    /// Frames may need several slots, by direction.
    pub sg: [bool; 2],
    /// Number of ordinary pages in addition to those of `slots`, by direction.
    pub spare: [u32; 2],
    /// Number of pages that may be added later, by direction.
    pub more: [u32; 2],
    /// Least number of ordinary pages of a direction, if frames in them need no grant operation.
    pub pages: u32,
    /// How ordinary pages are granted, by direction.
    pub granting: [Granting; 2],
    /// Pages that a key in xenstore names and that belong to no path.
    pub named: alloc::vec::Vec<Granted<P>>,
}

impl<P: Platform> QueueMemory<'_, P> {
    /// Number of request ids of a direction for which its paths have memory.
    pub fn ids(&self, dir: usize) -> u32 {
        let chain = &self.chains[dir];
        if chain.is_empty() { self.slots[dir] } else { chain.ids().min(self.slots[dir]) }
    }

    /// Allocates the ordinary pages of a direction.
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
