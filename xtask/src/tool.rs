//! The tools that a layer needs, installed when they are missing.
//!
//! On a desk, a tool that cannot be installed is named with its remedy and the layer goes on: the tests that need it
//! say so themselves. With `CI=true` it fails the layer: in CI nothing is skipped.

use crate::workspace::{Workspace, run, succeeds};

/// A Rust target of the pinned toolchain.
pub fn target(w: &Workspace, target: &str) -> Result<(), String> {
    let listed = w.program("rustup").args(["target", "list", "--installed"]).output();
    if listed.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).lines().any(|l| l == target)) {
        return Ok(());
    }
    run(w.program("rustup").args(["target", "add", target]))
}

/// A nightly toolchain, with components if asked.
pub fn nightly(w: &Workspace, components: &[&str]) -> Result<(), String> {
    if succeeds(w.program("rustup").args(["run", "nightly", "rustc", "--version"])) {
        if components.is_empty() {
            return Ok(());
        }
        return run(w
            .program("rustup")
            .args(["component", "add", "--toolchain", "nightly"])
            .args(components));
    }
    let mut install = w.program("rustup");
    install.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
    if !components.is_empty() {
        install.args(["--component", &components.join(",")]);
    }
    run(&mut install)
}

/// Miri, which exists only in nightly toolchains.
pub fn miri(w: &Workspace) -> Result<(), String> {
    let works = || succeeds(w.program("rustup").args(["run", "nightly", "cargo", "miri", "--version"]));
    if works() {
        return Ok(());
    }
    nightly(w, &["miri", "rust-src"])?;
    if works() {
        Ok(())
    } else {
        Err("`cargo miri` of toolchain nightly does not run after its installation".into())
    }
}

/// A program from a Debian package.
pub fn debian(w: &Workspace, program: &str, package: &str) -> Result<(), String> {
    if on_path(program) {
        return Ok(());
    }
    let installed = if is_root(w) {
        apt(w, package)
    } else {
        Err(format!("`{program}` is missing; as root: apt-get update && apt-get install -y {package}"))
    };
    match installed {
        Ok(()) if on_path(program) => Ok(()),
        Ok(()) => Err(format!("package {package} is installed and brought no `{program}`")),
        Err(why) if in_ci() => Err(why),
        Err(why) => {
            println!("note: {why}");
            Ok(())
        }
    }
}

fn apt(w: &Workspace, package: &str) -> Result<(), String> {
    let apt = |args: &[&str]| run(w.program("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"));
    apt(&["update"])?;
    apt(&["install", "-y", package])
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn is_root(w: &Workspace) -> bool {
    w.program("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0")
}

fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1")
}
