//! The message of a test that needs something which this machine lacks. The tests of the other
//! crates have it by its path.

use std::fmt::Display;

/// Says why a test does nothing: on a desk. With `CI=true` it fails the test, for there everything
/// is to be had.
#[track_caller]
pub fn skip(why: impl Display) {
    assert!(
        !std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
        "not skipped, for CI is set: {why}"
    );
    println!("skipped: {why}");
}

/// The same of what only another kernel has, a module of it: CI cannot install that, so nothing
/// fails there. Real Xen in QEMU has it.
#[allow(dead_code)] // most tests need no such thing
pub fn skip_for_kernel(why: impl Display) {
    println!("skipped: {why}");
}
