//! Runs the tests of a program one after another. It is for programs that start themselves as child
//! processes, or count the resources of the whole process (`harness = false`).
//!
//! ```text
//!   PROGRAM [PART ...]          tests whose name has one of these parts in it
//!   PROGRAM --format=json ...   the same, said as libtest says it: `cargo xtask test` reads one format
//! ```

use pregrant_loopback::ProcessCounts;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time without progress after which a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of times, 2 ms apart, that resources are counted until those of joined threads are gone.
const LOOKS: u32 = 1000;

/// The tests to run, each with its name.
pub type Tests<'a> = Vec<(String, &'a dyn Fn())>;

/// Incremented whenever a test makes progress, for the watchdog.
static BEATS: AtomicU64 = AtomicU64::new(0);

/// Notes progress for the watchdog. A long test calls this now and then.
pub fn alive() {
    BEATS.fetch_add(1, Ordering::Relaxed);
}

/// Whether a test may leave descriptors, threads and mappings behind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// The test leaves as many resources as there were before.
    Nothing,
    /// Like `Nothing`, but counted after a moment: the kernel lists a joined thread until it has
    /// removed it.
    NothingSoon,
    Anything,
}

/// Runs the tests that the arguments select. `hangs` prints details about one that hangs.
pub fn run(tests: Tests, leaves: Leaves, hangs: fn()) {
    std::thread::spawn(move || watch(hangs));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (options, parts): (Vec<_>, Vec<_>) = args.into_iter().partition(|arg| arg.starts_with('-'));
    let json = options.iter().any(|option| option == "--format=json");
    let before = ProcessCounts::now().unwrap();
    let mut passed = 0;
    for (name, test) in tests {
        if !parts.is_empty() && !parts.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        say(json, &format!("test {name} ..."), &event(&name, "started"));
        alive();
        test();
        let looks = if leaves == Leaves::NothingSoon { LOOKS } else { 0 };
        for _ in 0..looks {
            if ProcessCounts::now().unwrap() == before {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if leaves != Leaves::Anything {
            assert_eq!(ProcessCounts::now().unwrap(), before, "descriptors, threads or mappings are left");
        }
        say(json, &format!("test {name} ... ok"), &event(&name, "ok"));
        passed += 1;
    }
    let closing = r#"{"type":"suite","event":"ok","passed":N,"failed":0,"ignored":0}"#;
    say(json, &format!("{passed} passed, 0 failed"), &closing.replace('N', &passed.to_string()));
}

/// Formats an event in libtest's JSON format. Test names are identifiers, so nothing must be
/// escaped.
fn event(name: &str, event: &str) -> String {
    format!(r#"{{"type":"test","name":"{name}","event":"{event}"}}"#)
}

fn say(json: bool, text: &str, event: &str) {
    println!("{}", if json { event } else { text });
}

/// The watchdog: ends the whole program if a test hangs.
fn watch(hangs: fn()) {
    let mut last = 0;
    loop {
        std::thread::sleep(PATIENCE);
        let now = BEATS.load(Ordering::Relaxed);
        if now == last {
            eprintln!("watchdog: a test hangs; the name printed last is the one");
            hangs();
            std::process::exit(101);
        }
        last = now;
    }
}
