//! An emulator and its console.
//!
//! ```text
//!   QEMU --stdout--> a thread --lines--> the test that plays the machine, with a patience of its own
//! ```
//! The machine ends when this is dropped, whatever became of the play.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

pub struct Console {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Console {
    pub fn start(command: &mut Command) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|e| format!("{program} does not start: {e}"))?;
        let (to, lines) = mpsc::channel();
        let out = child.stdout.take();
        let console = Self { child, lines };
        let out = out.ok_or_else(|| format!("{program} without a console"))?;
        std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                if to.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
                    return;
                }
            }
        });
        Ok(console)
    }

    /// Waits for the next line, at most for `patience`. `Disconnected`: the machine has ended.
    pub fn line(&self, patience: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(patience)
    }

    /// Waits for the machine to end, at most for `patience`, then kills it.
    pub fn end(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if self.child.try_wait().is_ok_and(|s| s.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}
