//! A port's network that keeps frames, and completes them when and in which order the test says.
//!
//! ```text
//!   port: hold --token--> kept --finish--> done --complete--> TxQueue, which answers the frame
//! ```

use pregrant::port::{Completions, Token};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Frames that a port keeps.
#[derive(Default)]
pub struct Shelf {
    kept: Mutex<Vec<Token>>,
    done: Mutex<Vec<Token>>,
    given_up: AtomicU32,
}

fn lock(list: &Mutex<Vec<Token>>) -> MutexGuard<'_, Vec<Token>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shelf {
    /// Room for so many frames: with it nothing is allocated later.
    pub fn with_room(frames: usize) -> Self {
        let list = || Mutex::new(Vec::with_capacity(frames));
        Self { kept: list(), done: list(), given_up: AtomicU32::new(0) }
    }

    /// Frames that are kept, the oldest first.
    pub fn kept(&self) -> MutexGuard<'_, Vec<Token>> {
        lock(&self.kept)
    }

    /// Frames that are completed at the next question.
    pub fn done(&self) -> MutexGuard<'_, Vec<Token>> {
        lock(&self.done)
    }

    /// How often a queue gave up what is kept.
    pub fn given_up(&self) -> u32 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The kernel has done with the `i`-th that is kept.
    pub fn finish(&self, i: usize) {
        let token = self.kept().remove(i);
        self.done().push(token);
    }

    /// The kernel has done with all but the `stay` oldest, the newest first.
    pub fn finish_newest(&self, stay: usize) {
        self.done().extend(self.kept().drain(stay..).rev());
    }
}

impl Completions for Shelf {
    fn complete(&self, done: &mut Vec<Token>) {
        done.append(&mut self.done());
    }
    fn give_up(&self) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
    }
}
