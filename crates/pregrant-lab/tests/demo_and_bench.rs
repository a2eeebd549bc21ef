//! The commands as a user runs them: what they print, write and return.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// No wait of it is ended by its bound: a wake-up that is lost ends the process.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pregrant-lab"));
    command.args(args).env("PREGRANT_WAITS", "unbounded");
    command
}

fn lab(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file of this test's own, gone at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
    }
    fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
    fn lines(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&self.0).expect("the JSON lines");
        text.lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const FIELDS: [&str; 24] = [
    "bench",
    "path",
    "dir",
    "size_bytes",
    "data_len",
    "queues",
    "burst",
    "depth",
    "repeat",
    "seconds",
    "frames",
    "frames_per_s",
    "bits_per_s",
    "lost",
    "grant_copies",
    "grant_maps",
    "grant_unmaps",
    "syscalls",
    "notifications",
    "frontend_cpu_ns",
    "backend_cpu_ns",
    "platform",
    "mode",
    "published",
];

fn number(line: &serde_json::Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {line}"))
}

#[test]
fn wrong_usage_is_2_and_has_a_hint() {
    for args in [
        &["bnech"][..],
        &["bench", "net", "--size", "10"],
        &["bench", "net", "--path", "foo"],
        &["bench", "net", "--data-len", "300"],
        &["bench", "net", "--seconds", "0"],
        &["bench", "net", "--queues", "9"],
        &["store", "serve"],
        &["demo", "--jsno"],
    ] {
        let out = lab(args);
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        let hint = ["--help", "possible values", "tip:", "one of", "range", "for example"];
        assert!(hint.iter().any(|h| err.contains(h)), "{args:?}: {err}");
    }
}

#[test]
fn help_has_examples() {
    for args in [
        &["--help"][..],
        &["demo", "--help"],
        &["bench", "--help"],
        &["bench", "net", "--help"],
        &["bench", "blk", "--help"],
        &["bench", "hook", "--help"],
        &["bench", "working-set", "--help"],
        &["bench", "latency", "--help"],
        &["bench", "limit", "--help"],
        &["bench", "scale", "--help"],
        &["bench", "fairness", "--help"],
        &["store", "serve", "--help"],
    ] {
        let out = lab(args);
        assert!(out.status.success() && text(&out.stdout).contains("Examples:"), "{args:?}");
    }
}

#[test]
fn what_cannot_be_done_is_1_and_says_where() {
    for args in [
        &["bench", "net", "--json", "/nonexistent/out.jsonl"][..],
        &["demo", "--json", "/nonexistent/out.jsonl"],
        &["store", "serve", "--socket", "/nonexistent/xs.sock"],
    ] {
        let out = lab(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        assert!(text(&out.stderr).contains("/nonexistent/"), "{args:?}: {}", text(&out.stderr));
        assert!(out.stdout.is_empty(), "{args:?} measured before it found out");
    }
}

#[test]
fn bench_net_loses_nothing_and_counts_what_its_paths_do() {
    for (mode, queues) in [("poll", "1"), ("event", "1"), ("adaptive", "2")] {
        let json = File::new(&format!("net-{mode}.jsonl"));
        // A sink that reads heads alone, and one that is to have whole frames.
        let check: &[&str] = if mode == "poll" { &[] } else { &["--look"] };
        let args = [
            "bench",
            "net",
            "--path",
            "copy,map,staging",
            "--dir",
            "tx,rx",
            "--size",
            "64,1500,65535",
            "--seconds",
            "0.05",
            "--repeats",
            "1",
            "--mode",
            mode,
            "--queues",
            queues,
            "--json",
            json.path(),
        ];
        let out = lab(&[&args[..], check].concat());
        assert!(out.status.success(), "{mode}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains("map serves TX"), "{mode}: {}", text(&out.stderr));
        let lines = json.lines();
        assert_eq!(lines.len(), 3 * (3 + 2), "{mode}");
        for line in &lines {
            let object = line.as_object().expect("an object");
            assert!(FIELDS.iter().all(|f| object.contains_key(*f)), "{line}");
            assert_eq!((line["lost"].as_u64(), line["mode"].as_str()), (Some(0), Some(mode)), "{line}");
            nothing_went_wrong(line);
            assert!(number(line, "checked") >= 64.0 * number(line, "queues"), "{line}");
            let frames = number(line, "frames");
            assert!(frames > 0.0, "{line}");
            let counted = |field| number(line, field);
            // The counts begin and end a ringful or two apart from the frames, which is much where
            // few were moved: this machine may have been busy.
            let apart = 2.0 * 256.0 * number(line, "queues");
            match (line["path"].as_str(), number(line, "size_bytes")) {
                (Some("copy"), 64.0) => {
                    assert!((counted("grant_copies") - frames).abs() < 0.1 * frames + apart, "{line}");
                }
                (Some("map"), 1500.0 | 65535.0) if check.is_empty() => {
                    assert!((counted("grant_copies") - frames).abs() < 0.1 * frames + apart, "{line}");
                    assert_eq!((counted("grant_maps"), counted("grant_unmaps")), (0.0, 0.0), "{line}");
                }
                (Some("map"), 1500.0) => assert!(counted("grant_maps") > 0.9 * frames - apart, "{line}"),
                (Some("staging"), 64.0) => {
                    let ops = ["grant_copies", "grant_maps", "grant_unmaps"].map(counted);
                    assert_eq!(ops, [0.0; 3], "{line}");
                    assert!(mode != "poll" || counted("syscalls") < 0.01 * frames + 50.0, "{line}");
                }
                _ => {}
            }
        }
    }
}

/// Bursts of several lengths are rows of their own, and pairs are of the same length.
#[test]
fn bench_net_has_a_row_for_each_length_of_bursts() {
    let json = File::new("net-bursts.jsonl");
    let args = ["bench", "net", "--path", "staging", "--dir", "tx", "--size", "64", "--redo", "on,off"];
    let more = ["--burst", "1,8,64", "--seconds", "0.05", "--repeats", "1", "--json", json.path()];
    let out = lab(&[&args[..], &more].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let bursts: Vec<_> = json.lines().iter().map(|l| (l["burst"].as_u64(), l["redo"].as_bool())).collect();
    let all = [true, false].map(|redo| [1, 8, 64].map(|burst| (Some(burst), Some(redo))));
    assert_eq!(bursts, all.concat());
    for burst in [1, 8, 64] {
        let said = format!("With the redo page, staging tx 64 B in bursts of {burst} moves");
        assert!(text(&out.stdout).contains(&said), "{}", text(&out.stdout));
    }
}

/// The proposal's own length: what the buffer has is moved by no grant operation, and the rest is.
#[test]
fn bench_net_takes_heads_from_buffers_and_only_the_rest_by_grants() {
    let json = File::new("net-heads.jsonl");
    let args = ["bench", "net", "--path", "copy,staging+copy,staging+map", "--dir", "tx,rx", "--size", "260"];
    let more = ["--look", "--seconds", "0.05", "--repeats", "1", "--json", json.path()];
    let out = lab(&[&args[..], &more].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("staging+map serves TX"), "{}", text(&out.stderr));
    for dir in ["tx", "rx"] {
        let said = format!("With heads from staging buffers, staging+copy {dir} 260 B moves");
        assert!(text(&out.stdout).contains(&said), "{}", text(&out.stdout));
    }
    let lines = json.lines();
    let rows: Vec<_> =
        lines.iter().map(|l| (l["path"].as_str().unwrap(), l["dir"].as_str().unwrap())).collect();
    let due = [
        ("copy", "tx"),
        ("staging+copy", "tx"),
        ("staging+map", "tx"),
        ("copy", "rx"),
        ("staging+copy", "rx"),
    ];
    assert_eq!(rows, due);
    for line in &lines {
        assert_eq!(line["lost"].as_u64(), Some(0), "{line}");
        nothing_went_wrong(line);
        let (frames, apart) = (number(line, "frames"), 2.0 * 256.0);
        let (each, maps) = match line["path"].as_str() {
            Some("staging+copy") => (4.0, 0.0),
            Some("staging+map") => (0.0, 1.0),
            _ => (260.0, 0.0),
        };
        let near =
            |field, each: f64| (number(line, field) - each * frames).abs() <= each * (0.1 * frames + apart);
        assert!(near("grant_copy_bytes", each) && near("grant_maps", maps), "{line}");
    }
}

/// A guest that reads frames where the backend put them, beside one that copies them; what is in
/// staging buffers is copied.
#[test]
fn bench_net_by_reference_loses_nothing_and_says_which_rows_they_are() {
    let json = File::new("net-by-reference.jsonl");
    let args = ["bench", "net", "--path", "persistent,staging", "--dir", "rx", "--size", "64,1500,65535"];
    let more = ["--rx", "copy,reference", "--seconds", "0.05", "--repeats", "1", "--json", json.path()];
    let out = lab(&[&args[..], &more].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("By reference, persistent rx 1500 B moves"), "{}", text(&out.stdout));
    let lines = json.lines();
    let of = |path: &str, rx: Option<&str>| {
        lines.iter().filter(|l| l["path"] == path && l["rx"].as_str() == rx).count()
    };
    assert_eq!([of("persistent", None), of("persistent", Some("reference")), of("staging", None)], [3; 3]);
    assert_eq!(lines.len(), 9);
    for line in &lines {
        assert_eq!(line["lost"].as_u64(), Some(0), "{line}");
        nothing_went_wrong(line);
        assert!(number(line, "checked") >= 64.0 && number(line, "frames") > 0.0, "{line}");
    }
}

#[test]
fn bench_hook_loses_nothing_and_sends_frames_on_in_their_buffers() {
    let json = File::new("hook.jsonl");
    let out = lab(&["bench", "hook", "--seconds", "0.05", "--repeats", "1", "--json", json.path()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(
        text(&out.stdout).contains("1500 B, sent back by a hook, in their buffers:"),
        "{}",
        text(&out.stdout)
    );
    let lines = json.lines();
    let ways: Vec<_> = lines.iter().map(|l| l["rx"].as_str()).collect();
    let each =
        ["stack", "allocate", "", "hook", "return", "send-on"].map(|way| (!way.is_empty()).then_some(way));
    assert_eq!(ways, each.repeat(2));
    for line in &lines {
        assert_eq!((line["bench"].as_str(), line["lost"].as_u64()), (Some("hook"), Some(0)), "{line}");
        nothing_went_wrong(line);
        assert!(number(line, "frames") > 0.0 && number(line, "grant_copies") == 0.0, "{line}");
    }
    // Other paths, queues, and frames of several slots, which go back in all of their buffers.
    let args = ["--size", "64,65535", "--path", "staging,copy", "--queues", "4", "--seconds", "0.05"];
    let json = File::new("hook-more.jsonl");
    let out = lab(&[&["bench", "hook", "--repeats", "1", "--json", json.path()], &args[..]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("65535 B, sent back by a hook, in their buffers:"));
    let lines = json.lines();
    let sent_on = lines.iter().filter(|line| line["rx"] == "send-on");
    let rows: Vec<_> = sent_on.map(|line| (line["size_bytes"].as_u64(), line["path"].as_str())).collect();
    assert_eq!(rows, [64, 65535].map(|size| (Some(size), Some("staging"))));
    let hooked = lines.iter().find(|l| l["rx"] == "hook" && l["size_bytes"] == 64).expect("a row");
    assert_eq!((number(hooked, "published"), lines.len()), (33_006_157.0, 22), "{hooked}");
    assert!(lines.iter().all(|line| line["lost"] == 0 && line["queues"] == 4), "{lines:?}");
}

#[test]
fn bench_working_set_loses_nothing_and_goes_over_to_copying_where_buffers_do_not_fit() {
    let json = File::new("working-set.jsonl");
    let args = ["bench", "working-set", "--buffers", "64,2048", "--table", "128", "--seconds", "0.1"];
    let out = lab(&[&args[..], &["--repeats", "1", "--json", json.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("table has 128 entries"), "{}", text(&out.stdout));
    let lines = json.lines();
    let rows: Vec<_> =
        lines.iter().map(|l| (l["buffers"].as_u64(), l["reuse"].as_str(), l["table"].as_u64())).collect();
    let of = |reuse| {
        [(64, 0), (64, 128), (2048, 0), (2048, 128)].map(|(n, table)| (Some(n), Some(reuse), Some(table)))
    };
    assert_eq!(rows, [of("uniform"), of("skewed")].concat());
    for line in &lines {
        assert_eq!((line["bench"].as_str(), line["lost"].as_u64()), (Some("working-set"), Some(0)), "{line}");
        nothing_went_wrong(line);
        assert!(number(line, "frames") > 0.0 && number(line, "grant_copies") == 0.0, "{line}");
        let fits = line["buffers"] == 64 && line["table"] == 128;
        assert_eq!(line["cache_mode"].as_str(), Some(if fits { "caching" } else { "copying" }), "{line}");
        let rate = number(line, "hit_rate");
        assert!(if line["table"] == 0 { rate == 0.0 } else { rate > 0.0 && (rate == 1.0) == fits }, "{line}");
    }
}

/// Copies of workers are counted, for any reader.
#[test]
fn bench_net_with_workers_loses_nothing_and_counts_what_all_of_them_do() {
    let json = File::new("net-workers.jsonl");
    let args = ["bench", "net", "--path", "copy,map", "--dir", "tx,rx", "--size", "64,1500", "--look"];
    let more = ["--workers", "0,1,2", "--queues", "2", "--mode", "adaptive", "--seconds", "0.05"];
    let out = lab(&[&args[..], &more, &["--repeats", "1", "--json", json.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("With 2 workers, copy tx 64 B moves"), "{}", text(&out.stdout));
    let lines = json.lines();
    let workers: Vec<_> = lines.iter().map(|l| l["workers"].as_u64()).collect();
    assert_eq!(workers, [None, Some(1), Some(2)].repeat(6));
    for line in &lines {
        assert_eq!(line["lost"].as_u64(), Some(0), "{line}");
        nothing_went_wrong(line);
        let (frames, apart) = (number(line, "frames"), 4.0 * 256.0);
        assert!(frames > 0.0 && number(line, "checked") >= 128.0, "{line}");
        let field =
            if line["path"] == "map" && line["size_bytes"] == 1500 { "grant_maps" } else { "grant_copies" };
        assert!((number(line, field) - frames).abs() < 0.1 * frames + apart, "{line}");
        let each = line["worker_cpu_ns"].as_array().map(Vec::len);
        assert_eq!(each, line["workers"].as_u64().map(|n| n as usize), "{line}");
        assert!(number(line, "backend_cpu_ns") > 0.0, "{line}");
    }
}

fn nothing_went_wrong(line: &serde_json::Value) {
    for field in ["repeated", "damaged", "missed_wakeups"] {
        assert_eq!(line[field].as_u64(), Some(0), "{line}");
    }
}

/// One byte of one frame, the last: a row that reads heads alone would not see it.
#[test]
fn a_row_with_a_wrong_byte_fails() {
    for (dir, size, path) in [
        ("tx", "64", "staging"),
        ("rx", "64", "copy"),
        ("tx", "65535", "copy"),
        ("rx", "1500", "staging"),
        ("tx", "1500", "map"),
        ("rx", "1500", "persistent"),
    ] {
        let json = File::new("damage.jsonl");
        let by_reference: &[&str] = if path == "persistent" { &["--rx", "reference"] } else { &[] };
        let args = ["bench", "net", "--path", path, "--dir", dir, "--size", size];
        let more = ["--seconds", "0.02", "--repeats", "1", "--json", json.path()];
        let out = command(&[&args[..], by_reference, &more].concat())
            .env("PREGRANT_FAULT", "damage")
            .output()
            .expect("the program starts");
        assert_eq!(out.status.code(), Some(1), "{dir} {size}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains("1 frames damaged"), "{dir} {size}: {}", text(&out.stderr));
        assert_eq!(json.lines()[0]["damaged"].as_u64(), Some(1), "{dir} {size}");
    }
}

/// A loss and a repeat are two faults, and do not make up for each other.
#[test]
fn an_echo_that_comes_twice_hides_none_that_is_lost() {
    let json = File::new("echoes.jsonl");
    let args = ["bench", "latency", "--path", "staging", "--mode", "poll", "--seconds", "0.5"];
    let out = command(&[&args[..], &["--json", json.path()]].concat())
        .env("PREGRANT_FAULT", "lose,repeat")
        .output()
        .expect("the program starts");
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.contains("1 frames lost, 1 frames repeated"), "{err}");
    for line in json.lines() {
        assert_eq!((line["lost"].as_u64(), line["repeated"].as_u64()), (Some(1), Some(1)), "{line}");
    }
}

#[test]
fn bench_net_measures_with_and_without_redo_pages_in_turn() {
    let json = File::new("redo.jsonl");
    let args = ["--path", "staging", "--dir", "tx", "--size", "64", "--seconds", "0.02", "--repeats", "2"];
    let out = lab(&[&["bench", "net"], &args[..], &["--redo", "on,off", "--json", json.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let redo: Vec<_> = json.lines().iter().map(|l| l["redo"].as_bool().expect("true or false")).collect();
    assert_eq!(redo, [true, false, true, false]);
    assert!(text(&out.stdout).contains("With the redo page, staging tx 64 B moves"), "{}", text(&out.stdout));
}

#[test]
fn bench_neighbour_has_a_line_for_each_kind_and_load() {
    let json = File::new("neighbour.jsonl");
    let args = ["--path", "copy", "--neighbour", "broken,flipping,stalled,greedy-long", "--repeats", "1"];
    let out =
        lab(&[&["bench", "neighbour"], &args[..], &["--seconds", "0.05", "--json", json.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(!text(&out.stderr).contains("WARN"), "faults on purpose are reported: {}", text(&out.stderr));
    let lines = json.lines();
    let kinds: Vec<_> = lines.iter().map(|l| l["neighbour"].as_str().expect("a kind")).collect();
    let once = ["absent", "spinning", "broken", "flipping", "stalled", "greedy-long"];
    assert_eq!(kinds, [once, once].concat());
    for (i, line) in lines.iter().enumerate() {
        let paced = i >= once.len();
        assert_eq!((line["lost"].as_u64(), line["offered_per_s"].is_f64()), (Some(0), paced), "{line}");
        assert!(number(line, "frames") > 0.0, "{line}");
        nothing_went_wrong(line);
        assert!(0.0 < number(line, "gap_p99_ns"), "{line}");
        assert!(number(line, "gap_p99_ns") <= number(line, "longest_gap_ns"), "{line}");
        // It has the lowest priority: on a busy machine nothing of it may run in so short a row.
        let sends = kinds[i] == "greedy-long";
        assert!(number(line, "neighbour_frames_per_s") == 0.0 || sends, "{line}");
    }
}

/// The neighbour is served by the measured guest's worker, or by another.
#[test]
fn bench_neighbour_has_lines_for_one_worker_and_for_two() {
    let json = File::new("neighbour-workers.jsonl");
    let args = ["--path", "copy", "--neighbour", "broken,greedy-long", "--workers", "1,2", "--repeats", "1"];
    let out =
        lab(&[&["bench", "neighbour"], &args[..], &["--seconds", "0.05", "--json", json.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("2 workers, the second for the neighbour"), "{}", text(&out.stdout));
    let lines = json.lines();
    let rows: Vec<_> = lines.iter().map(|l| (l["workers"].as_u64(), l["neighbour"].as_str())).collect();
    let of =
        |workers| ["absent", "spinning", "broken", "greedy-long"].map(|kind| (Some(workers), Some(kind)));
    assert_eq!(rows, [of(1), of(1), of(2), of(2)].concat());
    for line in &lines {
        assert_eq!(line["lost"].as_u64(), Some(0), "{line}");
        assert!(number(line, "frames") > 0.0, "{line}");
        nothing_went_wrong(line);
        assert_eq!(
            line["worker_cpu_ns"].as_array().map(Vec::len),
            line["workers"].as_u64().map(|n| n as usize)
        );
    }
}

#[test]
fn a_greedy_neighbour_sends() {
    let sent = |seconds: &str| {
        let json = File::new("greedy.jsonl");
        let args = ["--path", "copy", "--neighbour", "greedy-long", "--repeats", "1", "--seconds", seconds];
        let out = lab(&[&["bench", "neighbour"], &args[..], &["--json", json.path()]].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        json.lines().iter().map(|line| number(line, "neighbour_frames_per_s")).sum::<f64>()
    };
    assert!(["0.05", "0.5", "5"].into_iter().any(|seconds| sent(seconds) > 0.0));
}

#[test]
fn bench_scale_measures_one_busy_vif_all_of_them_and_none() {
    let json = File::new("scale.jsonl");
    let args =
        ["--vifs", "1,20", "--workers", "1,2", "--path", "staging", "--idle", "0.2", "--seconds", "0.05"];
    let out = lab(&[&["bench", "scale"], &args[..], &["--repeats", "2", "--json", json.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("idle CPU, ms in 0.2 s"), "{}", text(&out.stdout));
    let lines = json.lines();
    // For each number of workers: all machines are idle, two of them with one vif; then each repeat
    // has four lines of each number.
    assert_eq!(lines.len(), 2 * (3 + 2 * 2 * 4));
    for line in &lines {
        let [workers, vifs, busy] = ["workers", "vifs", "busy"].map(|field| number(line, field));
        assert!([1.0, 2.0].contains(&workers) && [1.0, 20.0].contains(&vifs), "{line}");
        assert_eq!((line["lost"].as_u64(), line["missed_wakeups"].as_u64()), (Some(0), Some(0)), "{line}");
        if busy == 0.0 {
            assert_eq!(number(line, "frames"), 0.0, "{line}");
            assert!(number(line, "backend_cpu_ns") < 0.2e9 && number(line, "seconds") >= 0.2, "{line}");
            // At least a buffer of 2048 for each slot both ways; at most the share of its lists,
            // and rings.
            let [mapped, own] =
                ["mapped_bytes", "own_bytes"].map(|field| number(line, field) / vifs / 4096.0);
            assert!((256.0..=896.0 + 64.0).contains(&mapped) && own > 0.0, "{line}");
            continue;
        }
        nothing_went_wrong(line);
        assert!([1.0, vifs].contains(&busy) && number(line, "frames") > 0.0, "{line}");
        assert_eq!(line["worker_cpu_ns"].as_array().map(Vec::len), Some(workers as usize), "{line}");
        if line["depth"].is_u64() {
            assert!(number(line, "latency_p50_ns") <= number(line, "latency_p99_ns"), "{line}");
            // An end that sleeps is woken by a call, and wakes the guest by one.
            assert!(number(line, "syscalls_a_wakeup") >= 2.0, "{line}");
        }
    }
}

#[test]
fn bench_fairness_counts_what_each_guest_gets() {
    let json = File::new("fairness.jsonl");
    let args = ["--guests", "3", "--greedy", "none,long,queues", "--seconds", "1", "--repeats", "1"];
    let out = lab(&[&["bench", "fairness"], &args[..], &["--json", json.path()]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines = json.lines();
    let ways: Vec<_> = lines.iter().map(|l| l["neighbour"].as_str().expect("a way")).collect();
    assert_eq!(ways, ["none", "long", "queues"]);
    for line in &lines {
        nothing_went_wrong(line);
        assert_eq!(line["lost"].as_u64(), Some(0), "{line}");
        let each: Vec<f64> = serde_json::from_value(line["guests_frames_per_s"].clone()).expect("rates");
        let greedy = line["neighbour_frames_per_s"].as_f64();
        assert_eq!(
            (each.len(), greedy.is_some()),
            if ways[0] == line["neighbour"] { (3, false) } else { (2, true) }
        );
        let sum = each.iter().sum::<f64>() + greedy.unwrap_or(0.0);
        assert!((sum / number(line, "frames_per_s") - 1.0).abs() < 1e-6, "{line}");
        let mean = each.iter().sum::<f64>() / each.len() as f64;
        let spread =
            (each.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / each.len() as f64).sqrt() / mean;
        assert!((spread - number(line, "spread")).abs() < 1e-9, "{line}");
        assert!(each.iter().all(|rate| *rate > 0.0), "each has a rate: {line}");
    }
    let out = lab(&["bench", "fairness", "--path", "map"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("possible values: copy, "), "{}", text(&out.stderr));
}

#[test]
fn bench_latency_brings_every_frame_back() {
    let json = File::new("latency.jsonl");
    let out = lab(&["bench", "latency", "--mode", "poll,event", "--seconds", "0.05", "--json", json.path()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines = json.lines();
    assert_eq!(lines.len(), 2 * 2 * 2);
    for line in lines {
        assert_eq!(line["lost"].as_u64(), Some(0), "{line}");
        nothing_went_wrong(&line);
        assert!(number(&line, "latency_p50_ns") > 1.0, "{line}");
        assert!(number(&line, "latency_p50_ns") <= number(&line, "latency_p99_ns"), "{line}");
        let histogram: Vec<(u64, u64)> =
            serde_json::from_value(line["latency_histogram"].clone()).expect("pairs of bound and count");
        assert!(histogram.is_sorted_by(|a, b| a.0 < b.0), "{line}");
        assert_eq!(Some(histogram.iter().map(|(_, n)| n).sum()), line["frames"].as_u64(), "{line}");
        let up_to =
            |bound: f64| histogram.iter().filter(|(b, _)| *b as f64 <= bound).map(|(_, n)| n).sum::<u64>();
        assert!(
            2 * up_to(number(&line, "latency_p50_ns") * 1.1) >= line["frames"].as_u64().unwrap_or(0),
            "{line}"
        );
    }
}

#[test]
fn the_demo_tells_its_story_and_loses_nothing() {
    let json = File::new("demo.jsonl");
    let report = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("demo-report");
    let out = lab(&["demo", "--json", json.path(), "--report", report.to_str().expect("a path in UTF-8")]);
    let (story, err) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{err}");
    for part in [
        "1 Initialising -> 4 Connected",
        "2 InitWait -> 4 Connected",
        "staging-grants-active = 1",
        "at both ends: equal",
        "100.0 % of them through staging buffers",
        "was killed (SIGKILL)",
        "none failed; the longest took",
        "each read had what was written last; so has all of the disk, 65536 sectors",
        "x copy",
        "published M/s",
    ] {
        assert!(story.contains(part), "{part} is missing in:\n{story}");
    }
    let lines = json.lines();
    let rows = |bench: &str| lines.iter().filter(|l| l["bench"] == bench).count();
    assert!(rows("net") >= 30 && rows("limit") > 0 && rows("latency") == 8, "{}", lines.len());
    for line in lines.iter().filter(|l| l["bench"] != "restart") {
        assert_eq!(line["lost"].as_u64(), Some(0), "{line}");
    }
    the_killed_backend_had_a_successor(&story, &lines);
    the_killed_disk_had_a_successor(&lines);
    let facts = std::fs::read_to_string(report.join("machine.json")).expect("the facts");
    let facts: serde_json::Value = serde_json::from_str(&facts).expect("an object");
    // Whether others were at work is this machine's business; that it is reported is not.
    let loaded = number(&facts, "others") > 0.05;
    assert_eq!(story.contains("Other programs took "), loaded, "{facts}\n{story}");
    let page = std::fs::read_to_string(report.join("index.html")).expect("the report");
    std::fs::remove_dir_all(&report).expect("the report's folder");
    let parts = ["Frames a second", "What a frame costs", "Latency", "The backend is killed", "Ceiling"];
    for part in parts.into_iter().chain(["The backend of a disk is killed"]) {
        assert!(page.contains(&format!(">{part}</h")), "{part} is missing in the report");
    }
    assert!(page.contains("class=\"bin ") && !page.contains("class=\"span "), "latencies without histograms");
}

/// Of the demo's act: the story names both processes and the sums are equal again; the account adds
/// up.
fn the_killed_backend_had_a_successor(story: &str, lines: &[serde_json::Value]) {
    assert_eq!(story.matches("at both ends: equal").count(), 2, "{story}");
    let pid_before = |after: &str| {
        let line = story.lines().find(|l| l.contains(after)).expect("a line of the act");
        line.split_whitespace().nth(1).and_then(|p| p.parse::<u32>().ok()).expect("a process id")
    };
    assert_ne!(pid_before("was killed (SIGKILL)"), pid_before("began to attach"));
    let after = |text: &str| story.split(text).nth(1).and_then(|rest| rest.lines().next()).expect("a count");
    assert_eq!(after("grants to domain 0: "), after("grants before the kill: "), "{story}");
    assert_eq!(story.matches("when the vifs are closed: none\n").count(), 2, "{story}");
    let [line] = &lines.iter().filter(|l| l["bench"] == "restart").collect::<Vec<_>>()[..] else {
        panic!("one line of the act is wanted");
    };
    let pause = &line["pause"];
    let n = |field: &str| pause[field].as_u64().unwrap_or_else(|| panic!("{field} is no number in {line}"));
    let bytes = number(line, "bits_per_s") * number(line, "seconds") / 8.0;
    assert!(0 < n("bytes_before") && (n("bytes_before") as f64) < bytes, "{line}");
    assert!(n("start_ns") > 0 && n("attach_ns") > 0, "{line}");
    // A guest's first frame cannot come before the new process is there.
    assert!(n("silence_ns") > n("start_ns"), "{line}");
    assert!(n("duplicated") <= 64, "{line}");
    assert_eq!(line["missed_wakeups"].as_u64(), Some(0), "{line}");
    let frames: Vec<u64> =
        pause["frames"].as_array().expect("a timeline").iter().filter_map(|f| f.as_u64()).collect();
    let (before, after) = frames.split_at(n("kill_bucket") as usize);
    let sum = |part: &[u64]| part.iter().sum::<u64>();
    assert!(sum(before) > 0 && sum(after) > 0, "{line}");
    assert!(sum(&frames) <= line["frames"].as_u64().expect("a count"), "{line}");
    assert!(n("bucket_ns") > 0, "{line}");
    assert_eq!(line["workers"].as_u64(), Some(1), "as `pregrant back` serves: {line}");
}

/// Of the demo's disk: every request was answered, and the longest one's time is reported.
fn the_killed_disk_had_a_successor(lines: &[serde_json::Value]) {
    let [line] = &lines.iter().filter(|l| l["bench"] == "disk-restart").collect::<Vec<_>>()[..] else {
        panic!("one line of the act is wanted");
    };
    for (field, expected) in
        [("lost", 0.0), ("damaged", 0.0), ("missed_wakeups", 0.0), ("depth", 32.0), ("workers", 1.0)]
    {
        assert_eq!(number(line, field), expected, "{field}: {line}");
    }
    assert!(0.0 < number(line, "before") && number(line, "before") < number(line, "frames"), "{line}");
    let [p50, p99, most] =
        ["latency_p50_ns", "latency_p99_ns", "latency_most_ns"].map(|field| number(line, field));
    assert!(0.0 < p50 && p50 <= p99 && p99 <= most && most / 1e9 < number(line, "seconds"), "{line}");
}

#[test]
fn the_demo_s_disk_goes_with_it_at_any_signal() {
    for signal in ["-TERM", "-KILL"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pregrant-lab"))
            .arg("demo")
            .env("TMPDIR", "/tmp")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let story = BufReader::new(child.stdout.take().expect("its output"));
        let act = story.lines().map(|line| line.expect("text")).find(|line| line.starts_with("5. A disk"));
        assert!(act.is_some(), "it ended before it had a disk");
        kill(child.id(), signal);
        child.wait().expect("it ends");
        let own = format!("pregrant-demo-{}", child.id());
        let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let left = files.map(|file| file.path()).find(|path| path.to_string_lossy().contains(&own));
        assert_eq!(left, None, "{signal}");
        for testbed in 0..2 {
            let _ = std::fs::remove_dir_all(format!("/tmp/pregrant-{}-{testbed}", child.id())); // after SIGKILL
        }
    }
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(tasks).unwrap_or_default();
    text.split_whitespace().filter_map(|p| p.parse().ok()).collect()
}

fn kill(pid: u32, signal: &str) {
    let done = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill(1)");
    assert!(done.success());
}

/// Checks until `check` has something, or a minute has passed: a watchdog against hanging, not a
/// measurement.
fn wait_for<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a long bench; gives it when both of its processes are there, with them and its directory.
fn long_bench() -> (std::process::Child, Vec<u32>, PathBuf) {
    let child = Command::new(env!("CARGO_BIN_EXE_pregrant-lab"))
        .args(["bench", "net", "--path", "staging", "--dir", "tx", "--size", "64", "--seconds", "50"])
        .env("TMPDIR", "/tmp")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = child.id();
    let processes = wait_for("the start of both ends", || Some(children(pid)).filter(|c| c.len() == 2));
    let testbed = PathBuf::from(format!("/tmp/pregrant-{pid}-0"));
    assert!(testbed.exists());
    (child, processes, testbed)
}

#[test]
fn an_end_that_is_killed_is_named_and_nothing_stays() {
    for victim in [0, 1] {
        let (child, processes, testbed) = long_bench();
        std::thread::sleep(Duration::from_millis(300)); // well into the row
        kill(processes[victim], "-KILL");
        let out = child.wait_with_output().expect("it ends");
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{err}");
        assert!(err.contains("ended early") && err.contains("signal"), "{err}");
        assert!(!testbed.exists(), "{} stays", testbed.display());
        for pid in processes {
            wait_for("the end of a process", || {
                (!PathBuf::from(format!("/proc/{pid}")).exists()).then_some(())
            });
        }
    }
}

#[test]
fn a_program_that_is_stopped_takes_everything_with_it() {
    for signal in ["-INT", "-TERM", "-KILL"] {
        let (mut child, processes, testbed) = long_bench();
        kill(child.id(), signal);
        child.wait().expect("it ends");
        for pid in processes {
            wait_for("the end of a process", || {
                (!PathBuf::from(format!("/proc/{pid}")).exists()).then_some(())
            });
        }
        // After SIGKILL the next testbed removes it, perhaps another test's beside.
        assert!(signal == "-KILL" || !testbed.exists(), "{signal}");
        let _ = std::fs::remove_dir_all(testbed);
    }
}

#[test]
fn a_reader_that_goes_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pregrant-lab"))
        .args("bench net --path copy --dir tx --size 64 --seconds 0.05 --repeats 1".split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("it ends");
    let err = text(&out.stderr);
    let silent = err.lines().all(|line| line.starts_with("pregrant-lab: other programs, or the host"));
    assert!(out.status.success() && silent, "{err}");
}
