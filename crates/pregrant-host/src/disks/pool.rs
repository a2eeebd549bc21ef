//! Transfers done by threads, which block in the kernel: for kernels without io_uring, and for
//! requests that io_uring does not support or failed to do.
//!
//! ```text
//!   PoolQueue --submit--> transfers --thread--> Transfer::perform --over--> lane's done, notify --complete--> Done
//!                            ^                       |
//!                            '-------- again --------'      behind those that wait
//! ```
//! The pool has as many threads as can be created. If there are none, the image's own thread
//! ([`blocking_calls`](super::blocking_calls)) does the transfers one by one.
//!
//! Invariants: a transfer is with one thread at a time, which owns its memory. The threads keep the
//! open file until their last transfer is done, also when its owner is gone. A transfer that takes
//! many calls goes back to the queue after each, so that others get their turn.

use super::PATIENCE;
use super::blocking_calls::BlockingCalls;
use super::direct::Submitter;
use super::open_file::OpenFile;
use super::transfer::{Ended, Pieces, Transfer};
use super::wake_fd::WakeFd;
use pregrant::blk::disk::{Disk, Done, Io, IoError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the image's thread tries again to begin a transfer.
const TURN: Duration = Duration::from_millis(1);

/// The completed transfers of one queue.
struct Lane {
    done: Mutex<Vec<Done>>,
    wake: Arc<WakeFd>,
    /// True once the queue was dropped; written under the lock of the transfers.
    over: AtomicBool,
}

#[derive(Default)]
struct TransferQueue {
    waiting: VecDeque<(Arc<Lane>, Transfer)>,
    over: bool,
}

struct Shared {
    transfers: Mutex<TransferQueue>,
    more: Condvar,
    file: Arc<OpenFile>,
    /// The image's thread, which does the transfers if the pool has no thread of its own.
    one_by_one: Option<(BlockingCalls, Arc<Submitter>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of one image. Each ends with the pool, after its current transfer.
pub(super) struct Pool(Arc<Shared>);

impl Pool {
    /// Starts up to `threads` threads; `image` is the image's own thread.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(super) fn new(
        file: Arc<OpenFile>,
        threads: usize,
        image: &BlockingCalls,
    ) -> std::io::Result<Arc<Self>> {
        let submitter = || WakeFd::new().map(|wake| file.submitter(Arc::new(wake)));
        let shared = |one_by_one| {
            let (transfers, more, file) = (Mutex::default(), Condvar::new(), Arc::clone(&file));
            Arc::new(Shared { transfers, more, file, one_by_one })
        };
        let pool = Self(shared(None));
        for number in 0..threads {
            let submitter_here = match submitter() {
                Ok(submitter) => submitter,
                Err(e) if number > 0 => {
                    file.lacks_threads(number, threads, &e.into());
                    break;
                }
                Err(e) => return Err(e.into()),
            };
            let shared_here = Arc::clone(&pool.0);
            let started = std::thread::Builder::new()
                .name(format!("disk {number}"))
                .spawn(move || shared_here.serve(&submitter_here));
            let Err(e) = started else { continue };
            file.lacks_threads(number, threads, &e);
            if number == 0 {
                return Ok(Arc::new(Self(shared(Some((image.clone(), submitter()?))))));
            }
            break;
        }
        Ok(Arc::new(pool))
    }

    /// Creates a queue, which notifies `wake`.
    pub(super) fn queue(self: &Arc<Self>, wake: Arc<WakeFd>) -> PoolQueue {
        let lane = Arc::new(Lane { done: Mutex::default(), wake, over: AtomicBool::new(false) });
        PoolQueue { pool: Arc::clone(self), lane, in_flight: 0, here: Vec::new() }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.0.transfers).over = true;
        self.0.more.notify_all();
    }
}

impl Shared {
    fn serve(&self, submitter: &Submitter) {
        loop {
            let mut transfers = lock(&self.transfers);
            let (lane, transfer) = loop {
                match transfers.waiting.pop_front() {
                    Some(next) => break next,
                    None if transfers.over => return,
                    None => transfers = self.more.wait(transfers).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(transfers);
            self.file.wait_to_begin(submitter);
            self.perform(lane, transfer, submitter);
        }
    }

    /// Makes one system call for a transfer that may begin. Returns true if a part of the transfer
    /// is left, which was queued behind those that wait.
    fn perform(&self, lane: Arc<Lane>, mut transfer: Transfer, submitter: &Submitter) -> bool {
        let ended = transfer.perform(&self.file);
        self.file.idle(submitter);
        match ended {
            Ended::Again => {
                let mut transfers = lock(&self.transfers);
                // If its queue is gone, nothing more of the transfer is started.
                let goes_on = !lane.over.load(Ordering::Relaxed);
                if goes_on {
                    transfers.waiting.push_back((lane, transfer));
                }
                goes_on
            }
            Ended::Over(outcome) => {
                lock(&lane.done).push(transfer.into_done(outcome).0);
                lane.wake.notify();
                false
            }
        }
    }

    /// Wakes a thread for a new transfer.
    fn notify(self: &Arc<Self>) {
        let Some((image, _)) = &self.one_by_one else { return self.more.notify_one() };
        let shared = Arc::clone(self);
        image.later(move || {
            let Some((_, submitter)) = &shared.one_by_one else { return };
            // Others may wait for this thread, behind this transfer.
            if !shared.file.may_begin(submitter) {
                std::thread::sleep(TURN);
                return shared.notify();
            }
            let next = lock(&shared.transfers).waiting.pop_front();
            let Some((lane, transfer)) = next else {
                // Its queue is gone.
                return shared.file.idle(submitter);
            };
            if shared.perform(lane, transfer, submitter) {
                shared.notify();
            }
        });
    }
}

/// A queue of the pool, from [`Pool::queue`].
pub(super) struct PoolQueue {
    pool: Arc<Pool>,
    lane: Arc<Lane>,
    in_flight: usize,
    /// Completed transfers that the queue's owner has not fetched.
    here: Vec<Done>,
}

impl PoolQueue {
    /// Adds a transfer to the queue.
    pub(super) fn take(&mut self, transfer: Transfer) {
        self.in_flight += 1;
        lock(&self.pool.0.transfers).waiting.push_back((Arc::clone(&self.lane), transfer));
        self.pool.0.notify();
    }

    /// Returns the number of transfers that have not completed.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn collect(&mut self) {
        let came = std::mem::take(&mut *lock(&self.lane.done));
        self.in_flight -= came.len();
        self.here.extend(came);
    }
}

impl Disk for PoolQueue {
    fn submit(&mut self, io: Io) {
        if self.pool.0.file.is_replaced() {
            return self.here.push(Done { io, outcome: Err(IoError::Failed) });
        }
        let transfer = Transfer::new(io, &self.pool.0.file, Pieces::default());
        self.take(transfer);
    }

    fn complete(&mut self, done: &mut Vec<Done>) {
        if self.in_flight > 0 {
            self.collect();
        }
        done.append(&mut self.here);
    }

    fn wait(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            self.lane.wake.clear();
            self.collect();
            if !self.here.is_empty() || self.in_flight == 0 {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            self.lane.wake.wait(until);
        }
    }
}

impl Drop for PoolQueue {
    /// Drops transfers that no thread has started. A thread keeps the memory of its transfer, and
    /// the open file, until it is done.
    fn drop(&mut self) {
        let mut transfers = lock(&self.pool.0.transfers);
        self.lane.over.store(true, Ordering::Relaxed);
        transfers.waiting.retain(|(lane, _)| !Arc::ptr_eq(lane, &self.lane));
    }
}
