//! The log's form on standard error: for the journal, or for eyes.
//!
//! ```text
//!   standard error is the journal (JOURNAL_STREAM names it)    <4>[WARN ] vif 0 of domain 5 ...     the journal has the time
//!   anything else: a terminal, a file, another program                [2026-11-25T20:43:13.123Z WARN ] vif 0 of domain 5 ...
//! ```
//! The number is syslog's priority, as sd-daemon(3) has it: each line of a text has its own, or the
//! journal would take the rest for a matter of course.

use log::Level;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

/// The variable in which systemd names the device and inode of the journal's stream, if standard
/// error was that stream when the process began.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLine {
    Journal,
    Stamped,
}

impl LogLine {
    /// Chooses the format that fits the current standard error.
    pub fn of_stderr() -> Self {
        let stat = rustix::fs::fstat(std::io::stderr()).ok();
        let stderr = stat.map(|stat| (stat.st_dev, stat.st_ino));
        Self::by(std::env::var_os(JOURNAL_STREAM).as_deref(), stderr)
    }

    /// Chooses the format. A process that a child of systemd started with another standard error
    /// inherits the variable, so standard error is the journal only if the two agree.
    fn by(stream: Option<&OsStr>, stderr: Option<(u64, u64)>) -> Self {
        let named = stream.and_then(|stream| {
            let (device, inode) = std::str::from_utf8(stream.as_bytes()).ok()?.split_once(':')?;
            Some((device.parse().ok()?, inode.parse().ok()?))
        });
        if named.is_some() && named == stderr { Self::Journal } else { Self::Stamped }
    }

    /// Starts the log in this format, from this level on unless `RUST_LOG` sets another.
    pub fn begin(self, level: &str) {
        env_logger::Builder::new()
            // It warns of each ioctl that a file has none of, and of a mount that is put away
            // already.
            .filter_module("fuser", log::LevelFilter::Error)
            .parse_env(env_logger::Env::default().default_filter_or(level))
            .format(move |out, record| {
                let line = self.line(record.level(), record.args(), SystemTime::now());
                out.write_all(line.as_bytes())
            })
            .init();
    }

    /// Formats a message as one line, or as several if its text has several.
    fn line(self, level: Level, text: &fmt::Arguments<'_>, now: SystemTime) -> String {
        match self {
            Self::Journal => self.marked(level, &format_args!("[{level:<5}] {text}")) + "\n",
            Self::Stamped => format!("[{} {level:<5}] {text}\n", humantime::format_rfc3339_millis(now)),
        }
    }

    /// Formats a text for standard error that is not a line of the log: the error with which a
    /// command ends.
    pub fn last_words(self, text: &dyn Display) -> String {
        self.marked(Level::Error, text)
    }

    fn marked(self, level: Level, text: &dyn Display) -> String {
        let text = text.to_string();
        if self == Self::Stamped {
            return text;
        }
        let priority = match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        let lines: Vec<_> = text.split('\n').map(|line| format!("<{priority}>{line}")).collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_journal_is_where_its_variable_names_standard_error() {
        let by = |stream: Option<&str>, stderr| LogLine::by(stream.map(OsStr::new), stderr);
        assert_eq!(by(Some("8:1234"), Some((8, 1234))), LogLine::Journal);
        // As a service's own that writes to a file; without systemd; garbled.
        for (stream, stderr) in [
            (Some("8:1234"), Some((8, 1235))),
            (Some("8:1234"), Some((9, 1234))),
            (Some("8:1234"), None),
            (None, Some((8, 1234))),
            (None, None),
            (Some("8"), Some((8, 0))),
            (Some("8:-1"), None),
            (Some(""), None),
        ] {
            assert_eq!(by(stream, stderr), LogLine::Stamped, "{stream:?} {stderr:?}");
        }
    }

    #[test]
    fn a_line_has_its_priority_or_its_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_103_393_045);
        let line = |of: LogLine, level| of.line(level, &format_args!("vif 0 of domain 5: closed"), now);
        for (level, journal) in [
            (Level::Error, "<3>[ERROR] vif 0 of domain 5: closed\n"),
            (Level::Warn, "<4>[WARN ] vif 0 of domain 5: closed\n"),
            (Level::Info, "<6>[INFO ] vif 0 of domain 5: closed\n"),
            (Level::Debug, "<7>[DEBUG] vif 0 of domain 5: closed\n"),
        ] {
            assert_eq!(line(LogLine::Journal, level), journal);
        }
        assert_eq!(
            line(LogLine::Stamped, Level::Info),
            "[2025-11-25T20:43:13.045Z INFO ] vif 0 of domain 5: closed\n"
        );
        let two = format_args!("one\ntwo");
        assert_eq!(LogLine::Journal.line(Level::Warn, &two, now), "<4>[WARN ] one\n<4>two\n");
        assert_eq!(LogLine::Journal.last_words(&"pregrant: no"), "<3>pregrant: no");
        assert_eq!(LogLine::Stamped.last_words(&"pregrant: no"), "pregrant: no");
    }
}
