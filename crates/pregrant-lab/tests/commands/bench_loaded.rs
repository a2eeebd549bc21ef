//! A bench beside other programs that take most of the machine.

use crate::{LAB, text};
use std::path::PathBuf;
use std::process::Command;

/// Programs of others, as many as there are processors: none of the bench's.
struct Busy(Vec<std::process::Child>);

impl Busy {
    fn start() -> Self {
        let n = std::thread::available_parallelism().map_or(1, |n| n.get());
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        Self((0..n).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// If other programs use most of the machine, ratios are noise: the bench warns before and after
/// its rows, in each record and on the page, and prints no ratios.
#[test]
fn a_loaded_machine_is_said_to_be_one_and_its_ratios_are_not_printed() {
    let place = |name: &str| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (json, page) = (place("loaded.jsonl"), place("loaded"));
    let busy = Busy::start();
    let mut command = Command::new(LAB);
    command.args(["bench", "net", "--path", "staging", "--size", "64", "--dir", "tx", "--redo", "on,off"]);
    command.args(["--seconds", "0.1", "--repeats", "1", "--report"]).arg(&page).arg("--json").arg(&json);
    let out = command.output().expect("the program starts");
    drop(busy);
    let (table, err) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{err}");
    assert!(err.starts_with("pregrant-lab: other programs, or the host (steal), take "), "{err}");
    assert!(table.contains("Other programs took ") && table.contains("staging"), "{table}");
    assert!(table.contains(" moves (not shown: the machine was loaded) times the frames "), "{table}");
    let lines = std::fs::read_to_string(&json).expect("the JSON lines");
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("an object a line");
        let others = line["others"].as_f64().expect("a share");
        assert!((0.1..=1.0).contains(&others), "{line}");
    }
    let html = std::fs::read_to_string(page.join("index.html")).expect("the page");
    assert!(html.contains("Other programs took ") && html.contains("loaded"), "{html}");
    std::fs::remove_file(&json).expect("its own file");
    std::fs::remove_dir_all(&page).expect("its own folder");
}
