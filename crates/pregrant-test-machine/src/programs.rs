//! Finds the two programs that cargo has built, `pregrant` and `pregrant-lab`, and the one that has
//! a given command.
//!
//! Cargo gives the path of a program only to the tests of its own package. So they are looked for
//! where the test's own program is: `target/PROFILE/deps/NAME-HASH` is a test,
//! `target/PROFILE/pregrant` a program. Any command that builds the workspace builds both, as
//! `cargo xtask test` and `cargo test --workspace` do.

use std::path::PathBuf;
use std::process::Command;

/// Name of the operator's program.
pub const PREGRANT: &str = "pregrant";
/// Name of the laboratory's program.
pub const LAB: &str = "pregrant-lab";

/// Path of the program of this name.
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own program");
    let profile = test.ancestors().nth(2).expect("the folder above `deps`");
    let path = profile.join(name);
    assert!(
        path.exists(),
        "{}: build both programs first: cargo build -p pregrant-cli -p pregrant-lab",
        path.display()
    );
    path
}

/// Returns the name of the program that has this command. A front without a network interface of
/// the kernel generates traffic itself, which only the laboratory's program does.
pub fn of(args: &[&str]) -> &'static str {
    match args {
        ["demo" | "bench" | "loopback" | "report" | "frames", ..] | ["store", "serve", ..] => LAB,
        ["front", rest @ ..] if !rest.contains(&"--tap") || rest.contains(&"--address") => LAB,
        _ => PREGRANT,
    }
}

/// Returns the command with these arguments, of the program that has it.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(path(of(args)));
    command.args(args);
    command
}
