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

/// Requests on their way at most.
pub const REQUESTS_MAX: usize = 256;
/// Bytes of them at most.
pub const BYTES_MAX: usize = 32 << 20;
/// Memory for a range of zeroes, however long it is: the sectors at its edges.
const EDGE_BYTES: usize = 2 * PAGE_SIZE;

/// The operation. Offsets and lengths are in bytes, wherever sectors begin.
pub enum DiskOp {
    /// These bytes are wanted.
    Read {
        /// The first.
        at: u64,
        /// How many.
        len: usize,
    },
    /// These are to be there from now on.
    Write {
        /// The first.
        at: u64,
        /// The bytes for them.
        bytes: Vec<u8>,
    },
    /// Earlier writes must not be lost any more.
    Flush,
    /// No one needs these any more, and they read as zeroes. A disk whose discarded sectors hold
    /// anything does not support it.
    PunchHole {
        /// The first.
        at: u64,
        /// How many.
        len: u64,
    },
    /// They read as zeroes, whether that takes room or gives it back.
    Zero {
        /// The first.
        at: u64,
        /// How many.
        len: u64,
    },
}

/// Ends a request that no one waits for any more ([`SharedDisk::interrupt`]): the parts that a back
/// has are answered still, no other is asked, also not again, and the request fails.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    raised: AtomicBool,
    moved: AtomicBool,
}

impl Interrupt {
    /// From now on.
    pub(super) fn raise(&self) {
        self.0.raised.store(true, Ordering::Relaxed);
    }

    /// Whether it was.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Relaxed)
    }

    /// A back has answered a part of it.
    pub fn moved(&self) {
        self.0.moved.store(true, Ordering::Relaxed);
    }

    /// Whether a back has answered a part of it since the last call.
    pub fn has_moved(&self) -> bool {
        self.0.moved.swap(false, Ordering::Relaxed)
    }
}

impl DiskOp {
    /// Bytes that are held for it.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Read { len, .. } => *len,
            Self::Write { bytes, .. } => bytes.len(),
            Self::Flush => 0,
            Self::PunchHole { .. } | Self::Zero { .. } => EDGE_BYTES,
        }
    }
}

/// Gets once how a request went; for a read, with its bytes. It is called on the front's
/// thread, and holds up all others.
pub type Done = Box<dyn FnOnce(Result<&[u8], IoError>) + Send>;

/// One request.
pub struct DiskRequest {
    /// The operation.
    pub op: DiskOp,
    /// Ends it early.
    pub interrupt: Interrupt,
    /// The receiver of the result.
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
    /// A request was interrupted since the loop asked last.
    interrupted: bool,
}

impl State {
    fn has_room(&self, weight: usize) -> bool {
        self.requests == 0 || self.requests < REQUESTS_MAX && self.bytes + weight <= BYTES_MAX
    }
}

/// See the module.
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
    /// Of a front that is not connected yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { state: Mutex::default(), room: Condvar::new(), waker: Waker::of_thread(0)? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its figures as its back said last; None: it was never connected.
    pub fn figures(&self) -> Option<DiskFigures> {
        self.state().figures
    }

    /// Its length in bytes, whole logical sectors of it.
    pub fn len(&self) -> u64 {
        self.figures().map_or(0, |figures| figures.sectors / figures.units() * u64::from(figures.sector_size))
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Somebody begins to use it, for more than one request: while it is used, a toolstack that
    /// wants it gone waits.
    pub fn begin_use(&self) {
        self.state().users += 1;
    }

    /// One of those has done with it.
    pub fn end_use(&self) {
        let mut state = self.state();
        state.users = state.users.saturating_sub(1);
        drop(state);
        self.waker.wake();
    }

    /// Whether somebody [uses](Self::begin_use) it.
    pub fn is_used(&self) -> bool {
        self.state().users > 0
    }

    /// Has it done, and waits where too much is on its way. While there is no back it goes on
    /// waiting.
    pub fn put(&self, op: DiskOp, done: Done) {
        self.put_until(op, &Interrupt::default(), done);
    }

    /// The same, until the `interrupt` ends it, wherever it is then.
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

    /// No one waits for these requests any more, wherever they are.
    pub fn interrupt<'a>(&self, requests: impl IntoIterator<Item = &'a Interrupt>) {
        requests.into_iter().for_each(Interrupt::raise);
        // Behind the flags: who waits for room has not looked yet, or is notified.
        self.state().interrupted = true;
        self.room.notify_all();
        self.waker.wake();
    }

    /// Whether a request was interrupted since the last call.
    pub(super) fn take_interrupted(&self) -> bool {
        std::mem::take(&mut self.state().interrupted)
    }

    /// Has the front's loop check everything.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Adds what is new. Returns how many.
    pub(super) fn take_new(&self, to: &mut Vec<DiskRequest>) -> usize {
        let mut state = self.state();
        let n = state.new.len();
        to.extend(state.new.drain(..));
        n
    }

    /// So many requests are done, and their bytes let go of.
    pub(super) fn settle(&self, requests: usize, bytes: usize) {
        let mut state = self.state();
        state.requests -= requests;
        state.bytes -= bytes;
        drop(state);
        self.room.notify_all();
    }

    /// A back is connected, or says another length.
    pub(super) fn set_figures(&self, figures: DiskFigures) {
        self.state().figures = Some(figures);
    }

    /// From now on requests fail; those that wait to be put, too.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.room.notify_all();
    }

    /// The same, with this one behind all that were put before.
    pub(super) fn end_with(&self, op: DiskOp, done: Done) {
        self.put_at_once(op, done);
        self.end();
    }

    /// Has it done, whether there is room or not: of the loop's own.
    pub(super) fn put_at_once(&self, op: DiskOp, done: Done) {
        let mut state = self.state();
        state.requests += 1;
        state.bytes += op.weight();
        state.new.push_back(DiskRequest { op, interrupt: Interrupt::default(), done });
    }

    /// Ends the loop's sleep.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.waker.wakes().expect("a waker of a thread has a descriptor")
    }

    /// The loop is about to check for the last time before it sleeps.
    pub(super) fn check(&self) {
        self.waker.doorbell.take(|_| {});
    }

    /// It is about to sleep; false: something came since it [checked](Self::check).
    pub(super) fn about_to_sleep(&self) -> bool {
        self.waker.doorbell.about_to_sleep()
    }

    /// It has slept; the descriptor was what ended it, or was not.
    pub(super) fn awake(&self, rung: bool) {
        self.waker.awake(rung);
    }
}

impl DiskRequest {
    /// Bytes that are held for it.
    pub(super) fn weight(&self) -> usize {
        self.op.weight()
    }
}
