//! Where the project is, and how a program is run in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The checkout that xtask was built from.
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// The workspace of this very program, with cargo's own choice of target directory.
    pub fn find() -> Workspace {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace");
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |t| root.join(t));
        Workspace { root: root.into(), target }
    }

    /// The folder with the workspace's `Cargo.toml`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns a command that runs a program in the root, with no one at its keyboard.
    pub fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// Returns the command `cargo ARGS` with the pinned toolchain. It keeps no state for
    /// incremental builds, which took a fifth of the time of the first build (`net`: 148 seconds
    /// instead of 119).
    pub fn cargo(&self, args: &[&str]) -> Command {
        let mut command = self.program("cargo");
        command.args(args).env("CARGO_INCREMENTAL", "0");
        command
    }
}

/// A file's text; an error names the file.
pub fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file; an error names it.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), String> {
    std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// Makes a folder that is empty; an error names it.
pub fn empty_dir(dir: &Path) -> Result<(), String> {
    let cleared = if dir.exists() { std::fs::remove_dir_all(dir) } else { Ok(()) };
    cleared.and_then(|()| std::fs::create_dir_all(dir)).map_err(|e| format!("{}: {e}", dir.display()))
}

/// Runs a command to its end; the error has the command and its exit status.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    println!("$ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` ended with {status}")),
        Err(e) => Err(format!("`{shown}` did not start: {e}")),
    }
}

/// Runs a command and returns its output; the error has its exit status and its error output.
pub fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let out = command.output().map_err(|e| format!("`{shown}` did not start: {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!(
            "`{shown}` ended with {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        )),
    }
}

/// Runs all commands in parallel and prints the output of each when all have ended; the error names
/// the first that failed.
pub fn run_all(commands: Vec<Command>) -> Result<(), String> {
    let started: Vec<_> = commands
        .into_iter()
        .map(|mut command| {
            println!("$ {} &", show(&command));
            std::thread::spawn(move || (show(&command), command.output()))
        })
        .collect();
    let ended = started.into_iter().map(|thread| {
        let (shown, output) = thread.join().map_err(|_| "a thread that waits for a program panicked")?;
        let output = output.map_err(|e| format!("`{shown}` did not start: {e}"))?;
        println!("$ {shown}");
        println!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        if output.status.success() { Ok(()) } else { Err(format!("`{shown}` ended with {}", output.status)) }
    });
    // All are waited for, whichever failed.
    ended.collect::<Vec<_>>().into_iter().collect()
}

/// True if the command starts and succeeds; its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// The command as one would type it, with the environment that was set for it.
pub fn show(command: &Command) -> String {
    let env = command.get_envs().filter_map(|(k, v)| Some(format!("{}={:?} ", k.to_str()?, v?)));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    env.collect::<String>() + &words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
