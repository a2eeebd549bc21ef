//! `pregrant-lab bench store` as a user runs it: rows for sockets and for the core alone, as a
//! table and as JSON lines.

use crate::lab;
use serde_json::Value;
use std::collections::BTreeSet;

#[test]
fn every_operation_is_answered_over_sockets_and_by_the_core() {
    let few =
        ["bench", "store", "--seconds", "0.01", "--repeats", "1", "--connections", "3", "--depth", "1,7"];
    let out = lab(&[&few[..], &["--json", "-"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: BTreeSet<_> =
        lines.iter().map(|l| format!("{} {} {}", l["path"], l["platform"], l["depth"])).collect();
    assert_eq!((lines.len(), rows.len()), (20, 20), "five operations, two depths, with sockets and without");
    for line in &lines {
        assert_eq!(
            (&line["bench"], &line["queues"], &line["burst"]),
            (&"store".into(), &3.into(), &line["depth"])
        );
        let depth = line["depth"].as_u64().unwrap();
        assert!(
            line["frames"].as_u64().is_some_and(|n| n > 0 && n % (3 * depth) == 0),
            "whole rounds: {line}"
        );
        assert!(line["backend_cpu_ns"].as_u64().unwrap() > 0, "the server did something: {line}");
        assert_eq!(line["notifications"] == line["frames"], line["path"] == "watch", "{line}");
    }
}

#[test]
fn the_table_says_how_it_was_measured() {
    let out =
        lab(&["bench", "store", "--ops", "read", "--depth", "1", "--seconds", "0.01", "--repeats", "1"]);
    let text = String::from_utf8(out.stdout).unwrap();
    for word in ["operation", "server ns each", "read", "socket", "core alone", "processor time"] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
}

#[test]
fn wrong_usage_is_exit_2() {
    for bad in [
        &["--ops", "rename"][..],
        &["--depth", "0"],
        &["--depth", "257"],
        &["--connections", "0"],
        &["--seconds", "0"],
    ] {
        let out = lab(&[&["bench", "store"], bad].concat());
        assert_eq!(out.status.code(), Some(2), "{bad:?}");
    }
}
