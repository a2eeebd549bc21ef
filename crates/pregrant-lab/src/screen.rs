//! What a command prints: results on standard output, progress on standard error while somebody looks.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Prints a result. An output that nobody reads any more is an error of its own kind, which ends the program in silence.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => e,
        kind => io::Error::new(kind, format!("cannot write to standard output: {e}")),
    })
}

/// Whether a command's error only says that its reader has gone, as `head` does.
pub fn nobody_reads(e: &(dyn std::error::Error + 'static)) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A line of progress that is written over again and again, where standard error is a terminal.
pub struct Progress {
    shown: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Nothing shown yet.
    pub fn new() -> Self {
        Self { shown: io::stderr().is_terminal() }
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
