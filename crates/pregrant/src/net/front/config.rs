//! The settings that the owner of a vif's front asks for. The back decides: if it does not support
//! a setting, the vif works without it.

use super::regions::Granting;
use crate::net::path::staging::list::DataLen;
use crate::net::path::staging::wanted::Buffers;

/// What a front asks for; it gets what the back offers of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontConfig {
    /// Number of queues.
    pub queues: u32,
    /// log2 of the pages of each ring; 4 means 16 pages with 4096 slots.
    pub ring_order: u32,
    /// How ordinary TX pages are granted.
    pub granting: Granting,
    /// Whether the front receives frames of several slots; otherwise the back drops those that
    /// are longer than a page.
    pub sg: bool,
    /// Whether each queue has two event channels, if the back supports that.
    pub split_channels: bool,
    /// RX pages of each queue beyond its slots, for [zero-copy
    /// frames](crate::net::front::FrontQueue::recv_by_reference); at most as many as there are
    /// slots. With more pages than the back keeps mapped, some frames come by grant copy.
    pub spare_rx_pages: u32,
    /// RX pages of each queue that may be [added](crate::net::front::FrontVif::grow_rx) while
    /// it is live, at most 1024; then each page is granted by itself.
    pub more_rx_pages: u32,
    /// Ordinary pages per direction and queue, used if they need no grant operation per frame
    /// and the back keeps that many mapped (`mapped-pages-max`). A page that was not used for a
    /// while is out of the private caches when it is written again. 0, or less than the number
    /// of slots: one per slot.
    pub pages: u32,
    /// Bytes that the back leaves free before each received frame, for a hook; 0: none. With it
    /// a frame may take one slot more.
    pub headroom: u16,
    /// Whether to use a control ring, if the back supports one.
    pub ctrl_ring: bool,
    /// Whether to receive only multicast frames for [added
    /// addresses](crate::net::front::FrontVif::multicast), if the back supports that.
    pub multicast_control: bool,
    /// Whether the back may see other data in pages that frames are sent from, and write to
    /// pages in which received frames stay. The toolstack can declare it
    /// [untrusted](crate::net::front::Trust).
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
