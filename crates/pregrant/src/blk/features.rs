//! The xenstore keys by which the two ends of a disk negotiate, written and read in one place
//! (docs/protocol 5.4).
//!
//! ```text
//!   back's directory at 2:   max-ring-page-order, multi-queue-max-queues, feature-max-indirect-segments, feature-persistent,
//!                            feature-flush-cache
//!   front's directory at 3:  ring-ref..., event-channel, protocol, feature-persistent
//!                            with two queues or more the rings and channels move to queue-0/, queue-1/ ...: front_rings.rs
//!   back's directory at 4:   sectors, info, sector-size, physical-sector-size, feature-barrier, feature-flush-cache, feature-discard...
//!                            ring-active, protocol-active: what was taken of the front's keys, for a successor
//! ```
//! What a peer may do: write anything. An invalid number in a required key is an error that names
//! the key; an unknown key is ignored; an invalid feature counts as absent.

use super::disk::{Discard, DiskFigures, SECTOR_BYTES};
pub use super::front_rings::QueueKeys;
use super::front_rings::{Most, Reading, choose};
pub use crate::grants::FEATURE_PERSISTENT;
use crate::platform::Platform;
use crate::units::{DomId, PAGE_SIZE};
use crate::wire::blkif::{Abi, INDIRECT_PAGES_MAX, SEGMENTS_PER_INDIRECT_PAGE};
use crate::xenbus::XenbusState;
use crate::xenbus::device::STATE;
use crate::xenbus::key_source::{KeySource, Pairs, decimal, flag, number, put, stated};
pub use crate::xenbus::ring_keys::{MAX_RING_ORDER, RING_ORDER, queue_prefix, ring_key};
use crate::xenbus::ring_keys::{NUM_QUEUES, put_order, ring_order};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Largest number of segments of an indirect request, by the protocol.
pub const INDIRECT_SEGMENTS_MAX: u32 = (INDIRECT_PAGES_MAX * SEGMENTS_PER_INDIRECT_PAGE) as u32;

/// Largest number of sectors of a disk: the offset of each byte must fit a signed 64-bit number, as
/// in kernels.
pub const SECTORS_MAX: u64 = i64::MAX as u64 / SECTOR_BYTES as u64;

/// The toolstack's key in the back's directory: "w" or "w!" if the guest may write.
pub const MODE: &str = "mode";
/// The toolstack's key in the back's directory: the image, as `FORMAT:PATH` or a path.
pub const PARAMS: &str = "params";
/// The key of the toolstack's script in the back's directory: the block device that it made of the
/// image.
pub const DEVICE_PATH: &str = "physical-device-path";
/// The toolstack's key in both directories: "disk" or "cdrom".
pub const DEVICE_TYPE: &str = "device-type";
/// The toolstack's key in the back's directory: 0 if the guest must get no discards (xl's
/// `no-discard`).
pub const DISCARD_ENABLE: &str = "discard-enable";
/// The back's key for a successor: the name of the front's key that has the first page of the
/// connection's first ring.
pub const RING_ACTIVE: &str = "ring-active";
/// The back's key for a successor: the layout of the connection's slots, with the values of
/// `protocol`.
pub const PROTOCOL_ACTIVE: &str = "protocol-active";
/// The back's key beside `feature-discard`, which only Pregrant writes: 1 if discarded units read
/// as zeroes.
pub const DISCARD_ZEROES: &str = "discard-zeroes";
/// The key of a front that counts everything in logical sectors instead of 512 bytes. Only Windows'
/// front writes it.
pub const LARGE_SECTORS: &str = "feature-large-sector-size";

const MAX_RING_ORDER_KEY: &str = "max-ring-page-order";
const MAX_QUEUES: &str = "multi-queue-max-queues";
const MAX_INDIRECT: &str = "feature-max-indirect-segments";
const PROTOCOL: &str = "protocol";
const SECTORS: &str = "sectors";
const INFO: &str = "info";
const FLUSH_CACHE: &str = "feature-flush-cache";

const INFO_CDROM: u32 = 1;
const INFO_REMOVABLE: u32 = 2;
const INFO_READ_ONLY: u32 = 4;

/// What a back offers before it knows its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackFeatures {
    /// `max-ring-page-order`: log2 of the largest number of pages of a ring.
    pub max_ring_order: u32,
    /// `multi-queue-max-queues`: the largest number of queues.
    pub max_queues: u32,
    /// `feature-max-indirect-segments`; 0: no indirect requests.
    pub max_indirect_segments: u32,
    /// `feature-persistent`: the back keeps the pages of a front mapped that also sets this key.
    pub persistent: bool,
    /// `feature-barrier`, for a disk that can be written and flushed.
    pub barrier: bool,
}

impl Default for BackFeatures {
    fn default() -> Self {
        Self {
            max_ring_order: MAX_RING_ORDER,
            max_queues: 4,
            max_indirect_segments: 256,
            persistent: true,
            barrier: true,
        }
    }
}

impl BackFeatures {
    /// The keys for the back's directory, which must be written before the front begins.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        put(&mut p, MAX_RING_ORDER_KEY, self.max_ring_order);
        put(&mut p, MAX_QUEUES, self.max_queues);
        if self.max_indirect_segments > 0 {
            put(&mut p, MAX_INDIRECT, self.max_indirect_segments);
        }
        put(&mut p, FEATURE_PERSISTENT, self.persistent as u32);
        // NetBSD's xbd reads this key once, now, and never flushes if it is absent. The disk's
        // features follow at state 4: a flush to a disk without a cache is answered as unsupported.
        put(&mut p, FLUSH_CACHE, 1);
        p
    }

    /// The largest rings that a front may use.
    fn most(&self) -> Most {
        Most { queues: self.max_queues, order: self.max_ring_order }
    }

    /// Reads the keys of a back's directory.
    pub fn read<S: KeySource>(keys: &mut S) -> Result<Self, S::Error> {
        let indirect = keys.text(MAX_INDIRECT)?.as_deref().and_then(decimal).unwrap_or(0);
        Ok(Self {
            max_ring_order: ring_order(keys, MAX_RING_ORDER_KEY)?,
            max_queues: number(keys, MAX_QUEUES)?.unwrap_or(1).max(1),
            max_indirect_segments: indirect.min(INDIRECT_SEGMENTS_MAX),
            persistent: flag(keys, FEATURE_PERSISTENT)?,
            barrier: flag(keys, "feature-barrier")?,
        })
    }
}

/// Whether a back that supports barriers (`can`) offers them for this disk.
pub fn offers_barrier(figures: &DiskFigures, can: bool) -> bool {
    can && figures.flush && !figures.read_only
}

/// The keys of a disk's properties, including whether barriers are [offered](offers_barrier). They
/// are written when the disk is open.
pub fn figures_pairs(figures: &DiskFigures, barrier: bool) -> Pairs {
    let mut p = Pairs::new();
    put(&mut p, SECTORS, figures.sectors);
    put(&mut p, "sector-size", figures.sector_size);
    put(&mut p, "physical-sector-size", figures.physical_sector_size);
    let bit = |on: bool, bit: u32| if on { bit } else { 0 };
    let info = bit(figures.cdrom, INFO_CDROM)
        | bit(figures.removable, INFO_REMOVABLE)
        | bit(figures.read_only, INFO_READ_ONLY);
    put(&mut p, INFO, info);
    put(&mut p, "feature-barrier", barrier as u32);
    put(&mut p, FLUSH_CACHE, figures.flush as u32);
    if let Some(discard) = figures.discard.filter(|_| !figures.read_only) {
        put(&mut p, "feature-discard", 1);
        put(&mut p, "discard-granularity", discard.granularity);
        put(&mut p, "discard-alignment", discard.alignment);
        put(&mut p, "discard-secure", discard.secure as u32);
        put(&mut p, DISCARD_ZEROES, discard.zeroes as u32);
    }
    p
}

/// Announces another length to a connected guest: Linux's front checks `sectors` when the back's
/// state is written again. Both keys must be written in one transaction: if the back dies between
/// them, no front checks the new length.
pub fn resized_pairs(sectors: u64, state: XenbusState) -> Pairs {
    let mut p = Pairs::new();
    put(&mut p, SECTORS, sectors);
    put(&mut p, STATE, state.digit());
    p
}

/// Reads a disk's properties from a back's directory. `sectors` is required; anything else that is
/// missing or invalid defaults to a disk with sectors of 512 bytes and no features. A length whose
/// bytes exceed a file offset is invalid, so callers can multiply it safely.
pub fn read_figures<S: KeySource>(keys: &mut S) -> Result<DiskFigures, S::Error> {
    let text = keys.text(SECTORS)?;
    let sectors = text.as_deref().and_then(|t| t.trim_end_matches('\0').trim().parse().ok());
    let Some(sectors) = sectors.filter(|sectors| *sectors <= SECTORS_MAX) else {
        let want = "a decimal number of sectors of 512 bytes, less than 2^54";
        return Err(keys.bad(SECTORS, &text.unwrap_or_default(), want));
    };
    let lenient = |keys: &mut S, key: &str| Ok(keys.text(key)?.as_deref().and_then(decimal));
    let size = lenient(keys, "sector-size")?.unwrap_or(SECTOR_BYTES as u32);
    if !size.is_power_of_two() || !(SECTOR_BYTES as u32..=PAGE_SIZE as u32).contains(&size) {
        return Err(keys.bad("sector-size", &format!("{size}"), "512, 1024, 2048 or 4096"));
    }
    let physical = lenient(keys, "physical-sector-size")?.unwrap_or(size);
    let info = lenient(keys, INFO)?.unwrap_or(0);
    let discard = if flag(keys, "feature-discard")? {
        Some(Discard {
            granularity: lenient(keys, "discard-granularity")?.unwrap_or(size),
            alignment: lenient(keys, "discard-alignment")?.unwrap_or(0),
            secure: flag(keys, "discard-secure")?,
            zeroes: flag(keys, DISCARD_ZEROES)?,
        })
    } else {
        None
    };
    Ok(DiskFigures {
        sectors,
        sector_size: size,
        physical_sector_size: physical,
        read_only: info & INFO_READ_ONLY != 0,
        cdrom: info & INFO_CDROM != 0,
        removable: info & INFO_REMOVABLE != 0,
        flush: flag(keys, FLUSH_CACHE)?,
        discard,
    })
}

/// Whether a name in the back's directory belongs to one connection: such keys describe another
/// disk, or another driver's offer.
pub fn of_back_connection(name: &str) -> bool {
    let names =
        [SECTORS, INFO, "sector-size", "physical-sector-size", MAX_INDIRECT, RING_ACTIVE, PROTOCOL_ACTIVE];
    let features = ["feature-barrier", FLUSH_CACHE, "feature-discard", "discard-secure"];
    names.contains(&name)
        || features.contains(&name)
        || ["discard-granularity", "discard-alignment", DISCARD_ZEROES].contains(&name)
}

/// True if a key in the front's directory belongs to one connection: rings and promises of a
/// predecessor must not be mistaken for ours.
pub fn of_front_connection(name: &str) -> bool {
    let starts = ["ring-", "event-channel", "queue-", NUM_QUEUES, PROTOCOL, FEATURE_PERSISTENT];
    starts.iter().any(|start| name.starts_with(start))
}

/// The connection that a front requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrontRequest {
    /// `protocol`: the layout of the front's slots.
    pub abi: Abi,
    /// `feature-persistent`: each grant reference names the same page until the front disconnects.
    pub persistent: bool,
    /// The queues, at least one; all rings have the same size.
    pub queues: Vec<QueueKeys>,
}

impl FrontRequest {
    /// The keys for the front's directory.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        put(&mut p, PROTOCOL, self.abi.protocol());
        put(&mut p, FEATURE_PERSISTENT, self.persistent as u32);
        let n = self.queues.len();
        if n >= 2 {
            put(&mut p, NUM_QUEUES, n);
        }
        put_order(&mut p, "", self.queues.iter().map(|q| q.ring.len()).max().unwrap_or(1));
        for (i, q) in self.queues.iter().enumerate() {
            for (k, gref) in q.ring.iter().enumerate() {
                put(&mut p, q.ring_key((i, n), k), gref.0);
            }
            put(&mut p, queue_prefix(i, n) + "event-channel", q.channel.0);
        }
        p
    }

    /// Reads the keys of front `of`, which may have at most `most_pages` pages mapped. `offered` is
    /// what this back advertised. Its ring pages are inspected only if the keys can be read in
    /// several ways.
    pub fn read<P: Platform, S: KeySource>(
        p: &P,
        of: (DomId, usize),
        keys: &mut S,
        offered: &BackFeatures,
    ) -> Result<Self, S::Error> {
        let abi = protocol(keys)?.unwrap_or(Abi::UNSAID);
        let queues = choose(p, of, keys, offered.most())?;
        Ok(Self { abi, persistent: persistent(keys, offered)?, queues })
    }

    /// Reads the keys of a connected front again, in the way in which the predecessor that left
    /// `accepted` read them.
    pub fn read_again<S: KeySource>(
        keys: &mut S,
        offered: &BackFeatures,
        accepted: &Accepted,
    ) -> Result<Self, S::Error> {
        // A back that left no such key took a front without `protocol` for one with the 64-bit
        // layout.
        let abi = match accepted.abi {
            Some(abi) => abi,
            None => protocol(keys)?.unwrap_or(Abi::X86_64),
        };
        let reading = Reading::of_predecessor(keys, offered.most(), accepted.ring.as_deref())?;
        let queues = reading.read(keys, offered.most())?;
        Ok(Self { abi, persistent: persistent(keys, offered)?, queues })
    }

    /// The keys in the back's directory for a successor that [reads them again](Self::read_again).
    pub fn accepted_pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        if let [first, ..] = &self.queues[..] {
            put(&mut p, RING_ACTIVE, first.ring_key((0, self.queues.len()), 0));
        }
        put(&mut p, PROTOCOL_ACTIVE, self.abi.protocol());
        p
    }
}

/// Keys of a connection that a predecessor left in the back's directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Accepted {
    /// The value of [`RING_ACTIVE`].
    pub ring: Option<String>,
    /// The value of [`PROTOCOL_ACTIVE`].
    pub abi: Option<Abi>,
}

impl Accepted {
    /// Reads the features that a back advertised, from the back's own directory.
    pub fn read<S: KeySource>(own: &mut S) -> Result<Self, S::Error> {
        let abi = own.text(PROTOCOL_ACTIVE)?.and_then(|text| Abi::from_protocol(text.as_bytes()));
        Ok(Self { ring: stated(own, RING_ACTIVE)?, abi })
    }
}

/// The layout of a front's slots. None: the front does not say.
fn protocol<S: KeySource>(keys: &mut S) -> Result<Option<Abi>, S::Error> {
    let Some(text) = stated(keys, PROTOCOL)? else { return Ok(None) };
    match Abi::from_protocol(text.trim_end_matches('\0').as_bytes()) {
        None => Err(keys.bad(PROTOCOL, &text, "x86_64-abi, x86_32-abi or arm-abi")),
        abi => Ok(abi),
    }
}

fn persistent<S: KeySource>(keys: &mut S, offered: &BackFeatures) -> Result<bool, S::Error> {
    Ok(offered.persistent && flag(keys, FEATURE_PERSISTENT)?)
}

/// Whether the toolstack allows discards. As in Linux's blkback, a value that is no number allows
/// them.
pub fn discards_enabled<S: KeySource>(own: &mut S) -> Result<bool, S::Error> {
    Ok(own.text(DISCARD_ENABLE)?.as_deref().and_then(decimal) != Some(0))
}

/// Whether the toolstack's `mode` lets the guest write.
pub fn mode_writes(mode: Option<&str>) -> bool {
    mode.is_some_and(|mode| mode.contains('w'))
}

/// Whether the toolstack's `device-type` is a CD.
pub fn type_is_cdrom(device_type: Option<&String>) -> bool {
    device_type.is_some_and(|text| text.trim_end_matches('\0') == "cdrom")
}
