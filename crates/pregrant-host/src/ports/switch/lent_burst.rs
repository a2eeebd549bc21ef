//! Zero-copy bursts: their payload is still in the sender's pages, and the sender keeps track of
//! them.
//!
//! ```text
//!   sender's queue --hold--> LentBurst --mail--> Loan: the receiver's worker copies, and releases
//!        ^                      |  ^                                         |
//!        |                      |  '- keep: the sender copies it first ------|-- its pages are to go, or no one reads
//!        '---- complete <-------'---------------- done, doorbell <-----------'
//! ```
//! A burst has one reader, the owner of its mail. Its lock is taken for a copy: by the reader, or
//! by the sender that [keeps](LentBurst::keep) a private copy in place of the pages. So unmapping
//! the pages waits for at most one burst's copy, and no frame is lost.
//!
//! Invariants: the pages are read only under the lock, and only while the burst has fragments. It
//! has none before the sender has held its frames, after [`complete`](Completions::complete) has
//! named them, and after [`give_up`](Completions::give_up) has returned. A sender has at most
//! [`LENT_MAX`] such bursts in flight; what is kept of them is bounded like the mail that refers to
//! them.
//!
//! What a guest may do: change the payload, which is never parsed. As a receiver it can do nothing:
//! its worker reads, even if it has no slots (`inbox.rs`).
#![expect(unsafe_code, reason = "a guest's mapped pages, which another guest's worker reads")]

use super::mailbox::Waiting;
use pregrant::port::{Completions, Lender, LentPiece, Loan, QueueWaker, Token, ZeroCopyBurst};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest number of zero-copy bursts in flight for one queue; further bursts are copied.
pub const LENT_MAX: usize = 64;
/// Largest number of unused bursts that are kept for reuse.
const SPARE_MAX: usize = 8;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Any state that a panic could leave behind is valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the sender when a burst has been read.
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

/// The payload of a burst: its fragments, and for each of them its frame, and its place in that
/// frame.
#[derive(Default)]
struct Payload {
    pieces: Vec<LentPiece<'static>>,
    /// The copy that replaces the sender's pages: all fragments, one after another.
    kept: Option<Box<[u8]>>,
    tokens: Vec<Token>,
}

pub struct LentBurst {
    doorbell: Arc<Doorbell>,
    payload: Mutex<Payload>,
    /// True once the sender's pages are not read any more.
    is_done: AtomicBool,
}

impl LentBurst {
    /// Copies what the reader has not read yet; the reader then uses the copy, so the sender's
    /// pages can go.
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
    /// Collects the tokens of frames that have been read.
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

/// The zero-copy bursts from the guest of one queue.
#[derive(Default)]
pub struct Lends {
    doorbell: Arc<Doorbell>,
    bursts: Mutex<Bursts>,
}

impl Lends {
    /// Returns true if another zero-copy burst may be sent.
    pub fn has_room(&self) -> bool {
        lock(&self.bursts).lent.len() < LENT_MAX
    }

    /// Returns an empty burst, which the caller [sends](Self::lend) or drops.
    pub fn begin(&self) -> Arc<LentBurst> {
        let spare = &mut lock(&self.bursts).spare;
        // If its reader is about to release it, another one is used.
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

    /// Holds frame `i`, so that it can be read through `burst`, which was [started](Self::begin)
    /// here. Returns false if it cannot be held. `by` is this same object.
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

    /// Creates the reader's handle of a burst. It must be called once for each burst.
    pub fn lend(&self, burst: &Arc<LentBurst>) -> Loan {
        lock(&self.bursts).lent.push_back(Arc::clone(burst));
        Loan::new(Arc::clone(burst) as Arc<dyn Lender>)
    }

    /// Sets the waker of the sender's worker. Wake it afterwards: a thread that still has the old
    /// waker would wake the wrong worker.
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
