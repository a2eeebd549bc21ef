//! Answers that must wait: frames whose pages a path still holds, and those behind them, since net answers in request
//! order (PROTOCOL.md 1.1, R1).
//!
//! ```text
//!   frames:  [held 17][done][held 18][done] ...      only the done ones at the head may be answered
//! ```
//! Bounded by the ring: an unanswered request keeps its slot.

use super::assemble::{TxBatch, bits};
use crate::wire::netif::TxResponse;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// One frame that waits: its answers, and its number if it is held.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    nr_rsps: u16,
    held: Option<u64>,
}

/// The queue of answers of one TX ring. Allocates once.
#[derive(Debug)]
pub struct LateAnswers {
    rsps: VecDeque<TxResponse>,
    frames: VecDeque<Waiting>,
    next_held: u64,
}

impl LateAnswers {
    /// For a ring of `size` slots.
    pub fn new(size: u32) -> Self {
        let n = size as usize;
        Self { rsps: VecDeque::with_capacity(n), frames: VecDeque::with_capacity(n), next_held: 0 }
    }

    /// Whether nothing waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends the answers of a whole batch.
    pub fn push(&mut self, batch: &TxBatch) {
        let mut held = bits(batch.held).peekable();
        for i in 0..batch.nr_frames {
            let rsps = batch.answers_of(i);
            self.rsps.extend(rsps);
            let number = (held.peek() == Some(&i)).then(|| {
                held.next();
                self.next_held += 1;
                self.next_held - 1
            });
            self.frames.push_back(Waiting { nr_rsps: rsps.len() as u16, held: number });
        }
    }

    /// The path let go of these frames.
    pub fn release(&mut self, done: &mut Vec<u64>) {
        done.sort_unstable();
        for f in &mut self.frames {
            if let Some(n) = f.held
                && done.binary_search(&n).is_ok()
            {
                f.held = None;
            }
        }
        done.clear();
    }

    /// Takes the answers of the frames at the head that are done, whole frames, at most `most` answers.
    pub fn take(&mut self, most: usize, out: &mut Vec<TxResponse>) {
        out.clear();
        while let Some(f) = self.frames.front() {
            if f.held.is_some() || out.len() + f.nr_rsps as usize > most {
                return;
            }
            out.extend(self.rsps.drain(..f.nr_rsps as usize));
            self.frames.pop_front();
        }
    }
}
