//! The tools that a layer needs, installed when they are missing.
//!
//! On a desk, a tool that cannot be installed is named with its remedy and the layer goes on: the
//! tests that need it say so themselves. With `CI=true` it fails the layer: in CI nothing is
//! skipped.

use crate::workspace::{Workspace, run, succeeds};
use std::path::Path;

/// Installs a Rust target of the pinned toolchain.
pub fn target(w: &Workspace, target: &str) -> Result<(), String> {
    let listed = w.program("rustup").args(["target", "list", "--installed"]).output();
    if listed.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).lines().any(|l| l == target)) {
        return Ok(());
    }
    run(w.program("rustup").args(["target", "add", target]))
}

/// Installs a component of the pinned toolchain.
pub fn component(w: &Workspace, component: &str) -> Result<(), String> {
    let listed = w.program("rustup").args(["component", "list", "--installed"]).output();
    let is_there = |o: std::process::Output| {
        String::from_utf8_lossy(&o.stdout).lines().any(|l| l.trim().starts_with(component))
    };
    match listed.is_ok_and(is_there) {
        true => Ok(()),
        false => run(w.program("rustup").args(["component", "add", component])),
    }
}

/// The nightly compiler of Miri and of the fuzz targets: its date, and the output of `rustc
/// --version`. To use a newer one, change these two lines: no layer may fail because of another
/// project's change overnight.
const NIGHTLY: (&str, &str) = ("2026-05-20", "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)");

/// The name of the pinned nightly toolchain, which is installed if need be, with these components.
pub fn nightly(w: &Workspace, components: &[&str]) -> Result<String, String> {
    let dated = format!("nightly-{}", NIGHTLY.0);
    // Rustup knows one compiler by two names; what is installed as `nightly` may be this very one.
    let installed = [dated.as_str(), "nightly"].into_iter().find(|name| is_pinned(&version(w, name)));
    let Some(name) = installed else {
        let mut install = w.program("rustup");
        install.args(["toolchain", "install", &dated, "--profile", "minimal"]);
        if !components.is_empty() {
            install.args(["--component", &components.join(",")]);
        }
        run(&mut install)?;
        let found = version(w, &dated);
        return match is_pinned(&found) {
            true => Ok(dated),
            false => Err(format!("toolchain {dated} is {found:?} and not {:?}", NIGHTLY.1)),
        };
    };
    if !components.is_empty() {
        run(w.program("rustup").args(["component", "add", "--toolchain", name]).args(components))?;
    }
    Ok(name.into())
}

/// Returns the output of `rustc --version` of a toolchain; empty if it is not installed.
fn version(w: &Workspace, toolchain: &str) -> String {
    let out = w.program("rustup").args(["run", toolchain, "rustc", "--version"]).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default()
}

fn is_pinned(version: &str) -> bool {
    version == NIGHTLY.1
}

/// Returns the pinned nightly with Miri, which exists only in nightly toolchains.
pub fn miri(w: &Workspace) -> Result<String, String> {
    let works = |name: &str| succeeds(w.program("rustup").args(["run", name, "cargo", "miri", "--version"]));
    let name = nightly(w, &[])?;
    if works(&name) {
        return Ok(name);
    }
    let name = nightly(w, &["miri", "rust-src"])?;
    if works(&name) {
        Ok(name)
    } else {
        Err(format!("`cargo miri` of toolchain {name} does not run after its installation"))
    }
}

/// Version of mdBook.
const MDBOOK: &str = "0.5.4";

/// Returns the path of the pinned mdBook: on the PATH, or in the target directory, where it is
/// installed if `install` is true. None: it is not there.
pub fn mdbook(w: &Workspace, install: bool) -> Result<Option<String>, String> {
    let tools = w.target().join("tools");
    let own = tools.join("bin/mdbook").display().to_string();
    let is_pinned = |mdbook: &String| {
        let out = w.program(mdbook).arg("--version").output();
        out.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).trim() == format!("mdbook v{MDBOOK}"))
    };
    if let Some(found) = ["mdbook".to_string(), own.clone()].into_iter().find(is_pinned) {
        return Ok(Some(found));
    }
    if !install {
        println!(
            "note: mdbook {MDBOOK} is missing, so the site is not built; `cargo xtask book` installs it"
        );
        return Ok(None);
    }
    // Without the server, and not optimized: optimizing takes longer than its work.
    let mut cargo = w.cargo(&["install", "mdbook", "--version", MDBOOK, "--locked", "--debug"]);
    run(cargo.args(["--no-default-features", "--features", "search", "--root"]).arg(&tools))?;
    Ok(Some(own))
}

/// Finds a program from a Debian package. False: it is missing, and this is not CI.
pub fn debian(w: &Workspace, program: &str, package: &str) -> Result<bool, String> {
    if on_path(program) {
        return Ok(true);
    }
    let installed = if is_root(w) {
        apt(w, package)
    } else {
        Err(format!("`{program}` is missing; as root: apt-get update && apt-get install -y {package}"))
    };
    match installed {
        Ok(()) if on_path(program) => Ok(true),
        Ok(()) => Err(format!("package {package} is installed and brought no `{program}`")),
        Err(why) if in_ci() => Err(why),
        Err(why) => {
            println!("note: {why}");
            Ok(false)
        }
    }
}

/// Installs a Debian package for a file of its that is no program.
pub fn debian_file(w: &Workspace, file: &str, package: &str) -> Result<(), String> {
    match (Path::new(file).exists(), is_root(w)) {
        (true, _) => Ok(()),
        (false, true) => apt(w, package),
        (false, false) => Err(format!("as root: apt-get update && apt-get install -y {package}")),
    }
}

/// Installs the headers of Debian's kernel, by which modules are built.
pub fn debian_headers(w: &Workspace) -> Result<(), String> {
    const PACKAGE: &str = "linux-headers-amd64";
    if succeeds(w.program("dpkg").args(["-s", PACKAGE])) {
        return Ok(());
    }
    match is_root(w) {
        true => apt(w, PACKAGE),
        false => Err(format!("as root: apt-get update && apt-get install -y {PACKAGE}")),
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

pub fn is_root(w: &Workspace) -> bool {
    w.program("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0")
}

pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1")
}
