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

/// The format of the document; a reader refuses other formats.
pub const FORMAT: u32 = 1;

/// Longest text from elsewhere that is shown; then only the number of further characters is.
pub const TEXT_MAX: usize = 400;

/// Names of a domain's backends in the names of their sockets, before the domain's number: one
/// serves vifs, the other vbds.
const DAEMONS: [&str; 2] = ["back", "blkback"];
/// The end of the names of status sockets.
const SUFFIX: &str = ".status";

/// The status of one backend process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BackStatus {
    /// The version of this format, which is [`FORMAT`].
    pub format: u32,
    /// Domain id of the driver domain.
    pub domain: u16,
    /// The kind of backend: `back` serves vifs, `blkback` vbds. Empty if the backend's version is
    /// older than this field.
    #[serde(default)]
    pub daemon: String,
    /// Process id.
    pub pid: u32,
    /// The program's version; empty if the backend is older than this field.
    #[serde(default)]
    pub version: String,
    /// The commit that the program was built from; empty if it was not built in a git checkout.
    #[serde(default)]
    pub rev: String,
    /// Seconds since the process started.
    pub uptime_s: f64,
    /// Time at which this was read, by the clock that all processes of the machine share
    /// (CLOCK_MONOTONIC), ns.
    pub at_ns: u64,
    /// The name of the platform, and its methods of mapping and copying.
    pub platform: String,
    /// Counters of the whole process.
    pub process: ProcessStatus,
    /// For each worker thread, the number of queues that it serves. The list is empty if one thread
    /// serves both xenstore and the queues.
    #[serde(default)]
    pub workers: Vec<usize>,
    /// The figures of the kernel's module `pregrant_back`, which is described here like a process;
    /// null: it is a process. Of the module's vifs only what `pregrant top` shows of them is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<ModuleStatus>,
    /// The backend's vifs.
    pub vifs: Vec<VifStatus>,
    /// The backend's devices of other classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceStatus>,
}

/// Returns the value that is used for a backend older than the field.
fn yes() -> bool {
    true
}

/// The figures that devices of all classes have.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AnyDeviceStatus {
    /// Domain id of the guest.
    pub front: u16,
    /// The number that the guest's device has.
    pub handle: u32,
    /// The back's xenbus state, by name.
    pub state: String,
    /// True if the rings were taken over from a predecessor.
    pub reattached: bool,
    /// Seconds since the device's queues became live; null if they are not.
    pub connected_s: Option<f64>,
    /// Number of times the device was closed because of something that its guest did.
    pub faults: u64,
    /// Number of times the device's front was ignored for a while because it asked for too many
    /// steps, or its control ring was paused.
    #[serde(default)]
    pub throttled: u64,
    /// Number of log lines that were left out because the device caused too many.
    #[serde(default)]
    pub lines_left_out: u64,
    /// The reason why the device was last closed, even if it is connected again.
    pub last_failure: Option<String>,
    /// Number of the guest's pages that the device has mapped, or may have at any moment, apart
    /// from kept pages: rings, buffers, and pages that the guest asked to map.
    #[serde(default)]
    pub pages_needed: u64,
    /// Number of pages that the device may keep mapped, because it saw them or the guest may ask
    /// for it.
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

/// The status of a device that is not a vif.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The device's class, as xenstore paths name it.
    pub class: String,
    /// The status that devices of all classes have.
    #[serde(flatten)]
    pub any: AnyDeviceStatus,
    /// The reason why the backing is unavailable (the process that has it, or what is missing), if
    /// the device is not connected because of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// True if the backing was tried; false: it is unknown whether it is available.
    #[serde(default = "yes")]
    pub is_tried: bool,
    /// A text with the backing's kind and the way in which it is served.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// The values of the counters of the device's class, since the device connected.
    pub counters: BTreeMap<String, u64>,
    /// The values of the gauges of the device's class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, u64>,
    /// The device's requests by kind; those of a disk are `read`, `write`, `flush`, `discard`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operations: BTreeMap<String, OperationStatus>,
}

/// Counts of the device's requests of one kind, since it connected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OperationStatus {
    /// Number of requests that were done.
    pub requests: u64,
    /// Number of bytes that requests of this kind transferred; 0 if they carry no data.
    pub bytes: u64,
    /// Sum of the times from taking a request to answering it, including failed ones, ns.
    pub latency_sum_ns: u64,
    /// The numbers of requests by duration, shortest first.
    pub latency: Vec<LatencyBucket>,
}

/// Number of requests that took longer than the previous bucket's bound, and at most this bucket's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// The upper bound in nanoseconds; null: there is no bound.
    pub most_ns: Option<u64>,
    /// Number of requests.
    pub requests: u64,
}

/// Name of a disk's gauge: 1 if a flush has failed during its guest's connection.
pub const FLUSH_FAILED: &str = "flush_failed";
/// Name of a device's gauge: the age of its oldest unanswered request, ns; 0: there is none.
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
    /// Returns the age in seconds of the oldest request that is not answered. None: there is none,
    /// or the backend is older than this gauge.
    pub fn oldest_s(&self) -> Option<f64> {
        self.gauges.get(OLDEST_NS).filter(|ns| **ns > 0).map(|ns| *ns as f64 / 1e9)
    }

    /// True if the front announced that it closes, and still uses the device.
    pub fn closes_in_use(&self) -> bool {
        self.connected_s.is_some() && self.state == format!("{:?}", XenbusState::Closing)
    }

    /// Combines the figures that devices of all classes have with those of the device's class.
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

/// The figures of the kernel module that is a backend, since it was loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ModuleStatus {
    /// The module's parameters, by name.
    pub parameters: BTreeMap<String, String>,
    /// Number of guests' pages that it has mapped.
    pub mapped_pages: u64,
    /// Number of guests' pages that could not be unmapped, which are never used again.
    pub maps_lost: u64,
}

/// Counts of the process's requests to its platform.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Number of fragments that were copied by grant copy.
    pub grant_copies: u64,
    /// Number of pages that were mapped.
    pub grant_maps: u64,
    /// Number of pages that were unmapped.
    pub grant_unmaps: u64,
    /// Number of system calls for copying, mapping, notifying and waiting.
    pub syscalls: u64,
    /// Number of events that were sent.
    pub notifications: u64,
    /// Number of sleeps that the limit of a tenth of a second ended, and no event, although a guest
    /// had published work. It is 0 unless a peer fails to notify.
    #[serde(default)]
    pub missed_wakeups: u64,
}

/// The status of one vif.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct VifStatus {
    /// The status that devices of all classes have.
    #[serde(flatten)]
    pub any: AnyDeviceStatus,
    /// True if the guest receives frames.
    #[serde(default)]
    pub link: bool,
    /// Number of times the vif's link went down because the guest received no frames for too long,
    /// over all connections.
    #[serde(default)]
    pub stalls: u64,
    /// The toolstack's `rate` limit for what the guest sends, as text; null: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Number of times frames had to wait for the rate limit since the connect.
    #[serde(default)]
    pub credit_waits: u64,
    /// Number of the guest's pages that are mapped: those that the vif needs, and those that it
    /// keeps.
    #[serde(default)]
    pub mapped_pages: u64,
    /// Number of pages that are kept mapped after they were seen.
    #[serde(default)]
    pub kept_pages: u64,
    /// Number of times there was no room for a page among those kept mapped, or in the table of
    /// pages that the guest asked to map.
    #[serde(default)]
    pub overflows: u64,
    /// Staging lists, and halves of data rings, that were refused at the last connect.
    pub refused_lists: Vec<String>,
    /// The vif's queues, by number.
    pub queues: Vec<QueueStatus>,
    /// Numbers of frames that the port dropped, by direction and reason; ports do not distinguish
    /// queues.
    pub port_drops: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The status of one queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Counts of the frames that the guest sent.
    pub tx: DirStatus,
    /// Counts of the frames for the guest.
    pub rx: DirStatus,
    /// The table of pages that the guest asked to map, for both directions; null: there is none.
    #[serde(default)]
    pub gref_table: Option<StoreStatus>,
}

/// Counts of the pages that one direction of a queue keeps mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Number of pages that are kept mapped.
    pub pages: u64,
    /// Largest number of pages that were mapped at the same time.
    pub most: u64,
    /// Largest number of pages that may be kept mapped.
    pub limit: u64,
    /// Number of times there was no room for a page.
    pub overflows: u64,
}

impl From<MappedStats> for StoreStatus {
    fn from(figures: MappedStats) -> Self {
        let MappedStats { pages, most, limit, overflows } = figures;
        Self { pages: pages as u64, most: most as u64, limit: limit as u64, overflows }
    }
}

/// Counts of one direction of a queue, since the vif connected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DirStatus {
    /// The path that moves the bytes: the first of `chain`.
    pub path: String,
    /// All paths that are asked to move a frame, in this order.
    #[serde(default)]
    pub chain: Vec<String>,
    /// Largest number of bytes of a frame that fits a staging buffer; null: there are none.
    #[serde(default)]
    pub data_len: Option<u32>,
    /// Number of staging buffers; null: there are none.
    #[serde(default)]
    pub buffers: Option<u32>,
    /// Counts of the pages that stay mapped after they were seen; null: there are none.
    #[serde(default)]
    pub store: Option<StoreStatus>,
    /// Number of frames that were passed on.
    pub frames: u64,
    /// Number of bytes of the frames that were passed on.
    pub bytes: u64,
    /// Number of frames that used staging buffers only.
    pub staged: u64,
    /// Number of frames in pages that were mapped for an earlier frame.
    #[serde(default)]
    pub persistent: u64,
    /// Number of frames in pages that the guest asked to map.
    #[serde(default)]
    pub gref_mapped: u64,
    /// Number of frames that were moved by the data ring.
    #[serde(default)]
    pub data_ring: u64,
    /// RX: number of frames that found no room in the data ring.
    #[serde(default)]
    pub data_ring_full: u64,
    /// RX: the largest number of bytes of the data ring that were in use at a time.
    #[serde(default)]
    pub data_ring_most: u64,
    /// Number of frames in pages that the guest named by frame number, with all of its memory
    /// mapped.
    #[serde(default)]
    pub foreign: u64,
    /// RX: number of frames in pages of the backend, which the guest copies.
    #[serde(default)]
    pub guest_copy: u64,
    /// RX: number of frames that were copied once, directly from another guest's pages.
    #[serde(default)]
    pub lent: u64,
    /// Number of batches.
    pub batches: u64,
    /// Number of events that were sent to the guest.
    pub notifications: u64,
    /// Number of fragments that were copied by grant copy.
    pub grant_copies: u64,
    /// Number of pages that were mapped for this direction's frames.
    pub grant_maps: u64,
    /// Number of pages that were unmapped after this direction's frames.
    pub grant_unmaps: u64,
    /// TX: number of frames that may have reached the port twice, because predecessors ended while
    /// they had them in flight, since the guest connected.
    #[serde(default)]
    pub repeated: u64,
    /// TX: number of large segments whose checksum was not blank, and was made so (Linux:
    /// `rx_gso_checksum_fixup`).
    #[serde(default)]
    pub gso_checksum_fixups: u64,
    /// Number of frames that were not passed on, by reason. `error`: answered with an error. TX
    /// `refused`: by the port. RX `unfit`: the guest cannot receive such a frame; `unwanted`:
    /// multicast that the guest did not ask for; `expired`: the guest had no slots for too long;
    /// `long`: for a guest whose frames must fit one slot; `lost`: with predecessors that held them
    /// when they died.
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

    /// Adds the memory that the queue shares with the guest in direction `dir`.
    fn with_memory(self, shared: &SharedMemory, dir: usize) -> Self {
        Self {
            chain: shared.chains[dir].iter().map(|path| (*path).into()).collect(),
            data_len: shared.buffers[dir].map(|buffers| buffers.data_len),
            buffers: shared.buffers[dir].map(|buffers| buffers.count),
            store: shared.kept[dir].map(Into::into),
            ..self
        }
    }

    /// Returns the sum of copies, maps and unmaps.
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

/// Shortens a text of another process or domain, and makes it fit to be shown.
pub(super) fn short(text: &str) -> String {
    excerpt(text, TEXT_MAX)
}

/// Returns the path of the status socket of domain `domid`'s backend for vifs; `dir` has all
/// sockets.
pub fn socket_path(dir: &Path, domid: u16) -> PathBuf {
    path_of(dir, DAEMONS[0], domid)
}

/// Returns the path of the status socket of domain `domid`'s backend that serves only vbds.
pub fn blk_socket_path(dir: &Path, domid: u16) -> PathBuf {
    path_of(dir, DAEMONS[1], domid)
}

fn path_of(dir: &Path, daemon: &str, domid: u16) -> PathBuf {
    dir.join(format!("{daemon}-{domid}{SUFFIX}"))
}

/// Returns the kind and the domain of the backend to which a status socket of this name belongs;
/// None: it is not a status socket.
pub fn daemon_of(socket: &Path) -> Option<(&'static str, u16)> {
    let of = |daemon: &'static str| {
        let number =
            socket.file_name()?.to_str()?.strip_prefix(daemon)?.strip_prefix('-')?.strip_suffix(SUFFIX)?;
        let domid = number.parse::<u16>().ok().filter(|domid| domid.to_string() == number)?;
        Some((daemon, domid))
    };
    DAEMONS.into_iter().find_map(of)
}

/// Returns the status sockets in `dir`, in the order of their names. Only sockets with [such a
/// name](daemon_of) count, since the directory may be the user's own.
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
