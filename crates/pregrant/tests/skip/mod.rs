//! What a test says that needs something which this machine has not. The tests of the other crates have it by its path.

use std::fmt::Display;

/// Says why a test does nothing: on a desk. With `CI=true` it fails the test, for there everything is to be had.
#[track_caller]
pub fn skip(why: impl Display) {
    assert!(
        !std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
        "not skipped, for CI is set: {why}"
    );
    println!("skipped: {why}");
}
