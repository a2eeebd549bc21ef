//! `pregrant-lab bench peers` as a user runs it: peers that cannot be measured are named, with the
//! reason, and ours are measured all the same.

use crate::{LAB, text};
use serde_json::Value;
use std::process::Command;

#[test]
fn peers_that_are_not_there_are_named_and_ours_are_measured() {
    let args = ["bench", "peers", "--size", "64", "--depth", "8", "--seconds", "0.02", "--repeats", "1"];
    let run = |more: &[&str]| {
        // No program is found there.
        let out = Command::new(LAB).args(args).args(more).env("PATH", "/nonexistent").output();
        let out = out.expect("the program starts");
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let said = run(&[]);
    for part in [
        "Not measured: memif: dpdk-testpmd is not installed",
        "Not measured: vhost-user: ",
        "Not measured: vhost-user-blk: qemu-storage-daemon is not installed",
        "staging",
        "persistent",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let lines: Vec<Value> =
        run(&["--json", "-"]).lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    let dirs: Vec<_> = lines.iter().map(|line| (&line["bench"], &line["path"], &line["dir"])).collect();
    let paths: Vec<_> = lines.iter().map(|line| line["path"].as_str().expect("a path")).collect();
    assert_eq!(paths, ["staging", "staging", "persistent", "persistent"], "{dirs:?}");
    for line in &lines {
        let rings = line["ring_per_s"].as_array().expect("two figures");
        assert!(line["bench"] == "peers" && line["lost"] == 0 && line["frames"].as_u64() > Some(0), "{line}");
        assert!(rings.len() == 2 && rings.iter().all(|ring| ring.as_f64() > Some(0.0)), "{line}");
    }
    // This path has TX alone.
    let said = run(&["--path", "map", "--peer", "memif", "--json", "-"]);
    assert!(said.lines().count() == 1 && said.contains("\"tx\""), "{said}");
}
