//! Promises of the laboratory's commands: a failure's remedy, and that commands which run at the
//! same time do not meet and leave nothing.

use crate::{LAB, lab, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What, where, and what to do; before anything is measured.
#[test]
fn a_failure_names_its_remedy() {
    let missing = "/nonexistent/out.jsonl";
    let measuring = ["net", "latency", "limit", "store"].map(|what| ["bench", what]);
    for command in measuring.iter().map(|c| &c[..]).chain([&["demo"][..]]) {
        let out = lab(&[command, &["--json", missing]].concat());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{command:?}: {err}");
        assert!(err.contains(missing) && err.contains("make its directory first"), "{command:?}: {err}");
        let out = lab(&[command, &["--json", "/"]].concat());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{command:?}: {err}");
        assert!(err.contains("to /: ") && err.contains("choose a file"), "{command:?}: {err}");
    }
    let out = lab(&["store", "serve", "--socket", "/nonexistent/xs.sock"]);
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1));
    assert!(err.contains("/nonexistent/xs.sock") && err.contains("make the directory first"), "{err}");
}

#[test]
fn latency_in_every_mode_brings_every_frame_back() {
    let out = lab(&["bench", "latency", "--mode", "poll,event,adaptive", "--seconds", "0.05", "--json", "-"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines: Vec<serde_json::Value> =
        text(&out.stdout).lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
    for mode in ["poll", "event", "adaptive"] {
        let rows: Vec<_> = lines.iter().filter(|l| l["mode"] == mode).collect();
        assert_eq!(rows.len(), 4, "{mode}: two paths, two directions");
        for row in rows {
            assert!(row["lost"] == 0 && row["frames"].as_u64() > Some(0), "{row}");
        }
    }
}

/// A directory for one demo's sockets and files; short, since a socket's path is.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pregrant-lab-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory of its own");
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Processes whose environment says that their temporary files go to `place`.
fn processes_of(place: &Path) -> Vec<PathBuf> {
    let needle = format!("TMPDIR={}", place.display());
    let procs = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok).map(|e| e.path());
    let is_ours = |p: &PathBuf| {
        let environment = std::fs::read(p.join("environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|v| v == needle.as_bytes())
    };
    procs.filter(is_ours).collect()
}

/// Two demos at the same time, each with domains of the same numbers: neither meets the other, and
/// both leave nothing.
#[test]
fn two_demos_at_the_same_time() {
    let places = ["a", "b"].map(Place::new);
    let demos = places.each_ref().map(|place| {
        Command::new(LAB)
            .args(["demo", "--json"])
            .arg(place.0.join("out.jsonl"))
            .env("TMPDIR", &place.0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    });
    for (demo, place) in demos.into_iter().zip(&places) {
        let out = demo.wait_with_output().expect("it ends");
        let (story, err) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{err}");
        assert!(story.contains("at both ends: equal") && story.contains("4 Connected"), "{story}");
        let json = std::fs::read_to_string(place.0.join("out.jsonl")).expect("JSON lines");
        let lines: Vec<serde_json::Value> =
            json.lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
        // Frames in a killed backend's memory are lost with it, and counted.
        let lost = |l: &&serde_json::Value| l["bench"] != "restart" && l["lost"] != 0;
        assert!(!lines.is_empty() && !lines.iter().any(|l| lost(&l)), "{json}");
        std::fs::remove_file(place.0.join("out.jsonl")).expect("the file");
        let left: Vec<_> = std::fs::read_dir(&place.0).expect("the place").collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(processes_of(&place.0), Vec::<PathBuf>::new(), "processes are left");
    }
}
