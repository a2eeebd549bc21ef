//! One measurement as one line of JSON.
//!
//! The fields are a contract (docs/benchmarks.md, JSON): programs read them. All benches share
//! those of [`Record`]; [`Of`] has those of one bench. A field that a measurement has no value for
//! is 0, or null where 0 would be a claim, or missing.

/// Defines a part of the line: fields that are always present, then those that are omitted when
/// empty.
macro_rules! part {
    ($(#[$about:meta])* $name:ident { $($(#[$each:meta])* $field:ident: $of:ty,)* }
        { $($(#[$why:meta])* $more:ident: $what:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$each])* pub $field: $of,)*
            $($(#[$why])* #[serde(skip_serializing_if = "Option::is_none")] pub $more: Option<$what>,)*
        }
    };
}
use part;

mod by_bench;
pub mod published;
pub mod repeats;
pub mod stats;

pub use by_bench::{
    Between, Disk, Fairness, Limit, Neighbour, Net, Of, Pause, Peers, Restart, Scale, Took, WorkingSet,
};

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use pregrant_host::counters::Counters;
use pregrant_testbed::limit::remote;
use pregrant_testbed::process::report::{Latencies, Played, Spent};
use serde::{Deserialize, Serialize};

/// The name of the path in records of a disk whose backend died.
pub const DISK_RESTART: &str = "disk-restart";

part! {
    Record {
        /// Name of the benchmark: `net`, `blk`, `latency`, `limit`, `store` (whose operations count
        /// as frames, and connections as queues); `restart` and `disk-restart` are the demo's.
        bench: String,
        /// The path by which bytes moved, or the name of what else was measured.
        path: String,
        /// The direction: `tx` or `rx`, as the guest sees it; `read` or `write`.
        dir: String,
        /// Length of a frame in bytes.
        size_bytes: u64,
        /// The negotiated data length, if the path has one.
        data_len: Option<u64>,
        queues: u32,
        /// Largest number of frames in a burst.
        burst: u32,
        /// The number of requests in flight, if the bench sets it.
        depth: Option<u32>,
        repeat: u32,
        /// The number of seconds for which the row was measured.
        seconds: f64,
        /// Number of frames that arrived.
        frames: u64,
        frames_per_s: f64,
        /// Bits per second of the frames, with their headers and without the preamble.
        bits_per_s: f64,
        /// Number of sent frames minus received frames, by their numbers at the consumer.
        lost: u64,
        /// Number of grant copy operations.
        grant_copies: u64,
        /// Number of pages that were mapped.
        grant_maps: u64,
        /// Number of pages that were unmapped.
        grant_unmaps: u64,
        /// Number of system calls.
        syscalls: u64,
        /// Number of notifications that either end sent.
        notifications: u64,
        /// CPU time of the frontend, or of the sending thread.
        frontend_cpu_ns: u64,
        /// CPU time of the backend, or of the receiving thread.
        backend_cpu_ns: u64,
        /// The platform: `loopback`, `xen` or `local`; `host` for the machine itself; `socket` and
        /// `core` for the store.
        platform: String,
        /// The waiting mode: `poll`, `event` or `adaptive`.
        mode: String,
        /// The published figure that this row is compared with, in frames (or operations) per
        /// second.
        published: Option<f64>,
        /// The times that single frames or requests took, if they were measured.
        #[serde(flatten)]
        took: Option<Took>,
        #[serde(flatten)]
        of: Of,
    } {
        /// The number of frames that a sleeping guest waited for, if more than one.
        rx_coalesce: String,
        /// Number of the backend's worker threads; 0: its only thread served the queues.
        workers: u32,
        /// CPU time of each worker; `backend_cpu_ns` is that of the whole process.
        worker_cpu_ns: Vec<u64>,
        /// Sleeps of either end that ended by timeout although work was pending: each is a lost
        /// wake-up.
        missed_wakeups: u64,
        /// Number of frames that arrived twice, or after a later one.
        repeated: u64,
        /// Number of frames that arrived with a wrong byte: in the head, or anywhere in the first
        /// burst, which is not measured.
        damaged: u64,
        /// Number of frames of the untimed burst, every byte of which was checked.
        checked: u64,
        /// The share of the processors that other programs and the host used since the previous
        /// row, from 0 to 1.
        others: f64,
    }
}

impl Record {
    /// Creates a record with nothing counted yet, for one queue, poll mode and the loopback.
    pub fn new(bench: &str, path: &str, dir: &str, size_bytes: u64) -> Self {
        Self {
            bench: bench.into(),
            path: path.into(),
            dir: dir.into(),
            size_bytes,
            queues: 1,
            burst: 1,
            platform: "loopback".into(),
            mode: "poll".into(),
            ..Self::default()
        }
    }

    /// Describes what a record of `bench limit` measured.
    pub fn ceiling(&self) -> String {
        let stride = self.of.limit().and_then(|limit| limit.stride).unwrap_or(0);
        match &*self.path {
            "lines" => format!("lines, slots {stride} B apart"),
            "lines-copied" => format!("lines, {stride} B apart, copied in and out"),
            "pool" => {
                let limit = self.of.limit();
                let pool = limit.and_then(|limit| limit.pool).unwrap_or(0);
                match limit.and_then(|limit| limit.work) {
                    None => format!("frames, {pool} buffers {stride} B apart"),
                    Some(work) => format!("frames, {pool} buffers {stride} B apart, work {work}"),
                }
            }
            "memcpy" => "memcpy in cache".into(),
            "process-vm-readv" => format!("process_vm_readv, {} pieces a call", remote::PIECES),
            "eventfd-round-trip" => "eventfd there and back".into(),
            other => other.into(),
        }
    }

    /// Returns the fields of `bench net`, for its rows and for rows that are measured in the same
    /// way.
    pub fn net(&self) -> Option<&Net> {
        self.of.net().or_else(|| self.of.peers()?.ours.as_ref())
    }

    /// Returns the number of bytes that were copied by grant copies, if they were counted.
    pub fn grant_copy_bytes(&self) -> u64 {
        self.net().map_or(0, |net| net.grant_copy_bytes)
    }

    /// True for a row of `bench blk` with a greedy guest.
    pub fn is_beside_greedy(&self) -> bool {
        self.of.disk().is_some_and(|disk| disk.neighbour.is_some())
    }

    /// Returns the restart of a backend, if the record is about one.
    pub fn pause(&self) -> Option<&Pause> {
        Some(&self.of.restart()?.pause)
    }

    /// Returns the longest time of a frame or request.
    pub fn longest(&self) -> Option<u64> {
        self.took.as_ref()?.latency_most_ns
    }

    /// Returns the median time of frames or requests.
    pub fn p50(&self) -> Option<u64> {
        self.took.as_ref().map(|took| took.latency_p50_ns)
    }

    /// Returns the 99th percentile of the times of frames or requests.
    pub fn p99(&self) -> Option<u64> {
        self.took.as_ref().map(|took| took.latency_p99_ns)
    }

    /// Returns the number of grant operations.
    pub fn grant_ops(&self) -> u64 {
        self.grant_copies.saturating_add(self.grant_maps).saturating_add(self.grant_unmaps)
    }

    /// Sets the counts of the platform's operations.
    pub fn set_ops(&mut self, ops: Counters) {
        self.grant_copies = ops.grant_copies;
        self.grant_maps = ops.grant_maps;
        self.grant_unmaps = ops.grant_unmaps;
        self.syscalls = ops.syscalls;
        self.notifications = ops.notifications;
    }

    /// Sets the resources that both ends used.
    pub fn set_spent(&mut self, guest: &Spent, back: &Spent) {
        self.set_ops(guest.ops.plus(&back.ops));
        self.frontend_cpu_ns = guest.cpu_ns;
        self.backend_cpu_ns = back.cpu_ns;
        self.worker_cpu_ns = Some(back.workers_cpu_ns.clone());
    }

    /// Sets the results of both ends of a case, except for losses: the guest's frames, the errors,
    /// and the used resources. `workers` are the threads that the backend was given.
    pub fn set_ends(&mut self, guest: &Played, back: &Played, workers: usize) {
        self.count(guest.frames, guest.spent.seconds());
        self.set_spent(&guest.spent, &back.spent);
        self.repeated = Some(guest.came.wrong + back.came.wrong);
        self.damaged = Some(guest.came.damaged + back.came.damaged);
        self.missed_wakeups = Some(guest.spent.missed_wakeups + back.spent.missed_wakeups);
        self.workers = (workers > 0).then_some(workers as u32);
        self.worker_cpu_ns.take_if(|_| workers == 0);
    }

    /// Sets the times of frames or requests.
    pub fn set_latencies(&mut self, took: &Latencies) {
        self.took = Some(Took {
            latency_p50_ns: took.p50_ns,
            latency_p99_ns: took.p99_ns,
            latency_most_ns: None,
            latency_histogram: Some(took.histogram.clone()),
        });
    }

    /// Sets the number of frames and the time, and the rates that follow from them.
    pub fn count(&mut self, frames: u64, seconds: f64) {
        self.frames = frames;
        self.seconds = seconds;
        self.frames_per_s = if seconds > 0.0 { frames as f64 / seconds } else { 0.0 };
        self.bits_per_s = self.frames_per_s * self.size_bytes as f64 * 8.0;
    }
}

/// Writes JSON lines to a file, or to standard output for `-`, or to nowhere. Records are also kept
/// for a report.
pub struct RecordWriter {
    out: Option<Box<dyn Write>>,
    path: PathBuf,
    written: Vec<Record>,
}

impl RecordWriter {
    /// Opens `path` for the lines. None: no lines are written.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let out: Option<Box<dyn Write>> = match path {
            None => None,
            Some(p) if p.as_os_str() == "-" => Some(Box::new(io::stdout())),
            Some(p) => Some(Box::new(BufWriter::new(
                File::create(p).map_err(|e| named(p, "cannot write the JSON lines", e))?,
            ))),
        };
        Ok(Self { out, path: path.unwrap_or(Path::new("")).into(), written: Vec::new() })
    }

    /// Returns true if the lines go to standard output, where a table would disturb them.
    pub fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }

    /// Returns all records that were written so far.
    pub fn written(&self) -> &[Record] {
        &self.written
    }

    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.written.push(record.clone());
        let Some(out) = &mut self.out else { return Ok(()) };
        let mut line = serde_json::to_string(record)?;
        line.push('\n');
        // Whole lines, at once visible: a run that is interrupted leaves what it measured.
        out.write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| named(&self.path, "cannot write the JSON lines", e))
    }
}

fn named(path: &Path, what: &str, error: io::Error) -> io::Error {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "make its directory first",
        io::ErrorKind::StorageFull => "make room there",
        _ => "choose a file that you may write to",
    };
    io::Error::new(
        error.kind(),
        format!("{what} to {}: {error}; {remedy}, or use - for standard output", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that checks rely on, in the order in which docs/benchmarks.md gives them.
    const CONTRACT: &str = "bench path dir size_bytes data_len queues burst depth repeat seconds frames frames_per_s \
        bits_per_s lost grant_copies grant_maps grant_unmaps syscalls notifications frontend_cpu_ns backend_cpu_ns \
        platform mode published";

    #[test]
    fn a_line_has_the_promised_fields_in_order() {
        let mut record = Record::new("net", "staging", "tx", 1500);
        record.count(3000, 1.5);
        let line = serde_json::to_string(&record).unwrap();
        assert!(!line.contains('\n'));
        let mut at = 0;
        for name in CONTRACT.split_whitespace() {
            let key = format!("\"{name}\":");
            at += line[at..]
                .find(&key)
                .unwrap_or_else(|| panic!("{name} is missing or out of order in {line}"));
        }
        assert!(!line.contains("stride") && line.contains("\"published\":null"));
        assert_eq!((record.frames_per_s, record.bits_per_s), (2000.0, 24e6));
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }

    #[test]
    fn a_limit_line_adds_stride_and_copies() {
        let record = Record {
            of: Of::Limit(Limit { stride: Some(256), copies: 0, pool: None, work: None }),
            ..Record::new("limit", "lines", "tx", 64)
        };
        let line = serde_json::to_string(&record).unwrap();
        assert!(line.ends_with("\"stride\":256,\"copies\":0}"), "{line}");
    }

    #[test]
    fn no_time_is_no_rate() {
        let mut record = Record::new("net", "copy", "rx", 64);
        record.count(5, 0.0);
        assert_eq!((record.frames, record.frames_per_s), (5, 0.0));
    }

    #[test]
    fn a_path_that_cannot_be_written_is_named() {
        let error = RecordWriter::open(Some(Path::new("/nonexistent/out.jsonl"))).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/out.jsonl"), "{error}");
    }
}
