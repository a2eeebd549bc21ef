//! Counters of each direction of a queue, the same at both ends.
//!
//! ```text
//!   DirStats    a reading                                 what a front counts in, and what is reported
//!   LiveStats   what a back's queue adds to, in its worker --read()--> DirStats, in any thread, without a lock
//! ```
//! When one thread reads two counters while another adds to them, either may be ahead by a batch;
//! none is ever half written.

use super::path::PathName;
use crate::platform::GrantOps;
use core::sync::atomic::{AtomicU64, Ordering};

/// How the frames of a batch were served: a bit per frame, including failed ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served {
    /// Frames that used grant operations.
    granted: u64,
    /// For each path, the frames that it served.
    by: [u64; PathName::COUNT],
}

impl Served {
    /// These frames used grant operations, unless [`note`](Self::note) says otherwise.
    #[inline(always)]
    pub(crate) fn by_grants(frames: u64) -> Self {
        Self { granted: frames, by: [0; PathName::COUNT] }
    }

    /// These frames were served by this path.
    #[inline(always)]
    pub(crate) fn note(&mut self, by: PathName, frames: u64) {
        self.granted &= if by.frame_cost().is_by_grants() { !0 } else { !frames };
        self.by[by as usize] |= frames;
    }
}

/// A counter with one writer, which any thread may read.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. Only its one writer may call it: it is a load and a store, not a locked
    /// operation.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The same for a counter that holds a maximum.
    #[inline(always)]
    pub fn raise(&self, most: u64) {
        if most > self.get() {
            self.0.store(most, Ordering::Relaxed);
        }
    }

    /// The value.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    (
        { $($(#[$about:meta])* $name:ident,)* }
        $($(#[$doc:meta])* $path:ident = $module:ident, $text:literal;)*
    ) => {
        /// A snapshot of one direction of one queue. A path's counter has the frames that it
        /// carried.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct DirStats {
            $($(#[$about])* pub $name: u64,)*
            $($(#[$doc])* pub $module: u64,)*
            /// At a back: grant operations for this direction's frames.
            pub grant_ops: GrantOps,
        }

        /// The live counters of one direction of one queue.
        #[derive(Default, Debug)]
        pub struct LiveStats {
            $($(#[$about])* pub $name: Counter,)*
            $($(#[$doc])* pub $module: Counter,)*
            copies: Counter,
            maps: Counter,
            unmaps: Counter,
        }

        impl DirStats {
            /// Counts frames that all used one path.
            #[inline(always)]
            pub(crate) fn handed_on_by(&mut self, by: PathName, frames: u64) {
                self.frames += frames;
                self.granted += if by.frame_cost().is_by_grants() { frames } else { 0 };
                match by {
                    $(PathName::$path => self.$module += frames,)*
                }
            }
        }

        impl LiveStats {
            /// Reads the current values.
            pub fn read(&self) -> DirStats {
                DirStats {
                    $($name: self.$name.get(),)*
                    $($module: self.$module.get(),)*
                    grant_ops: GrantOps {
                        copies: self.copies.get(),
                        maps: self.maps.get(),
                        unmaps: self.unmaps.get(),
                    },
                }
            }

            /// Counts the frames of a batch that were passed on, a bit per frame, by how they were
            /// `served`.
            #[inline(always)]
            pub(crate) fn handed_on(&self, good: u64, served: Served) {
                let Served { granted, by } = served;
                self.frames.add(u64::from(good.count_ones()));
                self.granted.add(u64::from((good & granted).count_ones()));
                $(
                    let frames = good & by[PathName::$path as usize];
                    if frames != 0 {
                        self.$module.add(u64::from(frames.count_ones()));
                    }
                )*
            }
        }
    };
}

paths!(counters {
    /// Frames passed on.
    frames,
    /// Bytes of these frames.
    bytes,
    /// Frames that needed grant operations.
    granted,
    /// If this end puts frames into memory of a path: frames that found no room there, and used
    /// another path.
    no_room,
    /// If this end puts frames into memory of a path: the most bytes of it in use at a time.
    most_bytes,
    /// Frames answered with an error: bad lengths, failed grant operations, unknown ids.
    errors,
    /// Frames that could not be passed on: the port did not take them, the guest can never take
    /// them, or they are large segments of no TCP packet.
    dropped,
    /// At a back, RX: frames that are too long for a guest without `feature-sg`
    /// ([`one_slot`](super::one_slot)).
    too_long,
    /// Large segments from the peer whose checksum was not blank and was made blank (Linux:
    /// `rx_gso_checksum_fixup`).
    gso_checksum_fixups,
    /// At a back, RX: zero-copy frames, copied once out of another guest's pages.
    lent,
    /// Multicast frames that the guest does not want.
    filtered,
    /// At a back, RX: frames that waited too long for the guest's slots.
    expired,
    /// Batches of requests or answers published.
    batches,
    /// Events sent.
    notifications,
    /// At a back: frames that predecessors had in flight when they ended. Those of TX may have
    /// reached the port twice, those of RX are lost.
    interrupted,
});

impl LiveStats {
    /// Adds the grant operations between two readings.
    #[inline(always)]
    pub(crate) fn add_grant_ops(&self, before: &GrantOps, after: &GrantOps) {
        self.copies.add(after.copies - before.copies);
        self.maps.add(after.maps - before.maps);
        self.unmaps.add(after.unmaps - before.unmaps);
    }
}
