//! Requests that programs wait for, and what ends one before a back has answered it.
//!
//! ```text
//!   begin: number, reply, Interrupt --> waiting --end----> the reply, for the caller of `end`
//!                                          |--a signal---> EINTR at once, where a program expects that: fallocate(2)
//!                                          |--watch: its program is about to end, and it is a second old --> EINTR
//!                                          '--watch: no back has answered any of it for --timeout ---------> EIO
//!   signal, before its request has come to begin: kept for it
//! ```
//! With the last three its Interrupt is raised: no part of it is asked any more. read(2), write(2)
//! and fsync(2) of a disk do not end with EINTR where the program lives on, which need not expect
//! it of them. The kernel lets no program go before its request has an answer, once the server has
//! read that: what ends it without a back is here, or nowhere.
//!
//! Invariants: a request is answered once, by `end`'s caller or by what ended it; of signals
//! without a request at most [`EARLY_MAX`] are kept, the last ones. The kernel says a signal of any
//! request, and of most of them that changes nothing.

use super::fuse::Reply;
use super::program::{Processes, Program};
use log::Level;
use pregrant_host::drivers::SharedDisk;
use pregrant_host::drivers::blk::front::shared_disk::Interrupt;
use pregrant_host::drivers::overdue::{News, Overdue};
use pregrant_host::line_budget::LineBudget;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest number of FUSE's interrupts that are kept because their request is not registered yet:
/// another thread may have read the request, and be slower.
const EARLY_MAX: usize = 256;
/// Interval at which the waiting requests are checked.
const CHECK: Duration = Duration::from_millis(250);
/// A request that is younger than this is not interrupted but left to the back, as with a kernel's
/// disk. So nothing is written after its program has ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// The program that waits for a request, with the reply for it.
pub(super) struct Caller {
    pub reply: Reply,
    /// The number of the program's thread; 0: it is unknown.
    pub thread: u32,
    pub expects_eintr: bool,
}

struct Waiter {
    caller: Caller,
    program: Program,
    interrupt: Interrupt,
    since: Instant,
    /// Time at which a back was last seen to have answered a part of the request, or at which the
    /// request began.
    moved: Instant,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, Waiter>,
    early: VecDeque<u64>,
    processes: Processes,
    /// True while the thread sleeps until there is a request.
    idle: bool,
    closed: bool,
    /// A back has answered a request since the last check.
    answered: bool,
    /// Time of the last check that found that a back had answered a request.
    answered_at: Option<Instant>,
    /// Time since which no back answers, without the time in which no program waited. `overdue` has
    /// what was logged about it.
    silent_since: Option<Instant>,
    /// Time since which no program waits.
    unused_since: Option<Instant>,
    overdue: Overdue,
}

#[derive(Default)]
pub(super) struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
    /// The name of the disk in log lines.
    id: String,
    timeout: Option<Duration>,
    lines: LineBudget,
}

impl Waiting {
    /// Starts a thread that checks the requests until they are closed.
    pub(super) fn watched(
        id: String,
        disk: &Arc<SharedDisk>,
        timeout: Option<Duration>,
    ) -> io::Result<Arc<Self>> {
        let waiting = Arc::new(Self { id, timeout, ..Self::default() });
        let (watched, disk) = (Arc::clone(&waiting), Arc::clone(disk));
        std::thread::Builder::new().name("waiting".into()).spawn(move || watched.watch(&disk))?;
        Ok(waiting)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Registers a request. Its interrupt ends it early. None: it has ended already.
    pub(super) fn begin(&self, caller: Caller) -> Option<(u64, Interrupt)> {
        let unique = caller.reply.unique();
        let mut state = self.state();
        if caller.expects_eintr
            && let Some(at) = state.early.iter().position(|early| *early == unique)
        {
            state.early.remove(at);
            drop(state);
            caller.reply.error(Errno::INTR);
            return None;
        }
        let (interrupt, since) = (Interrupt::default(), Instant::now());
        let program = state.processes.program(caller.thread, since);
        let waiter = Waiter { caller, program, interrupt: interrupt.clone(), since, moved: since };
        state.waiting.insert(unique, waiter);
        if std::mem::take(&mut state.idle) {
            self.changed.notify_one();
        }
        Some((unique, interrupt))
    }

    /// Removes a request that is done. None: it was answered already.
    pub(super) fn end(&self, unique: u64) -> Option<Reply> {
        let mut state = self.state();
        let waiter = state.waiting.remove(&unique)?;
        state.answered = true;
        Some(waiter.caller.reply)
    }

    /// Handles a signal for the program that waits for this request.
    pub(super) fn signal(&self, unique: u64, disk: &SharedDisk) {
        let mut state = self.state();
        match state.waiting.get(&unique) {
            Some(waiter) if waiter.caller.expects_eintr => {
                drop(state);
                self.give_up(&[(unique, Errno::INTR)], disk);
            }
            // If it ends its program, that is seen.
            Some(_) => {}
            None => {
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
    }

    /// Answers these requests with an error, except those that were answered.
    fn give_up(&self, requests: &[(u64, Errno)], disk: &SharedDisk) {
        let mut state = self.state();
        let found = requests.iter().filter_map(|(unique, e)| Some((state.waiting.remove(unique)?, *e)));
        let found: Vec<_> = found.collect();
        drop(state);
        // No part of them is asked from here on, so none is asked once a program has the error.
        disk.interrupt(found.iter().map(|(waiter, _)| &waiter.interrupt));
        found.into_iter().for_each(|(waiter, e)| waiter.caller.reply.error(e));
    }

    fn watch(&self, disk: &SharedDisk) {
        loop {
            let mut state = self.state();
            if state.waiting.is_empty() && !state.closed {
                state.idle = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state = self.changed.wait_timeout(state, CHECK).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.closed {
                return;
            }
            drop(state);
            self.check(disk, Instant::now());
        }
    }

    /// Ends requests whose time is up, or whose programs are about to end.
    fn check(&self, disk: &SharedDisk, now: Instant) {
        let (mut over, mut old): (Vec<_>, Vec<_>) = Default::default();
        let age = |since: Instant| now.saturating_duration_since(since);
        let mut guard = self.state();
        let state = &mut *guard;
        let mut oldest = now;
        for (unique, waiter) in &mut state.waiting {
            if waiter.interrupt.has_moved() {
                waiter.moved = now;
                state.answered = true;
            }
            oldest = oldest.min(waiter.moved);
            if self.timeout.is_some_and(|timeout| age(waiter.moved) >= timeout) {
                over.push((*unique, Errno::IO));
            } else if age(waiter.since) >= PATIENCE {
                old.push((*unique, waiter.program));
            }
        }
        self.note_silence(state, oldest, now);
        drop(guard);
        let late = over.len();
        let ending = old.into_iter().filter(|(_, program)| program.is_ending());
        over.extend(ending.map(|(unique, _)| (unique, Errno::INTR)));
        if !over.is_empty() {
            self.give_up(&over, disk);
        }
        if late > 0 {
            let bound = self.timeout.unwrap_or_default();
            self.lines.warn(format_args!(
                "{id}: {late} request(s) of programs have failed with EIO: no backend has answered them in {bound:?} (--timeout)",
                id = self.id
            ));
        }
    }

    /// Logs again and again that no back answers, and later that a back answers again. `oldest` is
    /// the time since which a request waits.
    fn note_silence(&self, state: &mut State, oldest: Instant, now: Instant) {
        let age = |since: Instant| now.saturating_duration_since(since);
        let (id, waiting) = (&self.id, state.waiting.len());
        if std::mem::take(&mut state.answered) {
            state.answered_at = Some(now);
            state.silent_since = None;
            if let Some(News::Over(silence)) = state.overdue.check(None) {
                let s = silence.as_secs();
                self.lines.say(Level::Info, format_args!("{id}: a backend answers again, after {s} s"));
            }
        }
        // While no request waits, there is nothing to warn of. One slow request is no silence.
        if waiting == 0 {
            state.unused_since.get_or_insert(now);
            return;
        }
        if let Some(unused) = state.unused_since.take() {
            let pause = oldest.saturating_duration_since(unused);
            state.silent_since = state.silent_since.map(|since| since + pause);
        }
        let since = state.answered_at.map_or(oldest, |answered| oldest.max(answered));
        let silence = age(*state.silent_since.get_or_insert(since));
        if let Some(News::Waits(silence)) = state.overdue.check(Some(silence)) {
            self.lines.warn(format_args!(
                "{id}: no backend has answered for {s} s, and {waiting} request(s) wait: it has ended, or its image hangs",
                s = silence.as_secs()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::os::fd::OwnedFd;

    /// Creates the replies for requests of these numbers, and a function that reads their answers.
    fn replies(numbers: &[u64]) -> (PipeReader, impl FnMut() -> Reply) {
        let (reader, writer) = std::io::pipe().unwrap();
        let to: Arc<OwnedFd> = Arc::new(writer.into());
        let mut replies: VecDeque<_> =
            numbers.iter().map(|unique| Reply::new(Arc::clone(&to), *unique)).collect();
        (reader, move || replies.pop_front().expect("there is one more"))
    }

    /// Returns the error and the number of each answer, after the last answer was written.
    fn answers(mut reader: PipeReader) -> Vec<(i32, u64)> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        let (all, rest) = bytes.as_chunks::<16>();
        assert!(rest.is_empty());
        let error = |answer: &[u8; 16]| i32::from_ne_bytes(*answer[4..].first_chunk().unwrap());
        let number = |answer: &[u8; 16]| u64::from_ne_bytes(*answer[8..].first_chunk().unwrap());
        all.iter().map(|answer| (error(answer), number(answer))).collect()
    }

    fn caller(reply: Reply, expects_eintr: bool) -> Caller {
        Caller { reply, thread: std::process::id(), expects_eintr }
    }

    const EINTR: i32 = -Errno::INTR.raw_os_error();
    const EIO: i32 = -Errno::IO.raw_os_error();

    #[test]
    fn a_request_is_answered_once_by_the_first_to_come() {
        let (reader, mut reply) = replies(&[1, 2, 3, 4]);
        let (waiting, disk) = (Waiting::default(), SharedDisk::new().unwrap());
        // This one's signal comes before it does.
        waiting.signal(2, &disk);
        let began = [true, true, true, false].map(|eintr| waiting.begin(caller(reply(), eintr)));
        let [Some((1, first)), None, Some((3, third)), Some((4, read))] = began else { panic!("{began:?}") };
        waiting.signal(1, &disk);
        assert!(waiting.end(1).is_none(), "its signal answered it");
        waiting.end(3).unwrap().ok();
        waiting.signal(3, &disk);
        // A program that lives on need not expect EINTR of a read.
        waiting.signal(4, &disk);
        waiting.check(&disk, Instant::now() + 2 * PATIENCE);
        assert_eq!([first, third, read].map(|of| of.is_raised()), [true, false, false]);
        waiting.end(4).unwrap().ok();
        drop((reply, waiting));
        assert_eq!(answers(reader), [(EINTR, 2), (EINTR, 1), (0, 3), (0, 4)]);
    }

    #[test]
    fn a_request_fails_when_no_back_has_answered_any_of_it_for_so_long() {
        let (reader, mut reply) = replies(&[1, 2]);
        let timeout = Some(Duration::from_secs(20));
        let (waiting, disk) = (Waiting { timeout, ..Waiting::default() }, SharedDisk::new().unwrap());
        let interrupts = [(); 2].map(|()| waiting.begin(caller(reply(), false)).unwrap().1);
        let began = Instant::now();
        let at = |s| waiting.check(&disk, began + Duration::from_secs(s));
        at(10);
        interrupts[1].moved();
        at(15);
        at(21);
        assert_eq!(interrupts.each_ref().map(Interrupt::is_raised), [true, false]);
        at(36);
        assert!(interrupts[1].is_raised() && waiting.end(2).is_none());
        drop((reply, waiting));
        assert_eq!(answers(reader), [(EIO, 1), (EIO, 2)]);
    }

    #[test]
    fn a_back_that_went_is_said_and_that_it_came_back() {
        let (_reader, mut reply) = replies(&[1, 2, 3]);
        let (waiting, disk) = (Waiting::default(), SharedDisk::new().unwrap());
        let mut caller = || Caller { thread: 0, ..caller(reply(), false) };
        let (first, _) = waiting.begin(caller()).unwrap();
        let began = Instant::now();
        let said = |s| {
            waiting.check(&disk, began + Duration::from_secs(s));
            let state = waiting.state();
            state.silent_since.map(|_| state.overdue.said())
        };
        assert_eq!([1, 4, 6, 7, 31, 60, 121, 999].map(said), [0, 0, 1, 1, 2, 2, 3, 3].map(Some));
        // A request that was killed proves nothing about the back.
        waiting.give_up(&[(first, Errno::INTR)], &disk);
        assert_eq!(said(1000), Some(3));
        let (second, _) = waiting.begin(caller()).unwrap();
        waiting.end(second).unwrap().ok();
        assert_eq!(said(1001), None);
        // A slow request proves nothing while others are answered.
        let _slow = waiting.begin(caller()).unwrap();
        for s in 1002..1020 {
            waiting.state().answered = true;
            assert!(said(s).is_none_or(|said| said == 0));
        }
    }

    /// Time in which no program asks for anything does not count as silence of the back either.
    #[test]
    fn a_back_that_no_one_asks_is_not_silent() {
        let (_reader, mut reply) = replies(&[1, 2]);
        let (waiting, disk) = (Waiting::default(), SharedDisk::new().unwrap());
        let mut caller = || Caller { thread: 0, ..caller(reply(), false) };
        let began = Instant::now();
        let at = |s| began + Duration::from_secs(s);
        let (first, _) = waiting.begin(caller()).unwrap();
        waiting.check(&disk, at(1));
        waiting.give_up(&[(first, Errno::INTR)], &disk);
        waiting.check(&disk, at(2));
        let (second, _) = waiting.begin(caller()).unwrap();
        for waiter in waiting.state().waiting.values_mut() {
            (waiter.since, waiter.moved) = (at(3600), at(3600));
        }
        waiting.check(&disk, at(3600));
        assert_eq!(waiting.state().overdue.said(), 0);
        // Two seconds before, and four now.
        waiting.check(&disk, at(3604));
        assert_eq!(waiting.state().overdue.said(), 1);
        waiting.end(second).unwrap().ok();
    }

    #[test]
    fn signals_of_other_requests_are_forgotten() {
        let (waiting, disk) = (Waiting::default(), SharedDisk::new().unwrap());
        (0..10_000).for_each(|unique| waiting.signal(unique, &disk));
        assert_eq!(waiting.state().early.len(), EARLY_MAX);
        let (reader, mut reply) = replies(&[5, 9999]);
        for _ in 0..2 {
            drop(waiting.begin(caller(reply(), true)).map(|(unique, _)| waiting.end(unique)));
        }
        // One that no one answers is EIO.
        drop(reply);
        assert_eq!(answers(reader), [(EIO, 5), (EINTR, 9999)]);
    }
}
