//! Transfers done by threads, which sleep in the kernel for them: where there is no io_uring, and
//! what it does not know or cannot do.
//!
//! ```text
//!   PoolQueue --submit--> transfers --thread--> Transfer::perform --over--> lane's done, notify --complete--> Done
//!                            ^                       |
//!                            '-------- again --------'      behind those that wait
//! ```
//! There are as many threads as can be had. Where there is none the image's own does them
//! ([`blocking_calls`](super::blocking_calls)), one after the other.
//!
//! Invariants: a transfer is with one thread at a time, which owns its memory; the threads hold the
//! open file until their last transfer is done, even without an owner. One that the kernel does
//! in many calls keeps no thread from the others.

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

/// Between two tries of the image's thread to begin a transfer.
const TURN: Duration = Duration::from_millis(1);

/// Transfers that came back for one queue.
struct Lane {
    done: Mutex<Vec<Done>>,
    wake: Arc<WakeFd>,
    /// Its queue is gone; written under the transfers' lock.
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
    /// The image's thread, where there is no other.
    one_by_one: Option<(BlockingCalls, Arc<Submitter>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads for one image. They end with it, each after the transfer that it has.
pub(super) struct Pool(Arc<Shared>);

impl Pool {
    /// `threads` of them, or as many as there can be; `image` is the thread of the image.
    ///
    /// # Errors
    /// There is no descriptor to be had.
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

    /// A way to the image, for one queue, which notifies `wake`.
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

    /// Does what one call does of a transfer, which may begin. True: there is more of it, behind
    /// those that wait.
    fn perform(&self, lane: Arc<Lane>, mut transfer: Transfer, submitter: &Submitter) -> bool {
        let ended = transfer.perform(&self.file);
        self.file.idle(submitter);
        match ended {
            Ended::Again => {
                let mut transfers = lock(&self.transfers);
                // A queue that is gone has started nothing more.
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

    /// There is a transfer more that waits.
    fn notify(self: &Arc<Self>) {
        let Some((image, _)) = &self.one_by_one else { return self.more.notify_one() };
        let shared = Arc::clone(self);
        image.later(move || {
            let Some((_, submitter)) = &shared.one_by_one else { return };
            // Others' transfers may be waited for by this thread, behind this one.
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

/// See [`Pool::queue`].
pub(super) struct PoolQueue {
    pool: Arc<Pool>,
    lane: Arc<Lane>,
    in_flight: usize,
    /// Transfers that came back and were not fetched.
    here: Vec<Done>,
}

impl PoolQueue {
    /// Has a transfer done.
    pub(super) fn take(&mut self, transfer: Transfer) {
        self.in_flight += 1;
        lock(&self.pool.0.transfers).waiting.push_back((Arc::clone(&self.lane), transfer));
        self.pool.0.notify();
    }

    /// Transfers that have not come back.
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
    /// Transfers that no thread has started are dropped. A thread that has a transfer keeps its
    /// memory and the open file until it is done.
    fn drop(&mut self) {
        let mut transfers = lock(&self.pool.0.transfers);
        self.lane.over.store(true, Ordering::Relaxed);
        transfers.waiting.retain(|(lane, _)| !Arc::ptr_eq(lane, &self.lane));
    }
}
