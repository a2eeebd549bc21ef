//! A disk as the threads of a program use it: requests in bytes, from any thread, and the end of
//! each reported once.
//!
//! ```text
//!   any thread                                          the front's loop
//!   put --(full: it waits)--> new requests --doorbell--> take_new --> Schedule --> rings
//!                                                       done(outcome), on the loop's thread --> settle: room again
//! ```
//! Invariants: each request that was put is done once, also when the disk ends; at most
//! [`REQUESTS_MAX`] requests with [`BYTES_MAX`] bytes between them are on their way, or one that is
//! longer by itself. So a back that stands still costs a process so much memory, and its threads
//! wait.

use crate::drivers::worker_pool::waker::Waker;
use pregrant::PAGE_SIZE;
use pregrant::blk::disk::{DiskFigures, IoError};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Largest number of requests in flight.
pub const REQUESTS_MAX: usize = 256;
/// Largest number of bytes of the requests in flight.
pub const BYTES_MAX: usize = 32 << 20;
/// Number of bytes of memory that a range of zeroes needs, however long it is, for the sectors at
/// its edges.
const EDGE_BYTES: usize = 2 * PAGE_SIZE;

/// The operation. Offsets and lengths are in bytes, wherever sectors begin.
pub enum DiskOp {
    /// Reads bytes.
    Read {
        /// The offset of the first byte.
        at: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Writes bytes.
    Write {
        /// Offset of the first byte.
        at: u64,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// Makes earlier writes durable.
    Flush,
    /// Gives back the space of these bytes, which then read as zeroes. Not supported if discarded
    /// sectors of the disk may read as anything else.
    PunchHole {
        /// Offset of the first byte.
        at: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Makes these bytes read as zeroes, with or without giving back their space.
    Zero {
        /// Offset of the first byte.
        at: u64,
        /// Number of bytes.
        len: u64,
    },
}

/// Ends a request that no one waits for any more ([`SharedDisk::interrupt`]): parts that a back has
/// are still answered, no other part is sent (again), and the request fails.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    raised: AtomicBool,
    moved: AtomicBool,
}

impl Interrupt {
    /// Sets the interrupt.
    pub(super) fn raise(&self) {
        self.0.raised.store(true, Ordering::Relaxed);
    }

    /// True if the interrupt was raised.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Relaxed)
    }

    /// Records that a back has answered a part of the request.
    pub fn moved(&self) {
        self.0.moved.store(true, Ordering::Relaxed);
    }

    /// True if a back has answered a part of the request since the last call.
    pub fn has_moved(&self) -> bool {
        self.0.moved.swap(false, Ordering::Relaxed)
    }
}

impl DiskOp {
    /// Number of bytes that the request holds in memory.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Read { len, .. } => *len,
            Self::Write { bytes, .. } => bytes.len(),
            Self::Flush => 0,
            Self::PunchHole { .. } | Self::Zero { .. } => EDGE_BYTES,
        }
    }
}

/// Called once with the result of a request, for a read with its bytes. It runs on the front's
/// thread, and delays all other requests.
pub type Done = Box<dyn FnOnce(Result<&[u8], IoError>) + Send>;

/// A request of a thread.
pub struct DiskRequest {
    pub op: DiskOp,
    /// Raising this interrupt ends the request early.
    pub interrupt: Interrupt,
    /// The function that receives the result.
    pub done: Done,
}

#[derive(Default)]
struct State {
    new: VecDeque<DiskRequest>,
    requests: usize,
    bytes: usize,
    ended: bool,
    figures: Option<DiskFigures>,
    users: usize,
    /// True if a request was interrupted since the loop last checked.
    interrupted: bool,
}

impl State {
    fn has_room(&self, weight: usize) -> bool {
        self.requests == 0 || self.requests < REQUESTS_MAX && self.bytes + weight <= BYTES_MAX
    }
}

/// A disk that several threads read and write while the front's loop sends their requests to the
/// back.
pub struct SharedDisk {
    state: Mutex<State>,
    room: Condvar,
    waker: Arc<Waker>,
}

impl fmt::Debug for SharedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDisk").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

impl SharedDisk {
    /// Creates the shared state of a disk whose front is not connected yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { state: Mutex::default(), room: Condvar::new(), waker: Waker::of_thread(0)? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the disk's figures as its back wrote them last; None: it was never connected.
    pub fn figures(&self) -> Option<DiskFigures> {
        self.state().figures
    }

    /// Returns the length of the disk in bytes, a whole number of logical sectors.
    pub fn len(&self) -> u64 {
        self.figures().map_or(0, |figures| figures.sectors / figures.units() * u64::from(figures.sector_size))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts the use of the disk for more than one request: meanwhile a removal by the toolstack
    /// waits.
    pub fn begin_use(&self) {
        self.state().users += 1;
    }

    /// Reports that one of the disk's users has finished with it.
    pub fn end_use(&self) {
        let mut state = self.state();
        state.users = state.users.saturating_sub(1);
        drop(state);
        self.waker.wake();
    }

    /// True if somebody [uses](Self::begin_use) the disk.
    pub fn is_used(&self) -> bool {
        self.state().users > 0
    }

    /// Adds a request, and waits while too many are in flight. While there is no back it keeps
    /// waiting.
    pub fn put(&self, op: DiskOp, done: Done) {
        self.put_until(op, &Interrupt::default(), done);
    }

    /// Adds a request as [`put`](Self::put) does; `interrupt` can end it early, at any stage.
    pub fn put_until(&self, op: DiskOp, interrupt: &Interrupt, done: Done) {
        let weight = op.weight();
        let mut state = self.state();
        while !(state.ended || interrupt.is_raised() || state.has_room(weight)) {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended || interrupt.is_raised() {
            drop(state);
            return done(Err(IoError::Failed));
        }
        state.requests += 1;
        state.bytes += weight;
        state.new.push_back(DiskRequest { op, interrupt: interrupt.clone(), done });
        drop(state);
        self.waker.wake();
    }

    /// Ends these requests early, at any stage, because no one waits for them.
    pub fn interrupt<'a>(&self, requests: impl IntoIterator<Item = &'a Interrupt>) {
        requests.into_iter().for_each(Interrupt::raise);
        // Set after the flags: a thread that waits for room has not checked yet, or is notified.
        self.state().interrupted = true;
        self.room.notify_all();
        self.waker.wake();
    }

    /// Returns true if a request was interrupted since the last call.
    pub(super) fn take_interrupted(&self) -> bool {
        std::mem::take(&mut self.state().interrupted)
    }

    /// Wakes the front's loop to check everything.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Moves the new requests to `to`, and returns their number.
    pub(super) fn take_new(&self, to: &mut Vec<DiskRequest>) -> usize {
        let mut state = self.state();
        let n = state.new.len();
        to.extend(state.new.drain(..));
        n
    }

    /// Records that `requests` requests are done and `bytes` bytes freed.
    pub(super) fn settle(&self, requests: usize, bytes: usize) {
        let mut state = self.state();
        state.requests -= requests;
        state.bytes -= bytes;
        drop(state);
        self.room.notify_all();
    }

    /// Called when a back is connected, or the disk's length has changed.
    pub(super) fn set_figures(&self, figures: DiskFigures) {
        self.state().figures = Some(figures);
    }

    /// Fails all requests from now on, including those that wait for room.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.room.notify_all();
    }

    /// Ends the disk as [`end`](Self::end) does, and adds this request behind all others.
    pub(super) fn end_with(&self, op: DiskOp, done: Done) {
        self.put_at_once(op, done);
        self.end();
    }

    /// Adds a request of the loop itself, whether there is room or not.
    pub(super) fn put_at_once(&self, op: DiskOp, done: Done) {
        let mut state = self.state();
        state.requests += 1;
        state.bytes += op.weight();
        state.new.push_back(DiskRequest { op, interrupt: Interrupt::default(), done });
    }

    /// Returns the descriptor that ends the loop's sleep.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.waker.wakes().expect("a waker of a thread has a descriptor")
    }

    /// Called by the loop for a last check before it sleeps.
    pub(super) fn check(&self) {
        self.waker.doorbell.take(|_| {});
    }

    /// Called right before the loop sleeps. Returns false if a request arrived since it
    /// [checked](Self::check).
    pub(super) fn about_to_sleep(&self) -> bool {
        self.waker.doorbell.about_to_sleep()
    }

    /// Called when the loop has slept; `rung` is true if the descriptor woke it.
    pub(super) fn awake(&self, rung: bool) {
        self.waker.awake(rung);
    }
}

impl DiskRequest {
    /// Number of bytes that the operation holds in memory.
    pub(super) fn weight(&self) -> usize {
        self.op.weight()
    }
}
