//! The version and the commit of the program that this process runs, for its status and its
//! reports.
//!
//! A program tells its commit once, as it starts: for a new commit only the programs' own packages
//! are built again, not the libraries below them.

use std::sync::OnceLock;

/// The version of all crates of this workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Sets the commit. Only the first call has an effect.
pub fn set_commit(commit: &'static str) {
    let _ = COMMIT.set(commit);
}

/// Returns the commit, if the command set one.
pub fn commit() -> Option<&'static str> {
    COMMIT.get().copied()
}
