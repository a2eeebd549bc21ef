//! The keys of all paths: their names, grouped by effect, and the directory of a queue's keys.
//! Requests that several paths share are in [`request_keys`](super::request_keys).

use crate::xenbus::ring_keys::queue_prefix;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Names of a path's keys. Keys of a queue are in the same directory as those of its rings.
#[derive(Clone, Copy, Debug)]
pub struct PathKeys {
    /// Keys of the back that offer the path. Linux's netback knows none of them, and neither
    /// overwrites nor removes them.
    pub offers: &'static [&'static str],
    /// Keys of the back that say what it accepted for the current connection.
    pub active: &'static [&'static str],
    /// The one of the active keys, in each queue's directory, that says in which directions frames
    /// go through memory that the front granted at set-up.
    pub directions: Option<&'static str>,
    /// Prefixes of the front's keys that are valid for one connection. A successor that does not
    /// know them could not keep what the predecessor promised.
    pub front: &'static [&'static str],
}

/// What a front requests of a path: for all queues together, and for each queue; or the keys'
/// error.
pub type Requests<A, Q, E> = Result<(A, Vec<Q>), E>;

/// Directory of a queue's keys, as a log line shows it.
#[derive(Clone, Copy, Debug)]
pub struct KeyPlace<'a> {
    /// Path of the front's directory.
    pub front: &'a str,
    /// Index of the queue.
    pub queue: usize,
    /// Number of queues of the vif.
    pub nr_queues: usize,
    /// Direction, "tx" or "rx".
    pub dir: &'a str,
}

impl KeyPlace<'_> {
    /// The whole path of a queue's key of this name.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{}{name}", self.front, queue_prefix(self.queue, self.nr_queues))
    }
}
