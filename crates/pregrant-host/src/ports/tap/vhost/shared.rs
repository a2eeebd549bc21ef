//! A queue's rings, for the port that calls them and for the queue whose frames it keeps.
//!
//! ```text
//!   TapPort --lock--> Vhost <--lock-- Keeper: complete, once a round; give_up, before pages go
//! ```
//! Both are one worker's, one after another: the lock is waited for only where a queue ends
//! elsewhere, and no call waits for the kernel's worker.
//!
//! Invariants: a frame that is kept is named by a descriptor until its token was completed, or
//! until [`give_up`](Completions::give_up) returned, and by none afterwards.

use super::Vhost;
use super::kernel::{Device, Worker};
use crate::ports::tap::tap_log::TapLines;
use pregrant::port::{Completions, Token};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub struct SharedVhost<D: Worker = Device> {
    vhost: Mutex<Vhost<D>>,
    readable: Arc<OwnedFd>,
    /// Frames that the tap refused while no one called the port.
    refused: AtomicU64,
}

impl<D: Worker> SharedVhost<D> {
    /// # Errors
    /// As for [`Vhost::new`].
    pub fn new(tap: Arc<OwnedFd>, lines: Arc<TapLines>) -> io::Result<Self> {
        let vhost = Vhost::new(tap, lines)?;
        let readable = Arc::clone(vhost.readable());
        Ok(Self { vhost: Mutex::new(vhost), readable, refused: AtomicU64::new(0) })
    }

    /// For one call.
    pub fn lock(&self) -> MutexGuard<'_, Vhost<D>> {
        self.vhost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frames that were refused since this was asked last.
    pub fn refused(&self) -> usize {
        if self.refused.load(Ordering::Relaxed) == 0 {
            0
        } else {
            self.refused.swap(0, Ordering::Relaxed) as usize
        }
    }

    /// Readable when there is something to do: frames came, or kept ones were read.
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
