//! Counters of a queue, for readers on any thread.

use super::request::Kind;
use crate::latency::Latency;
use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Written by the queue's owner alone.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(super) $name: AtomicU64,)*
        }

        /// The same, at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Reads that were answered with their data.
    reads,
    /// Writes that were answered as done, those of a barrier too.
    writes,
    /// Flushes that were answered as done, those of a barrier too.
    flushes,
    /// Discards that were answered as done.
    discards,
    /// Bytes of those reads.
    bytes_read,
    /// Bytes of those writes.
    bytes_written,
    /// Requests whose own words forbid them.
    refused,
    /// Requests of a kind that this disk has not.
    unsupported,
    /// Requests that failed at the disk, or for a page that was not to be had.
    failed,
    /// Requests that a predecessor had taken, and this one did again.
    redone,
    /// Answers.
    answers,
}

/// Adds; there is one writer.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// How long requests of each kind took, from when they were taken to when they were answered, those
/// that failed at the disk among them. Written by the queue's owner alone, with the clock of its
/// batches.
#[derive(Debug, Default)]
pub struct Latencies {
    /// Reads.
    pub reads: Latency,
    /// Writes, those of a barrier too.
    pub writes: Latency,
    /// Flushes that wrote nothing.
    pub flushes: Latency,
    /// Discards.
    pub discards: Latency,
}

impl Latencies {
    /// Of requests of this kind, with data or without.
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
