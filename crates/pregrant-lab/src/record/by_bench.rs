//! The fields of a record that not all benches have: the fields of one bench, and times.

use serde::{Deserialize, Serialize};

/// Defines a struct with these fields for each kind of bench, and an enum of them.
macro_rules! kinds {
    ($(#[$about:meta])* $all:ident; $($(#[$of:meta])* $way:ident: $kind:ident { $($always:tt)* } { $($sometimes:tt)* })*) => {
        $(super::part! { $(#[$of])* $kind { $($always)* } { $($sometimes)* } })*

        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(untagged)]
        pub enum $all {
            $($(#[$of])* $kind($kind),)*
            /// The record has no fields besides those that all kinds have.
            Nothing {},
        }

        impl $all {
            $($(#[$of])* pub fn $way(&self) -> Option<&$kind> {
                if let Self::$kind(of) = self { Some(of) } else { None }
            })*
        }
    };
}

kinds! {
    /// The fields of one bench. A line that is read belongs to the first bench of which it has all
    /// fields.
    Of;
    /// Fields of `bench blk`, of the disks of `bench peers`, and of a disk whose backend died.
    disk: Disk {
        /// Number of guests, each of which has a disk.
        guests: u32,
    } {
        /// Bytes that each request begins at a multiple of.
        align: u32,
        /// The medium of the disks: `ram` or `file`.
        medium: String,
        /// True if requests used the guest's own pages (`--buffers own`).
        own_pages: bool,
        /// The work of the last guest, if that guest is greedy.
        neighbour: String,
        neighbour_frames_per_s: f64,
        /// For each guest, the worker time that its device used while others wanted it too; the
        /// greedy guest is last (`--greedy` only).
        guests_worker_ns: Vec<u64>,
        /// Requests that were answered when the backend was killed (`disk-restart` only).
        before: u64,
        /// Lines per second through a bare ring on the same cores, just before and just after
        /// (`bench peers` only).
        ring_per_s: [f64; 2],
    }
    /// Fields of `bench peers`.
    peers: Peers {
        /// Lines per second through a bare ring on the same cores, just before and just after.
        ring_per_s: [f64; 2],
        /// The fields of `bench net`, if the row is one of ours.
        #[serde(flatten)]
        ours: Option<Net>,
    } {}
    /// Fields of `bench net`, and of other benches with such rows.
    net: Net {
        /// Number of bytes that were copied by grant copies.
        grant_copy_bytes: u64,
        /// True if the backend kept redo pages.
        redo: bool,
        /// The guest's use of its own buffers (`bench working-set` only).
        #[serde(flatten)]
        set: Option<WorkingSet>,
    } {
        /// Staging buffers of each direction, where there were more than slots.
        staging_buffers: u32,
        /// True if the consumer had private copies of whole frames made (`--look`).
        look: bool,
        /// The guest's action on received frames, if it did not copy them (`--rx reference`).
        rx: String,
        /// Number of bytes of a frame by reference that were copied at first, if not the usual 256.
        rx_head: u32,
        /// Staging's data length of the other direction, if it differs; 0: no buffers
        /// (`--rx-only`).
        other_data_len: u32,
        /// `map` copied frames up to this length, if not the usual 128.
        copy_below: u32,
    }
    /// Fields of `bench limit`.
    limit: Limit {
        /// Distance in bytes between two slots.
        #[serde(skip_serializing_if = "Option::is_none")]
        stride: Option<u64>,
        /// Number of times each byte is copied.
        copies: u32,
    } {
        /// Number of buffers, if they are not the ring's slots.
        pool: u32,
        /// Multiplications per frame at each end besides its copies, if there were any.
        work: u32,
    }
    /// Fields of `bench neighbour`.
    neighbour: Neighbour {
        /// What the guest next to the measured one did.
        neighbour: String,
        /// Frames per second that the neighbour sent.
        neighbour_frames_per_s: f64,
        /// The longest time between two bursts of the measured guest at the backend's port.
        longest_gap_ns: u64,
        /// The 99th percentile of these gaps in ns.
        gap_p99_ns: u64,
    } {
        /// Frames per second that the measured guest offers; missing: as many as the ring accepts.
        offered_per_s: f64,
    }
    /// Fields of `bench fairness`.
    fairness: Fairness {
        /// The rule by which a guest's queues got their workers.
        place: String,
        /// Number of connected vifs, each of which belongs to another guest.
        vifs: u32,
        /// Number of guests that send.
        busy: u32,
        /// The way in which the last guest is greedy.
        neighbour: String,
        /// Frames per second of each guest that is not greedy.
        guests_frames_per_s: Vec<f64>,
        /// Standard deviation of the rates divided by their mean.
        spread: f64,
    } {
        /// Frames per second of the greedy guest.
        neighbour_frames_per_s: f64,
    }
    /// Fields of `bench scale`.
    scale: Scale {
        /// Number of connected vifs, each of which belongs to another guest.
        vifs: u32,
        /// Number of guests that send.
        busy: u32,
    } {
        /// System calls of the backend for each time that an event woke it.
        syscalls_a_wakeup: f64,
        /// Bytes of the backend process's own memory, with all guests connected.
        own_bytes: u64,
        /// Number of bytes of guests' memory that the backend has mapped.
        mapped_bytes: u64,
    }
    /// Fields of `bench between`.
    between: Between {
        /// The worker in whose turn frames went from guest to guest.
        rx_context: String,
    } {}
    /// Fields of the restart of a backend of vifs.
    restart: Restart {
        pause: Pause,
    } {}
}

impl Default for Of {
    fn default() -> Self {
        Self::Nothing {}
    }
}

super::part! {
    WorkingSet {
        /// Number of the guest's own pages that its frames were sent from.
        buffers: u32,
        /// The order in which the buffers were used: `uniform`, `skewed` or `circular`.
        reuse: String,
        /// Number of entries in the backend's table for the buffers.
        table: u32,
        /// Share of frames that were sent without a copy.
        hit_rate: f64,
        /// The state of the cache at the end: `caching` or `copying`.
        cache_mode: String,
        /// Number of pages that were removed to make room for others.
        evictions: u64,
    } {}
}

super::part! {
    /// The times that single frames or requests took.
    Took {
        /// The median in ns.
        latency_p50_ns: u64,
        /// The 99th percentile in ns.
        latency_p99_ns: u64,
    } {
        latency_most_ns: u64,
        /// The histogram: upper bound of each bucket in ns, rising, and number of frames in it.
        latency_histogram: Vec<(u64, u64)>,
    }
}

/// The restart of a backend that was killed while frames moved; another took over its rings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// Time from the kill to the start of the new process's attach. It covers the end of the old
    /// process, the fork, and the exec.
    pub start_ns: u64,
    /// Time from the start of the new process's attach to the first frame at one of its ports. This
    /// is the pause.
    pub attach_ns: u64,
    /// Time from the kill to the first frame that a guest received after the new process began to
    /// attach.
    pub silence_ns: u64,
    /// The longest time in which one guest received no frame, starting at or after its last frame
    /// before the kill. TCP may be silent for longer than the backend was gone.
    #[serde(default)]
    pub longest_gap_ns: u64,
    /// Bytes of the transfer that had arrived at the kill.
    pub bytes_before: u64,
    /// Number of frames that the ports saw twice (at most 64 for each kill, docs/protocol 1.1 R7).
    pub duplicated: u64,
    /// Number of frames that were lost with the old process, because they were in the switch, or
    /// taken from it and not published.
    pub lost: u64,
    /// Width of a bucket of the timeline.
    pub bucket_ns: u64,
    /// The index of the bucket that begins with the kill.
    pub kill_bucket: usize,
    /// Number of frames that both guests received in each bucket, from before the kill until some
    /// time after it.
    pub frames: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn a_line_of_any_bench_is_read_as_it_was_written() {
        let net = Net { redo: true, rx: Some("hook".into()), ..Net::default() };
        let set = Some(WorkingSet { hit_rate: 0.5, ..WorkingSet::default() });
        let pause = Pause { frames: vec![1, 0], ..Pause::default() };
        let all = [
            Of::Peers(Peers { ring_per_s: [1.0, 2.5], ours: None }),
            Of::Peers(Peers { ring_per_s: [1.0, 2.5], ours: Some(net.clone()) }),
            Of::Net(Net { set, ..net.clone() }),
            Of::Net(net),
            Of::Limit(Limit { stride: None, copies: 1, pool: None, work: None }),
            Of::Neighbour(Neighbour { offered_per_s: Some(7.0), ..Neighbour::default() }),
            Of::Fairness(Fairness { guests_frames_per_s: vec![1.0, 2.0], ..Fairness::default() }),
            Of::Scale(Scale { vifs: 8, ..Scale::default() }),
            Of::Between(Between { rx_context: "same".into() }),
            Of::Disk(Disk { guests: 2, guests_worker_ns: Some(vec![3, 4]), ..Disk::default() }),
            Of::Restart(Restart { pause }),
            Of::default(),
        ];
        for of in all {
            for took in [None, Some(Took { latency_p50_ns: 5, ..Took::default() })] {
                let (of, workers) = (of.clone(), Some(2));
                let record = Record { of, took, workers, ..Record::new("any", "copy", "tx", 64) };
                let line = serde_json::to_string(&record).unwrap();
                assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record, "{line}");
            }
        }
    }
}
