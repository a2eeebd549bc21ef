//! `bench blk` as a user runs it: what it prints, writes and returns.

use crate::{LAB, text};
use pregrant_testkit::skip::skip;
use std::path::PathBuf;
use std::process::Command;

/// No wait of it is ended by its bound: a wake-up that is lost ends the process.
fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(LAB);
    command.args(["bench", "blk", "--seconds", "0.03", "--repeats", "1"]).args(args);
    command.env("PREGRANT_WAITS", "unbounded");
    command
}

/// A place of this test's own.
fn place(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs it, and gives its table and its records: nothing failed, nothing was read that was not
/// written.
fn run(name: &str, args: &[&str]) -> (String, Vec<serde_json::Value>) {
    let json = place(&format!("{name}.jsonl"));
    let out = bench(args).arg("--json").arg(&json).output().expect("the program starts");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines = std::fs::read_to_string(&json).expect("the JSON lines");
    std::fs::remove_file(&json).expect("its own file");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
    for line in lines.iter().filter(|line| line["platform"] == "loopback") {
        for field in ["lost", "damaged", "missed_wakeups"] {
            assert_eq!(line[field].as_u64(), Some(0), "{field} in {line}");
        }
        assert!(number(line, "latency_p99_ns") >= number(line, "latency_p50_ns"), "{line}");
    }
    (text(&out.stdout), lines)
}

fn number(line: &serde_json::Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {line}"))
}

#[test]
fn each_path_does_its_own_operations_and_no_other() {
    let args = ["--dir", "read,write,mixed", "--size", "4096,65536", "--depth", "8", "--guests", "1,3"];
    let (table, lines) = run("blk-paths", &args);
    assert_eq!(lines.len(), 3 * 3 * 2 * 2);
    // A machine that is busy with something else may do nothing in one row's time.
    let sum = |path: &str, field: &str| {
        lines.iter().filter(|line| line["path"] == path).map(|line| number(line, field)).sum::<f64>()
    };
    for path in ["copy", "map", "persistent"] {
        assert!(sum(path, "frames") > 0.0, "no request by {path}");
        let [copies, maps, unmaps] = ["grant_copies", "grant_maps", "grant_unmaps"].map(|f| sum(path, f));
        let right = match path {
            "copy" => copies > 0.0 && (maps, unmaps) == (0.0, 0.0),
            "map" => maps > 0.0 && unmaps > 0.0,
            // Each page once, some of them perhaps as late as here.
            _ => maps < 3000.0 && unmaps == 0.0,
        };
        assert!(right, "by {path}: {copies} copies, {maps} maps, {unmaps} unmaps");
    }
    for line in &lines {
        let (guests, mode) = (line["guests"].as_u64(), line["mode"].as_str());
        assert_eq!(mode, Some(if guests == Some(1) { "poll" } else { "event" }), "{line}");
    }
    for part in ["k IOPS", "times map", "times copy", "in sum", "336718", "686010", "Platform: loopback"] {
        assert!(table.contains(part), "{part} is missing in:\n{table}");
    }
}

/// From the guest's own pages, on both paths that can; the back's operations are the same.
#[test]
fn requests_from_the_guest_s_own_pages_are_rows_of_their_own() {
    let args = ["--buffers", "pool,own", "--dir", "mixed", "--size", "4096,65536", "--align", "512"];
    let (table, lines) = run("blk-own", &[&args[..], &["--depth", "8", "--guests", "1"]].concat());
    let own = |line: &&serde_json::Value| line["own_pages"] == true;
    assert_eq!((lines.len(), lines.iter().filter(own).count()), ((3 + 2) * 2, 2 * 2));
    for line in lines.iter().filter(own) {
        let [copies, maps] = ["grant_copies", "grant_maps"].map(|field| number(line, field));
        // `map` copies lists; some of those of requests that are counted no more.
        let lists = 2.0 * number(line, "frames") + 100.0;
        let right = if line["path"] == "copy" { maps == 0.0 } else { copies <= lists };
        assert!(right && line["path"] != "persistent", "{line}");
    }
    for part in ["copy, own pages", "map, own pages", "times map with own pages"] {
        assert!(table.contains(part), "{part} is missing in:\n{table}");
    }
}

#[test]
fn long_requests_anywhere_over_two_queues() {
    let args = ["--path", "copy,persistent", "--dir", "mixed", "--size", "1048576", "--align", "512"];
    let (_, lines) =
        run("blk-long", &[&args[..], &["--depth", "2", "--guests", "1", "--workers", "2"]].concat());
    assert_eq!(lines.len(), 2);
    for line in lines {
        assert_eq!((line["queues"].as_u64(), line["workers"].as_u64()), (Some(2), Some(2)), "{line}");
        assert_eq!(line["align"].as_u64(), Some(512), "{line}");
    }
}

/// Programs that are not installed are named, and the rest is measured.
#[test]
fn anchors_that_are_not_here_are_said_to_be_missing() {
    let out = bench(&["--path", "persistent", "--dir", "read", "--depth", "8", "--guests", "1", "--anchors"])
        .env("PATH", "/nonexistent")
        .output()
        .expect("the program starts");
    let (table, err) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{err}");
    for what in ["fio is not installed", "vhost-user-blk: qemu-storage-daemon is not installed"] {
        assert!(table.contains(&format!("Not measured: {what}")), "no {what:?} in {table}");
    }
}

/// Its reads return what it wrote, at each depth, and no file of it is left.
#[test]
fn a_vhost_user_blk_server_is_an_anchor() {
    let dir = place("blk-vhost-user");
    let _ = std::fs::remove_dir_all(&dir); // of a run that was ended
    std::fs::create_dir(&dir).expect("a directory");
    let path = std::env::var("PATH").expect("where programs are");
    for program in ["qemu-storage-daemon", "taskset"] {
        let Some(found) = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|at| at.is_file())
        else {
            return skip(format_args!("{program} is missing; as root: apt-get install qemu-system-common"));
        };
        std::os::unix::fs::symlink(found, dir.join(program)).expect("a link");
    }
    let args = ["--path", "persistent", "--dir", "mixed", "--depth", "1,256", "--guests", "1", "--anchors"];
    let out = bench(&args).args(["--json", "-"]).env("PATH", &dir).output().expect("the program starts");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines: Vec<serde_json::Value> =
        text(&out.stdout).lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
    let anchors: Vec<_> = lines.iter().filter(|line| line["path"] == "vhost-user-blk").collect();
    assert_eq!(anchors.iter().map(|line| number(line, "depth")).collect::<Vec<_>>(), [1.0, 256.0]);
    for line in anchors {
        assert_eq!([number(line, "lost"), number(line, "damaged")], [0.0; 2], "{line}");
        assert!(number(line, "frames") > 0.0 && number(line, "latency_p50_ns") > 0.0, "{line}");
    }
    std::fs::remove_dir_all(&dir).expect("its own directory");
}

#[test]
fn a_report_has_its_charts() {
    let dir = place("blk-report");
    let dir_text = dir.to_str().expect("a path in UTF-8");
    run("blk-report", &["--dir", "read", "--depth", "8", "--guests", "1", "--report", dir_text]);
    let page = std::fs::read_to_string(dir.join("index.html")).expect("the report");
    std::fs::remove_dir_all(&dir).expect("the report's folder");
    for part in [">Requests to a disk</h2>", "persistent, 1 guest, 1 worker"] {
        assert!(page.contains(part), "{part} is missing in the report");
    }
}

#[test]
fn wrong_usage_is_2_and_has_a_hint() {
    for args in [&["--size", "1000"][..], &["--align", "1024"], &["--path", "staging"], &["--guests", "0"]] {
        let out = bench(args).output().expect("the program starts");
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        let hint = ["--help", "possible values", "one of", "range", "for example"];
        assert!(hint.iter().any(|h| err.contains(h)), "{args:?}: {err}");
    }
}

/// The cost of a guest with long requests for the others: a second row, in which they alone are
/// counted.
#[test]
fn a_greedy_guest_has_a_row_of_its_own() {
    let args = ["--path", "copy,persistent", "--dir", "read", "--depth", "8", "--guests", "1,3"];
    let greedy = ["--greedy", "65536"];
    let (table, lines) = run("blk-greedy", &[&args[..], &greedy].concat());
    let beside: Vec<_> = lines.iter().filter(|line| line["neighbour"] == "greedy, 65536 B").collect();
    // One guest has no others.
    assert_eq!((lines.len(), beside.len()), (2 + 2 + 2, 2));
    assert!(beside.iter().all(|line| number(line, "guests") == 3.0 && number(line, "size_bytes") == 4096.0));
    // A machine that is busy with something else may do nothing in one row's time.
    if lines.iter().all(|line| number(line, "frames") > 0.0) {
        assert_eq!(table.matches("beside a last one whose requests have 65536 B").count(), 2, "{table}");
    }
    // The table's rows are of equal load.
    assert_eq!(table.lines().filter(|line| line.starts_with("copy    ")).count(), 2, "{table}");
}

/// Disks on files beside those in RAM; the files are gone behind it, and one that was there is
/// another's.
#[test]
fn disks_on_files_are_made_and_removed() {
    let dir = place("blk-files");
    let _ = std::fs::remove_dir_all(&dir); // of a run that was ended
    std::fs::create_dir(&dir).expect("a directory");
    let disk = dir.join("disk");
    let image = disk.to_str().expect("a name in letters");
    let args = ["--path", "persistent", "--dir", "mixed", "--depth", "8", "--guests", "2"];
    let (table, lines) = run("blk-image", &[&args[..], &["--image", image]].concat());
    for medium in ["ram", "file"] {
        let of_it = || lines.iter().filter(|line| line["medium"] == medium);
        assert_eq!(of_it().count(), 1, "{table}");
        assert!(of_it().map(|line| number(line, "frames")).sum::<f64>() > 0.0, "no request on {medium}");
    }
    assert_eq!(std::fs::read_dir(&dir).expect("it is there").count(), 0, "a file is left");

    std::fs::write(&disk, "mine").expect("a file");
    let out = bench(&args).args(["--image", image]).output().expect("the program starts");
    assert!(!out.status.success() && text(&out.stderr).contains("File exists"), "{}", text(&out.stderr));
    assert_eq!(std::fs::read_to_string(&disk).expect("it is there"), "mine");
    std::fs::remove_dir_all(&dir).expect("its own directory");
}
