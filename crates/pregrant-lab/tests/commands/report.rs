//! `--report` and `pregrant-lab report` as a user runs them: which files come, what they say, and
//! where errors go.

use crate::{lab, text};
use std::fs;
use std::path::PathBuf;

/// A folder of one test, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the place");
        Self(path)
    }
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").into()
    }
    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
    fn files(&self, name: &str) -> Vec<String> {
        let entries =
            fs::read_dir(self.0.join(name)).expect("the folder").map(|e| e.expect("an entry").file_name());
        let mut names: Vec<String> = entries.map(|n| n.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_bench_reports_and_its_records_make_the_same_page_again() {
    let place = Place::new("again");
    let (json, first) = (place.path("out.jsonl"), place.path("new/first"));
    let out = lab(&[
        "bench",
        "net",
        "--path",
        "copy,staging",
        "--dir",
        "tx",
        "--size",
        "64,1500",
        "--seconds",
        "0.02",
        "--repeats",
        "2",
        "--json",
        &json,
        "--report",
        &first,
    ]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains(&format!("Report: {first}/index.html")), "{}", text(&out.stdout));
    let files = ["figures.md", "frames.svg", "index.html", "machine.json", "records.jsonl"];
    assert_eq!(place.files("new/first"), files);
    assert_eq!(place.read("new/first/records.jsonl"), place.read("out.jsonl"));
    let page = place.read("new/first/index.html");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    for part in [
        "times copy",
        "Frames a second",
        "grant copy: process_vm_readv",
        kernel.trim(),
        "bench net --path copy,staging",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("not recorded"));
    // The laboratory is a library, and the program tells it which commit it is.
    if let Some(commit) = option_env!("PREGRANT_COMMIT") {
        assert!(page.contains(&format!("commit {commit}")), "{commit} is missing");
    }

    let out = lab(&["report", &format!("{first}/records.jsonl"), "--out", &place.path("second")]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(place.read("second/index.html"), page);
    // In place, and without the machine's facts.
    let out = lab(&["report", &json, "--out", &first]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let page = place.read("new/first/index.html");
    assert!(page.contains("not recorded") && !page.contains(kernel.trim()));
    assert_eq!(place.files("new/first"), files);
    assert!(place.read("new/first/figures.md").contains("| tx | 1500 | staging 256 |"));
}

#[test]
fn several_files_make_one_page() {
    let place = Place::new("several");
    let limit = place.path("limit.jsonl");
    let out = lab(&["bench", "limit", "--seconds", "0.001", "--repeats", "1", "--json", &limit]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report = place.path("latency");
    let out =
        lab(&["bench", "latency", "--seconds", "0.02", "--mode", "poll", "--json", "-", "--report", &report]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    // Standard output has the JSON lines and nothing else.
    assert_eq!(text(&out.stdout), place.read("latency/records.jsonl"));
    let latency = format!("{report}/records.jsonl");
    let out = lab(&["report", &latency, &limit, "--out", &place.path("both")]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let page = place.read("both/index.html");
    assert!(page.contains("<h3>Ceiling</h3>") && page.contains("Poll mode"), "{page}");
    assert!(!place.files("both").contains(&"frames.svg".into()));
}

#[test]
fn what_cannot_be_read_or_written_is_named_with_a_remedy() {
    let place = Place::new("errors");
    let [file, empty, old] = ["file", "empty.jsonl", "old.jsonl"].map(|name| place.path(name));
    fs::write(&file, "x").expect("a file");
    fs::write(&empty, "\n").expect("a file");
    fs::write(&old, "\n{\"bench\":\"net\"}\n").expect("a file");
    let out = place.path("out");
    for (args, named) in [
        (&["report", "/nonexistent/a.jsonl", "--out", &out][..], "/nonexistent/a.jsonl"),
        (&["report", &empty, "--out", &out], "empty.jsonl has no records"),
        (&["report", &old, "--out", &out], "old.jsonl, line 2"),
        (&["demo", "--report", &file], "file:"),
        (&["bench", "net", "--report", &file], "file:"),
        (&["bench", "latency", "--report", &file], "file:"),
        (&["bench", "limit", "--report", &file], "file:"),
    ] {
        let out = lab(args);
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {err}");
        assert!(err.contains(named) && err.contains("; name a f"), "{args:?}: {err}");
        assert!(out.stdout.is_empty(), "{args:?} measured before it found out");
    }
    assert!(!place.0.join("out").exists());
}
