//! Tells the program its commit (`PREGRANT_COMMIT`), where it is built from a git checkout: a
//! report names the code that it measured. `-dirty` stands behind it where the sources differ from
//! the commit.

use std::path::Path;
use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?.trim().to_string();
    (!text.is_empty()).then_some(text)
}

fn main() {
    for sources in ["src", "../pregrant/src", "../pregrant-host/src", "../pregrant-cli/src"] {
        println!("cargo:rerun-if-changed={sources}");
    }
    // Every commit and every checkout adds a line here.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) {
        println!("cargo:rustc-env=PREGRANT_COMMIT={commit}");
    }
}
