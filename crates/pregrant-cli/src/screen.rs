//! Prints the output of a command: results to standard output, and progress to standard error while
//! that is a terminal.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval at which a long task reports its progress if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Prints a result. If no one reads the output any more, the error is a special one that ends the
/// program silently.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => e,
        kind => io::Error::new(kind, format!("cannot write to standard output: {e}")),
    })
}

/// Prints to standard error, so that it does not mix with the results. A failure to write, for
/// example on a full disk, is ignored, since it cannot be reported.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Returns true if the error means that the reader of the output has gone, as `head` does.
pub fn has_no_reader(e: &(dyn std::error::Error + 'static)) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A line of progress that is overwritten again and again, if standard error is a terminal.
pub struct Progress {
    shown: bool,
    /// Time at which the progress began, or at which it last wrote [a line](Self::show_long).
    line_at: Cell<Instant>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    pub fn new() -> Self {
        Self { shown: io::stderr().is_terminal(), line_at: Cell::new(Instant::now()) }
    }

    /// Shows the progress of a task that takes minutes: without a terminal, a line is written every
    /// ten seconds.
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
