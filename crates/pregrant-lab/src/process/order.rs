//! What is said between the testbed and its processes: one JSON object a line.

use super::crowd::order::{BackOrder, CrowdReport, GuestOrder};
use super::disks::order::{DisksReport, GuestOrder as DisksOrder};
use hdrhistogram::Histogram;
use pregrant::net::path::PathName;
use pregrant_host::counters::Counters;
use pregrant_host::drivers::{Mode, Placement};
use serde::{Deserialize, Serialize};

/// Which way the frames of a case go, as the guest sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dir {
    /// From the guest.
    Tx,
    /// To the guest.
    Rx,
    /// To the back and straight back: latency.
    Echo,
}

impl Dir {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
            Self::Echo => "echo",
        }
    }
}

/// What the guest does with frames that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RxWay {
    /// Copies them to private memory
    #[default]
    Copy,
    /// Copies their heads; the rest stays in the pages that the backend wrote to, until the guest has done with it
    Reference,
    /// Copies them, and again each one into memory of its own, allocated for it, where its headers are read
    #[value(skip)]
    Allocate,
    /// Copies them, and gives them to a TCP/IP stack, which drops them
    #[value(skip)]
    Stack,
    /// A hook drops them
    #[value(skip)]
    Hook,
    /// Copies them and sends them back
    #[value(skip)]
    Return,
    /// A hook sends them back, in the buffers that they came in
    #[value(skip)]
    SendOn,
}

impl RxWay {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Reference => "reference",
            Self::Allocate => "allocate",
            Self::Stack => "stack",
            Self::Hook => "hook",
            Self::Return => "return",
            Self::SendOn => "send-on",
        }
    }
}

/// Which of a guest's buffers its frames are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Each as often as the others
    Uniform,
    /// Nine of ten frames are in an eighth of them
    Skewed,
}

impl Reuse {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Skewed => "skewed",
        }
    }
}

/// The memory of a guest that its frames are sent from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Buffers {
    /// A page each.
    pub pages: usize,
    /// Which of them is used next.
    pub reuse: Reuse,
    /// What the guest writes there before each frame is sent.
    pub fill: Fill,
}

/// What a guest writes to a buffer of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fill {
    /// The whole frame, as a kernel that copies it from a program
    Whole,
    /// Its head, as a kernel that sends a file's pages from where they are
    Head,
}

/// What has a name, as that.
pub mod by_name {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use std::fmt::Display;
    use std::str::FromStr;

    /// Writes it.
    pub fn serialize<T: Display, S: Serializer>(named: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(named)
    }

    /// Reads it.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// One vif's life: connect, move numbered frames for so long, close.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The guest.
    pub front: u16,
    /// Its vif, made by the toolstack already.
    pub handle: u32,
    /// Direction.
    pub dir: Dir,
    /// Bytes of a frame.
    pub size: usize,
    /// Frames in a burst at most.
    pub burst: usize,
    /// How long frames are counted.
    pub seconds: f64,
    /// How both ends wait.
    #[serde(with = "by_name")]
    pub mode: Mode,
    /// How frames travel.
    #[serde(with = "by_name")]
    pub path: PathName,
    /// Staging's data length for both directions, when the path is `staging`.
    pub data_len: Option<u32>,
    /// What fetches frames that no other path has, or their rests.
    #[serde(with = "by_name")]
    pub rest: PathName,
    /// With `staging`: the heads of longer frames come from their buffers.
    pub heads: bool,
    /// Queues.
    pub queues: u32,
    /// Whether the back keeps redo pages, without which its rings do not survive it.
    pub redo: bool,
    /// TX: the sink has private copies of whole frames made for it, as a switch has; else it reads heads where they are.
    pub look: bool,
    /// RX: what the guest does with frames.
    pub rx: RxWay,
    /// TX: frames are in these, and sent from there; None: they are copied to the vif's.
    pub buffers: Option<Buffers>,
    /// Entries of the queue's table of references; None: as many as a backend has.
    pub gref_pages: Option<usize>,
    /// Frames a second that the guest offers (TX only); None: as many as are taken.
    pub rate: Option<f64>,
    /// The guest lets others have its processor for a moment whenever it finds nothing to do.
    pub gives_way: bool,
}

impl Case {
    /// Of one queue with frames of 64 bytes in bursts of 64, for no time, of no vif yet.
    pub fn of(dir: Dir, path: PathName) -> Self {
        Self {
            front: 0,
            handle: 0,
            dir,
            size: 64,
            burst: 64,
            seconds: 0.0,
            mode: Mode::Adaptive,
            path,
            data_len: None,
            rest: path,
            heads: false,
            queues: 1,
            redo: true,
            look: false,
            rx: RxWay::Copy,
            buffers: None,
            gref_pages: None,
            rate: None,
            gives_way: false,
        }
    }
}

/// What the guest beside the measured one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Nuisance {
    /// It is not there
    Absent,
    /// It uses up its processor, and has no vif
    Spinning,
    /// It is connected and does nothing
    Idle,
    /// Its ring index lies; closed, it connects again and lies again
    Broken,
    /// It sends events without end, with an empty ring
    Storming,
    /// It changes its xenstore state without end
    Flipping,
    /// It posts one RX slot and takes nothing, while frames for it wait
    Stalled,
    /// It sends frames of the measured guest's kind as fast as they are taken
    Greedy,
    /// It sends frames of 65535 bytes as fast as they are taken
    GreedyLong,
}

impl Nuisance {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Spinning => "spinning",
            Self::Idle => "idle",
            Self::Broken => "broken",
            Self::Storming => "storming",
            Self::Flipping => "flipping",
            Self::Stalled => "stalled",
            Self::Greedy => "greedy",
            Self::GreedyLong => "greedy-long",
        }
    }

    /// Whether it has a vif.
    pub fn has_vif(self) -> bool {
        !matches!(self, Self::Absent | Self::Spinning)
    }
}

/// The worker threads of a back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Posts {
    /// How many, where each has several vifs.
    pub workers: usize,
    /// Which of them gets a queue.
    #[serde(with = "by_name")]
    pub place: Placement,
    /// How they wait.
    #[serde(with = "by_name")]
    pub mode: Mode,
    /// Worker n stays on the nth of these cores, and so on from the first; none: anywhere.
    pub cores: Vec<usize>,
}

/// To a process. The end of its input means: stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Back: have queues served by threads, in all orders that follow. The first order, or none; without it they are served
    /// by the one thread that there is.
    Employ(Posts),
    /// Play your part of a case.
    Case(Case),
    /// Back: the same, while another guest has a vif too.
    Beside {
        /// The measured guest's.
        case: Case,
        /// What the other one does.
        nuisance: Nuisance,
    },
    /// Guest: be a nuisance with vif 0, from a report on, until killed.
    Annoy {
        /// How.
        nuisance: Nuisance,
        /// Bytes of its frames, where it sends some.
        size: usize,
    },
    /// Back: serve a learning switch until the given number of vifs have come and gone.
    Switch {
        /// Vifs to come and go.
        vifs: u64,
        /// Go on with a dead predecessor's count of frames; else begin a new one.
        succeed: bool,
    },
    /// Guest: connect vif 0 and take part in a TCP transfer over it.
    Transfer(Transfer),
    /// To many guests in one process.
    Crowd(GuestOrder),
    /// To their backend.
    CrowdBack(BackOrder),
    /// To many guests with disks in one process; their backend is a crowd's.
    Disks(DisksOrder),
}

/// A guest's part in a TCP transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// Own address, the last byte of 10.0.0.x.
    pub own: u8,
    /// The peer's; None: this is the server.
    pub to: Option<u8>,
    /// Bytes to send, or to expect.
    pub bytes: u64,
    /// Staging's data length; None: ordinary grants.
    pub data_len: Option<u32>,
    /// Bytes of a packet at most.
    pub mtu: usize,
    /// Server: say so when this many bytes are there.
    pub tell_at: Option<u64>,
    /// Report when frames arrived.
    pub arrivals: bool,
}

/// From a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// The worker threads are there.
    Employed,
    /// It cannot; why.
    Failed(String),
    /// What happened so far, in words, for the demo.
    Note(String),
    /// A case is over.
    Case(Box<Played>),
    /// This many bytes of a transfer are there.
    Reached(u64),
    /// The same, every now and then: for those who wait.
    Moved(u64),
    /// A transfer is over.
    Transfer(Box<Transferred>),
    /// The switch is over.
    Switch(Switched),
    /// Of a crowd, or of its backend.
    Crowd(CrowdReport),
    /// Of guests with disks.
    Disks(DisksReport),
}

/// A back's account of a switch. Times are CLOCK_MONOTONIC, which is the same in all processes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Switched {
    /// When this process began to attach to its domain.
    pub attach_at_ns: u64,
    /// When the first frame came to one of this process' ports, or left it.
    pub first_frame_at_ns: u64,
    /// What the ports counted, those of dead predecessors included.
    pub frames: SwitchFrames,
    /// Sleeps that ended by their bound with work pending.
    pub missed_wakeups: u64,
}

/// Frames at the ports of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchFrames {
    /// That guests sent, by number: once each.
    pub seen: u64,
    /// Of these so many came a second time.
    pub repeated: u64,
    /// Numbers that did not come, below one that did.
    pub missing: u64,
    /// That found the queue to their guest full.
    pub overflow: u64,
    /// That waited for a guest when its vif closed.
    pub left: u64,
}

/// One end's account of a case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Played {
    /// Frames in the time that is counted.
    pub frames: u64,
    /// That time.
    pub seconds: f64,
    /// All frames sent by this end.
    pub sent: u64,
    /// All frames that this end saw: one more than the highest number.
    pub next: u64,
    /// Numbers below that which did not come.
    pub missing: u64,
    /// Frames that came twice, or late.
    pub wrong: u64,
    /// Frames with a wrong byte: of the untimed burst any, else one in the head.
    pub damaged: u64,
    /// Frames of the untimed burst: every byte of them was looked at.
    pub checked: u64,
    /// How far apart bursts of the case came to the back's port, while they were counted (beside a neighbour only).
    pub gaps: Option<Latencies>,
    /// Platform operations in the time that is counted.
    pub counters: Counters,
    /// Sleeps of this end that ended by their bound with work pending: a wake-up was lost.
    pub missed_wakeups: u64,
    /// CPU time of this end in the time that is counted.
    pub cpu_ns: u64,
    /// Back: of each worker's thread.
    pub workers: Vec<WorkerCpu>,
    /// The path that was run in the case's direction.
    pub path: String,
    /// The platform in words.
    pub platform: String,
    /// Latencies of requests and of responses.
    pub latency: Option<[Latencies; 2]>,
    /// Back: frames that other guests sent in the time that is counted.
    pub others: u64,
    /// Guest: what became of frames in its own buffers.
    pub cache: Option<CachePlayed>,
}

/// Frames in a guest's own buffers, in the time that is counted.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CachePlayed {
    /// Sent from where they were.
    pub hits: u64,
    /// Copied.
    pub copied: u64,
    /// Pages that came, and that made way.
    pub adds: u64,
    /// The second.
    pub evictions: u64,
    /// At the end nothing made way any more.
    pub copying: bool,
    /// Pages that the back took at most.
    pub capacity: usize,
}

/// CPU time of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkerCpu {
    /// Its number.
    pub worker: usize,
    /// CPU time of its thread.
    pub ns: u64,
}

/// How long single frames took one way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Half of them took at most so long.
    pub p50_ns: u64,
    /// 99 of 100 took at most so long.
    pub p99_ns: u64,
    /// The longest.
    pub most_ns: u64,
    /// All of them: a bucket's upper bound in ns, and how many fell into it; bounds rise.
    pub histogram: Vec<(u64, u64)>,
}

/// Buckets of a histogram that a factor of two in time is cut into.
const BUCKETS_PER_OCTAVE: f64 = 32.0;

impl Latencies {
    /// Percentiles, and the histogram in coarse buckets, those without a frame left out.
    pub fn of(times: &Histogram<u64>) -> Self {
        let mut histogram: Vec<(u64, u64)> = Vec::new();
        for value in times.iter_recorded() {
            let (ns, count) = (value.value_iterated_to().max(1), value.count_since_last_iteration());
            let bucket = ((ns as f64).log2() * BUCKETS_PER_OCTAVE).ceil();
            let bound = (bucket / BUCKETS_PER_OCTAVE).exp2().ceil() as u64;
            match histogram.last_mut() {
                Some((last, frames)) if *last == bound => *frames += count,
                _ => histogram.push((bound, count)),
            }
        }
        let [p50_ns, p99_ns] = [0.5, 0.99].map(|part| times.value_at_quantile(part));
        Self { p50_ns, p99_ns, most_ns: times.max(), histogram }
    }

    /// Of several in coarse buckets, together: percentiles are bounds of these, 2 % apart.
    pub fn of_buckets(histogram: Vec<(u64, u64)>) -> Self {
        let all: u64 = histogram.iter().map(|(_, n)| n).sum();
        let at = |part: f64| {
            let (mut below, wanted) = (0, (all as f64 * part).ceil() as u64);
            let bucket = histogram.iter().find(|(_, n)| {
                below += n;
                below >= wanted
            });
            bucket.map_or(0, |(bound, _)| *bound)
        };
        let most_ns = histogram.last().map_or(0, |(bound, _)| *bound);
        Self { p50_ns: at(0.5), p99_ns: at(0.99), most_ns, histogram }
    }
}

/// A guest's account of a transfer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Transferred {
    /// Bytes.
    pub bytes: u64,
    /// Checksum over all of them.
    pub sum: u64,
    /// From the first byte to the last.
    pub seconds: f64,
    /// Frames sent and received by the vif.
    pub frames: [u64; 2],
    /// Of these through staging buffers.
    pub staged: [u64; 2],
    /// Frames that the guest's stack had no room for.
    pub overflow: u64,
    /// Its frames, and the other guest's, by their numbers.
    pub numbers: Numbered,
    /// Sleeps that ended by their bound with work pending.
    pub missed_wakeups: u64,
    /// Events sent.
    pub notifications: u64,
    /// When frames arrived, if that was asked for.
    pub arrivals: Vec<Arrival>,
}

/// Numbered frames at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Numbered {
    /// Frames that it sent.
    pub sent: u64,
    /// Of the other's: one more than the highest number that came.
    pub next: u64,
    /// Numbers below that which did not come.
    pub missing: u64,
    /// Frames that came a second time, or after a later one.
    pub again: u64,
}

/// Frames that a guest took from its ring at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Arrival {
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// How many.
    pub frames: u32,
    /// Bytes of the transfer that were there by then; 0 at the sender.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_in_coarse_buckets_keeps_every_frame() {
        let mut all = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3).unwrap();
        let times = [1, 256, 257, 300, 1000, 1000, 26_000, 5_000_000];
        times.iter().for_each(|t| all.saturating_record(*t));
        let coarse = Latencies::of(&all).histogram;
        assert_eq!(coarse.iter().map(|(_, n)| n).sum::<u64>(), times.len() as u64);
        assert!(coarse.is_sorted_by(|a, b| a.0 < b.0), "{coarse:?}");
        for bound in coarse.windows(2).map(|w| w[1].0) {
            assert!(
                times.iter().any(|t| *t <= bound && (*t as f64) > bound as f64 / 1.1),
                "{bound} in {coarse:?}"
            );
        }
        assert!(coarse.contains(&(256, 1)) && coarse.iter().all(|(_, n)| *n > 0), "{coarse:?}");
        let again = Latencies::of_buckets(coarse.clone());
        assert_eq!(
            (again.p50_ns, again.p99_ns),
            (coarse[3].0, coarse.last().unwrap().0),
            "of 8 the 4th and the last"
        );
    }
}
