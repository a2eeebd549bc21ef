//! Reads the size of the terminal and keys without Enter, and replaces a picture without flicker.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// The terminal's settings, which are restored when this value is dropped.
pub struct Terminal {
    before: Option<Termios>,
}

impl Terminal {
    /// Hides the cursor, and reads keys from standard input if that is a terminal.
    pub fn begin() -> Self {
        let stdin = io::stdin();
        let before = if stdin.is_terminal() { tcgetattr(&stdin).ok() } else { None };
        if let Some(mut raw) = before.clone() {
            // Signals still come from keys: Ctrl-C ends, Ctrl-Z stops.
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _ = tcsetattr(&stdin, OptionalActions::Now, &raw); // then q needs Enter
        }
        let _ = write!(io::stdout(), "\x1b[?25l\x1b[2J");
        Self { before }
    }

    /// Returns the number of columns and of rows.
    pub fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Replaces the displayed lines by these, in one write.
    pub fn show(&self, lines: &[String]) -> io::Result<()> {
        let mut picture = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            picture += if at > 0 { "\r\n" } else { "" };
            picture += line;
            picture += "\x1b[K";
        }
        picture += "\x1b[J";
        let mut out = io::stdout().lock();
        out.write_all(picture.as_bytes())?;
        out.flush()
    }

    /// Waits for `wait`; returns true if `q` was pressed meanwhile. `stop` ends the wait too.
    pub fn quit_within(&self, wait: Duration, stop: impl AsFd) -> bool {
        let until = Instant::now() + wait;
        let stdin = io::stdin();
        let keys = self.before.is_some();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = vec![PollFd::new(&stop, PollFlags::IN)];
            if keys {
                fds.push(PollFd::new(&stdin, PollFlags::IN));
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let ready = rustix::event::poll(&mut fds, Some(&left));
            if ready != Ok(0) && fds.len() > 1 && !fds[1].revents().is_empty() {
                let mut key = [0; 64];
                match rustix::io::read(&stdin, &mut key) {
                    Ok(n) if n > 0 && !key[..n].contains(&b'q') => continue,
                    _ => return true, // q, or the terminal has gone
                }
            }
            return false;
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
        let _ = writeln!(io::stdout(), "\x1b[?25h");
    }
}
