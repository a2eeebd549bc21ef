//! One measurement as one line of JSON.
//!
//! The fields are a contract (docs/benchmarks.md, JSON): programs read them. A field that a
//! measurement has no value for is 0, or null where 0 would be a claim; `stride` and `copies` are
//! there for `bench limit` only, the latencies for `bench latency`.

pub mod published;
pub mod repeats;
pub mod stats;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::limit::remote;
use crate::process::report::{Latencies, Played, Spent};
use pregrant_host::counters::Counters;
use serde::{Deserialize, Serialize};

/// The path of a disk whose backend died.
pub const DISK_RESTART: &str = "disk-restart";

/// The line: fields that each has, then those that are left out where they say nothing.
macro_rules! record {
    ($($(#[$about:meta])* pub $field:ident: $of:ty,)* sometimes: $($(#[$why:meta])* pub $more:ident: $what:ty,)*) => {
        /// One measurement.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct Record {
            $($(#[$about])* pub $field: $of,)*
            $($(#[$why])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $more: Option<$what>,)*
        }
    };
}

record! {
    /// Which benchmark: `net`, `blk`, `latency`, `limit`, `store` (operations are its frames,
    /// connections its queues); `restart` and `disk-restart` are the demo's.
    pub bench: String,
    /// The path of the bytes, or what else was measured.
    pub path: String,
    /// `tx` or `rx`, as the guest sees it; `read` or `write`.
    pub dir: String,
    /// Bytes of a frame.
    pub size_bytes: u64,
    /// The negotiated data length, where there is one.
    pub data_len: Option<u64>,
    /// Queues.
    pub queues: u32,
    /// Frames in a burst at most.
    pub burst: u32,
    /// Requests in flight, where that is set.
    pub depth: Option<u32>,
    /// Which repeat, from 0.
    pub repeat: u32,
    /// How long it was measured.
    pub seconds: f64,
    /// Frames that arrived.
    pub frames: u64,
    /// Of these, per second.
    pub frames_per_s: f64,
    /// Bits of frames per second, headers included, no preamble.
    pub bits_per_s: f64,
    /// Sent minus received, by sequence number at the consumer.
    pub lost: u64,
    /// Grant copy operations.
    pub grant_copies: u64,
    /// Pages mapped.
    pub grant_maps: u64,
    /// Pages unmapped.
    pub grant_unmaps: u64,
    /// System calls.
    pub syscalls: u64,
    /// Notifications sent by either end.
    pub notifications: u64,
    /// CPU time of the frontend, or of what gives.
    pub frontend_cpu_ns: u64,
    /// CPU time of the backend, or of what takes.
    pub backend_cpu_ns: u64,
    /// `loopback`, `xen`, `local`; `host` for the machine itself; `socket` and `core` for the
    /// store.
    pub platform: String,
    /// `poll`, `event` or `adaptive`.
    pub mode: String,
    /// The published figure that this row is shown beside, in frames (or operations) per second.
    pub published: Option<f64>,
    sometimes:
    /// Bytes that were moved by grant copies (`bench net` only).
    pub grant_copy_bytes: u64,
    /// Staging buffers of each direction, where there were more than slots (`bench net` only).
    pub staging_buffers: u32,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// How often each byte is copied.
    pub copies: u32,
    /// Whether the backend kept redo pages (`bench net` only).
    pub redo: bool,
    /// Whether the consumer had private copies of whole frames made (`bench net --look`).
    pub look: bool,
    /// The guest's action on frames that came, where it did not copy them (`bench net --rx
    /// reference`).
    pub rx: String,
    /// Bytes of a frame by reference that were copied at first, where those are not the usual 256
    /// (`bench net` only).
    pub rx_head: u32,
    /// How many frames a sleeping guest waited for, unless it was the next (`bench net` and `bench
    /// latency` only).
    pub rx_coalesce: String,
    /// In whose turn frames went from guest to guest (`bench between` only).
    pub rx_context: String,
    /// Which worker got a guest's queues (`bench fairness` only).
    pub place: String,
    /// Worker threads of the backend, where it had some; without, it served its queues in its one
    /// thread.
    pub workers: u32,
    /// CPU time of each of them; `backend_cpu_ns` has all of the process.
    pub worker_cpu_ns: Vec<u64>,
    /// Sleeps of either end that ended by their bound with work pending: each is a wake-up that was
    /// lost.
    pub missed_wakeups: u64,
    /// Frames that came twice, or after a later one.
    pub repeated: u64,
    /// Frames that came with a wrong byte: in the head, or anywhere in the untimed burst.
    pub damaged: u64,
    /// Frames of the untimed burst, with every byte checked (`bench net` only).
    pub checked: u64,
    /// The work of the guest beside the measured ones (`bench neighbour`, as the next two; `bench
    /// blk` where the last guest is greedy, as the next).
    pub neighbour: String,
    /// Frames a second that it sent.
    pub neighbour_frames_per_s: f64,
    /// Frames a second that the measured guest offers; missing: as many as are taken.
    pub offered_per_s: f64,
    /// The longest time between two bursts of the measured guest at the backend's port
    /// (`bench neighbour` only, as the next).
    pub longest_gap_ns: u64,
    /// 99 of 100 of these gaps were at most so long.
    pub gap_p99_ns: u64,
    /// Vifs that are connected, each another guest's (`bench scale` and `bench fairness` only, as
    /// the next).
    pub vifs: u32,
    /// Those of them that send.
    pub busy: u32,
    /// Guests, each with a disk (`bench blk` only, as the next).
    pub guests: u32,
    /// Bytes that each request begins at a multiple of.
    pub align: u32,
    /// What its disks are on: `ram` or `file`.
    pub medium: String,
    /// Its requests were in pages of its own (`bench blk --buffers own`).
    pub own_pages: bool,
    /// System calls of the backend for each time that an event woke it (`bench scale` only).
    pub syscalls_a_wakeup: f64,
    /// By guest, what its device took of workers that others wanted too; the greedy one is the last
    /// (`bench blk --greedy` only).
    pub guests_worker_ns: Vec<u64>,
    /// Frames a second of each guest that is not greedy (`bench fairness` only, as the next).
    pub guests_frames_per_s: Vec<f64>,
    /// Their standard deviation over their mean.
    pub spread: f64,
    /// Half of the frames took at most so long (`bench latency` and `bench blk` only).
    pub latency_p50_ns: u64,
    /// 99 of 100 frames took at most so long.
    pub latency_p99_ns: u64,
    /// The longest (`disk-restart` only, as the next).
    pub latency_most_ns: u64,
    /// Requests that were answered when the backend was killed.
    pub before: u64,
    /// All latencies: the bucket's upper bound in ns and how many frames fell into it, bounds
    /// rising.
    pub latency_histogram: Vec<(u64, u64)>,
    /// Pages of its own that the guest's frames were in (`bench working-set` only, as what
    /// follows).
    pub buffers: u32,
    /// Which of them was used next: `uniform` or `skewed`.
    pub reuse: String,
    /// Entries that the backend's table had for them.
    pub table: u32,
    /// Frames that were sent from where they were, out of all.
    pub hit_rate: f64,
    /// `caching` or `copying`, at the end.
    pub cache_mode: String,
    /// Pages that made way for others.
    pub evictions: u64,
    /// Lines a second through a bare ring on the same cores, just before and just after (`bench
    /// peers` only).
    pub ring_per_s: [f64; 2],
    /// A backend that died in the middle (`bench` is `restart`).
    pub pause: Pause,
}

/// A backend that was killed while frames moved, and the one that took its rings up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// From the kill to the start of the new process's attach: the old one's end, fork, exec.
    pub start_ns: u64,
    /// From the start of the new process's attach to the first frame at one of its ports: the
    /// pause.
    pub attach_ns: u64,
    /// From the kill to the first frame that a guest took from its ring after the new process began
    /// to attach.
    pub silence_ns: u64,
    /// The longest time in which one guest took no frame, from its last one before the kill, or
    /// later, to its next: TCP may be still for longer than the backend was.
    #[serde(default)]
    pub longest_gap_ns: u64,
    /// Bytes of the transfer that had arrived at the kill.
    pub bytes_before: u64,
    /// Frames that the ports saw twice (at most 64 for each kill, docs/protocol 1.1 R7).
    pub duplicated: u64,
    /// Frames that were in the switch, or taken from it and not published, and went with the old
    /// process.
    pub lost: u64,
    /// Width of a bucket of the timeline.
    pub bucket_ns: u64,
    /// The bucket that begins with the kill.
    pub kill_bucket: usize,
    /// Frames that both guests took from their rings in each bucket, from before the kill until
    /// some time after it.
    pub frames: Vec<u64>,
}

impl Record {
    /// A record of nothing yet: one queue, poll mode, loopback.
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

    /// The measurement of a record of `bench limit`, in words.
    pub fn ceiling(&self) -> String {
        let stride = self.stride.unwrap_or(0);
        match &*self.path {
            "lines" => format!("lines, slots {stride} B apart"),
            "lines-copied" => format!("lines, {stride} B apart, copied in and out"),
            "memcpy" => "memcpy in cache".into(),
            "process-vm-readv" => format!("process_vm_readv, {} pieces a call", remote::PIECES),
            "eventfd-round-trip" => "eventfd there and back".into(),
            other => other.into(),
        }
    }

    /// Grant operations.
    pub fn grant_ops(&self) -> u64 {
        self.grant_copies.saturating_add(self.grant_maps).saturating_add(self.grant_unmaps)
    }

    /// Sets what the platform counted.
    pub fn set_ops(&mut self, ops: Counters) {
        self.grant_copies = ops.grant_copies;
        self.grant_maps = ops.grant_maps;
        self.grant_unmaps = ops.grant_unmaps;
        self.syscalls = ops.syscalls;
        self.notifications = ops.notifications;
    }

    /// Sets what both ends used.
    pub fn set_spent(&mut self, guest: &Spent, back: &Spent) {
        self.set_ops(guest.ops.plus(&back.ops));
        self.frontend_cpu_ns = guest.cpu_ns;
        self.backend_cpu_ns = back.cpu_ns;
        self.worker_cpu_ns = Some(back.workers_cpu_ns.clone());
    }

    /// Sets what both ends of a case account for, but for losses: the guest's frames, what went
    /// wrong, what was used. `workers` are the threads that the backend was given.
    pub fn set_ends(&mut self, guest: &Played, back: &Played, workers: usize) {
        self.count(guest.frames, guest.spent.seconds());
        self.set_spent(&guest.spent, &back.spent);
        self.repeated = Some(guest.came.wrong + back.came.wrong);
        self.damaged = Some(guest.came.damaged + back.came.damaged);
        self.missed_wakeups = Some(guest.spent.missed_wakeups + back.spent.missed_wakeups);
        self.workers = (workers > 0).then_some(workers as u32);
        self.worker_cpu_ns.take_if(|_| workers == 0);
    }

    /// Sets how long frames, or requests, took.
    pub fn set_latencies(&mut self, took: &Latencies) {
        self.latency_p50_ns = Some(took.p50_ns);
        self.latency_p99_ns = Some(took.p99_ns);
        self.latency_histogram = Some(took.histogram.clone());
    }

    /// Sets frames and time, and the rates that follow from them.
    pub fn count(&mut self, frames: u64, seconds: f64) {
        self.frames = frames;
        self.seconds = seconds;
        self.frames_per_s = if seconds > 0.0 { frames as f64 / seconds } else { 0.0 };
        self.bits_per_s = self.frames_per_s * self.size_bytes as f64 * 8.0;
    }
}

/// Where JSON lines go: a file, standard output for `-`, or nowhere. Records are kept for a report.
pub struct RecordWriter {
    out: Option<Box<dyn Write>>,
    path: PathBuf,
    written: Vec<Record>,
}

impl RecordWriter {
    /// Opens `path` again; None writes nothing.
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

    /// Whether the lines go to standard output, where a table would be in their way.
    pub fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }

    /// All records up to now.
    pub fn written(&self) -> &[Record] {
        &self.written
    }

    /// Writes a line.
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
        let record = Record { stride: Some(256), copies: Some(0), ..Record::new("limit", "lines", "tx", 64) };
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
