//! A peer that changes shared memory on another thread while a test reads it.
//!
//! ```text
//!   another thread: mutate(1), mutate(2) ..., until the read is over --> shared memory --> the test's thread: read
//! ```
//! A round of such a race must end as if the peer had written before, or after. [`until_both`]
//! plays rounds until both were seen.

use std::sync::atomic::{AtomicBool, Ordering};

/// Number of rounds within which both outcomes of the race must have occurred. It usually takes a
/// few dozen, or some hundred on a single processor.
const ROUNDS: usize = 200_000;

/// Counts of the two outcomes of a race. If only one of them has occurred, the test has not tested
/// the race.
#[derive(Clone, Copy, Default, Debug)]
pub struct Outcomes {
    pub before: usize,
    pub after: usize,
}

impl Outcomes {
    pub fn count(&mut self, after: bool) {
        *if after { &mut self.after } else { &mut self.before } += 1;
    }

    fn both(self) -> bool {
        self.before > 0 && self.after > 0
    }
}

/// Plays `least` rounds, and continues until both outcomes were seen. Miri, for which a round is
/// long, plays one and requires nothing: it only validates the accesses.
pub fn until_both(least: usize, mut round: impl FnMut(&mut Outcomes)) {
    let mut seen = Outcomes::default();
    if cfg!(miri) {
        return round(&mut seen);
    }
    let mut rounds = 0;
    while rounds < least || !seen.both() {
        assert!(rounds < ROUNDS, "no race in {rounds} rounds: {seen:?}");
        round(&mut seen);
        rounds += 1;
    }
}

/// Sets the flag that stops a thread when this is dropped, also when a test fails, since a thread
/// scope waits for its threads.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `mutate` again and again on another thread, with a new number each time, while `read` runs
/// on this one.
pub fn while_mutating(mutate: impl Fn(u32) + Sync, read: impl FnOnce()) {
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|s| {
        let _stop = Stop(&stop);
        s.spawn(|| {
            let mut x = 1u32;
            while !stop.load(Ordering::Relaxed) {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                mutate(x);
                started.store(true, Ordering::Relaxed);
            }
        });
        while !started.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        read();
    });
}
