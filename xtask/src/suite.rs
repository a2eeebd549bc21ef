//! The test programs of the workspace, as cargo built them: one command for each, so that several
//! run at a time.
//!
//! ```text
//!   cargo test --no-run --message-format=json --> package, name, program --> the longest first --> a command for each
//! ```
//! Most suites wait for processes and timers for much of their time, so one more than there are
//! cores are run at once. Decision 0050 says why cargo-nextest does not do this.

use crate::tally::{Job, Says};
use crate::workspace::{Workspace, show};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;

/// The suites that take longest, by the seconds that each takes alone: they start first. The others
/// follow in the order of their names.
const LONGEST: &[&str] = &[
    "restart",        // 180
    "backend",        // 160
    "demo_and_bench", // 64
    "net",            // 60
    "blkfront",       // 52
    "commands",       // 50
    "blk",            // 33
    "daemons",        // 32
    "disk_restart",   // 31
    "observed",       // 30
    "no_alloc",       // 25
    "no_memory",      // 15
    "loopback",       // 13
    "one_copy",       // 13
    "pregrant_host",  // 12
];

/// Number of suites that run at the same time.
pub fn at_once() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get()) + 1
}

pub fn all(w: &Workspace) -> Result<Vec<Suite>, String> {
    // Examples have no tests and are left out: `clippy` checks them.
    let mut cargo = w.cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics");
    println!("$ {}", show(&cargo));
    let built = cargo.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo did not start: {e}"))?;
    if !built.status.success() {
        return Err(format!("the tests could not be built: cargo ended with {}", built.status));
    }
    let mut suites: Vec<_> = String::from_utf8_lossy(&built.stdout).lines().filter_map(suite).collect();
    if suites.is_empty() {
        return Err("cargo named no test program".into());
    }
    let place = |name: &str| LONGEST.iter().position(|long| *long == name).unwrap_or(LONGEST.len());
    suites.sort_by_cached_key(|suite| (place(&suite.name), suite.name.clone(), suite.program.clone()));
    Ok(suites)
}

pub struct Suite {
    /// The name of the target; for libraries and programs that of the crate.
    pub name: String,
    program: String,
    /// The package's folder, from which cargo runs its tests.
    folder: String,
}

/// Finds the test program that a line of cargo's output names; None: it names none.
fn suite(line: &str) -> Option<Suite> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let program = message["executable"].as_str().filter(|_| is_test)?.to_string();
    let name = message["target"]["name"].as_str()?.to_string();
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_str()?.to_string();
    Some(Suite { name, program, folder })
}

impl Suite {
    /// Runs all of its tests.
    pub fn job(&self, w: &Workspace) -> Job {
        let mut command = w.program(&self.program);
        // Run it as cargo does.
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        Job { command, says: Says::Events }
    }
}

#[cfg(test)]
mod tests {
    use super::suite;

    #[test]
    fn test_programs_are_found_among_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/p/crates/a/Cargo.toml",
            "target":{"name":"ring"},"profile":{"test":true},"executable":"/t/ring-1"}"#
            .replace('\n', "");
        let found = suite(&line).expect("a suite");
        assert_eq!((&*found.name, &*found.program, &*found.folder), ("ring", "/t/ring-1", "/p/crates/a"));
        assert!(suite(&line.replace("true", "false")).is_none(), "a program, or a library");
        assert!(suite(&line.replace("\"/t/ring-1\"", "null")).is_none());
        assert!(suite("warning: unused").is_none());
    }
}
