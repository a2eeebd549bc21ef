//! Counters of a queue, for readers on any thread.

use super::request::Kind;
use crate::latency::Latency;
use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters, which only the queue's owner writes.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(super) $name: AtomicU64,)*
        }

        /// A snapshot of the counters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Reads all counters, each with `Relaxed` ordering.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Reads that were answered with their data.
    reads,
    /// Writes that succeeded, including those of barriers.
    writes,
    /// Flushes that succeeded, including those of barriers.
    flushes,
    /// Discards that succeeded.
    discards,
    /// Bytes of the reads that succeeded.
    bytes_read,
    /// Bytes of the writes that succeeded.
    bytes_written,
    /// Requests refused because they are invalid.
    refused,
    /// Requests of a kind that this disk does not support.
    unsupported,
    /// Requests that failed on the disk, or because a page could not be accessed.
    failed,
    /// Requests that a predecessor had taken, and that were executed again.
    redone,
    /// Requests answered.
    answers,
}

/// Adds to a counter, which has only one writer.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// Latencies of requests by kind, from when they were taken to their answer, including those that
/// failed on the disk. Only the queue's owner writes them, with the clock of its batches.
#[derive(Debug, Default)]
pub struct Latencies {
    /// Latencies of reads.
    pub reads: Latency,
    /// Latencies of writes, including those of barriers.
    pub writes: Latency,
    /// Latencies of flushes without data.
    pub flushes: Latency,
    /// Latencies of discards.
    pub discards: Latency,
}

impl Latencies {
    /// The histogram for requests of this kind, with or without data.
    pub(super) fn of(&self, kind: Kind, has_data: bool) -> &Latency {
        match kind {
            Kind::Read => &self.reads,
            Kind::Discard { .. } => &self.discards,
            Kind::FlushWrite | Kind::Barrier if !has_data => &self.flushes,
            Kind::Flush => &self.flushes,
            Kind::Write | Kind::FlushWrite | Kind::Barrier => &self.writes,
        }
    }
}
