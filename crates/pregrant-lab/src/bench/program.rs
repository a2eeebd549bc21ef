//! Starts other programs for a bench.

use std::process::Command;

/// Returns true if a program is installed.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Creates a command that runs a program on one core.
pub fn pinned(program: &str, core: Option<usize>) -> Command {
    let Some(core) = core else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.arg("-c").arg(core.to_string()).arg(program);
    command
}
