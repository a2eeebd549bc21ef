//! Keeps the library's log lines for tests to read. A process has one logger, so a test program
//! calls [`capture`] once, or a child process calls [`to_stderr`].

use log::{LevelFilter, Log, Metadata, Record};
use pregrant_host::drivers::device_log::{LINES_PER_DEVICE, NEXT_LINE};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &Record<'_>) {
        self.lock().push(format!("{}: {}", record.level(), record.args()));
    }
    fn flush(&self) {}
}

/// Keeps log lines of level info and above from now on.
pub fn capture() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(LevelFilter::Info);
}

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &Record<'_>) {
        eprintln!("{}: {}", record.level(), record.args());
    }
    fn flush(&self) {}
}

/// Writes log lines of level info and above to stderr from now on, for a child process.
pub fn to_stderr() {
    log::set_logger(&Stderr).unwrap();
    log::set_max_level(LevelFilter::Info);
}

/// Returns the largest number of lines that one device may have caused since `since`: its two
/// budgets, for faults and for other lines, and what was added to them in that time.
pub fn most_of_a_device(since: Instant) -> usize {
    let more = since.elapsed().as_secs() / NEXT_LINE.as_secs() + 1;
    2 * (LINES_PER_DEVICE as usize + more as usize)
}

/// Returns the lines that were logged since the last call.
pub fn take() -> Vec<String> {
    std::mem::take(&mut *LINES.lock())
}

/// Returns the kept lines that contain `part`.
pub fn with(part: &str) -> Vec<String> {
    LINES.lock().iter().filter(|line| line.contains(part)).cloned().collect()
}
