//! What a queue has done, for whoever looks, from whatever thread.

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
