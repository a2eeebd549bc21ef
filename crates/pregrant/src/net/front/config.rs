//! What whoever owns a vif's front asks for. What it gets is the back's to say too: a wish that the
//! back does not know costs nothing.

use super::regions::Granting;
use crate::net::path::staging::list::DataLen;

/// What a front would like; it gets what the back offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontConfig {
    /// Queues.
    pub queues: u32,
    /// Bytes of a TX frame that fit a staging buffer; None: ordinary grants.
    pub tx_data_len: Option<DataLen>,
    /// The same for RX.
    pub rx_data_len: Option<DataLen>,
    /// Pages of each ring, as the exponent of 2; 4 are 16 pages, 4096 slots.
    pub ring_order: u32,
    /// A data ring of 2^order pages for each queue, where the back maps one and staging does not
    /// carry every frame.
    pub data_ring: Option<u32>,
    /// How ordinary TX pages are granted.
    pub granting: Granting,
    /// Frames over several slots are taken; without it the back drops those that are longer than a
    /// page.
    pub sg: bool,
    /// Two event channels for each queue, where the back can.
    pub split_channels: bool,
    /// Pages are granted once and used again and again, where the back keeps them mapped.
    pub persistent: bool,
    /// Pages are granted once, and the back is asked to keep them mapped, where it answers such
    /// requests (docs/protocol 2.11). With a control ring then.
    pub gref_mapping: bool,
    /// Where the back may map all of this domain, frames are in pages that are named and not
    /// granted (docs/protocol 4.6); it can read and write everything then. Staging, a data ring,
    /// and pages that are kept are not asked for beside it.
    pub foreign: bool,
    /// Where the back lends pages of its own, received frames that fit no staging buffer are copied
    /// from there by this domain (docs/protocol 4.7); those that were not when a back ends are
    /// lost.
    pub guest_copy: bool,
    /// RX pages of each queue beyond its slots, for [frames that are
    /// lent](crate::net::front::FrontQueue::recv_by_reference); at most as many as there are slots.
    /// A back that keeps pages mapped knows as many as it has slots, unless it was told otherwise:
    /// with more, some frames come by grant copy.
    pub spare_rx_pages: u32,
    /// A received staging buffer is sent on by TX as it is, where a
    /// [hook](crate::net::front::FrontQueue::recv_hooked) says so and the back can
    /// (docs/protocol 3.5); with more RX buffers then, as many as there are TX ids and a list has
    /// room for: 4096 for slots and spare ones. Where none is left for those (RX rings of 16 pages)
    /// nothing is sent on; [`sends_on`](crate::net::front::TxFront::sends_on) says it.
    pub zero_copy: bool,
    /// Bytes that the back leaves free ahead of each received frame, for what a hook puts there; 0:
    /// none. With it a frame takes a slot more.
    pub headroom: u16,
    /// A control ring, where the back answers one.
    pub ctrl_ring: bool,
    /// Only those multicast frames that are [named](crate::net::front::FrontVif::multicast), where
    /// the back can leave the others out.
    pub multicast_control: bool,
}

impl Default for FrontConfig {
    fn default() -> Self {
        let len = DataLen::new(256);
        Self {
            queues: 1,
            tx_data_len: len,
            rx_data_len: len,
            ring_order: 0,
            data_ring: None,
            granting: Granting::PerFrame,
            sg: true,
            split_channels: true,
            persistent: false,
            gref_mapping: false,
            foreign: false,
            guest_copy: false,
            spare_rx_pages: 0,
            zero_copy: false,
            headroom: 0,
            ctrl_ring: false,
            multicast_control: false,
        }
    }
}
