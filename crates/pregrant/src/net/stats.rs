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

/// The path by which each frame of a batch was served: a bit for each frame, including failed ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served {
    /// Frames that used grant operations.
    granted: u64,
    /// For each path, a bit for each frame that it served.
    by: [u64; PathName::COUNT],
}

impl Served {
    /// Frames that used grant operations, unless [`note`](Self::note) says otherwise.
    #[inline(always)]
    pub(crate) fn by_grants(frames: u64) -> Self {
        Self { granted: frames, by: [0; PathName::COUNT] }
    }

    /// Notes that these frames were served by this path.
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

    /// Raises a counter that holds a maximum.
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

/// A snapshot of one direction of one queue. A path's counter has the frames that it
/// carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirStats {
    /// Frames passed on.
    pub frames: u64,
    /// Bytes of the frames passed on.
    pub bytes: u64,
    /// Frames that needed grant operations.
    pub granted: u64,
    /// If this end puts frames into memory of a path: frames that found no room there, and used
    /// another path.
    pub no_room: u64,
    /// If this end puts frames into memory of a path: the most bytes of that memory in use at a
    /// time.
    pub most_bytes: u64,
    /// Frames answered with an error: bad lengths, failed grant operations, unknown ids.
    pub errors: u64,
    /// Frames that could not be passed on: the port did not accept them, the guest can never
    /// receive them, or they are large segments of no TCP packet.
    pub dropped: u64,
    /// At a back, RX: frames that are too long for a guest without `feature-sg`
    /// ([`one_slot`](super::one_slot)).
    pub too_long: u64,
    /// Large segments from the peer whose checksum was not blank and was made blank (Linux:
    /// `rx_gso_checksum_fixup`).
    pub gso_checksum_fixups: u64,
    /// At a back, RX: zero-copy frames, copied once out of another guest's pages.
    pub lent: u64,
    /// Multicast frames that the guest does not want.
    pub filtered: u64,
    /// At a back, RX: frames that waited too long for the guest's slots.
    pub expired: u64,
    /// Batches of requests or answers published.
    pub batches: u64,
    /// Events sent.
    pub notifications: u64,
    /// At a back: frames that predecessors had in flight when they ended. Those of TX may have
    /// reached the port twice, those of RX are lost.
    pub interrupted: u64,
    /// Frames that were in staging buffers.
    pub staging: u64,
    /// Frames that were in a data ring.
    pub data_ring: u64,
    /// Frames in pages that requests named by their frame numbers.
    pub foreign: u64,
    /// Frames that the guest copied.
    pub guest_copy: u64,
    /// Frames in pages that the guest asked to keep mapped.
    pub gref_mapping: u64,
    /// Frames in pages that stayed mapped once they were seen.
    pub persistent: u64,
    /// Frames whose headers were copied, and the rest mapped.
    pub map: u64,
    /// Frames that went by grant copy alone.
    pub copy: u64,
    /// At a back: grant operations for this direction's frames.
    pub grant_ops: GrantOps,
}

/// The live counters of one direction of one queue.
#[derive(Default, Debug)]
pub struct LiveStats {
    /// Frames passed on.
    pub frames: Counter,
    /// Bytes of the frames passed on.
    pub bytes: Counter,
    /// Frames that needed grant operations.
    pub granted: Counter,
    /// If this end puts frames into memory of a path: frames that found no room there, and used
    /// another path.
    pub no_room: Counter,
    /// If this end puts frames into memory of a path: the most bytes of that memory in use at a
    /// time.
    pub most_bytes: Counter,
    /// Frames answered with an error: bad lengths, failed grant operations, unknown ids.
    pub errors: Counter,
    /// Frames that could not be passed on: the port did not accept them, the guest can never
    /// receive them, or they are large segments of no TCP packet.
    pub dropped: Counter,
    /// At a back, RX: frames that are too long for a guest without `feature-sg`
    /// ([`one_slot`](super::one_slot)).
    pub too_long: Counter,
    /// Large segments from the peer whose checksum was not blank and was made blank (Linux:
    /// `rx_gso_checksum_fixup`).
    pub gso_checksum_fixups: Counter,
    /// At a back, RX: zero-copy frames, copied once out of another guest's pages.
    pub lent: Counter,
    /// Multicast frames that the guest does not want.
    pub filtered: Counter,
    /// At a back, RX: frames that waited too long for the guest's slots.
    pub expired: Counter,
    /// Batches of requests or answers published.
    pub batches: Counter,
    /// Events sent.
    pub notifications: Counter,
    /// At a back: frames that predecessors had in flight when they ended. Those of TX may have
    /// reached the port twice, those of RX are lost.
    pub interrupted: Counter,
    /// For each path, the number of frames that it carried.
    by_path: [Counter; PathName::COUNT],
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
            PathName::Staging => self.staging += frames,
            PathName::DataRing => self.data_ring += frames,
            PathName::Foreign => self.foreign += frames,
            PathName::GuestCopy => self.guest_copy += frames,
            PathName::GrefMapping => self.gref_mapping += frames,
            PathName::Persistent => self.persistent += frames,
            PathName::Map => self.map += frames,
            PathName::Copy => self.copy += frames,
        }
    }
}

impl LiveStats {
    /// Reads the current values.
    pub fn read(&self) -> DirStats {
        DirStats {
            frames: self.frames.get(),
            bytes: self.bytes.get(),
            granted: self.granted.get(),
            no_room: self.no_room.get(),
            most_bytes: self.most_bytes.get(),
            errors: self.errors.get(),
            dropped: self.dropped.get(),
            too_long: self.too_long.get(),
            gso_checksum_fixups: self.gso_checksum_fixups.get(),
            lent: self.lent.get(),
            filtered: self.filtered.get(),
            expired: self.expired.get(),
            batches: self.batches.get(),
            notifications: self.notifications.get(),
            interrupted: self.interrupted.get(),
            staging: self.of_path(PathName::Staging),
            data_ring: self.of_path(PathName::DataRing),
            foreign: self.of_path(PathName::Foreign),
            guest_copy: self.of_path(PathName::GuestCopy),
            gref_mapping: self.of_path(PathName::GrefMapping),
            persistent: self.of_path(PathName::Persistent),
            map: self.of_path(PathName::Map),
            copy: self.of_path(PathName::Copy),
            grant_ops: GrantOps {
                copies: self.copies.get(),
                maps: self.maps.get(),
                unmaps: self.unmaps.get(),
            },
        }
    }

    /// The frames that a path carried.
    #[inline(always)]
    fn of_path(&self, path: PathName) -> u64 {
        self.by_path[path as usize].get()
    }

    /// Counts the frames of a batch that were passed on, a bit per frame, by how they were
    /// `served`.
    #[inline(always)]
    pub(crate) fn handed_on(&self, good: u64, served: Served) {
        let Served { granted, by } = served;
        self.frames.add(u64::from(good.count_ones()));
        self.granted.add(u64::from((good & granted).count_ones()));
        for (counter, frames) in self.by_path.iter().zip(by) {
            let frames = good & frames;
            if frames != 0 {
                counter.add(u64::from(frames.count_ones()));
            }
        }
    }
}

impl LiveStats {
    /// Adds the grant operations between two readings.
    #[inline(always)]
    pub(crate) fn add_grant_ops(&self, before: &GrantOps, after: &GrantOps) {
        self.copies.add(after.copies - before.copies);
        self.maps.add(after.maps - before.maps);
        self.unmaps.add(after.unmaps - before.unmaps);
    }
}
