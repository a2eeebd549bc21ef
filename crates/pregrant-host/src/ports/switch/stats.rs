//! Counts the frames of a port of the switch.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a port's frames, from the view of its guest: TX frames are those that the
        /// guest sends.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct SwitchStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters of a vif, which any worker increments.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            /// Adds the counts of a burst.
            pub fn add(&self, by: &SwitchStats) {
                $(if by.$name != 0 {
                    self.$name.fetch_add(by.$name, Ordering::Relaxed);
                })*
            }

            pub fn get(&self) -> SwitchStats {
                SwitchStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Number of frames that the guest sent.
    tx_frames,
    /// Number of zero-copy frames that were copied after all: their receiver had no room or could
    /// not read them in place, or there were several receivers.
    unlent,
    /// Number of frames that were sent to every other port.
    flooded,
    /// Number of frames dropped because they were shorter than an Ethernet header, or had an
    /// invalid source address.
    bad_frames,
    /// Number of source addresses that were not learnt, because the port has used up its share of
    /// the table.
    not_learnt,
    /// Number of frames dropped because their source address is not allowed for this guest.
    forged,
    /// Number of frames dropped because they were large segments to a group address.
    gso_to_group,
    /// Number of frames dropped because no other port could have the receiver.
    no_port,
    /// Number of frames that were queued for the guest.
    rx_frames,
    /// Number of frames that were zero-copy from their senders.
    rx_lent,
    /// Number of frames for the guest that were dropped because its queue was full.
    rx_overflow,
    /// Number of frames for the guest that were dropped because they needed a checksum or
    /// segmentation that their headers do not allow.
    rx_unfinishable,
}
