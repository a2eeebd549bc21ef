//! What the two ends of a disk tell each other through xenstore: one place that writes the keys, the same place that reads them
//! (docs/protocol 5.4).
//!
//! ```text
//!   back's directory at 2:   max-ring-page-order, multi-queue-max-queues, feature-max-indirect-segments, feature-persistent
//!   front's directory at 3:  ring-ref..., event-channel, protocol, feature-persistent
//!                            with two queues or more the rings and channels move to queue-0/, queue-1/ ...
//!   back's directory at 4:   sectors, info, sector-size, physical-sector-size, feature-barrier, feature-flush-cache, feature-discard...
//! ```
//! What a peer may do: write anything. A garbled number in a key that is needed is an error that names the key; an unknown key is
//! ignored; a feature that makes no sense is none.

use super::disk::{Discard, DiskFigures, SECTOR_BYTES};
pub use crate::grants::FEATURE_PERSISTENT;
use crate::units::{EvtchnPort, GrantRef, PAGE_SIZE};
use crate::wire::blkif::{Abi, INDIRECT_PAGES_MAX, SEGMENTS_PER_INDIRECT_PAGE};
use crate::xenbus::XenbusState;
use crate::xenbus::device::STATE;
use crate::xenbus::key_source::{KeySource, Pairs, decimal, flag, needed, number, put};
use crate::xenbus::ring_keys::{self, NUM_QUEUES, nr_queues, put_ring, ring_order};
pub use crate::xenbus::ring_keys::{MAX_RING_ORDER, queue_prefix, ring_key};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Segments of an indirect request at most, by the protocol.
pub const INDIRECT_SEGMENTS_MAX: u32 = (INDIRECT_PAGES_MAX * SEGMENTS_PER_INDIRECT_PAGE) as u32;

/// Sectors that a disk has at most: each of its bytes has an offset that a signed number of 64 bits holds, as the kernel's do.
pub const SECTORS_MAX: u64 = i64::MAX as u64 / SECTOR_BYTES as u64;

/// The toolstack's key in the back's directory: "w" or "w!" where the guest may write.
pub const MODE: &str = "mode";
/// The toolstack's key in the back's directory: which image it is, `FORMAT:PATH` or a path.
pub const PARAMS: &str = "params";
/// The key of the toolstack's script in the back's directory: the block device that it has made of the image.
pub const DEVICE_PATH: &str = "physical-device-path";
/// The toolstack's key in both directories: "disk" or "cdrom".
pub const DEVICE_TYPE: &str = "device-type";

const MAX_RING_ORDER_KEY: &str = "max-ring-page-order";
const MAX_QUEUES: &str = "multi-queue-max-queues";
const MAX_INDIRECT: &str = "feature-max-indirect-segments";
const PROTOCOL: &str = "protocol";
const SECTORS: &str = "sectors";
const INFO: &str = "info";

const INFO_CDROM: u32 = 1;
const INFO_REMOVABLE: u32 = 2;
const INFO_READ_ONLY: u32 = 4;

/// What a back offers before it knows its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackFeatures {
    /// `max-ring-page-order`: pages of a ring at most, as the exponent of 2.
    pub max_ring_order: u32,
    /// `multi-queue-max-queues`.
    pub max_queues: u32,
    /// `feature-max-indirect-segments`; 0: no indirect requests.
    pub max_indirect_segments: u32,
    /// `feature-persistent`: keeps the pages of a front that does so too mapped.
    pub persistent: bool,
    /// `feature-barrier`, for a disk that can be written to and flushed.
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
    /// As keys of the back's directory, to be written before the front begins.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        put(&mut p, MAX_RING_ORDER_KEY, self.max_ring_order);
        put(&mut p, MAX_QUEUES, self.max_queues);
        if self.max_indirect_segments > 0 {
            put(&mut p, MAX_INDIRECT, self.max_indirect_segments);
        }
        put(&mut p, FEATURE_PERSISTENT, self.persistent as u32);
        p
    }

    /// From the keys of a back's directory.
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

/// Whether a back that can do barriers offers them for this disk.
pub fn offers_barrier(figures: &DiskFigures, can: bool) -> bool {
    can && figures.flush && !figures.read_only
}

/// The keys of a disk's figures, and whether barriers are [offered](offers_barrier), written when it is open.
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
    put(&mut p, "feature-flush-cache", figures.flush as u32);
    if let Some(discard) = figures.discard.filter(|_| !figures.read_only) {
        put(&mut p, "feature-discard", 1);
        put(&mut p, "discard-granularity", discard.granularity);
        put(&mut p, "discard-alignment", discard.alignment);
        put(&mut p, "discard-secure", discard.secure as u32);
    }
    p
}

/// What tells a connected guest of another length: Linux's front looks at `sectors` when the back's state is written once more. Both
/// in one transaction: a back that dies between them would leave a length that nobody looks at.
pub fn resized_pairs(sectors: u64, state: XenbusState) -> Pairs {
    let mut p = Pairs::new();
    put(&mut p, SECTORS, sectors);
    put(&mut p, STATE, state.digit());
    p
}

/// The figures of the disk behind a back's directory. A front cannot do without `sectors`; what else is missing or garbled is as in
/// a disk of 512-byte sectors without features. A length whose bytes no offset reaches is no length: nobody need fear to multiply it.
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
        flush: flag(keys, "feature-flush-cache")?,
        discard,
    })
}

/// Names in the back's directory that belong to one connection: what another disk was, and another driver offered.
pub fn of_back_connection(name: &str) -> bool {
    let names = [SECTORS, INFO, "sector-size", "physical-sector-size", MAX_INDIRECT];
    let features = ["feature-barrier", "feature-flush-cache", "feature-discard", "discard-secure"];
    names.contains(&name)
        || features.contains(&name)
        || ["discard-granularity", "discard-alignment"].contains(&name)
}

/// Names in the front's directory that belong to one connection: a predecessor's rings and promises would be taken for ours.
pub fn of_front_connection(name: &str) -> bool {
    let starts = ["ring-", "event-channel", "queue-", NUM_QUEUES, PROTOCOL, FEATURE_PERSISTENT];
    starts.iter().any(|start| name.starts_with(start))
}

/// One queue as the front set it up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueKeys {
    /// `ring-ref`, or `ring-ref%u` of several pages: a power of two of them.
    pub ring: Vec<GrantRef>,
    /// `event-channel`.
    pub channel: EvtchnPort,
}

/// What a front asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrontRequest {
    /// `protocol`: how it lays out its slots.
    pub abi: Abi,
    /// `feature-persistent`: each of its references names the same page for as long as it is connected.
    pub persistent: bool,
    /// The queues, at least one.
    pub queues: Vec<QueueKeys>,
}

impl FrontRequest {
    /// As keys of the front's directory.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        put(&mut p, PROTOCOL, self.abi.protocol());
        put(&mut p, FEATURE_PERSISTENT, self.persistent as u32);
        let n = self.queues.len();
        if n >= 2 {
            put(&mut p, NUM_QUEUES, n);
        }
        for (i, q) in self.queues.iter().enumerate() {
            let at = queue_prefix(i, n);
            put_ring(&mut p, &at, &q.ring);
            put(&mut p, format!("{at}event-channel"), q.channel.0);
        }
        p
    }

    /// From the keys of a front's directory. `offered` is what this back advertised. A front that says no `protocol` has the slots
    /// of a 64-bit back, as Linux takes it.
    pub fn read<S: KeySource>(keys: &mut S, offered: &BackFeatures) -> Result<Self, S::Error> {
        let abi = match keys.text(PROTOCOL)? {
            None => Abi::X86_64,
            Some(text) => match Abi::from_protocol(text.trim_end_matches('\0').as_bytes()) {
                Some(abi) => abi,
                None => return Err(keys.bad(PROTOCOL, &text, "x86_64-abi, x86_32-abi or arm-abi")),
            },
        };
        let n = nr_queues(keys, offered.max_queues)? as usize;
        let queues = (0..n).map(|i| {
            let at = queue_prefix(i, n);
            let most = (offered.max_ring_order, "at most the back's max-ring-page-order");
            let ring = ring_keys::ring(keys, &at, most)?;
            Ok(QueueKeys { ring, channel: EvtchnPort(needed(keys, &format!("{at}event-channel"))?) })
        });
        let queues = queues.collect::<Result<Vec<_>, S::Error>>()?;
        Ok(Self { abi, persistent: offered.persistent && flag(keys, FEATURE_PERSISTENT)?, queues })
    }
}

/// Whether the toolstack's `mode` lets the guest write.
pub fn mode_writes(mode: Option<&str>) -> bool {
    mode.is_some_and(|mode| mode.contains('w'))
}

/// Whether the toolstack's `device-type` is a CD.
pub fn type_is_cdrom(device_type: Option<&String>) -> bool {
    device_type.is_some_and(|text| text.trim_end_matches('\0') == "cdrom")
}
