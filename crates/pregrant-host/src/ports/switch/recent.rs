//! The receivers of a port's last burst: the port waits while one of their queues is full.
//!
//! Invariants: it has the queues of one burst, at most as many as `outbox.rs` tracks; frames for
//! all ports add none.

use super::inbox::Inbox;
use super::patience::{MOST, Registered, STEP};
use pregrant::port::{QueueWaker, Room};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Queue {
    inbox: Arc<Inbox>,
    registered: Registered,
}

/// The receiving queues of a port's last burst.
#[derive(Default)]
pub struct Recent {
    queues: Vec<Queue>,
    /// At the last check a burst did not fit.
    is_waiting: bool,
    /// The time for which there has been no room; `asked` is the time of the last check.
    waited: Duration,
    asked: Option<Instant>,
}

impl Recent {
    /// Checks whether a burst for the same queues would fit.
    #[inline(always)]
    pub fn room(&mut self, waker: &Arc<dyn QueueWaker>) -> Room {
        let is_waiting = self.is_waiting;
        if self.queues.iter().any(|queue| queue.inbox.is_full(is_waiting, &queue.registered)) {
            return self.wait(waker);
        }
        if is_waiting {
            self.go_on();
        }
        Room::Now
    }

    #[cold]
    fn go_on(&mut self) {
        (self.is_waiting, self.waited, self.asked) = (false, Duration::ZERO, None);
    }

    #[cold]
    fn wait(&mut self, waker: &Arc<dyn QueueWaker>) -> Room {
        let (is_waiting, now) = (self.is_waiting, Instant::now());
        // Counted as in [`Patience`]: without the time in which the worker did not run.
        let since = self.asked.replace(now).map_or(Duration::ZERO, |asked| now.duration_since(asked));
        self.waited += since.min(2 * STEP);
        let full = self.queues.iter_mut().filter(|queue| queue.inbox.is_full(is_waiting, &queue.registered));
        let wait = full.filter_map(|queue| queue.inbox.wait(&mut queue.registered, waker)).min();
        match wait.filter(|_| self.waited < MOST) {
            Some(wait) => {
                self.is_waiting = true;
                Room::Later(wait.as_nanos() as u64)
            }
            None => {
                self.go_on();
                Room::Now
            }
        }
    }

    /// Call when the port moves to another worker, which must be woken instead.
    pub fn forget(&mut self) {
        self.queues.clear();
        self.go_on();
    }

    /// Records the queues of a burst.
    #[inline(always)]
    pub fn note<'a>(&mut self, inboxes: impl Iterator<Item = &'a Arc<Inbox>>) {
        let mut n = 0;
        for inbox in inboxes {
            match self.queues.get(n) {
                Some(queue) if Arc::ptr_eq(&queue.inbox, inbox) => {}
                _ => self.replace(n, inbox),
            }
            n += 1;
        }
        self.queues.truncate(n);
    }

    #[cold]
    fn replace(&mut self, at: usize, inbox: &Arc<Inbox>) {
        // The sender may be woken once more than necessary by the queues it is registered at.
        self.queues.truncate(at);
        self.queues.push(Queue { inbox: Arc::clone(inbox), registered: Registered::default() });
    }
}
