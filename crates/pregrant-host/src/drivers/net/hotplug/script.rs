//! A hotplug script as a child of this process, with a group of its own.

use super::Request;
use rustix::process::{Pid, Signal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which a hotplug script that still runs is killed.
pub const SCRIPT: Duration = Duration::from_secs(60);

/// A script that this process started.
#[derive(Debug)]
pub struct Script {
    child: Child,
    began: Instant,
}

impl Script {
    /// Runs a script as the toolstack would.
    ///
    /// # Errors
    /// The script cannot be started: the reason in words.
    pub fn start(request: &Request) -> Result<Self, String> {
        let mut command = Command::new(&request.script);
        command.args([request.what.as_str(), "type_if=vif"]);
        command.env("script", &request.script).env("vif", &request.vif);
        command.env("XENBUS_PATH", &request.dir).env("XENBUS_TYPE", "vif").env("XENBUS_BASE_PATH", "backend");
        // A group of its own, so that what it started ends with it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let child = command.spawn().map_err(|e| format!("cannot be run: {e}"))?;
        Ok(Self { child, began: Instant::now() })
    }

    /// Returns the script's result. None: the script still runs. A script that takes too long is
    /// killed.
    pub fn turn(&mut self) -> Option<Result<(), String>> {
        match self.child.try_wait() {
            Ok(None) if self.began.elapsed() < SCRIPT => None,
            Ok(None) => {
                self.end();
                Some(Err(format!("ran for {seconds} s, and was killed", seconds = SCRIPT.as_secs())))
            }
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(status)) => Some(Err(format!("ended with {status}"))),
            Err(e) => Some(Err(e.to_string())),
        }
    }

    /// Kills the script and its child processes.
    pub fn end(&mut self) {
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
