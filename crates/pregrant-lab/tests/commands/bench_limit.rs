//! `pregrant-lab bench limit` as a user runs it: with the second process that it reads from, and
//! its JSON lines.

use crate::{LAB, lab};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[test]
fn every_row_and_repeat_is_a_json_line() {
    let out = lab(&["bench", "limit", "--seconds", "0.001", "--repeats", "2", "--json", "-"]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = |path: &str, size: u64| {
        lines.iter().filter(|l| l["path"] == path && l["size_bytes"] == size).collect::<Vec<_>>()
    };
    assert_eq!(rows("memcpy", 65535).len(), 2);
    if !stderr.contains("one core only") {
        let headline = rows("lines", 64);
        assert_eq!((&headline[0]["stride"], &headline[0]["copies"]), (&Value::from(256), &Value::from(0)));
        assert_eq!(headline.len(), 6, "three strides, two repeats");
        assert_eq!(rows("eventfd-round-trip", 8).len(), 2);
        for size in [64, 256, 1500] {
            let mut pools: Vec<_> = rows("pool", size).iter().map(|l| l["pool"].as_u64()).collect();
            pools.dedup();
            assert_eq!(pools, [256, 2048, 8192, 256, 2048, 8192].map(Some), "{size} B");
        }
    }
    // Where the kernel forbids it, a note says so; else it was read from a process of its own, one
    // call per batch.
    for line in rows("process-vm-readv", 64) {
        assert_eq!(line["frames"].as_u64().unwrap(), 64 * line["syscalls"].as_u64().unwrap());
    }
    assert!(!rows("process-vm-readv", 64).is_empty() || stderr.contains("process_vm_readv"), "{stderr}");
    for line in &lines {
        assert_eq!((&line["bench"], &line["platform"]), (&Value::from("limit"), &Value::from("host")));
        assert!(line["frames_per_s"].as_f64().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn wrong_usage_is_exit_2_and_a_file_that_cannot_be_written_exit_1() {
    for bad in [
        &["--seconds", "-1"][..],
        &["--repeats", "0"],
        &["--burst", "65"],
        &["--pool", "300"],
        &["--nonsense"],
    ] {
        let out = lab(&[&["bench", "limit"], bad].concat());
        assert_eq!(out.status.code(), Some(2), "{bad:?}");
    }
    let out = lab(&["bench", "limit", "--json", "/nonexistent/limit.jsonl"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("/nonexistent/limit.jsonl"));
}

#[test]
fn a_target_that_is_killed_is_a_failure_that_says_so() {
    let child = Command::new(LAB)
        .args(["bench", "limit", "--seconds", "0.05", "--repeats", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let until = Instant::now() + Duration::from_secs(60); // against hanging
    let target = loop {
        let found = std::fs::read_to_string(&children).unwrap_or_default();
        // Between fork and exec it is not the target yet.
        if let Some(pid) = found.split_whitespace().next()
            && std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|c| c.contains("limit-target"))
        {
            break pid.to_string();
        }
        assert!(Instant::now() < until, "no process to read from was started");
        std::thread::sleep(Duration::from_millis(5));
    };
    std::thread::sleep(Duration::from_millis(200)); // well into the rows
    assert!(Command::new("kill").args(["-KILL", &target]).status().unwrap().success());
    let out = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    let line = format!(
        "pregrant-lab: the process that is read from (pid {target}) ended early (signal: 9 (SIGKILL))"
    );
    assert!(stderr.contains(&line), "{stderr}");
}
