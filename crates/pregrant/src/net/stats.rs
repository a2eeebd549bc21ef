//! Plain counters, one set for each direction of a queue, the same at both ends.
//!
//! ```text
//!   DirStats    a reading                                 what a front counts in, and what is reported
//!   LiveStats   what a back's queue adds to, in its worker --read()--> DirStats, in any thread, without a lock
//! ```
//! Of two counters that one thread reads while another adds, either may be ahead by a batch; none
//! is ever half written.

use crate::platform::GrantOps;
use core::sync::atomic::{AtomicU64, Ordering};

/// Which counter of [`DirStats`] a frame belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// It took grant operations.
    Granted,
    /// Its pages were mapped before.
    Persistent,
    /// Its pages were mapped because the guest asked for it.
    GrefMapped,
    /// It went through buffers that were mapped at connect.
    Staged,
    /// It went through a circular area that was mapped at connect.
    DataRing,
    /// It was in frames of a guest that is mapped as a whole.
    Foreign,
    /// It was in pages that the back lent.
    GuestCopy,
}

/// How the frames of a batch were served, a bit for each, failed ones among them; those in neither
/// went through staging buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served {
    /// They took grant operations.
    pub granted: u64,
    /// Their pages were mapped before.
    pub persistent: u64,
    /// Their pages were mapped because the guest asked for it.
    pub gref_mapped: u64,
    /// They were in the data ring.
    pub data_ring: u64,
    /// They were in frames that the guest named.
    pub foreign: u64,
    /// They were in pages of the back's.
    pub guest_copy: u64,
}

impl Served {
    /// These took grant operations, as far as nobody says otherwise.
    pub(crate) fn by_grants(frames: u64) -> Self {
        Self { granted: frames, persistent: 0, gref_mapped: 0, data_ring: 0, foreign: 0, guest_copy: 0 }
    }

    /// These went another way.
    #[inline(always)]
    pub(crate) fn note(&mut self, by: Counted, frames: u64) {
        match by {
            Counted::Granted => {}
            Counted::Persistent => {
                self.granted &= !frames;
                self.persistent |= frames;
            }
            Counted::GrefMapped => {
                self.granted &= !frames;
                self.gref_mapped |= frames;
            }
            Counted::DataRing => {
                self.granted &= !frames;
                self.data_ring |= frames;
            }
            Counted::Foreign => {
                self.granted &= !frames;
                self.foreign |= frames;
            }
            Counted::GuestCopy => {
                self.granted &= !frames;
                self.guest_copy |= frames;
            }
            Counted::Staged => self.granted &= !frames,
        }
    }
}

/// A counter with one writer, which any thread may read.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. By its one writer alone: this is a load and a store, and no locked operation.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The same of a counter that says the most that there was.
    #[inline(always)]
    pub fn raise(&self, most: u64) {
        if most > self.get() {
            self.0.store(most, Ordering::Relaxed);
        }
    }

    /// How many so far.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One direction of one queue.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct DirStats {
            $($(#[$doc])* pub $name: u64,)*
            /// At a back: grant operations for this direction's frames.
            pub grant_ops: GrantOps,
        }

        /// The same, while they are counted.
        #[derive(Default, Debug)]
        pub struct LiveStats {
            $($(#[$doc])* pub $name: Counter,)*
            copies: Counter,
            maps: Counter,
            unmaps: Counter,
        }

        impl LiveStats {
            /// How they stand.
            pub fn read(&self) -> DirStats {
                DirStats {
                    $($name: self.$name.get(),)*
                    grant_ops: GrantOps {
                        copies: self.copies.get(),
                        maps: self.maps.get(),
                        unmaps: self.unmaps.get(),
                    },
                }
            }
        }
    };
}

counters! {
    /// Frames handed on.
    frames,
    /// Bytes of these frames.
    bytes,
    /// Frames that went through staging buffers alone.
    staged,
    /// Frames that needed grant operations.
    granted,
    /// At a back: frames whose pages were mapped when an earlier frame came in them.
    persistent,
    /// Frames in pages that their guest had asked to keep mapped; at a front: in its own memory,
    /// those of its pool are not told apart.
    gref_mapped,
    /// Frames through the data ring.
    data_ring,
    /// Of a direction whose frames this end puts there: those that found the data ring full, and
    /// went another way.
    data_ring_full,
    /// The same: the most bytes of the data ring that were in use at a time.
    data_ring_most,
    /// Frames in pages that were named by their frames, of a guest that trusts its back.
    foreign,
    /// RX: frames in pages that the back lent, for the guest to copy.
    guest_copy,
    /// Frames answered with an error: bad lengths, failed grant operations, unknown ids.
    errors,
    /// Frames that could not be handed on: the port did not take them, the guest never can (too
    /// long for it), or they are large segments of no TCP packet.
    dropped,
    /// Large segments from the peer whose checksum was not blank, and was made so (Linux:
    /// `rx_gso_checksum_fixup`).
    gso_checksum_fixups,
    /// Multicast frames that the guest does not want to hear.
    filtered,
    /// At a back, RX: frames that waited too long for the guest's slots.
    expired,
    /// Batches of requests or answers published.
    batches,
    /// Events sent.
    notifications,
    /// At a back: frames that predecessors had in their hands when they ended. Of TX these may have
    /// come to the port twice, of RX they are lost.
    interrupted,
}

impl DirStats {
    /// Counts frames that all went one way.
    #[inline(always)]
    pub(crate) fn handed_on_by(&mut self, by: Counted, frames: u64) {
        self.frames += frames;
        match by {
            Counted::Granted => self.granted += frames,
            Counted::Persistent => self.persistent += frames,
            Counted::GrefMapped => self.gref_mapped += frames,
            Counted::DataRing => self.data_ring += frames,
            Counted::Foreign => self.foreign += frames,
            Counted::GuestCopy => self.guest_copy += frames,
            Counted::Staged => self.staged += frames,
        }
    }
}

impl LiveStats {
    /// Counts the frames of a batch that were handed on, a bit for each: how they were `served`.
    #[inline(always)]
    pub(crate) fn handed_on(&self, good: u64, served: Served) {
        let Served { granted, persistent, gref_mapped, data_ring, foreign, guest_copy } = served;
        let [good, granted, persistent, mapped, ringed, foreign, lent] =
            [!0, granted, persistent, gref_mapped, data_ring, foreign, guest_copy]
                .map(|frames| u64::from((good & frames).count_ones()));
        self.frames.add(good);
        self.granted.add(granted);
        self.persistent.add(persistent);
        self.gref_mapped.add(mapped);
        self.data_ring.add(ringed);
        self.foreign.add(foreign);
        self.guest_copy.add(lent);
        self.staged.add(good - granted - persistent - mapped - ringed - foreign - lent);
    }

    /// Counts the grant operations between two readings.
    #[inline(always)]
    pub(crate) fn add_grant_ops(&self, before: &GrantOps, after: &GrantOps) {
        self.copies.add(after.copies - before.copies);
        self.maps.add(after.maps - before.maps);
        self.unmaps.add(after.unmaps - before.unmaps);
    }
}
