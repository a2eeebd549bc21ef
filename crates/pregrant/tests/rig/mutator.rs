//! A peer that rewrites what it shares while it is read.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells a thread to stop, also when a test fails: a scope waits for its threads.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `mutate` again and again on another thread, with a new number each time, while `read` runs on this one.
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
