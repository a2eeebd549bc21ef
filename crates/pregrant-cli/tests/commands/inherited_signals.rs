//! Signals that a parent process set to be ignored or blocked: `nohup` keeps its effect, and every
//! daemon can be stopped.

use pregrant_test_machine::programs;
use pregrant_test_machine::served::Process;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

const HUP: u32 = 1;
const TERM: u32 = 15;
const CHLD: u32 = 17;

/// Started as by `nohup`, by a parent that blocks SIGTERM, ignores it, and reaps no children.
/// Returns what is ready.
fn start(args: &[&str], dir: &Path, ready: &str) -> Process {
    let mut command = Command::new("env");
    command.args(["--ignore-signal=HUP,TERM,CHLD", "--block-signal=TERM,INT,CHLD"]);
    let mut process = Process::start(command.arg(programs::path(programs::of(args))).args(args).arg(dir));
    process.line_with(ready);
    process
}

/// A set of the process's signals.
fn set(process: &Process, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(name)).expect("Linux names the set");
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn has(set: u64, signal: u32) -> bool {
    set >> (signal - 1) & 1 == 1
}

#[test]
fn nohup_stays_and_sigterm_ends_each_daemon() {
    let dir = std::env::temp_dir().join(format!("pregrant-signals-{}", std::process::id()));
    let store = std::env::temp_dir().join(format!("pregrant-signals-{}.sock", std::process::id()));
    let machine = start(&["loopback", "serve", "--guest", "5", "--dir"], &dir, "look: ");
    let back = start(&["back", "--loopback"], &dir, "ready");
    let store = start(&["store", "serve", "--socket"], &store, "ready");
    for process in [&machine, &back, &store] {
        let (ignored, caught) = (set(process, "SigIgn"), set(process, "SigCgt"));
        assert!(has(ignored, HUP) && !has(ignored, TERM) && !has(ignored, CHLD), "ignored: {ignored:#x}");
        assert!(has(caught, TERM) && !has(caught, HUP), "caught: {caught:#x}");
        let blocked = set(process, "SigBlk");
        assert!(!has(blocked, TERM), "blocked: {blocked:#x}");
        process.signal(Signal::HUP);
    }
    // Each still lives, and ends in good order.
    for process in [store, back, machine] {
        process.stop();
    }
    assert!(!dir.exists());
}
