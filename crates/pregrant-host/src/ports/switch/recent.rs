//! Whom a port's last burst was for: it waits where one of their queues is full.
//!
//! Invariants: it has the queues of one burst, as many as `outbox.rs` tells apart; frames that all
//! ports get name none.

use super::inbox::Inbox;
use super::patience::Registered;
use pregrant::port::{QueueWaker, Room};
use std::sync::Arc;

struct Queue {
    inbox: Arc<Inbox>,
    registered: Registered,
}

/// See the module.
#[derive(Default)]
pub struct Recent {
    queues: Vec<Queue>,
    /// It had no room when it was asked last.
    is_waiting: bool,
}

impl Recent {
    /// Whether a burst for the same queues finds room.
    #[inline(always)]
    pub fn room(&mut self, waker: &Arc<dyn QueueWaker>) -> Room {
        let is_waiting = self.is_waiting;
        if self.queues.iter().any(|queue| queue.inbox.is_full(is_waiting)) {
            return self.wait(waker);
        }
        self.is_waiting = false;
        Room::Now
    }

    #[cold]
    fn wait(&mut self, waker: &Arc<dyn QueueWaker>) -> Room {
        let is_waiting = self.is_waiting;
        let full = self.queues.iter_mut().filter(|queue| queue.inbox.is_full(is_waiting));
        let wait = full.filter_map(|queue| queue.inbox.wait(&mut queue.registered, waker)).min();
        self.is_waiting = wait.is_some();
        wait.map_or(Room::Now, |wait| Room::Later(wait.as_nanos() as u64))
    }

    /// It is another worker that is to be woken.
    pub fn forget(&mut self) {
        self.queues.clear();
        self.is_waiting = false;
    }

    /// A burst was for these.
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
        // Where it was registered before it is woken once more than it needs.
        self.queues.truncate(at);
        self.queues.push(Queue { inbox: Arc::clone(inbox), registered: Registered::default() });
    }
}
