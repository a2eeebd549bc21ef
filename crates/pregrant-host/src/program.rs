//! Which program this process runs, for its status and its reports: the version, and the commit
//! where it is known.
//!
//! A program tells its commit once, as it starts: for a new commit only the programs' own packages
//! are built again, not the libraries below them.

use std::sync::OnceLock;

/// The version of all these crates.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Tells the commit; the first that is set stays.
pub fn set_commit(commit: &'static str) {
    let _ = COMMIT.set(commit);
}

/// The commit that the command set.
pub fn commit() -> Option<&'static str> {
    COMMIT.get().copied()
}
