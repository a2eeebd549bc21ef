//! Signals as this program takes them, whatever its parent left: a blocked signal and an ignored
//! one pass through `exec`.
//!
//! |left by a parent|here|
//! |---|---|
//! |SIGHUP ignored (`nohup`)|stays ignored: the user asked for a process that outlives the terminal|
//! |SIGINT ignored (a shell's `&` without job control)|taken: the help says that it ends the program|
//! |SIGTERM ignored|taken: what cannot be stopped in good order is killed, and a guest's I/O waits|
//! |any signal blocked|unblocked, for our children, too|
//! |SIGCHLD ignored|taken: the kernel would reap children itself, and none would have an exit code|
//! |SIGXFSZ as it is|taken: a file that may not grow is an error of the write, not our end|

use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Sets the mask and the dispositions of signals. It must be called before the first thread starts,
/// since threads inherit the mask.
///
/// # Errors
/// The kernel refuses.
pub fn begin() -> io::Result<()> {
    // A handler that does nothing, where there is none: the default of SIGCHLD interrupts no call.
    let nothing = Arc::new(AtomicBool::new(false));
    if is_ignored(SIGCHLD) {
        signal_hook::flag::register(SIGCHLD, Arc::clone(&nothing))?;
    }
    signal_hook::flag::register(SIGXFSZ, nothing)?;
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Returns the signals that end this program, and which it must therefore handle.
#[must_use]
pub fn ending() -> Vec<i32> {
    let mut signals = vec![SIGTERM, SIGINT];
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_set("SigIgn", &status, signal))
}

/// Returns true if a set of signals in `/proc/PID/status` contains this one.
fn is_set(set: &str, status: &str, signal: i32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
    let signals = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    signals.is_some_and(|signals| signals >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_signals_is_read() {
        let status =
            "Name:\tx\nSigPnd:\t0000000000000000\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000001001\n";
        assert!(is_set("SigIgn", status, SIGHUP) && is_set("SigBlk", status, SIGTERM));
        assert!(!is_set("SigIgn", status, SIGTERM) && !is_set("SigCgt", status, SIGTERM));
    }
}
