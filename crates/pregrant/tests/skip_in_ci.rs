//! A test that cannot run passes on a desk, saying so, and fails in CI.
#![cfg(not(any(loom, miri)))]

use pregrant_testkit::skip::skip;
use std::process::Command;

/// Only when the test below asks for it.
const NEEDED: &str = "PREGRANT_TEST_NEEDS";

#[test]
fn what_needs_more_than_there_is() {
    if let Ok(what) = std::env::var(NEEDED) {
        skip(format!("no {what} here"));
    }
}

#[test]
fn nothing_is_skipped_where_ci_is_set() {
    for (ci, passes) in
        [(None, true), (Some(""), true), (Some("false"), true), (Some("true"), false), (Some("1"), false)]
    {
        let mut test = Command::new(std::env::current_exe().expect("this program"));
        test.args(["--exact", "what_needs_more_than_there_is", "--nocapture"])
            .env(NEEDED, "moon")
            .env_remove("CI");
        test.envs(ci.map(|ci| ("CI", ci)));
        let out = test.output().expect("it runs");
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), passes, "CI={ci:?}: {said}");
        assert!(said.contains("no moon here"), "{said}");
        assert_eq!(said.lines().any(|line| line.contains("skipped: no moon here")), passes, "{said}");
    }
}
