//! The settings that the owner of a vif's front asks for. The back decides: if it does not support
//! a setting, the vif works without it.

use super::regions::Granting;

paths!(with_paths {
    /// What a front asks for; it gets what the back offers of that.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FrontConfig(Wanted, wanted) {
        /// Number of queues.
        pub queues: u32 = 1,
        /// log2 of the pages of each ring; 4 means 16 pages with 4096 slots.
        pub ring_order: u32 = 0,
        /// How ordinary TX pages are granted.
        pub granting: Granting = Granting::PerFrame,
        /// Whether the front receives frames of several slots; otherwise the back drops those that
        /// are longer than a page.
        pub sg: bool = true,
        /// Whether each queue has two event channels, if the back supports that.
        pub split_channels: bool = true,
        /// RX pages of each queue beyond its slots, for [zero-copy
        /// frames](crate::net::front::FrontQueue::recv_by_reference); at most as many as there are
        /// slots. With more pages than the back keeps mapped, some frames come by grant copy.
        pub spare_rx_pages: u32 = 0,
        /// RX pages of each queue that may be [added](crate::net::front::FrontVif::grow_rx) while
        /// it is live, at most 1024; then each page is granted by itself.
        pub more_rx_pages: u32 = 0,
        /// Ordinary pages per direction and queue, used if they need no grant operation per frame
        /// and the back keeps that many mapped (`mapped-pages-max`). A page that was not used for a
        /// while is out of the private caches when it is written again. 0, or less than the number
        /// of slots: one per slot.
        pub pages: u32 = 0,
        /// Bytes that the back leaves free before each received frame, for a hook; 0: none. With it
        /// a frame may take one slot more.
        pub headroom: u16 = 0,
        /// Whether to use a control ring, if the back supports one.
        pub ctrl_ring: bool = false,
        /// Whether to receive only multicast frames for [added
        /// addresses](crate::net::front::FrontVif::multicast), if the back supports that.
        pub multicast_control: bool = false,
        /// Whether the back may see other data in pages that frames are sent from, and write to
        /// pages in which received frames stay. The toolstack can declare it
        /// [untrusted](crate::net::front::Trust).
        pub trusted: bool = true,
    }
});

impl Default for FrontConfig {
    fn default() -> Self {
        Self::start()
    }
}
