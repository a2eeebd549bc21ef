//! Starts the two programs as processes, and machines that `pregrant-lab loopback serve` runs.
//!
//! ```text
//!   test --command, lines, signals--> `pregrant-lab loopback serve` (Served), and on its machine `pregrant back`, `blkfront` ...
//! ```
//! Nothing here has a time limit: what does not happen hangs the test.

use crate::programs;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Returns a command of one of the two programs, whose waits have no upper bound: a lost wake-up
/// ends the process with an error, and no timeout hides it.
pub fn command(args: &[&str]) -> Command {
    let mut command = programs::command(args);
    command.env("PREGRANT_WAITS", "unbounded");
    command
}

/// A process that is killed on drop, and its output.
pub struct Process {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, out }
    }

    /// Returns the next line of output; it is empty at the end of the output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line
    }

    /// The next line of output that contains `what`.
    pub fn line_with(&mut self, what: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it ended without {what:?}");
            if line.contains(what) {
                return line;
            }
        }
    }

    /// The rest of the log, which the caller's command piped. Returns once the process has ended.
    pub fn log(&mut self) -> String {
        let mut log = String::new();
        let mut err = self.child.stderr.take().expect("it is piped");
        err.read_to_string(&mut log).expect("text");
        log
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .expect("it lives");
    }

    /// Waits until the process has ended with success, and returns the rest of its output.
    pub fn ends_well(mut self) -> String {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("text");
        assert!(self.child.wait().expect("it ends").success(), "{rest}");
        rest
    }

    /// Sends SIGTERM, and waits until the process has ended with success.
    pub fn stop(self) -> String {
        self.signal(Signal::TERM);
        self.ends_well()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A machine that a process `pregrant-lab loopback serve` runs.
pub struct Served {
    pub dir: PathBuf,
    serve: Option<Process>,
}

impl Served {
    /// Starts a machine in a directory of this name, with these further arguments.
    pub fn start(name: &str, more: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("pregrant-m-{}-{name}", std::process::id()));
        let mut command = command(&["loopback", "serve", "--dir"]);
        command.arg(&dir).args(more);
        let mut serve = Process::start(&mut command);
        assert!(serve.line().starts_with("machine ready"));
        // The text goes on until the hint for xenstore.
        serve.line_with("look: ");
        Self { dir, serve: Some(serve) }
    }

    /// Returns a command that attaches to this machine.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.arg("--loopback").arg(&self.dir);
        command
    }

    /// Ends the process that runs the machine. Files in its directory stay until this value is
    /// dropped.
    pub fn stop(&mut self) {
        self.serve.take().expect("it runs").stop();
    }

    /// Ends the machine, and checks that its directory is gone.
    pub fn end(mut self) {
        self.stop();
        assert!(!self.dir.exists());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.serve.take());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
