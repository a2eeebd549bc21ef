//! A peer that rewrites what it shares while it is read.

use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `mutate` again and again on another thread, with a new number each time, while `read` runs on this one.
pub fn while_mutating(mutate: impl Fn(u32) + Sync, read: impl FnOnce()) {
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|s| {
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
        stop.store(true, Ordering::Relaxed);
    });
}
