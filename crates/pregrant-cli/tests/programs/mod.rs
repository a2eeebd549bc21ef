//! The two programs as cargo has built them, `pregrant` and `pregrant-lab`, and which of them has a
//! command.
//!
//! A package's tests get the path of their own package's program from cargo alone; the other one is
//! built beside it by any command that builds the workspace, as `cargo xtask test` and `cargo test`
//! do.
#![allow(dead_code)] // each test binary uses its part of it

use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the operator's program.
pub const PREGRANT: &str = "pregrant";
/// Name of the laboratory's program.
pub const LAB: &str = "pregrant-lab";

/// Path of the program of this name.
pub fn path(name: &str) -> PathBuf {
    let own = option_env!("CARGO_BIN_EXE_pregrant").or(option_env!("CARGO_BIN_EXE_pregrant-lab"));
    let path = Path::new(own.expect("cargo names the package's own program")).with_file_name(name);
    assert!(
        path.exists(),
        "{}: build both programs first: cargo build -p pregrant-cli -p pregrant-lab",
        path.display()
    );
    path
}

/// The name of the program that has this command. A front without an interface of the kernel's
/// makes traffic itself, which is the laboratory's.
pub fn of(args: &[&str]) -> &'static str {
    match args {
        ["demo" | "bench" | "loopback" | "report" | "frames", ..] | ["store", "serve", ..] => LAB,
        ["front", rest @ ..] if !rest.contains(&"--tap") || rest.contains(&"--address") => LAB,
        _ => PREGRANT,
    }
}

/// A command, of the program that has it.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(path(of(args)));
    command.args(args);
    command
}
