//! The program that waits for a request, and whether it is about to end, as `/proc` has it.
//!
//! ```text
//!   /proc/TID/status           signals that wait: SIGKILL, or another that is not handled and ends a process
//!   /proc/TGID/task/*/stat     all of its threads are ending: it waits for asynchronous requests of its own (exit_aio)
//! ```
//! The kernel tells a FUSE server of the first signal only, whichever that was, and of none for
//! asynchronous requests: so it is read here. A thread that waits keeps its number; one that has
//! asked and gone on does not, and may have ended when its process does: therefore [`Processes`]
//! notes whose it is when it asks.
//!
//! A process that is not seen here (of a namespace beside this one, or without `/proc`) is never
//! about to end.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Program {
    thread: u32,
    process: Option<u32>,
}

/// The bit of a signal in a mask of `/proc/TID/status`.
const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

const KILL: u64 = bit(9);
/// Signals that end no process by default: SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU,
/// SIGURG, SIGWINCH.
const HARMLESS: u64 = bit(17) | bit(18) | bit(19) | bit(20) | bit(21) | bit(22) | bit(23) | bit(28);
/// Flags of a thread in `/proc/TID/stat`: PF_EXITING, and PF_POSTCOREDUMP (Linux 5.16), which is
/// set while the thread waits for its io_uring requests.
const EXITING: u64 = 4 | 8;

/// Maps threads to the processes that they belong to. An entry is read once and used for many
/// requests. It is read again now and then, since the kernel reuses the numbers of threads.
#[derive(Debug)]
pub(super) struct Processes {
    of: HashMap<u32, Option<u32>>,
    since: Instant,
}

/// The time for which it is remembered to which process a thread belongs.
const FRESH: Duration = Duration::from_secs(5);
/// Largest number of threads that are remembered.
const THREADS_MAX: usize = 1024;

impl Default for Processes {
    fn default() -> Self {
        Self { of: HashMap::new(), since: Instant::now() }
    }
}

impl Processes {
    /// Returns the program that this thread belongs to.
    pub(super) fn program(&mut self, thread: u32, now: Instant) -> Program {
        if now.saturating_duration_since(self.since) > FRESH || self.of.len() >= THREADS_MAX {
            self.of.clear();
            self.since = now;
        }
        let process = *self.of.entry(thread).or_insert_with(|| field(&status(thread)?, "Tgid")?.parse().ok());
        Program { thread, process }
    }
}

impl Program {
    /// True if the program is about to end, and only waits for its requests.
    pub(super) fn is_ending(&self) -> bool {
        // One that has no thread of this number any more may go on with others; signals of the
        // process are in the status of each.
        let threads = [Some(self.thread), self.process];
        threads.into_iter().flatten().filter_map(status).any(|status| has_fatal_signal(&status))
            || self.process.is_some_and(all_threads_end)
    }
}

fn status(thread: u32) -> Option<String> {
    if thread == 0 { None } else { fs::read_to_string(format!("/proc/{thread}/status")).ok() }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':').map(str::trim);
    status.lines().find_map(value)
}

fn has_fatal_signal(status: &str) -> bool {
    let mask = |name| field(status, name).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    let waiting = mask("SigPnd") | mask("ShdPnd");
    let held = mask("SigBlk") | mask("SigIgn") | mask("SigCgt") | HARMLESS;
    // Of another signal its tracer says what becomes of it.
    let traced = field(status, "TracerPid").is_some_and(|tracer| tracer != "0");
    waiting & KILL != 0 || !traced && waiting & !held != 0
}

fn all_threads_end(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let mut stats = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("stat"))).peekable();
    // One that is gone meanwhile has ended.
    stats.peek().is_some() && stats.flatten().all(|stat| is_exiting(&stat))
}

fn is_exiting(stat: &str) -> bool {
    // The name, in parentheses, may hold anything; then state, parent, group, session, terminal and
    // its group, flags.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_ends_a_process_is_known_from_others() {
        let status = |pending: u64, shared: u64, [blocked, ignored, caught]: [u64; 3], tracer: u32| {
            format!(
                "Name:\tdd\nTgid:\t7\nTracerPid:\t{tracer}\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            )
        };
        let (none, quit) = ([0; 3], bit(3));
        let cases = [
            (status(0, 0, none, 0), false),
            (status(KILL, 0, none, 0), true),
            (status(0, KILL, none, 5), true),
            (status(0, quit, none, 0), true),
            (status(0, quit, none, 5), false),
            (status(0, quit, [quit, 0, 0], 0), false),
            (status(0, quit, [0, quit, 0], 0), false),
            (status(quit, 0, [0, 0, quit], 0), false),
            (status(HARMLESS, HARMLESS, none, 0), false),
            ("no status".into(), false),
        ];
        for (status, expected) in cases {
            assert_eq!(has_fatal_signal(&status), expected, "{status}");
        }
    }

    #[test]
    fn a_thread_that_ends_is_known_by_its_flags() {
        let stat = |flags: u64| format!("7 (a) b (c)) D 1 7 7 0 -1 {flags} 1 2 3");
        assert!(
            is_exiting(&stat(0x40_0004))
                && is_exiting(&stat(0x40_0008))
                && !is_exiting(&stat(0x40_0000))
                && !is_exiting("7 (dd")
        );
    }

    #[test]
    fn a_program_that_runs_or_is_not_seen_is_not_about_to_end() {
        let (mut processes, now) = (Processes::default(), Instant::now());
        let this = std::process::id();
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(processes.program(thread, now), Program { thread, process: Some(this) });
        for thread in [this, thread, 0, u32::MAX] {
            assert!(!processes.program(thread, now).is_ending());
        }
        assert_eq!(processes.of.len(), 4);
        assert_eq!((processes.program(this, now + 2 * FRESH).process, processes.of.len()), (Some(this), 1));
    }
}
