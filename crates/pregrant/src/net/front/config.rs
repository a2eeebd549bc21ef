//! The settings that the owner of a vif's front asks for. The back decides: if it does not support
//! a setting, the vif works without it.

use super::regions::Granting;
use crate::net::path::staging::list::DataLen;
use crate::net::path::staging::wanted::Buffers;

/// What a front would like; it gets what the back offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontConfig {
    /// Queues.
    pub queues: u32,
    /// Pages of each ring, as the exponent of 2; 4 are 16 pages, 4096 slots.
    pub ring_order: u32,
    /// How ordinary TX pages are granted.
    pub granting: Granting,
    /// The front receives frames over several slots; else the back drops those that are longer
    /// than a page.
    pub sg: bool,
    /// Two event channels for each queue, where the back can.
    pub split_channels: bool,
    /// RX pages of each queue beyond its slots, for [frames that are
    /// lent](crate::net::front::FrontQueue::recv_by_reference); at most as many as there are
    /// slots. With more pages than a back keeps mapped, some frames come by grant copy.
    pub spare_rx_pages: u32,
    /// RX pages of each queue that may be [added](crate::net::front::FrontVif::grow_rx) while
    /// it is live, at most 1024; then each page is granted by itself.
    pub more_rx_pages: u32,
    /// Ordinary pages of each direction and queue, where no grant operation goes with them and
    /// the back says that it keeps as many mapped (`mapped-pages-max`): those that rest are
    /// out of the private caches when they are written again. 0, or fewer than slots: one for
    /// each slot.
    pub pages: u32,
    /// Bytes that the back leaves free ahead of each received frame, for what a hook puts
    /// there; 0: none. With it a frame takes a slot more.
    pub headroom: u16,
    /// A control ring, where the back answers one.
    pub ctrl_ring: bool,
    /// Only those multicast frames that are [named](crate::net::front::FrontVif::multicast),
    /// where the back can leave the others out.
    pub multicast_control: bool,
    /// The back may see what else is in pages that frames are sent from, and write to those
    /// that received frames stay in, unless the toolstack says that it is [not to be
    /// trusted](crate::net::front::Trust).
    pub trusted: bool,
    /// Staging buffers.
    pub staging: Buffers,
    /// A data ring of 2^order pages for each queue, where the back maps one and staging does not
    /// carry every frame.
    pub data_ring: Option<u32>,
    /// Where the back may map all of this domain, frames are in pages that are named and not
    /// granted (docs/protocol 4.6); it can read and write everything then. Other paths are not
    /// asked for beside it.
    pub foreign: bool,
    /// Where the back lends pages of its own, received frames that fit no staging buffer are copied
    /// from there by this domain (docs/protocol 4.7); those that were not when a back ends are
    /// lost.
    pub guest_copy: bool,
    /// Pages are granted once, and the back is asked to keep them mapped. With a control ring then.
    pub gref_mapping: bool,
    /// Pages are granted once and used again and again.
    pub persistent: bool,
}

impl Default for FrontConfig {
    fn default() -> Self {
        Self {
            queues: 1,
            ring_order: 0,
            granting: Granting::PerFrame,
            sg: true,
            split_channels: true,
            spare_rx_pages: 0,
            more_rx_pages: 0,
            pages: 0,
            headroom: 0,
            ctrl_ring: false,
            multicast_control: false,
            trusted: true,
            staging: Buffers::of(DataLen::new(256), DataLen::new(256)),
            data_ring: None,
            foreign: false,
            guest_copy: false,
            gref_mapping: false,
            persistent: false,
        }
    }
}
