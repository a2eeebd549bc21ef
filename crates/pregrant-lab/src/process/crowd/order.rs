//! What is said between a bench and the two processes of a crowd: many guests in one, their backend in the other.

use crate::process::order::{Latencies, Posts};
use pregrant::blk::path::PathName as DiskPath;
use pregrant::net::path::PathName;
use pregrant_host::counters::Counters;
use pregrant_host::drivers::Mode;
use serde::{Deserialize, Serialize};

/// One guest of a crowd, with one vif.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its domain, made by the toolstack already, as vif 0 is.
    pub domid: u16,
    /// Queues of its vif.
    pub queues: u32,
}

/// A member that sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Its place in the crowd.
    pub member: usize,
    /// Bytes of its frames.
    pub size: usize,
}

/// To the process with the guests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum GuestOrder {
    /// Attach to these domains and connect their vifs; they stay. Answer: [`CrowdReport::Done`].
    Gather {
        /// Who.
        members: Vec<Member>,
        /// Staging's data length; None: ordinary grants.
        data_len: Option<u32>,
        /// Pages are granted once, for a back that keeps them mapped.
        persistent: bool,
        /// They ask the back to keep their pages mapped.
        gref_mapping: bool,
        /// Pages of a data ring, as the exponent of 2.
        data_ring: Option<u32>,
        /// They let the backend map all of their memory.
        foreign: bool,
        /// They copy out of pages that the backend lends.
        guest_copy: bool,
    },
    /// Keep the rings of these full, each in its turn, until the next order. Answer: [`CrowdReport::Done`], once all are full.
    Send(Vec<Load>),
    /// Send no more, and wait until all is answered. Answer: [`CrowdReport::Sent`].
    Rest,
    /// The first member sends one frame at a time, which come back. Answer: [`CrowdReport::Echoed`].
    Echo {
        /// For so long.
        seconds: f64,
        /// How it waits.
        #[serde(with = "crate::process::order::by_name")]
        mode: Mode,
    },
}

/// To the process with the backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum BackOrder {
    /// Serve from now on; its first order. Answer: [`CrowdReport::Done`].
    Serve {
        /// By these workers.
        posts: Posts,
        /// How frames travel that no staging buffer has.
        #[serde(with = "crate::process::order::by_name")]
        path: PathName,
    },
    /// Serve the guests' disks from now on; its first order. Answer: [`CrowdReport::Done`].
    ServeDisks {
        /// By these workers.
        posts: Posts,
        /// How the bytes of a request travel.
        #[serde(with = "crate::process::order::by_name")]
        path: DiskPath,
    },
    /// Send frames back, or take them. Answer: [`CrowdReport::Done`].
    Echo(bool),
    /// Answer: [`CrowdReport::Described`].
    Describe,
    /// Answer: [`CrowdReport::Spent`].
    Spent,
    /// Answer: [`CrowdReport::Seen`].
    Seen,
}

/// From either.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum CrowdReport {
    /// What was ordered is done.
    Done,
    /// Frames that each member has sent so far.
    Sent {
        /// By member.
        frames: Vec<u64>,
        /// Sleeps of this end that ended by their bound with work pending.
        missed_wakeups: u64,
    },
    /// What became of single frames.
    Echoed(Box<Echoed>),
    /// How the platform does its work, in words.
    Described(String),
    /// What the backend has used so far.
    Spent(Spent),
    /// What came at the backend so far.
    Seen {
        /// What it has used, as of the same moment.
        spent: Spent,
        /// By member, as far as its vif was ever connected.
        came: Vec<Came>,
    },
}

/// What the backend has used since it began. Times are CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spent {
    /// As of when.
    pub at_ns: u64,
    /// CPU time of all threads.
    pub cpu_ns: u64,
    /// CPU time by worker.
    pub workers_cpu_ns: Vec<u64>,
    /// By guest's domain: what its device took of workers while others wanted them too.
    pub devices_ns: Vec<(u16, u64)>,
    /// Platform operations of all threads.
    pub ops: Counters,
    /// Sleeps that ended by their bound with work pending.
    pub missed_wakeups: u64,
}

/// Frames of one member that the backend's port took, all queues together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Came {
    /// Its domain.
    pub domid: u16,
    /// Frames, repeats included.
    pub frames: u64,
    /// One more than the highest number of each queue, in sum.
    pub next: u64,
    /// Numbers below that which did not come.
    pub missing: u64,
    /// Frames that came twice, or late.
    pub wrong: u64,
    /// Frames with a wrong byte in their head.
    pub damaged: u64,
}

/// Single frames, there and back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Echoed {
    /// That came back.
    pub frames: u64,
    /// In how long.
    pub seconds: f64,
    /// That did not come back.
    pub lost: u64,
    /// That came twice, or late.
    pub wrong: u64,
    /// With a wrong byte in their head.
    pub damaged: u64,
    /// From the guest to the port.
    pub request: Latencies,
    /// From the port to the guest.
    pub response: Latencies,
    /// Events that found the backend's worker asleep, and woke it.
    pub wakeups: u64,
    /// Platform operations of the guest.
    pub ops: Counters,
    /// CPU time of the guest.
    pub cpu_ns: u64,
    /// Sleeps of the guest that ended by their bound with work pending.
    pub missed_wakeups: u64,
}
