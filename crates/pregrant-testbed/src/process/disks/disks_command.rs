//! Messages between a bench and the process with the guests of its disks.

use crate::named;
use crate::process::report::{Latencies, Spent};
use serde::{Deserialize, Serialize};

/// The number of each guest's disk in Xen's numbering, in which it is xvda.
pub const HANDLE: u32 = 51712;

/// Largest number of requests that a greedy guest has in flight: as many as the backend may execute
/// for it, and more.
pub const GREEDY_DEPTH: usize = 32;

named! {
    /// The operations that a load consists of.
    pub enum Dir {
        /// Reads
        Read = "read",
        /// Writes
        Write = "write",
        /// As many reads as writes
        Mixed = "mixed",
    }
}

/// The sizes for which each guest's front is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskSetup {
    /// True if the same granted pages are used again and again.
    pub persistent: bool,
    pub queues: u32,
    /// Largest number of requests in flight, over all queues.
    pub depth: u32,
    /// Largest number of pages of the requests in flight, all together.
    pub pages: usize,
    /// Number of bytes of the longest request.
    pub size: usize,
    pub buffers: Buffers,
}

named! {
    /// Whose pages a request uses.
    pub enum Buffers {
        /// The front's: it copies
        Pool = "pool",
        /// The guest's own, granted for each request: nothing is copied
        Own = "own",
    }
}

/// The load that each guest makes until it is asked to rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    pub dir: Dir,
    /// Length of a request in bytes.
    pub size: usize,
    /// The length of the last guest's requests in bytes, if that guest is greedy.
    pub greedy: Option<usize>,
    /// Requests begin at multiples of this number of bytes.
    pub align: usize,
    /// Number of requests in flight.
    pub depth: usize,
    /// True: the guest sleeps while all requests are in flight; false: it keeps polling for
    /// answers.
    pub sleeps: bool,
    /// True if the guest yields its processor whenever it finds nothing to do.
    pub gives_way: bool,
    /// The guest yields its processor after each batch, even if there is more to do, so that other
    /// guests' rings do not become empty.
    pub takes_turns: bool,
    /// True if the guest checks only few of its reads and handles each request in a batch of its
    /// own, so that it costs the other guests next to no time.
    pub careless: bool,
}

impl Load {
    /// Creates a load in which each guest sleeps when its requests are in flight, and none is
    /// greedy.
    pub fn of(dir: Dir, size: usize, align: usize, depth: usize) -> Self {
        let (sleeps, gives_way, takes_turns, careless) = (true, false, false, false);
        Self { dir, size, greedy: None, align, depth, sleeps, gives_way, takes_turns, careless }
    }

    /// Returns the load of guest `i` of `n`.
    pub fn of_guest(self, i: usize, n: usize) -> Self {
        match self.greedy {
            Some(size) if i + 1 == n => {
                Self { size, depth: self.depth.min(GREEDY_DEPTH), careless: true, ..self }
            }
            _ => self,
        }
    }
}

/// A command to the process with the guests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DisksCommand {
    /// Attach to these domains, connect their disks and write all of them once; they stay. Answer:
    /// `Done`.
    Gather {
        fronts: Vec<u16>,
        /// The sizes that each front must be made for.
        setup: DiskSetup,
    },
    /// Make all guests keep requests in flight from now on until they must stop. Answer: `Done`.
    Begin(Load),
    /// Report the counts. Answer: `DisksSeen`. Latencies are recorded from the first of these
    /// commands on.
    Check,
    /// Send no more requests, and wait until all are answered. Answer: `Rested`.
    Rest,
    /// Read all disks, and check every byte. Answer: `Rested`, whose `checked` counts sectors.
    Verify,
}

/// The counts of the guests' answered requests, since the process started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DisksSeen {
    /// For each guest, the number of its requests.
    pub requests: Vec<u64>,
    /// Resources that all guests used.
    pub spent: Spent,
}

/// The results of the requests of one load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rested {
    /// Number of failed requests.
    pub failed: u64,
    /// Number of reads with a wrong byte.
    pub damaged: u64,
    /// Number of reads whose every byte was checked.
    pub checked: u64,
    /// Number of sleeps that ended by timeout although an answer was there.
    pub missed_wakeups: u64,
    /// Times from writing a request to the ring until its answer was received.
    pub latency: Latencies,
}
