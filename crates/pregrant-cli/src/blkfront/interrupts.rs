//! Requests that a signal ends, so that a program which waits for one can be killed: those that may
//! take long, whatever the disk does.
//!
//! ```text
//!   begin: number, reply, Interrupt --> waiting --end--> the reply, for the caller of `end`
//!                                          '--signal--> EINTR at once, and its Interrupt is raised: no part of it is asked any more
//!   signal, before its request has come to begin: kept for it
//! ```
//! Invariants: a request is answered once, by `end`'s caller or by its signal; of signals without a
//! request at most [`EARLY_MAX`] are kept, the last ones. The kernel says a signal of any request,
//! and of most of them that changes nothing: read(2) and write(2) of a disk do not end with EINTR,
//! and a program need not expect it of them; of fallocate(2) it does.

use super::fuse::Reply;
use pregrant_host::drivers::blk::front::shared_disk::Interrupt;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Signals that are kept. One may come before the thread that read its request has found it.
const EARLY_MAX: usize = 256;

#[derive(Default)]
struct State {
    waiting: HashMap<u64, (Reply, Interrupt)>,
    early: VecDeque<u64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Signalled(Mutex<State>);

impl Signalled {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins, which the interrupt ends. None: it has ended already.
    pub(super) fn begin(&self, reply: Reply, interrupt: &Interrupt) -> Option<u64> {
        let unique = reply.unique();
        let mut state = self.state();
        if let Some(at) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(at);
            drop(state);
            reply.error(Errno::INTR);
            return None;
        }
        state.waiting.insert(unique, (reply, interrupt.clone()));
        Some(unique)
    }

    /// It is done. None: it was answered.
    pub(super) fn end(&self, unique: u64) -> Option<Reply> {
        Some(self.state().waiting.remove(&unique)?.0)
    }

    /// The program that waits for this request has a signal.
    pub(super) fn signal(&self, unique: u64) {
        let mut state = self.state();
        if let Some((reply, interrupt)) = state.waiting.remove(&unique) {
            drop(state);
            interrupt.raise();
            reply.error(Errno::INTR);
            return;
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::sync::Arc;

    /// Requests, and where their answers arrive.
    fn requests(numbers: &[u64]) -> (PipeReader, Vec<Reply>) {
        let (reader, writer) = std::io::pipe().unwrap();
        let to = Arc::new(writer.into());
        (reader, numbers.iter().map(|unique| Reply::new(Arc::clone(&to), *unique)).collect())
    }

    /// Errors and numbers of all that was answered, once no one can answer any more.
    fn answers(mut reader: PipeReader) -> Vec<(i32, u64)> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        let (all, rest) = bytes.as_chunks::<16>();
        assert!(rest.is_empty());
        let error = |answer: &[u8; 16]| i32::from_ne_bytes(*answer[4..].first_chunk().unwrap());
        let number = |answer: &[u8; 16]| u64::from_ne_bytes(*answer[8..].first_chunk().unwrap());
        all.iter().map(|answer| (error(answer), number(answer))).collect()
    }

    #[test]
    fn a_request_is_answered_once_by_the_first_to_come() {
        let (reader, mut replies) = requests(&[1, 2, 3]);
        let (signalled, interrupts) = (Signalled::default(), [(); 3].map(|()| Interrupt::default()));
        // This one's signal comes before it does.
        signalled.signal(2);
        let started: Vec<_> =
            replies.drain(..).zip(&interrupts).map(|(reply, of)| signalled.begin(reply, of)).collect();
        assert_eq!(started, [Some(1), None, Some(3)]);
        signalled.signal(1);
        assert!(signalled.end(1).is_none(), "its signal answered it");
        signalled.end(3).unwrap().ok();
        signalled.signal(3);
        assert_eq!(interrupts.map(|of| of.is_raised()), [true, false, false]);
        drop((replies, signalled));
        let interrupted = -Errno::INTR.raw_os_error();
        assert_eq!(answers(reader), [(interrupted, 2), (interrupted, 1), (0, 3)]);
    }

    #[test]
    fn signals_of_other_requests_are_forgotten() {
        let signalled = Signalled::default();
        (0..10_000).for_each(|unique| signalled.signal(unique));
        assert_eq!(signalled.state().early.len(), EARLY_MAX);
        let (reader, replies) = requests(&[5, 9999]);
        for reply in replies {
            drop(signalled.begin(reply, &Interrupt::default()).map(|unique| signalled.end(unique)));
        }
        // One that no one answers is EIO.
        let (failed, interrupted) = (-Errno::IO.raw_os_error(), -Errno::INTR.raw_os_error());
        assert_eq!(answers(reader), [(failed, 5), (interrupted, 9999)]);
    }
}
