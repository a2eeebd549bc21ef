//! The means by which other threads wake a worker, for one of its queues or for a message.
//!
//! The rings themselves, and why none is lost: [`Doorbell`]. Here is the descriptor that ends a
//! sleep.

use pregrant::doorbell::Doorbell;
use pregrant::port::QueueWaker;
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// Number of words of a doorbell, which suffice for 1024 queues with a bit each.
const WORDS: usize = 16;

/// Wakes a worker from other threads, and tells it which of its queues have work.
#[derive(Debug)]
pub struct Waker {
    /// The number of the worker that is woken.
    pub number: usize,
    /// Rung by a thread that has work for one of the worker's queues.
    pub doorbell: Doorbell,
    /// The descriptor that ends the worker's sleep. None: only the worker's own thread has work for
    /// it, so that nothing wakes it.
    wake: Option<OwnedFd>,
}

impl Waker {
    /// Creates the waker of a worker that serves only queues and ports of its own thread.
    pub fn inline() -> Arc<Self> {
        Arc::new(Self { number: 0, doorbell: Doorbell::new(WORDS), wake: None })
    }

    /// Creates the waker of worker `number`, which also sleeps on [`wakes`](Self::wakes).
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn of_thread(number: usize) -> io::Result<Arc<Self>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { number, doorbell: Doorbell::new(WORDS), wake: Some(wake) }))
    }

    /// Wakes the worker, if it sleeps, to fetch messages.
    pub fn wake(&self) {
        if self.doorbell.call() {
            self.rouse();
        }
    }

    fn rouse(&self) {
        if let Some(wake) = &self.wake {
            // Full: it is readable, which is what is wanted.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Called when the worker has slept; `rung` is true if the worker's descriptor woke it.
    pub fn awake(&self, rung: bool) {
        self.doorbell.awake();
        if let (Some(wake), true) = (&self.wake, rung) {
            let _ = rustix::io::read(wake, &mut [0; 8]); // it is read once in any case
        }
    }

    /// Returns the descriptor that ends the worker's sleep, if other threads wake the worker.
    pub fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }
}

/// Wakes the worker for the queue in one slot.
#[derive(Debug)]
pub struct QueueDoorbell {
    /// The worker that serves the queue.
    pub waker: Arc<Waker>,
    /// The index of the queue among the worker's queues.
    pub slot: usize,
}

impl QueueWaker for QueueDoorbell {
    fn ring(&self) {
        if self.waker.doorbell.ring(self.slot) {
            self.waker.rouse();
        }
    }
}
