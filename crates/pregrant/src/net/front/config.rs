//! The settings that the owner of a vif's front requests. The back decides too: a back that does
//! not know a request goes without it, and the vif works.

use super::regions::Granting;

paths!(with_paths {
    /// What a front would like; it gets what the back offers.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FrontConfig(Wanted, wanted) {
        /// Queues.
        pub queues: u32 = 1,
        /// Pages of each ring, as the exponent of 2; 4 are 16 pages, 4096 slots.
        pub ring_order: u32 = 0,
        /// How ordinary TX pages are granted.
        pub granting: Granting = Granting::PerFrame,
        /// The front receives frames over several slots; else the back drops those that are longer
        /// than a page.
        pub sg: bool = true,
        /// Two event channels for each queue, where the back can.
        pub split_channels: bool = true,
        /// RX pages of each queue beyond its slots, for [frames that are
        /// lent](crate::net::front::FrontQueue::recv_by_reference); at most as many as there are
        /// slots. With more pages than a back keeps mapped, some frames come by grant copy.
        pub spare_rx_pages: u32 = 0,
        /// RX pages of each queue that may be [added](crate::net::front::FrontVif::grow_rx) while
        /// it is live, at most 1024; then each page is granted by itself.
        pub more_rx_pages: u32 = 0,
        /// Ordinary pages of each direction and queue, where no grant operation goes with them and
        /// the back says that it keeps as many mapped (`mapped-pages-max`): those that rest are
        /// out of the private caches when they are written again. 0, or fewer than slots: one for
        /// each slot.
        pub pages: u32 = 0,
        /// Bytes that the back leaves free ahead of each received frame, for what a hook puts
        /// there; 0: none. With it a frame takes a slot more.
        pub headroom: u16 = 0,
        /// A control ring, where the back answers one.
        pub ctrl_ring: bool = false,
        /// Only those multicast frames that are [named](crate::net::front::FrontVif::multicast),
        /// where the back can leave the others out.
        pub multicast_control: bool = false,
        /// The back may see what else is in pages that frames are sent from, and write to those
        /// that received frames stay in, unless the toolstack says that it is [not to be
        /// trusted](crate::net::front::Trust).
        pub trusted: bool = true,
    }
});

impl Default for FrontConfig {
    fn default() -> Self {
        Self::start()
    }
}
