//! How threads tell a worker which of its queues have work, and wake it if it sleeps. This is
//! internal to the process: a guest is notified by
//! [`Events::notify`](crate::platform::Events::notify).
//!
//! ```text
//!   ring:   bit of the queue -> state: RUNG   (was ASLEEP? wake it)    a port of another worker, the control thread
//!   take:   state: 0 -> bits, away: check these queues              the worker
//!   sleep:  state: 0 to ASLEEP; not where it is RUNG                    the worker
//! ```
//! Invariants: the worker sees what was stored before a ring once it has the queue's bit. A ring
//! either finds the worker awake, which then does not fall asleep before it has taken the bit, or
//! wakes it. One word holds both, so all steps are totally ordered and need no fence: each is a
//! single read-modify-write that also passes on what earlier ones stored.
//!
//! However often a doorbell is rung, it causes at most one wake-up per sleep. Loom checks it:
//! `tests/doorbell_loom.rs`.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use alloc::boxed::Box;

/// A queue's bit may be set, or there is other work.
const RUNG: u32 = 1;
/// The worker sleeps and must be woken.
const ASLEEP: u32 = 2;

/// The doorbell of one worker.
#[derive(Debug)]
pub struct Doorbell {
    state: AtomicU32,
    bits: Box<[AtomicU64]>,
}

impl Doorbell {
    /// Creates a doorbell with `words` words of 64 bits. Queues beyond that share bits.
    pub fn new(words: usize) -> Self {
        Self { state: AtomicU32::new(0), bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Number of queues with a bit of their own.
    pub fn bits(&self) -> usize {
        self.bits.len() * 64
    }

    /// Announces work for queue `queue`. True: the worker sleeps, and the caller must wake it.
    #[must_use]
    pub fn ring(&self, queue: usize) -> bool {
        let at = queue % self.bits();
        self.bits[at / 64].fetch_or(1 << (at % 64), Ordering::Release);
        self.call()
    }

    /// Announces work that the worker finds by itself when it is awake. True: as for
    /// [`ring`](Self::ring).
    #[must_use]
    pub fn call(&self) -> bool {
        self.state.swap(RUNG, Ordering::AcqRel) & ASLEEP != 0
    }

    /// Takes the bits that were set, each once. Only the worker calls this, while it is awake.
    pub fn take(&self, mut each: impl FnMut(usize)) {
        if self.state.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.state.swap(0, Ordering::AcqRel);
        for (i, word) in self.bits.iter().enumerate() {
            let mut bits = match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::Acquire),
            };
            while bits != 0 {
                each(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// The worker is about to sleep. False: the doorbell was rung, so [take](Self::take) the bits
    /// and check first.
    #[must_use]
    pub fn about_to_sleep(&self) -> bool {
        self.state.compare_exchange(0, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The worker has woken, for whatever reason.
    pub fn awake(&self) {
        self.state.fetch_and(!ASLEEP, Ordering::AcqRel);
    }
}
