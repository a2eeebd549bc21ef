//! The settings that the owner of a vif's front asks for. The back decides: if it does not support
//! a setting, the vif works without it.

use super::regions::Granting;
use crate::net::path::staging::list::DataLen;
use crate::net::path::staging::wanted::Buffers;
use crate::net::path::{PathName, data_ring};

/// A front's settings. Of what they ask for, the front gets what the back offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontConfig {
    /// Number of queues.
    pub queues: u32,
    /// log2 of the pages of each ring; 4 means 16 pages with 4096 slots.
    pub ring_order: u32,
    /// Whether ordinary TX pages stay granted, or are granted for each frame.
    pub granting: Granting,
    /// Whether the front receives frames of several slots; otherwise the back drops those that
    /// are longer than a page.
    pub sg: bool,
    /// Whether each queue has two event channels, if the back supports that.
    pub split_channels: bool,
    /// RX pages of each queue beyond its slots, for [zero-copy
    /// frames](crate::net::front::FrontQueue::recv_by_reference); at most as many as there are
    /// slots. If there are more pages than the back keeps mapped, it serves some frames by grant
    /// copy.
    pub spare_rx_pages: u32,
    /// Number of RX pages of each queue that may be [added](crate::net::front::FrontVif::grow_rx)
    /// while it is live, at most 1024. If it is not 0, each page is granted individually.
    pub more_rx_pages: u32,
    /// Number of ordinary pages of each direction and queue, used if they need no grant operation
    /// per frame and the back keeps that many mapped (`mapped-pages-max`). A page that rests for a
    /// while is out of the private caches when it is written again. 0, or less than the number of
    /// slots: one per slot.
    pub pages: u32,
    /// Number of bytes that the back leaves free before each received frame, for a hook; 0: none. A
    /// frame may then need one slot more.
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
    /// Staging buffers: their lengths and numbers.
    pub staging: Buffers,
    /// A data ring of 2^order pages for each queue, where the back maps one and staging does not
    /// carry every frame.
    pub data_ring: Option<u32>,
    /// If the back can map this whole domain, requests name frames of its memory, without grants
    /// (docs/protocol 4.6). The back can then read and write everything. No other path is asked for
    /// beside this one.
    pub foreign: bool,
    /// If the back grants pages of its own, this domain copies received frames from there that fit
    /// in no staging buffer (docs/protocol 4.7). Frames that were not copied when a back ends are
    /// lost.
    pub guest_copy: bool,
    /// Pages are granted once, and the back is asked to keep them mapped, if it has a control ring,
    /// which the front then uses.
    pub gref_mapping: bool,
    /// Pages are granted once and used again and again.
    pub persistent: bool,
}

impl FrontConfig {
    /// This configuration, which asks for `path` too. Staging is asked for by the lengths of its
    /// [buffers](Self::staging).
    pub fn asking_for(self, path: PathName) -> Self {
        match path {
            PathName::DataRing => Self { data_ring: Some(data_ring::DEFAULT_ORDER), ..self },
            PathName::Foreign => Self { foreign: true, ..self },
            PathName::GuestCopy => Self { guest_copy: true, ..self },
            PathName::GrefMapping => Self { gref_mapping: true, ..self },
            PathName::Persistent => Self { persistent: true, ..self },
            PathName::Staging | PathName::Map | PathName::Copy => self,
        }
    }
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
