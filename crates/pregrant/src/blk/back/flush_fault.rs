//! Records whether a flush of this connection has failed. The record lasts until the connection
//! ends.
//!
//! ```text
//!   queue 0: flush --> disk: error --> mark in the kept memory, and shared flag --> answer ERROR
//!   queue 1: flush --> disk: done  --> the shared flag is set                   --> answer ERROR
//!   a successor: the mark is in the kept memory                                 --> answer ERROR
//! ```
//! Each flush is answered so until the guest connects again.
//!
//! Linux reports a write that was accepted and could not be written back once per open file, and
//! then forgets it. So the next flush succeeds, on another queue or by another process, although
//! the guest's data is lost. Of two concurrent flushes of one open file Linux gives the error to
//! one; the image must make the other fail, too.
//!
//! Invariant: the mark is in the kept memory before the answer is on the ring. What a guest may do:
//! nothing; to have its flushes tried again it must reconnect.

use super::kept_image::KeptImage;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

/// One queue's handle of the record that a flush has failed.
pub struct FlushFault {
    failed: Arc<AtomicBool>,
    kept: Option<KeptImage>,
}

impl FlushFault {
    /// Creates the handle of a queue. The queues of its device share `failed`; `kept` is the memory
    /// of the device's record, if there is any.
    pub fn new(failed: Arc<AtomicBool>, kept: Option<KeptImage>) -> Self {
        Self { failed, kept }
    }

    /// Records that a flush has failed.
    pub fn note(&self) {
        self.failed.store(true, Ordering::Relaxed);
        if let Some(kept) = &self.kept {
            kept.set_flush_failed(true);
        }
    }

    /// Whether a flush has failed, on any queue.
    pub fn is_noted(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}
