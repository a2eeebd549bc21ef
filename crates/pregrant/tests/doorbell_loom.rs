//! A worker's doorbell in every order of its memory accesses: no ring of it is lost, and what was
//! stored before a ring is seen.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use pregrant::doorbell::Doorbell;

/// A worker, its doorbell, what is put for each of its queues, and what wakes it.
struct Place {
    waker: Doorbell,
    put: [AtomicU32; 2],
    /// A descriptor that the worker sleeps on.
    wake: Notify,
    commands: AtomicU32,
}

impl Place {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            waker: Doorbell::new(1),
            put: [AtomicU32::new(0), AtomicU32::new(0)],
            wake: Notify::new(),
            commands: AtomicU32::new(0),
        })
    }

    fn put(&self, queue: usize) {
        self.put[queue].store(1, Ordering::Relaxed);
        if self.waker.ring(queue) {
            self.wake.notify();
        }
    }

    /// Sleeps until it is woken, unless somebody rang.
    fn sleep(&self) {
        if self.waker.about_to_sleep() {
            self.wake.wait();
            self.waker.awake();
        }
    }
}

#[test]
fn no_ring_of_two_threads_is_lost() {
    loom::model(|| {
        let place = Place::new();
        let ringers: Vec<_> = (0..2)
            .map(|queue| {
                let place = Arc::clone(&place);
                thread::spawn(move || place.put(queue))
            })
            .collect();
        let mut got = [false; 2];
        while got != [true; 2] {
            place.waker.take(|queue| {
                assert_eq!(place.put[queue].load(Ordering::Relaxed), 1, "the bit came before what it is for");
                got[queue] = true;
            });
            if got != [true; 2] {
                place.sleep();
            }
        }
        ringers.into_iter().for_each(|t| t.join().expect("no panic"));
    });
}

/// A queue that is handed over by a message, which the worker checks for by itself.
#[test]
fn a_command_to_a_worker_that_falls_asleep_wakes_it() {
    loom::model(|| {
        let place = Place::new();
        let sender = {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                place.commands.store(1, Ordering::Relaxed);
                if place.waker.call() {
                    place.wake.notify();
                }
            })
        };
        while place.commands.load(Ordering::Relaxed) == 0 {
            place.waker.take(|_| panic!("no bit was rung for"));
            if place.commands.load(Ordering::Relaxed) == 0 {
                place.sleep();
            }
        }
        sender.join().expect("no panic");
    });
}
