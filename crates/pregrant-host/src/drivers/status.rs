//! The status of a backend's devices: one JSON document, read by `pregrant top` and by scripts.
//!
//! ```text
//!   Backend::reports --> BackStatus --JSON--> StatusSocket --> any client
//! ```
//! Counters of a queue begin when the vif connects, so a reader that sees one fall starts again.
//! Figures in `process` are of the whole process since its start: they contain set-up and waiting,
//! which belong to no queue.
//!
//! Texts that a guest can steer (why its vif was closed) are escaped by JSON and shortened to
//! [`TEXT_MAX`]; the number of vifs and queues is the toolstack's and the backend's.

use super::device_class::{Figures, Operation};
use super::net::{SharedMemory, VifReport};
use super::registry::DeviceReport;
use crate::counters::Counters;
use crate::excerpt::excerpt;
use pregrant::grants::MappedStats;
use pregrant::latency::bound_ns;
use pregrant::net::stats::DirStats;
use pregrant::xenbus::XenbusState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The document's format; a reader refuses others.
pub const FORMAT: u32 = 1;

/// Characters of a text that came from elsewhere; then how many more there are.
pub const TEXT_MAX: usize = 400;

/// The backends of a domain, as their sockets' names have them before the domain's number: who
/// serves vifs, and who serves vbds.
const DAEMONS: [&str; 2] = ["back", "blkback"];
/// How these names end.
const SUFFIX: &str = ".status";

/// One backend's process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BackStatus {
    /// [`FORMAT`].
    pub format: u32,
    /// The driver domain.
    pub domain: u16,
    /// Which of its backends: `back` serves vifs, `blkback` vbds. Empty where a backend older than
    /// this field tells it.
    #[serde(default)]
    pub daemon: String,
    /// The process.
    pub pid: u32,
    /// The program's version; empty where a backend older than this field tells it.
    #[serde(default)]
    pub version: String,
    /// The commit that it was built from; empty where it was built outside of a git checkout.
    #[serde(default)]
    pub rev: String,
    /// Seconds since it began.
    pub uptime_s: f64,
    /// When this was read, on the clock that all processes of the machine share (CLOCK_MONOTONIC).
    pub at_ns: u64,
    /// The platform, and how it maps and copies.
    pub platform: String,
    /// Of the whole process, not of one vif.
    pub process: ProcessStatus,
    /// Queues that each worker thread carries; none where there is no thread but the one that
    /// serves xenstore.
    #[serde(default)]
    pub workers: Vec<usize>,
    /// Its vifs.
    pub vifs: Vec<VifStatus>,
    /// Its devices of other classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceStatus>,
}

/// The value for a backend older than the field.
fn yes() -> bool {
    true
}

/// The figures that every device has.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AnyDeviceStatus {
    /// The guest.
    pub front: u16,
    /// The guest's number of the device.
    pub handle: u32,
    /// The back's state, as xenbus names it.
    pub state: String,
    /// Whether the live rings of a predecessor were taken up.
    pub reattached: bool,
    /// Seconds since its queues became live; null where they are not.
    pub connected_s: Option<f64>,
    /// How often it was closed for something that its guest did.
    pub faults: u64,
    /// How often its front was not listened to for a while, since it asked for too many steps, or
    /// its control ring was paused.
    #[serde(default)]
    pub throttled: u64,
    /// Lines that the log does not have of it, since it caused too many.
    #[serde(default)]
    pub lines_left_out: u64,
    /// Why it was closed last, also when it is connected again.
    pub last_failure: Option<String>,
    /// Pages of its guest that it has mapped, or may have at any moment, whatever it keeps: rings,
    /// buffers, and what its guest has had mapped.
    #[serde(default)]
    pub pages_needed: u64,
    /// Pages that it may keep since it saw them, or that its guest may still have mapped.
    #[serde(default)]
    pub pages_allowed: u64,
}

impl From<&DeviceReport> for AnyDeviceStatus {
    fn from(report: &DeviceReport) -> Self {
        Self {
            front: report.id.front.0,
            handle: report.id.handle,
            state: format!("{:?}", report.state),
            reattached: report.reattached,
            connected_s: report.connected.map(|d| d.as_secs_f64()),
            faults: report.faults,
            throttled: report.throttled,
            lines_left_out: report.lines_left_out,
            last_failure: report.last_failure.as_deref().map(short),
            pages_needed: report.pages_needed as u64,
            pages_allowed: report.pages_allowed as u64,
        }
    }
}

/// A device that is no vif.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its class, as paths name it.
    pub class: String,
    /// As of any.
    #[serde(flatten)]
    pub any: AnyDeviceStatus,
    /// Why its backing is unavailable (who has it, or what is missing), where it is not connected
    /// for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Whether its backing was tried; false: it may be there or not.
    #[serde(default = "yes")]
    pub is_tried: bool,
    /// Its kind and service, in words of its class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Counters of its class, since it connected.
    pub counters: BTreeMap<String, u64>,
    /// Gauges of its class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, u64>,
    /// Its requests by what they ask for: a disk's are `read`, `write`, `flush`, `discard`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operations: BTreeMap<String, OperationStatus>,
}

/// Requests that ask for the same, since the device connected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OperationStatus {
    /// Those that were done.
    pub requests: u64,
    /// Their bytes; 0 where none travel.
    pub bytes: u64,
    /// Nanoseconds from when they were taken to when they were answered, of all together, those
    /// that failed among them.
    pub latency_sum_ns: u64,
    /// The same by how long each took, shortest first.
    pub latency: Vec<LatencyBucket>,
}

/// Requests that took longer than those of the bucket before, and no longer than this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Nanoseconds at most; null: the others.
    pub most_ns: Option<u64>,
    /// How many.
    pub requests: u64,
}

/// A disk's gauge: 1 where a flush of its guest's connection has failed.
pub const FLUSH_FAILED: &str = "flush_failed";
/// A device's gauge: the age of its oldest request that is not answered, in nanoseconds; 0: there
/// is none.
pub const OLDEST_NS: &str = "oldest_ns";

impl From<Operation> for OperationStatus {
    fn from(operation: Operation) -> Self {
        let Operation { requests, bytes, latency, .. } = operation;
        let bucket =
            |(i, requests): (usize, &u64)| LatencyBucket { most_ns: bound_ns(i), requests: *requests };
        let latency_sum_ns = latency.sum_ns;
        let latency = latency.buckets.iter().enumerate().map(bucket).collect();
        Self { requests, bytes, latency_sum_ns, latency }
    }
}

impl DeviceStatus {
    /// How long its oldest request has not been answered. None: it has none, or its backend is of a
    /// version before this gauge.
    pub fn oldest_s(&self) -> Option<f64> {
        self.gauges.get(OLDEST_NS).filter(|ns| **ns > 0).map(|ns| *ns as f64 / 1e9)
    }

    /// Whether its front says that it closes, and uses it still.
    pub fn closes_in_use(&self) -> bool {
        self.connected_s.is_some() && self.state == format!("{:?}", XenbusState::Closing)
    }

    /// The part of any device, and its class's measurements.
    pub fn new(report: DeviceReport, figures: Figures) -> Self {
        let Figures { description, counters, gauges, operations } = figures;
        let named = |all: Vec<(&str, u64)>| all.into_iter().map(|(name, n)| (name.to_string(), n)).collect();
        Self {
            class: report.id.class.name().into(),
            any: (&report).into(),
            waits_for: report.waits_for.as_deref().map(short),
            is_tried: report.is_tried,
            what: short(&description),
            counters: named(counters),
            gauges: named(gauges),
            operations: operations.into_iter().map(|op| (op.name.to_string(), op.into())).collect(),
        }
    }
}

impl Deref for DeviceStatus {
    type Target = AnyDeviceStatus;
    fn deref(&self) -> &AnyDeviceStatus {
        &self.any
    }
}

impl Deref for VifStatus {
    type Target = AnyDeviceStatus;
    fn deref(&self) -> &AnyDeviceStatus {
        &self.any
    }
}

/// Requests of the whole process to its platform.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Pieces copied by grant.
    pub grant_copies: u64,
    /// Pages mapped.
    pub grant_maps: u64,
    /// Pages unmapped.
    pub grant_unmaps: u64,
    /// System calls for copying, mapping, notifying and waiting.
    pub syscalls: u64,
    /// Events sent.
    pub notifications: u64,
    /// Sleeps that a tenth of a second ended, and no event, though a guest had shown work: 0, or
    /// somebody does not notify.
    #[serde(default)]
    pub missed_wakeups: u64,
}

/// One vif.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VifStatus {
    /// As of any device.
    #[serde(flatten)]
    pub any: AnyDeviceStatus,
    /// Whether the guest takes frames.
    #[serde(default)]
    pub link: bool,
    /// How often it took none for so long that its link went down, in all of its connections.
    #[serde(default)]
    pub stalls: u64,
    /// What its guest may send by the toolstack's `rate`, in words; null: it is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// How often its frames had to wait for the vif's rate, since it connected.
    #[serde(default)]
    pub credit_waits: u64,
    /// Pages of its guest that it has mapped: those that it needs, and those that it keeps.
    #[serde(default)]
    pub mapped_pages: u64,
    /// Pages that it keeps since it saw them.
    #[serde(default)]
    pub kept_pages: u64,
    /// How often a page found no place among those, or in the table of pages that its guest has
    /// mapped.
    #[serde(default)]
    pub overflows: u64,
    /// Staging lists, and halves of data rings, that were refused at the last connect.
    pub refused_lists: Vec<String>,
    /// Its queues, by number.
    pub queues: Vec<QueueStatus>,
    /// Frames that the port dropped, by direction and reason; ports do not distinguish queues.
    pub port_drops: BTreeMap<String, BTreeMap<String, u64>>,
}

/// One queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueStatus {
    /// From the guest.
    pub tx: DirStatus,
    /// To the guest.
    pub rx: DirStatus,
    /// The table of pages that the guest has had mapped, for both directions; null where there is
    /// none.
    #[serde(default)]
    pub gref_table: Option<StoreStatus>,
}

/// A store of pages that stay mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Pages in it.
    pub pages: u64,
    /// The most that there were at a time.
    pub most: u64,
    /// Pages at most.
    pub limit: u64,
    /// How often a page found no place.
    pub overflows: u64,
}

impl From<MappedStats> for StoreStatus {
    fn from(figures: MappedStats) -> Self {
        let MappedStats { pages, most, limit, overflows } = figures;
        Self { pages: pages as u64, most: most as u64, limit: limit as u64, overflows }
    }
}

/// One direction of a queue, since the vif connected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DirStatus {
    /// The path that moves the bytes: the first of `chain`.
    pub path: String,
    /// All paths that are asked for a frame, one after another.
    #[serde(default)]
    pub chain: Vec<String>,
    /// Bytes of a frame that fit a staging buffer; null where there are none.
    #[serde(default)]
    pub data_len: Option<u32>,
    /// How many of them there are; null where there are none.
    #[serde(default)]
    pub buffers: Option<u32>,
    /// Pages that stay mapped since they were seen; null where none do.
    #[serde(default)]
    pub store: Option<StoreStatus>,
    /// Frames handed on.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that went through staging buffers alone.
    pub staged: u64,
    /// Frames whose pages were mapped when an earlier frame came in them.
    #[serde(default)]
    pub persistent: u64,
    /// Frames in pages that their guest had asked to keep mapped.
    #[serde(default)]
    pub gref_mapped: u64,
    /// Frames through the data ring.
    #[serde(default)]
    pub data_ring: u64,
    /// RX: frames that found the data ring full.
    #[serde(default)]
    pub data_ring_full: u64,
    /// RX: the most bytes of the data ring that were in use at a time.
    #[serde(default)]
    pub data_ring_most: u64,
    /// Frames in pages that their guest named by their frames, all of it being mapped.
    #[serde(default)]
    pub foreign: u64,
    /// RX: frames in pages that the backend lent, for the guest to copy.
    #[serde(default)]
    pub guest_copy: u64,
    /// RX: of bursts that were copied once, out of another guest's pages.
    #[serde(default)]
    pub lent: u64,
    /// Batches published.
    pub batches: u64,
    /// Events sent to the guest.
    pub notifications: u64,
    /// Pieces copied by grant for these frames.
    pub grant_copies: u64,
    /// Pages mapped for these frames.
    pub grant_maps: u64,
    /// Pages unmapped.
    pub grant_unmaps: u64,
    /// TX: frames that may have come to the port twice, because predecessors ended while they had
    /// them in their hands, since the guest connected.
    #[serde(default)]
    pub repeated: u64,
    /// TX: large segments whose checksum was not blank, and was made so (Linux:
    /// `rx_gso_checksum_fixup`).
    #[serde(default)]
    pub gso_checksum_fixups: u64,
    /// Frames that were not handed on, by reason: `error` was answered with an error; TX `refused`
    /// by the port; RX `unfit` for anything that the guest takes, `unwanted` multicast that the
    /// guest did not name, `expired` while it had no slots for them, `long` for a guest that takes
    /// one slot a frame, or `lost` with predecessors that had them in their hands.
    pub drops: BTreeMap<String, u64>,
}

impl DirStatus {
    fn new(path: &str, stats: &DirStats, dropped: &str) -> Self {
        Self {
            path: path.into(),
            frames: stats.frames,
            bytes: stats.bytes,
            staged: stats.staging,
            persistent: stats.persistent,
            gref_mapped: stats.gref_mapping,
            data_ring: stats.data_ring,
            data_ring_full: stats.no_room,
            data_ring_most: stats.most_bytes,
            foreign: stats.foreign,
            guest_copy: stats.guest_copy,
            lent: stats.lent,
            batches: stats.batches,
            notifications: stats.notifications,
            grant_copies: stats.grant_ops.copies,
            grant_maps: stats.grant_ops.maps,
            grant_unmaps: stats.grant_ops.unmaps,
            gso_checksum_fixups: stats.gso_checksum_fixups,
            drops: [("error".into(), stats.errors), (dropped.into(), stats.dropped)].into(),
            ..Self::default()
        }
    }

    /// Direction `dir` of what its queue shares with the guest.
    fn with_memory(self, shared: &SharedMemory, dir: usize) -> Self {
        Self {
            chain: shared.chains[dir].iter().map(|path| (*path).into()).collect(),
            data_len: shared.buffers[dir].map(|buffers| buffers.data_len),
            buffers: shared.buffers[dir].map(|buffers| buffers.count),
            store: shared.kept[dir].map(Into::into),
            ..self
        }
    }

    /// Copies, maps and unmaps.
    pub fn grant_ops(&self) -> u64 {
        self.grant_copies + self.grant_maps + self.grant_unmaps
    }
}

impl From<VifReport> for VifStatus {
    fn from(report: VifReport) -> Self {
        let counted = report.queues.iter().zip(&report.shared);
        let queue = |((tx_path, tx, rx_path, rx), shared): (&(&str, DirStats, &str, DirStats), _)| {
            let (filtered, expired) = (rx.filtered, rx.expired);
            let (lost, long) = (rx.interrupted, rx.too_long);
            let tx = DirStatus { repeated: tx.interrupted, ..DirStatus::new(tx_path, tx, "refused") };
            let mut rx = DirStatus::new(rx_path, rx, "unfit");
            rx.drops.extend([
                ("unwanted".into(), filtered),
                ("lost".into(), lost),
                ("long".into(), long),
                ("expired".into(), expired),
            ]);
            let (tx, rx) = (tx.with_memory(shared, 0), rx.with_memory(shared, 1));
            QueueStatus { tx, rx, gref_table: shared.gref_table.map(Into::into) }
        };
        let stores = report.shared.iter().flat_map(|q| q.kept.iter().flatten());
        let (kept_pages, overflows) = stores
            .fold((0, 0), |(pages, times), store| (pages + store.pages as u64, times + store.overflows));
        let refused_pages: u64 = report.shared.iter().filter_map(|q| q.gref_table).map(|t| t.overflows).sum();
        let mut port_drops: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for drop in &report.port_drops {
            port_drops.entry(drop.dir.into()).or_default().insert(drop.reason.into(), drop.frames);
        }
        let refused =
            |(queue, dir, why): &(usize, &str, String)| short(&format!("queue {queue} {dir}: {why}"));
        Self {
            any: (&report.device).into(),
            link: report.link,
            stalls: report.stalls,
            rate: report.rate.map(|rate| rate.to_string()),
            credit_waits: report.credit_waits,
            refused_lists: report.refused.iter().map(refused).collect(),
            mapped_pages: report.mapped_pages as u64,
            kept_pages,
            overflows: overflows + refused_pages,
            queues: counted.map(queue).collect(),
            port_drops,
        }
    }
}

impl From<Counters> for ProcessStatus {
    fn from(c: Counters) -> Self {
        Self {
            grant_copies: c.grant_copies,
            grant_maps: c.grant_maps,
            grant_unmaps: c.grant_unmaps,
            syscalls: c.syscalls,
            notifications: c.notifications,
            missed_wakeups: 0,
        }
    }
}

/// A text that came from elsewhere, not without end and fit to be shown.
pub(super) fn short(text: &str) -> String {
    excerpt(text, TEXT_MAX)
}

/// Where the back of domain `domid` tells its status, among the sockets in `dir`.
pub fn socket_path(dir: &Path, domid: u16) -> PathBuf {
    path_of(dir, DAEMONS[0], domid)
}

/// Where the back of domain `domid` does that serves vbds alone.
pub fn blk_socket_path(dir: &Path, domid: u16) -> PathBuf {
    path_of(dir, DAEMONS[1], domid)
}

fn path_of(dir: &Path, daemon: &str, domid: u16) -> PathBuf {
    dir.join(format!("{daemon}-{domid}{SUFFIX}"))
}

/// Of a socket of this name: the kind of backend that reports its status there, and its domain;
/// None: it is none.
pub fn daemon_of(socket: &Path) -> Option<(&'static str, u16)> {
    let of = |daemon: &'static str| {
        let number =
            socket.file_name()?.to_str()?.strip_prefix(daemon)?.strip_prefix('-')?.strip_suffix(SUFFIX)?;
        let domid = number.parse::<u16>().ok().filter(|domid| domid.to_string() == number)?;
        Some((daemon, domid))
    };
    DAEMONS.into_iter().find_map(of)
}

/// The status sockets in `dir`, in the order of their names: what is a socket and [named
/// so](daemon_of), for the directory may be the user's own.
///
/// # Errors
/// The directory cannot be read.
pub fn sockets_in(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if daemon_of(&path).is_some() && entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
