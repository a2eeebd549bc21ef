//! How threads tell a worker which of its queues they have something for, and wake it if it sleeps.
//! No guest sees it: to notify one is [`Events::notify`](crate::platform::Events::notify).
//!
//! ```text
//!   ring:   bit of the queue -> state: RUNG   (was ASLEEP? wake it)    a port of another worker, the control thread
//!   take:   state: 0 -> bits, away: check these queues              the worker
//!   sleep:  state: 0 to ASLEEP; not where it is RUNG                    the worker
//! ```
//! Invariants: what was stored before a ring is seen by the worker once it has the bit; a ring
//! finds the worker awake, which then does not fall asleep before it has taken the bit, or wakes
//! it. One word has both, so each step is before or after any other, and no fence is needed: each
//! is read, modified and written in one step, and takes along what all before it stored.
//!
//! Rung often, it costs one wake-up for each sleep. Checked by loom: `tests/doorbell_loom.rs`.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use alloc::boxed::Box;

/// Some bit may be set, or there is other work.
const RUNG: u32 = 1;
/// The worker is to be woken.
const ASLEEP: u32 = 2;

/// See the module.
#[derive(Debug)]
pub struct Doorbell {
    state: AtomicU32,
    bits: Box<[AtomicU64]>,
}

impl Doorbell {
    /// With so many words of 64 bits; queues beyond share bits.
    pub fn new(words: usize) -> Self {
        Self { state: AtomicU32::new(0), bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Queues with a bit of their own.
    pub fn bits(&self) -> usize {
        self.bits.len() * 64
    }

    /// There is something for queue `queue`. True: the worker sleeps, and the caller is to wake it.
    #[must_use]
    pub fn ring(&self, queue: usize) -> bool {
        let at = queue % self.bits();
        self.bits[at / 64].fetch_or(1 << (at % 64), Ordering::Release);
        self.call()
    }

    /// There is work that the worker finds by itself whenever it is awake. True: as for
    /// [`ring`](Self::ring).
    #[must_use]
    pub fn call(&self) -> bool {
        self.state.swap(RUNG, Ordering::AcqRel) & ASLEEP != 0
    }

    /// The bits that were rung for, each once. The worker's own, while it is awake.
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

    /// The worker is about to sleep, unless this is false: then somebody rang, so
    /// [take](Self::take) and check first.
    #[must_use]
    pub fn about_to_sleep(&self) -> bool {
        self.state.compare_exchange(0, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It sleeps no longer, for whatever reason.
    pub fn awake(&self) {
        self.state.fetch_and(!ASLEEP, Ordering::AcqRel);
    }
}
