//! An event channel in a loom model, and how far a model is explored.

use loom::sync::{Condvar, Mutex};

/// One direction of an event channel: a pending bit that outlives the moment of the notification.
#[derive(Default)]
pub struct Event {
    pending: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    pub fn send(&self) {
        *self.pending.lock().unwrap() = true;
        self.changed.notify_one();
    }

    pub fn sleep(&self) {
        let mut pending = self.pending.lock().unwrap();
        while !*pending {
            pending = self.changed.wait(pending).unwrap();
        }
        *pending = false;
    }
}

/// Plays `model` in every order of its memory accesses with at most so many preemptions; None: in
/// every order.
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}
