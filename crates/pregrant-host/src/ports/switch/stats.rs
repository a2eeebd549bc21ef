//! Counters of a port of the switch.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a port's frames, seen from its guest: the guest sends TX.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct SwitchStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same of a vif, while any worker adds to it.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            /// Adds what a burst came to.
            pub fn add(&self, by: &SwitchStats) {
                $(if by.$name != 0 {
                    self.$name.fetch_add(by.$name, Ordering::Relaxed);
                })*
            }

            /// Their values.
            pub fn get(&self) -> SwitchStats {
                SwitchStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Frames that the guest sent.
    tx_frames,
    /// Of these, lent by it and copied all the same: for a receiver that has no room or cannot read
    /// them there, or for several.
    unlent,
    /// Of these, sent on to every other port.
    flooded,
    /// Frames shorter than an Ethernet header, or with a source that no station may have: dropped.
    bad_frames,
    /// Sources that were not learnt, since the port's share of the table is used up.
    not_learnt,
    /// Frames with a source that this guest may not use: dropped.
    forged,
    /// Large segments to a group: dropped.
    gso_to_group,
    /// Frames to a receiver that no other port was there for: dropped.
    no_port,
    /// Frames queued for the guest.
    rx_frames,
    /// Of these, lent by their senders.
    rx_lent,
    /// Frames for the guest that found its queue full.
    rx_overflow,
    /// Frames for the guest that needed a checksum or segmentation which their headers do not
    /// allow.
    rx_unfinishable,
}
