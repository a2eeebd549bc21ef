//! Bursts whose payload is still in their sender's pages, and what their sender knows of them.
//!
//! ```text
//!   sender's queue --hold--> LentBurst --mail--> Loan: the receiver's worker copies, and releases
//!        ^                      |  ^                                         |
//!        |                      |  '- keep: the sender copies it first ------|-- its pages are to go, or no one reads
//!        '---- complete <-------'---------------- done, doorbell <-----------'
//! ```
//! A burst has one reader, which has its mail. Its lock is taken for a copy: by the reader, or by
//! the sender that [keeps](LentBurst::keep) a private copy in place of the pages. So who unmaps
//! them waits for one burst's copy at most, and no frame is lost.
//!
//! Invariants: the pages are read under the lock alone, and only while the burst has pieces. It has
//! none before the sender has held them, nor after [`complete`](Completions::complete) named its
//! frames, nor when [`give_up`](Completions::give_up) returned. A sender has [`LENT_MAX`] bursts
//! lent at a time; what is kept of them is bounded as the mail is that names it.
//!
//! What a guest may do: change the payload, which no one parses. As the receiver: nothing; its
//! worker reads, also where it has no slots (`inbox.rs`).
#![expect(unsafe_code, reason = "a guest's mapped pages, which another guest's worker reads")]

use super::mailbox::Waiting;
use pregrant::port::{Completions, Lender, LentPiece, Loan, QueueWaker, Token, ZeroCopyBurst};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bursts that one queue's guest lends at a time; more are copied.
pub const LENT_MAX: usize = 64;
/// Bursts without payload that are kept for the next.
const SPARE_MAX: usize = 8;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every state that a panic could leave is a legal one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The event by which a sender learns that a burst is done.
#[derive(Default)]
struct Doorbell {
    waiting: Waiting,
    waker: Mutex<Option<Arc<dyn QueueWaker>>>,
}

impl Doorbell {
    fn ring(&self) {
        if self.waiting.is_over() {
            let waker = lock(&self.waker).clone();
            if let Some(waker) = waker {
                waker.ring();
            }
        }
    }
}

/// The payload of a burst: where its pieces belong, and they.
#[derive(Default)]
struct Payload {
    pieces: Vec<LentPiece<'static>>,
    /// In place of the pages: all pieces, one behind another.
    kept: Option<Box<[u8]>>,
    tokens: Vec<Token>,
}

/// See the module.
pub struct LentBurst {
    doorbell: Arc<Doorbell>,
    payload: Mutex<Payload>,
    /// The sender's pages are read no longer.
    is_done: AtomicBool,
}

impl LentBurst {
    /// Copies what its reader has not read, which reads that copy from now on: its sender's pages
    /// may go.
    pub fn keep(&self) {
        let mut payload = lock(&self.payload);
        if payload.kept.is_none() && !payload.pieces.is_empty() {
            let mut kept =
                vec![0; payload.pieces.iter().map(|lent| lent.piece.len()).sum()].into_boxed_slice();
            let mut rest = &mut *kept;
            for lent in &payload.pieces {
                let n = lent.piece.copy_out(rest);
                rest = &mut rest[n..];
            }
            payload.kept = Some(kept);
        }
        drop(payload);
        self.is_done.store(true, Ordering::Release);
    }
}

impl Lender for LentBurst {
    fn read(&self, read: &mut dyn FnMut(&[LentPiece<'_>])) {
        let mut payload = lock(&self.payload);
        let Payload { pieces: lent, kept, .. } = &mut *payload;
        let Some(kept) = kept else { return read(lent) };
        let mut rest = &mut **kept;
        let mut pieces = Vec::with_capacity(lent.len());
        for LentPiece { at, piece } in lent {
            let (bytes, others) = std::mem::take(&mut rest).split_at_mut(piece.len());
            pieces.push(LentPiece { at: *at, piece: bytes.into() });
            rest = others;
        }
        read(&pieces);
    }

    fn release(&self) {
        lock(&self.payload).pieces.clear();
        self.is_done.store(true, Ordering::Release);
        self.doorbell.ring();
    }
}

#[derive(Default)]
struct Bursts {
    lent: VecDeque<Arc<LentBurst>>,
    spare: Vec<Arc<LentBurst>>,
}

impl Bursts {
    /// Takes back what is done.
    fn collect(&mut self, done: &mut Vec<Token>) {
        let spare = &mut self.spare;
        self.lent.retain(|burst| {
            let is_done = burst.is_done.load(Ordering::Acquire);
            if is_done {
                done.append(&mut lock(&burst.payload).tokens);
                if spare.len() < SPARE_MAX {
                    spare.push(Arc::clone(burst));
                }
            }
            !is_done
        });
    }
}

/// What one queue's guest lends, for that queue.
#[derive(Default)]
pub struct Lends {
    doorbell: Arc<Doorbell>,
    bursts: Mutex<Bursts>,
}

impl Lends {
    /// Whether another burst may be lent.
    pub fn has_room(&self) -> bool {
        lock(&self.bursts).lent.len() < LENT_MAX
    }

    /// A burst without payload, to be [lent](Self::lend) or forgotten.
    pub fn begin(&self) -> Arc<LentBurst> {
        let spare = &mut lock(&self.bursts).spare;
        // One whose reader is about to let go of it is another's turn.
        let unused = spare.iter_mut().position(|burst| Arc::get_mut(burst).is_some());
        let mut burst = unused.map_or_else(
            || {
                let doorbell = Arc::clone(&self.doorbell);
                Arc::new(LentBurst { doorbell, payload: Mutex::default(), is_done: AtomicBool::new(false) })
            },
            |at| spare.swap_remove(at),
        );
        if let Some(burst) = Arc::get_mut(&mut burst) {
            *burst.is_done.get_mut() = false;
            let payload = burst.payload.get_mut().unwrap_or_else(PoisonError::into_inner);
            (payload.kept, _) = (None, payload.pieces.clear());
        }
        burst
    }

    /// Frame `i` is held, and is to be read by way of `burst`, which [began](Self::begin) here.
    /// False: it cannot be. `by`: the same as this.
    pub fn hold(
        &self,
        burst: &mut LentBurst,
        frames: &mut ZeroCopyBurst<'_>,
        i: usize,
        by: &Arc<dyn Completions>,
    ) -> bool {
        let is_own = std::ptr::addr_eq(Arc::as_ptr(by), self) && Arc::ptr_eq(&burst.doorbell, &self.doorbell);
        let Some(token) = is_own.then(|| frames.hold(i, by)).flatten() else { return false };
        let payload = burst.payload.get_mut().unwrap_or_else(PoisonError::into_inner);
        payload.tokens.push(token);
        let mut at = frames.frames()[i].at + frames.head(i).len() as u32;
        for piece in frames.pieces(i) {
            // SAFETY: the queue holds the frame until `complete` names its token, which the
            // burst's end does, or `give_up` returned, which puts a copy in its place: its pages
            // stay mapped. Until then it is read, under the lock.
            payload.pieces.push(LentPiece { at, piece: unsafe { piece.outliving() } });
            at += piece.len() as u32;
        }
        true
    }

    /// Lends it to a reader, once.
    pub fn lend(&self, burst: &Arc<LentBurst>) -> Loan {
        lock(&self.bursts).lent.push_back(Arc::clone(burst));
        Loan::new(Arc::clone(burst) as Arc<dyn Lender>)
    }

    /// This wakes the sender's worker from now on. It is to be rung afterwards: who took the old
    /// one before rings at the wrong door.
    pub fn set_waker(&self, waker: &Arc<dyn QueueWaker>) {
        *lock(&self.doorbell.waker) = Some(Arc::clone(waker));
    }
}

impl Completions for Lends {
    fn complete(&self, done: &mut Vec<Token>) {
        let mut bursts = lock(&self.bursts);
        bursts.collect(done);
        if bursts.lent.is_empty() {
            self.doorbell.waiting.end();
        } else if self.doorbell.waiting.begin() {
            bursts.collect(done);
        }
    }

    fn give_up(&self) {
        let mut bursts = lock(&self.bursts);
        for burst in bursts.lent.drain(..) {
            burst.keep();
            lock(&burst.payload).tokens.clear();
        }
    }
}
