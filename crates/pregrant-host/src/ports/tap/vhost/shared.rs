//! A queue's rings, shared by the port that calls them and the queue whose zero-copy frames they
//! hold.
//!
//! ```text
//!   TapPort --lock--> Vhost <--lock-- Keeper: complete, once a round; give_up, before pages go
//! ```
//! Both are on one worker, one after another: the lock is contended only while a queue ends on
//! another thread, and no call under it waits for the kernel's worker.
//!
//! Invariants: descriptors name a zero-copy frame until its token was returned, or until
//! [`give_up`](Completions::give_up) returned, and never afterwards.

use super::Vhost;
use super::kernel::{Device, Worker};
use crate::ports::tap::tap_log::TapLines;
use pregrant::port::{Completions, Token};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The vhost-net rings of a queue, behind a lock.
#[derive(Debug)]
pub struct SharedVhost<D: Worker = Device> {
    vhost: Mutex<Vhost<D>>,
    readable: Arc<OwnedFd>,
    /// Frames that the tap refused between two calls of the port.
    refused: AtomicU64,
}

impl<D: Worker> SharedVhost<D> {
    /// Creates the rings.
    ///
    /// # Errors
    ///
    /// They are those of [`Vhost::new`].
    pub fn new(tap: Arc<OwnedFd>, lines: Arc<TapLines>) -> io::Result<Self> {
        let vhost = Vhost::new(tap, lines)?;
        let readable = Arc::clone(vhost.readable());
        Ok(Self { vhost: Mutex::new(vhost), readable, refused: AtomicU64::new(0) })
    }

    /// Locks the rings for one call.
    pub fn lock(&self) -> MutexGuard<'_, Vhost<D>> {
        self.vhost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of frames refused since the last call of this.
    pub fn refused(&self) -> usize {
        if self.refused.load(Ordering::Relaxed) == 0 {
            0
        } else {
            self.refused.swap(0, Ordering::Relaxed) as usize
        }
    }

    /// Returns a descriptor that is readable when there is work: frames arrived, or zero-copy
    /// frames were read.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl<D: Worker + Send> Completions for SharedVhost<D> {
    fn complete(&self, done: &mut Vec<Token>) {
        let refused = self.lock().complete(done);
        self.refused.fetch_add(refused as u64, Ordering::Relaxed);
    }
    fn give_up(&self) {
        let refused = self.lock().give_up();
        self.refused.fetch_add(refused as u64, Ordering::Relaxed);
    }
}
