//! Prints why a test is skipped that needs something this machine lacks. A test must use these
//! functions: `tidy` refuses a test that prints such a message itself, since that would pass in CI,
//! too.
//!
//! ```text
//!   skip("no /dev/net/tun") --> on a desk a line `skipped: ...`, and the test passes; with CI=true it fails
//! ```

use std::fmt::Display;

/// Prints why a test is skipped on a developer's machine. With `CI=true` it fails the test, because
/// CI has everything.
#[track_caller]
pub fn skip(why: impl Display) {
    assert!(
        !std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
        "not skipped, for CI is set: {why}"
    );
    println!("skipped: {why}");
}

/// Prints why a test is skipped that needs a module which only another kernel has. This fails no
/// test, because CI cannot install the module. The rig with real Xen has it.
pub fn skip_for_kernel(why: impl Display) {
    println!("skipped: {why}");
}
