//! The keys of all paths: their names, by their effect, and the directory of a queue's keys.
//! Requests that several paths share are in [`request_keys`](super::request_keys).

use crate::xenbus::ring_keys::queue_prefix;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The names of a path's keys. Those of a queue stand where its rings' do.
#[derive(Clone, Copy, Debug)]
pub struct PathKeys {
    /// The back's, which offer the path. Linux's netback knows none of these: it neither writes
    /// over nor removes them.
    pub offers: &'static [&'static str],
    /// The back's, which say for one connection what it accepted.
    pub active: &'static [&'static str],
    /// Of these, that of each queue which says in which directions its frames go through memory
    /// that the front set up.
    pub directions: Option<&'static str>,
    /// How the names of the front's begin that hold for one connection: a successor that does not
    /// know them would not keep what they promise.
    pub front: &'static [&'static str],
}

/// A path's request to all queues, and to each; or the keys' error.
pub type Requests<A, Q, E> = Result<(A, Vec<Q>), E>;

/// Where a queue's keys stand, for a line of the log.
#[derive(Clone, Copy, Debug)]
pub struct KeyPlace<'a> {
    /// The front's directory.
    pub front: &'a str,
    /// Which queue.
    pub queue: usize,
    /// Of so many.
    pub nr_queues: usize,
    /// "tx" or "rx".
    pub dir: &'a str,
}

impl KeyPlace<'_> {
    /// The whole path of a queue's key of this name.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{}{name}", self.front, queue_prefix(self.queue, self.nr_queues))
    }
}
