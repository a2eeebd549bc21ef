//! Transfers done by io_uring: they run in the kernel while the worker does other work, and the
//! kernel signals their completion.
//!
//! ```text
//!   submit --> slot (a Transfer) --start--> submission ring --one call--> kernel --> completion ring --complete--> Done
//!                 ^                                                                   | and the descriptor
//!                 '------------------- again: it did a part of it --------------------'
//! ```
//! Invariants: the memory of a request stays in its slot, untouched, until the kernel reports its
//! end. When a ring is dropped, the image's own thread ([`blocking_calls`](super::blocking_calls))
//! waits for that. No descriptor and no memory is registered, so that the kernel releases the open
//! file with the last request and not with the ring, which may take longer (decision 0030).
//!
//! io_uring may fail a request that it did before: it starts kernel threads for requests that
//! block, and may be refused them (pids.max of a cgroup). Such a request, and all that follow, go
//! to the [`pool`](super::pool).
//!
//! A killed process leaves its requests to the kernel, which carries them out. They hold the open
//! file, and so its [`lock`](super::lock).
#![expect(
    unsafe_code,
    reason = "requests of io_uring name an I/O's memory, and outlive the call that makes them"
)]

use super::PATIENCE;
use super::blocking_calls::BlockingCalls;
use super::direct::Submitter;
use super::open_file::OpenFile;
use super::pool::{Pool, PoolQueue};
use super::transfer::{Ended, Pieces, Transfer};
use super::wake_fd::WakeFd;
use io_uring::{IoUring, Probe, opcode};
use pregrant::blk::disk::{Disk, Done, Io, IoError};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of entries of the submission ring, and largest number of requests in flight.
const BATCH: u32 = 128;
const DEPTH: usize = 2 * BATCH as usize;
/// The io_uring opcodes that a [`Transfer`] uses.
const REQUESTS: [u8; 6] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
];
/// Number of times a call is retried for which the kernel has no memory.
const TRIES: usize = 100;

/// A queue that uses io_uring. On drop it leaves its transfers in flight to the image's thread.
pub(super) struct UringDisk(Option<Ring>);

struct Ring {
    uring: IoUring,
    file: Arc<OpenFile>,
    image: BlockingCalls,
    wake: Arc<WakeFd>,
    submitter: Arc<Submitter>,
    slots: Vec<Option<Transfer>>,
    free: Vec<usize>,
    /// Slots whose requests were not submitted yet.
    waiting: VecDeque<usize>,
    /// The slots in the submission ring that the kernel has not read; the oldest is first.
    unread: VecDeque<usize>,
    /// Number of requests that the kernel has accepted and not completed.
    in_kernel: usize,
    /// The kernel accepts no more requests; those in flight will complete.
    refused: bool,
    /// The kernel failed to execute a request, so no more are submitted.
    fails: bool,
    /// A queue of the thread pool for requests that io_uring does not support.
    discards: Option<PoolQueue>,
    /// A queue of the thread pool for all transfers, once io_uring is not used any more.
    others: Option<PoolQueue>,
    done: Vec<Done>,
    ended: Vec<(usize, i32)>,
    /// Empty lists of fragments that are kept for reuse.
    spare: Vec<Pieces>,
}

impl UringDisk {
    /// Creates a ring for this open file, which notifies `wake`; `image` is the image's thread.
    ///
    /// # Errors
    ///
    /// The kernel has no io_uring, or refuses it to this process.
    pub(super) fn new(file: Arc<OpenFile>, wake: Arc<WakeFd>, image: BlockingCalls) -> io::Result<Self> {
        // Completions need not interrupt the thread, which polls anyway; since Linux 5.19.
        let cooperative = IoUring::builder()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .dontfork()
            .build(BATCH);
        let uring = cooperative.or_else(|_| IoUring::builder().dontfork().build(BATCH))?;
        if !uring.params().is_feature_nodrop() {
            return Err(Errno::NOSYS.into());
        }
        // A kernel may have io_uring without all opcodes used here (5.5), or refuse some to this
        // process.
        let mut knows = Probe::new();
        uring.submitter().register_probe(&mut knows)?;
        if !REQUESTS.iter().all(|code| knows.is_supported(*code)) {
            return Err(Errno::OPNOTSUPP.into());
        }
        uring.submitter().register_eventfd(wake.as_fd().as_raw_fd())?;
        let submitter = file.submitter(Arc::clone(&wake));
        Ok(Self(Some(Ring {
            uring,
            file,
            image,
            wake,
            submitter,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            unread: VecDeque::new(),
            in_kernel: 0,
            refused: false,
            fails: false,
            discards: None,
            others: None,
            done: Vec::new(),
            ended: Vec::new(),
            spare: Vec::new(),
        })))
    }
}

impl Ring {
    fn submit(&mut self, io: Io) {
        if self.file.is_replaced() {
            return self.done.push(Done { io, outcome: Err(IoError::Failed) });
        }
        let transfer = Transfer::new(io, &self.file, self.spare.pop().unwrap_or_default());
        if self.refused || self.fails || transfer.needs_thread(&self.file) {
            return self.by_thread(transfer);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(transfer);
        self.waiting.push_back(slot);
    }

    /// Submits the waiting requests, as many as the kernel accepts.
    fn start(&mut self) {
        while !self.waiting.is_empty()
            && !self.refused
            && self.in_kernel < DEPTH
            && self.file.may_begin(&self.submitter)
        {
            let mut submission = self.uring.submission();
            while let Some(&slot) = self.waiting.front()
                && self.in_kernel + self.unread.len() < DEPTH
                && let Some(transfer) = &self.slots[slot]
            {
                let request = transfer.request(&self.file).user_data(slot as u64);
                // SAFETY: what the request points to is the transfer's, which stays in its slot,
                // untouched, until the kernel has ended it: `reap` alone takes it out, and `drop`
                // waits for that.
                if unsafe { submission.push(&request) }.is_err() {
                    break;
                }
                self.waiting.pop_front();
                self.unread.push_back(slot);
            }
            drop(submission);
            self.enter();
        }
        self.report_idle();
    }

    /// Reports this submitter as idle if nothing is in flight.
    fn report_idle(&self) {
        if self.in_kernel == 0 && self.unread.is_empty() {
            self.file.idle(&self.submitter);
        }
    }

    /// Makes the kernel read the submission ring.
    fn enter(&mut self) {
        for _ in 0..TRIES {
            let called = self.uring.submit();
            let left = self.uring.submission().len();
            let read = self.unread.len().saturating_sub(left);
            self.unread.drain(..read);
            self.in_kernel += read;
            match called {
                Ok(_) if left == 0 => return,
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    std::thread::yield_now();
                }
                Err(_) => break,
            }
        }
        self.refuse();
    }

    /// Called when the kernel accepts no more requests. It will never read those that it has not
    /// read, since this ring is not entered again. Threads execute them.
    #[cold]
    fn refuse(&mut self) {
        self.refused = true;
        let left: Vec<usize> = self.unread.drain(..).chain(self.waiting.drain(..)).collect();
        self.have_done(left);
    }

    /// Called when the kernel failed to execute a request, without reaching the storage. Threads
    /// execute the requests that the kernel has not read; those in flight may still succeed.
    #[cold]
    fn give_up(&mut self, why: Errno) {
        if !std::mem::replace(&mut self.fails, true) {
            self.file.leaves_uring(why);
        }
        let left: Vec<usize> = self.waiting.drain(..).collect();
        self.have_done(left);
    }

    /// Passes the transfers in these slots, which the kernel does not have, to threads.
    fn have_done(&mut self, slots: Vec<usize>) {
        for slot in slots {
            if let Some(transfer) = self.slots[slot].take() {
                self.by_thread(transfer);
            }
            self.free.push(slot);
        }
    }

    fn by_thread(&mut self, transfer: Transfer) {
        let (queue, threads) = match self.fails || self.refused {
            true => (&mut self.others, super::THREADS),
            false => (&mut self.discards, 1),
        };
        if queue.is_none() {
            match Pool::new(Arc::clone(&self.file), threads, &self.image) {
                Ok(pool) => *queue = Some(pool.queue(Arc::clone(&self.wake))),
                Err(e) => self.file.complain(format_args!(
                    "cannot create an eventfd for I/O threads ({e}), so requests that io_uring cannot do will fail; raise LimitNOFILE of \
                     the unit, or ulimit -n"
                )),
            }
        }
        match queue {
            Some(queue) => queue.take(transfer),
            None => self.done.push(transfer.into_done(Err(IoError::Failed)).0),
        }
    }

    /// Collects the requests that have ended.
    fn reap(&mut self) {
        if self.in_kernel > 0 {
            let mut ended = std::mem::take(&mut self.ended);
            ended.extend(self.uring.completion().map(|entry| (entry.user_data() as usize, entry.result())));
            if ended.is_empty() && !self.refused && self.uring.submission().taskrun() {
                // The kernel has completions that it posts only in a call.
                let _ = self.uring.submit();
                ended.extend(
                    self.uring.completion().map(|entry| (entry.user_data() as usize, entry.result())),
                );
            }
            self.in_kernel -= ended.len();
            for (slot, result) in ended.drain(..) {
                self.over(slot, result);
            }
            self.ended = ended;
            self.report_idle();
        }
        for queue in [&mut self.discards, &mut self.others].into_iter().flatten() {
            queue.complete(&mut self.done);
        }
    }

    fn over(&mut self, slot: usize, result: i32) {
        let Some(transfer) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        let result = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        let given_up = result.err().filter(|e| transfer.is_not_carried_out(*e));
        let ended = match given_up {
            Some(_) => Ended::Again,
            None => transfer.ended(&self.file, result),
        };
        match ended {
            Ended::Again if !self.refused && !self.fails && given_up.is_none() => {
                self.waiting.push_back(slot)
            }
            ended => {
                let Some(transfer) = self.slots[slot].take() else { return };
                self.free.push(slot);
                if let Some(why) = given_up {
                    self.give_up(why);
                }
                match ended {
                    Ended::Again => self.by_thread(transfer),
                    Ended::Over(outcome) => {
                        let (done, pieces) = transfer.into_done(outcome);
                        self.done.push(done);
                        self.spare.push(pieces);
                    }
                }
            }
        }
    }

    fn complete(&mut self, done: &mut Vec<Done>) {
        self.reap();
        if !self.waiting.is_empty() {
            self.start();
        }
        done.append(&mut self.done);
    }

    /// Returns true while a transfer of this queue is in flight or waits for a thread.
    fn is_busy(&self) -> bool {
        self.in_kernel > 0
            || !self.waiting.is_empty()
            || [&self.discards, &self.others].into_iter().flatten().any(|queue| queue.in_flight() > 0)
    }

    fn wait(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            self.wake.clear();
            self.reap();
            self.start();
            if !self.done.is_empty() || !self.is_busy() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            self.wake.wait(until);
        }
    }

    /// Submits nothing more, and waits for the requests in flight. False: some are left at `until`.
    fn drain(&mut self, until: Instant) -> bool {
        loop {
            self.wake.clear();
            self.reap();
            if self.in_kernel == 0 {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            self.wake.wait(until);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while !self.drain(Instant::now() + Duration::from_secs(1)) {}
    }
}

impl Disk for UringDisk {
    fn submit(&mut self, io: Io) {
        if let Some(ring) = &mut self.0 {
            ring.submit(io);
        }
    }
    fn start(&mut self) {
        if let Some(ring) = &mut self.0 {
            ring.start();
        }
    }
    fn complete(&mut self, done: &mut Vec<Done>) {
        if let Some(ring) = &mut self.0 {
            ring.complete(done);
        }
    }
    fn wait(&mut self) -> bool {
        self.0.as_mut().is_none_or(Ring::wait)
    }
}

impl Drop for UringDisk {
    /// The owner has waited as long as it should. The image's thread, which exists even if no other
    /// thread can be created, keeps the memory and the open file of transfers in flight. The image
    /// is not opened again before these have ended.
    fn drop(&mut self) {
        let Some(mut ring) = self.0.take() else { return };
        if !ring.drain(Instant::now()) {
            ring.file.complain(format_args!(
                "disk not responding; waiting for outstanding I/O in a separate thread"
            ));
            let image = ring.image.clone();
            image.later(move || drop(ring));
        }
    }
}
