//! The output of a command: results on standard output, progress on standard error while it is a
//! terminal.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often a long task reports its progress, where standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Prints a result. An output that no one reads any more is an error of its own kind, which ends
/// the program in silence.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => e,
        kind => io::Error::new(kind, format!("cannot write to standard output: {e}")),
    })
}

/// Says something beside the results, on standard error. Where that cannot be written, as where it
/// goes to a full disk, no one is to be reached.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether a command's error only says that its reader has gone, as `head` does.
pub fn has_no_reader(e: &(dyn std::error::Error + 'static)) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A line of progress that is written over again and again, where standard error is a terminal.
pub struct Progress {
    shown: bool,
    /// When it began, or last wrote [a line](Self::show_long).
    line_at: Cell<Instant>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Nothing shown yet.
    pub fn new() -> Self {
        Self { shown: io::stderr().is_terminal(), line_at: Cell::new(Instant::now()) }
    }

    /// The same for a task of minutes: without a terminal, the log gets a line every ten seconds.
    pub fn show_long(&self, text: impl Display) {
        if self.shown {
            self.show(text);
        } else if self.line_is_due(Instant::now()) {
            let _ = writeln!(io::stderr(), "{text}"); // progress is no result
        }
    }

    fn line_is_due(&self, now: Instant) -> bool {
        let due = now.duration_since(self.line_at.get()) >= LINE_EVERY;
        if due {
            self.line_at.set(now);
        }
        due
    }

    /// Shows a line in place of the last one.
    pub fn show(&self, text: impl Display) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K{text}"); // progress is no result
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        self.show("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_a_line_every_ten_seconds() {
        let progress = Progress::new();
        let began = progress.line_at.get();
        let due = |s: u64| progress.line_is_due(began + Duration::from_secs(s));
        assert_eq!(
            [0, 9, 10, 11, 19, 25, 34, 35].map(due),
            [false, false, true, false, false, true, false, true]
        );
    }
}
