//! Answers of a testbed's processes to [commands](super::process_command). Each answer is one JSON
//! object on a line.

use super::disks::disks_command::{DisksSeen, Rested};
use hdrhistogram::Histogram;
use pregrant_host::counters::Counters;
use pregrant_host::ports::checking_sink::SinkReport;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// The command was executed.
    Done,
    Failed(String),
    /// The latest events as text, for the demo to display.
    Note(String),
    /// A case has ended, or the single frames of a crowd's first guest have.
    Case(Box<Played>),
    /// This many bytes of a transfer have arrived.
    Reached(u64),
    /// Progress, reported now and then to be displayed.
    Moved(u64),
    Transfer(Box<Transferred>),
    Switch(Switched),
    /// Number of frames that all guests have sent so far.
    Sent {
        frames: Vec<u64>,
        /// Sleeps of this end that ended by timeout although work was pending.
        missed_wakeups: u64,
    },
    /// A text that says how the platform copies and maps.
    Described(String),
    /// The resources that a crowd's backend has used up to now.
    Spent(Spent),
    /// The frames that have arrived so far.
    Seen {
        /// The resources that the process has used until the same moment.
        spent: Spent,
        /// Frames received by each guest whose vif was ever connected.
        came: Vec<Came>,
    },
    /// Numbers of answers that guests with disks got so far.
    DisksSeen(DisksSeen),
    /// All requests of the guests are answered; these are their results.
    Rested(Box<Rested>),
}

/// The resources that one end has used since it started. Times are CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spent {
    pub at_ns: u64,
    /// CPU time of this end.
    pub cpu_ns: u64,
    /// Back: the CPU time of each worker.
    pub workers_cpu_ns: Vec<u64>,
    /// Back with many guests: for each guest's domain the worker time that its device used while
    /// others wanted it too.
    pub devices_ns: Vec<(u16, u64)>,
    /// Counts of this end's platform operations.
    pub ops: Counters,
    /// Number of sleeps that ended by timeout although work was pending, because a wake-up was
    /// lost.
    pub missed_wakeups: u64,
}

impl Spent {
    /// Returns the resources that were used since an earlier moment.
    pub fn since(&self, before: &Self) -> Self {
        let workers =
            self.workers_cpu_ns.iter().zip(&before.workers_cpu_ns).map(|(a, b)| a.saturating_sub(*b));
        // The same devices: they stay.
        let devices = self.devices_ns.iter().zip(&before.devices_ns).map(|(a, b)| (a.0, a.1 - b.1));
        Self {
            at_ns: self.at_ns - before.at_ns,
            cpu_ns: self.cpu_ns - before.cpu_ns,
            workers_cpu_ns: workers.collect(),
            devices_ns: devices.collect(),
            ops: self.ops.since(&before.ops),
            missed_wakeups: self.missed_wakeups - before.missed_wakeups,
        }
    }

    /// Returns the duration in seconds, for resources used in some time.
    pub fn seconds(&self) -> f64 {
        self.at_ns as f64 / 1e9
    }
}

/// Counts of the frames that one end received, on all queues together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Came {
    /// Number of frames, including repeated ones.
    pub frames: u64,
    /// The highest number received on a queue, plus 1; summed over the queues.
    pub next: u64,
    /// Number of frames with lower numbers that did not arrive.
    pub missing: u64,
    /// Number of frames that arrived twice, or late.
    pub wrong: u64,
    /// Number of frames with a wrong byte: anywhere in the first burst, and in the head of later
    /// frames.
    pub damaged: u64,
    /// Number of frames that other programs sent.
    pub foreign: u64,
}

impl Came {
    /// Adds up the counts of the sinks of all queues.
    pub fn of(sinks: impl IntoIterator<Item = SinkReport>) -> Self {
        sinks.into_iter().fold(Self::default(), |sum, r| Self {
            frames: sum.frames + r.frames,
            next: sum.next + r.next,
            missing: sum.missing + r.lost,
            wrong: sum.wrong + r.duplicated + r.reordered,
            damaged: sum.damaged + r.damaged,
            foreign: sum.foreign + r.foreign,
        })
    }

    /// Returns how many of the `sent` frames did not arrive.
    pub fn lost_of(&self, sent: u64) -> u64 {
        self.missing + sent.saturating_sub(self.next)
    }
}

/// The times and counts of a back with a switch. Times are CLOCK_MONOTONIC, which is the same in
/// all processes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Switched {
    /// Time at which this process began to attach to its domain.
    pub attach_at_ns: u64,
    /// Time at which the first frame reached or left one of this process's ports.
    pub first_frame_at_ns: u64,
    /// Counts of the ports' frames, including those of dead predecessors.
    pub frames: SwitchFrames,
    /// Sleeps that ended by timeout although work was pending.
    pub missed_wakeups: u64,
    /// CPU time of the process while it served.
    pub cpu_ns: u64,
}

/// Counts of the frames at the ports of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchFrames {
    /// Number of different frames that guests sent, by frame number.
    pub seen: u64,
    /// Number of frames that arrived a second time.
    pub repeated: u64,
    /// Number of frames that did not arrive, although one with a higher number did.
    pub missing: u64,
    /// Number of frames that found the queue to their guest full.
    pub overflow: u64,
    /// Number of frames that waited for a guest when its vif closed.
    pub left: u64,
}

/// The results of a case at one end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Played {
    /// Number of frames in the measured time.
    pub frames: u64,
    /// The measured time and the resources used in it; lost wake-ups are those of the whole case.
    pub spent: Spent,
    /// Number of all frames that this end sent.
    pub sent: u64,
    /// Counts of all frames that this end received.
    pub came: Came,
    /// Number of frames of the unmeasured first burst, every byte of which was checked.
    pub checked: u64,
    /// The times between bursts at the back's port during the measured time (with a neighbour
    /// only).
    pub gaps: Option<Latencies>,
    /// The path that was run in the case's direction.
    pub path: String,
    pub platform: String,
    /// The latencies of requests, and those of responses.
    pub latency: Option<[Latencies; 2]>,
    /// Back: frames that other guests sent in the measured time.
    pub others: u64,
    /// Guest: the results for frames in its own buffers.
    pub cache: Option<CachePlayed>,
}

/// The results for frames in a guest's own buffers, in the measured time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CachePlayed {
    /// Number of frames that were sent without a copy.
    pub hits: u64,
    pub copied: u64,
    /// Number of pages that were removed to make room for others.
    pub evictions: u64,
    /// True if no frame was zero-copy any more at the end.
    pub copying: bool,
    /// Largest number of pages that the back accepted.
    pub capacity: usize,
}

/// The latencies of single frames in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// The median in ns.
    pub p50_ns: u64,
    /// The 99th percentile in ns.
    pub p99_ns: u64,
    pub most_ns: u64,
    /// The histogram: upper bound of each bucket in ns, rising, and number of frames in it.
    pub histogram: Vec<(u64, u64)>,
}

/// Number of buckets of a histogram for each factor of two in time.
const BUCKETS_PER_OCTAVE: f64 = 32.0;

impl Latencies {
    /// Computes the percentiles, and the histogram in coarse buckets without empty ones.
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

    /// Computes the percentiles from the sum of several histograms in coarse buckets. They are
    /// bounds of buckets, which are 2 % apart.
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

    /// Sets the exact maximum, since the upper bound of a histogram's bucket may be higher.
    pub fn with_most(self, most_ns: u64) -> Self {
        let [p50_ns, p99_ns] = [self.p50_ns, self.p99_ns].map(|ns| ns.min(most_ns));
        Self { p50_ns, p99_ns, most_ns, ..self }
    }
}

/// The results of a transfer at one of its guests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Transferred {
    /// Number of bytes.
    pub bytes: u64,
    /// Checksum of all bytes.
    pub sum: u64,
    /// Time from the first byte to the last, in seconds.
    pub seconds: f64,
    /// Number of frames that the vif sent, and number that it received.
    pub frames: [u64; 2],
    /// Number of frames that used staging buffers: sent ones, and received ones.
    pub staged: [u64; 2],
    /// Frames that the guest's stack had no room for.
    pub overflow: u64,
    /// The counts of numbered frames that this guest sent and received.
    pub numbers: Numbered,
    /// Sleeps that ended by timeout although work was pending.
    pub missed_wakeups: u64,
    /// Number of events that were sent.
    pub notifications: u64,
    /// The arrivals of frames, if the command asked for them.
    pub arrivals: Vec<Arrival>,
}

/// The counts of numbered frames at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Numbered {
    /// Number of frames that this guest sent.
    pub sent: u64,
    /// The highest number received from the other guest, plus 1.
    pub next: u64,
    /// Number of frames that did not arrive, although one with a higher number did.
    pub missing: u64,
    /// Number of frames that arrived a second time, or after a later one.
    pub again: u64,
}

/// Frames that a guest received from its ring in one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Arrival {
    /// Time of the arrival, by CLOCK_MONOTONIC.
    pub at_ns: u64,
    pub frames: u32,
    /// Number of bytes of the transfer that had arrived by then; 0 at the sender.
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
        let known = again.with_most(all.max());
        assert!(known.p99_ns == all.max() && known.p99_ns < coarse.last().unwrap().0, "{known:?}");
    }
}
