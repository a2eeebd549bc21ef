//! Whether a flush of this connection has failed, which is not forgotten before the connection
//! ends.
//!
//! ```text
//!   queue 0: flush --> disk: error --> kept (image's memory), shared --> answer ERROR
//!   queue 1: flush --> disk: done  --> shared says so                --> answer ERROR, until the guest connects again
//!   a successor: kept says so                                        --> the same
//! ```
//! Linux tells of a write that was answered and could not be written back once for each open file,
//! and then forgets it. The next flush succeeds, on another queue or by another process, although
//! what the guest wrote is gone. Of two flushes at a time on one open file Linux gives the error to
//! one; that the other fails too is for the image to see to.
//!
//! Invariant: the mark is in the kept memory before the answer is on the ring. What a guest may do:
//! nothing; it connects again to have its flushes tried again.

use super::kept_image::KeptImage;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

/// A queue's part of it.
pub struct FlushFault {
    failed: Arc<AtomicBool>,
    kept: Option<KeptImage>,
}

impl FlushFault {
    /// For a queue of a device that shares `failed`; `kept` is the memory of the device's record.
    pub fn new(failed: Arc<AtomicBool>, kept: Option<KeptImage>) -> Self {
        Self { failed, kept }
    }

    /// A flush has failed.
    pub fn note(&self) {
        self.failed.store(true, Ordering::Relaxed);
        if let Some(kept) = &self.kept {
            kept.set_flush_failed(true);
        }
    }

    /// Whether one has, on any queue.
    pub fn is_noted(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}
