//! `docs/results/demo.jsonl`: medians and ranges over the records of several runs of the demo.
//!
//! ```text
//!   records, as --json writes them --> by path, direction, size --> median, least, greatest
//! ```
//! Invariant: a ratio is of two records of one run and one repeat: a slow phase of the machine hits
//! both.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The length of the frames whose rates are compared with upper bounds ("ceilings"), in bytes.
const SHORT: u64 = 64;

/// The lines of the file, from each run's records and the machine's facts.
pub fn lines(runs: &[String], machine: &str) -> Result<String, String> {
    let mut records = Vec::new();
    for (run, text) in runs.iter().enumerate() {
        for line in text.lines() {
            let fields = serde_json::from_str(line).map_err(|e| format!("run {}: {e}", run + 1))?;
            records.push(Record { run, fields });
        }
    }
    let machine: Value = serde_json::from_str(machine).map_err(|e| format!("the machine: {e}"))?;
    let mut lines = vec![section(&machine)];
    rates(&records, &mut lines);
    if lines.len() == 1 {
        return Err("no frame was measured".into());
    }
    ceilings(&records, &mut lines);
    latencies(&records, &mut lines);
    restarts(&records, &mut lines);
    disk_restarts(&records, &mut lines);
    Ok(lines.iter().map(|line| line.to_string() + "\n").collect())
}

/// A record, and the run that wrote it.
struct Record {
    run: usize,
    fields: Map<String, Value>,
}

impl Record {
    fn text(&self, key: &str) -> &str {
        self.fields.get(key).and_then(Value::as_str).unwrap_or("")
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.fields.get(key).and_then(Value::as_f64)
    }

    fn count(&self, key: &str) -> u64 {
        self.fields.get(key).and_then(Value::as_u64).unwrap_or(0)
    }

    fn is(&self, bench: &str) -> bool {
        self.text("bench") == bench
    }

    /// The path, with its data length.
    fn name(&self) -> String {
        match self.fields.get("data_len").and_then(Value::as_u64) {
            Some(len) => format!("{} {len}", self.text("path")),
            None => self.text("path").into(),
        }
    }
}

fn section(machine: &Value) -> Value {
    let fact = |key: &str| machine.get(key).and_then(Value::as_str);
    let commit = fact("version").and_then(|version| version.split_once("commit ")).map(|(_, commit)| commit);
    let mut known: Vec<String> =
        ["cpu", "kernel"].iter().filter_map(|key| fact(key)).map(Into::into).collect();
    if machine.get("virtual_machine") == Some(&Value::Bool(true)) {
        known.push("a virtual machine".into());
    }
    known.extend(fact("pinned").map(|cores| format!("cores pinned: {cores}")));
    known.extend(fact("platform").map(|platform| format!("platform: {platform}")));
    json!({
        "section": "The demo", "commit": commit, "date": fact("date"), "machine": known.join("; "),
        "command": "cargo xtask figures",
    })
}

/// The different values of a key over some records, in the order in which they come.
fn distinct<'a, T: Ord + Clone>(
    records: impl Iterator<Item = &'a Record>,
    key: impl Fn(&Record) -> T,
) -> Vec<T> {
    let mut seen = BTreeSet::new();
    records.map(key).filter(|value| seen.insert(value.clone())).collect()
}

/// The median, the least and the greatest of some figures, as JSON; null if there are none.
fn summary(mut figures: Vec<f64>) -> Value {
    figures.sort_by(f64::total_cmp);
    let n = figures.len();
    let (Some(least), Some(most)) = (figures.first(), figures.last()) else { return Value::Null };
    let median = if n % 2 == 1 { figures[n / 2] } else { f64::midpoint(figures[n / 2 - 1], figures[n / 2]) };
    json!([digits(median), digits(*least), digits(*most)])
}

/// Formats with three significant digits, since more would not be reproducible.
fn digits(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

fn rates(records: &[Record], lines: &mut Vec<Value>) {
    let net: Vec<&Record> = records.iter().filter(|r| r.is("net")).collect();
    let mut names = distinct(net.iter().copied(), Record::name);
    names.sort_by_key(|name| name != "copy");
    let shapes = distinct(net.iter().copied(), |r| (r.text("dir").to_string(), r.count("size_bytes")));
    let mut rows = Vec::new();
    for (dir, size) in &shapes {
        let mut row = json!({"of": "rates", "dir": dir, "size_bytes": size});
        let of = |name: &str| -> Vec<&Record> {
            let alike =
                |r: &&Record| (r.text("dir"), r.count("size_bytes")) == (dir, *size) && r.name() == name;
            net.iter().copied().filter(alike).collect()
        };
        let copies = of("copy");
        for name in &names {
            let own = of(name);
            let rate = |r: &Record| r.number("frames_per_s").unwrap_or(0.0);
            row[name] = summary(own.iter().map(|r| rate(r) / 1e6).collect());
            let twin = |r: &Record| {
                copies.iter().find(|c| (c.run, c.count("repeat")) == (r.run, r.count("repeat"))).copied()
            };
            if name != "copy" {
                let pairs = own.iter().filter_map(|r| Some((rate(r), rate(twin(r)?))));
                row[format!("{name} to copy")] =
                    summary(pairs.filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b).collect());
            }
            let sum = |key: &str| own.iter().map(|r| r.count(key)).sum::<u64>() as f64;
            let operations = ["grant_copies", "grant_maps", "grant_unmaps"].map(sum).iter().sum::<f64>();
            row[format!("{name} grant_ops")] = json!(digits(operations / sum("frames").max(1.0)));
            let published = own.iter().find_map(|r| r.number("published"));
            row[format!("{name} published")] = json!(published.map(|p| digits(p / 1e6)));
        }
        rows.push(row);
    }
    let shown = |key: &String| rows.iter().any(|row| row.get(key).is_some_and(|value| !value.is_null()));
    let mut columns = vec![["dir".to_string(), "dir".into()], ["size_bytes".into(), "bytes".into()]];
    columns.extend(names.iter().map(|name| [name.clone(), format!("{name}, M frames/s")]));
    for (key, head) in
        [("to copy", "times copy"), ("grant_ops", "grant ops/frame"), ("published", "published M/s")]
    {
        let of = names.iter().map(|name| [format!("{name} {key}"), format!("{name}, {head}")]);
        columns.extend(of.filter(|[key, _]| shown(key)));
    }
    let lost = records.iter().filter(|r| r.is("net") || r.is("latency") && r.text("dir") == "tx");
    let lost: u64 = lost.map(|r| r.count("lost")).sum();
    let repeats =
        net.iter().filter(|r| (r.name(), r.text("dir"), r.count("size_bytes")) == first(&net)).count();
    if !rows.is_empty() {
        lines.push(json!({
            "table": "rates", "title": "Rates by path", "repeats": repeats, "columns": columns,
            "note": format!(
                "Frames lost in all rows: {lost}. Published figures are other machines' ([sources](protocol/figures.md)); \
                 for frames to the guest a Linux guest's network stack took them there, and these guests have none."
            ),
        }));
        lines.append(&mut rows);
    }
}

/// The key of the first row of rates.
fn first<'a>(net: &[&'a Record]) -> (String, &'a str, u64) {
    net.first().map_or((String::new(), "", 0), |r| (r.name(), r.text("dir"), r.count("size_bytes")))
}

fn ceilings(records: &[Record], lines: &mut Vec<Value>) {
    let middle = |of: &dyn Fn(&Record) -> bool| {
        let rates = records.iter().filter(|r| of(r) && r.count("size_bytes") == SHORT);
        summary(rates.filter_map(|r| r.number("frames_per_s")).map(|rate| rate / 1e6).collect())
    };
    // The first row of a path: staging is measured with several data lengths.
    let net = |path: &'static str| {
        let is = move |r: &Record| r.is("net") && r.text("dir") == "tx" && r.text("path") == path;
        let name = records.iter().find(|r| is(r) && r.count("size_bytes") == SHORT).map(Record::name);
        move |r: &Record| is(r) && name == Some(r.name())
    };
    let headline = |r: &Record| {
        r.is("limit") && r.text("path") == "lines" && (r.count("stride"), r.count("copies")) == (256, 0)
    };
    let calls = |r: &Record| r.is("limit") && r.text("path") == "process-vm-readv";
    let rows: Vec<Value> = [
        ("cache lines from core to core", middle(&headline), "staging", middle(&net("staging"))),
        ("pieces of 64 bytes by a bare process_vm_readv", middle(&calls), "copy", middle(&net("copy"))),
    ]
    .into_iter()
    .filter_map(|(what, ceiling, path, rate)| {
        let reached = rate.get(0)?.as_f64()? / ceiling.get(0)?.as_f64()?;
        Some(json!({"of": "ceilings", "what": what, "rate": ceiling, "path": path, "reached": digits(reached)}))
    })
    .collect();
    if !rows.is_empty() {
        lines.push(json!({
            "table": "ceilings", "title": "Ceilings at 64 bytes, from the guest",
            "columns": [["what", "ceiling"], ["rate", "M/s"], ["path", "path"], ["reached", "its part of that"]],
        }));
        lines.extend(rows);
    }
}

fn latencies(records: &[Record], lines: &mut Vec<Value>) {
    let of: Vec<&Record> = records.iter().filter(|r| r.is("latency")).collect();
    let mut rows = Vec::new();
    for (name, mode) in distinct(of.iter().copied(), |r| (r.name(), r.text("mode").to_string())) {
        let mut row = json!({"of": "latency", "path": name, "mode": mode});
        let alike = |r: &&&Record| r.name() == name && r.text("mode") == mode;
        for (dir, way) in [("tx", "request"), ("rx", "response")] {
            for (field, part) in [("latency_p50_ns", "p50_us"), ("latency_p99_ns", "p99_us")] {
                let ns =
                    of.iter().filter(alike).filter(|r| r.text("dir") == dir).filter_map(|r| r.number(field));
                row[format!("{way}_{part}")] = json!(summary(ns.map(|ns| ns / 1e3).collect()).get(0));
            }
        }
        let sum = |key| {
            of.iter().filter(alike).filter(|r| r.text("dir") == "tx").map(|r| r.count(key)).sum::<u64>()
        };
        row["round_trips"] = json!(sum("frames"));
        row["events"] = json!(digits(sum("notifications") as f64 / sum("frames").max(1) as f64));
        rows.push(row);
    }
    if !rows.is_empty() {
        lines.push(json!({
            "table": "latency", "title": "Latency of one frame of 64 bytes, us",
            "columns": [
                ["path", "path"], ["mode", "mode"], ["request_p50_us", "request"], ["request_p99_us", "99 %"],
                ["response_p50_us", "response"], ["response_p99_us", "99 %"], ["round_trips", "round trips"],
                ["events", "events each"],
            ],
        }));
        lines.append(&mut rows);
    }
}

fn restarts(records: &[Record], lines: &mut Vec<Value>) {
    let pauses: Vec<&Value> = records.iter().filter_map(|r| r.fields.get("pause")).collect();
    if pauses.is_empty() {
        return;
    }
    let all = |key: &str| pauses.iter().filter_map(|p| p.get(key)?.as_u64()).collect::<Vec<_>>();
    let sum = |key: &str| all(key).iter().sum::<u64>();
    lines.push(json!({
        "table": "restart", "title": "A backend killed in the middle of a TCP transfer", "repeats": pauses.len(),
        "note": format!("Frames that came to a port twice: {}; lost: {}.", sum("duplicated"), sum("lost")),
        "columns": [["time", "time"], ["ms", "ms"]],
    }));
    for (what, key) in [
        ("startup of the new process", "start_ns"),
        ("the pause: from its attach to the first frame at a port", "attach_ns"),
        ("no frame at any guest, from the kill", "silence_ns"),
        ("no frame at one guest, at most", "longest_gap_ns"),
    ] {
        let ms = all(key).iter().map(|ns| *ns as f64 / 1e6).collect();
        lines.push(json!({"of": "restart", "time": what, "ms": summary(ms)}));
    }
}

fn disk_restarts(records: &[Record], lines: &mut Vec<Value>) {
    let of: Vec<&Record> = records.iter().filter(|r| r.is("disk-restart")).collect();
    let Some(first) = of.first() else { return };
    let sum = |key: &str| of.iter().map(|r| r.count(key)).sum::<u64>();
    lines.push(json!({
        "table": "disk-restart", "title": "The backend of a disk killed", "repeats": of.len(),
        "columns": [
            ["in_flight", "requests in flight"], ["size_bytes", "bytes"], ["requests", "requests"], ["failed", "failed"],
            ["damaged", "wrong reads"], ["longest_ms", "the longest, ms"],
        ],
    }));
    let longest = of.iter().filter_map(|r| r.number("latency_most_ns")).map(|ns| ns / 1e6).collect();
    lines.push(json!({
        "of": "disk-restart", "in_flight": first.count("depth").max(1), "size_bytes": first.count("size_bytes"),
        "requests": sum("frames"), "failed": sum("lost"), "damaged": sum("damaged"), "longest_ms": summary(longest),
    }));
}

#[cfg(test)]
mod tests {
    use super::lines;
    use crate::figures::result::Section;
    use serde_json::{Value, json};

    fn net(path: &str, data_len: Option<u64>, rate: f64, repeat: u32) -> Value {
        let copies = if path == "copy" { 1000 } else { 0 };
        json!({
            "bench": "net", "path": path, "dir": "tx", "size_bytes": 64, "data_len": data_len,
            "repeat": repeat, "frames": 1000, "frames_per_s": rate, "grant_copies": copies,
            "grant_maps": 0, "grant_unmaps": 0, "lost": 0,
            "published": data_len.map(|_| 3_759_012.0),
        })
    }

    fn latency(dir: &str) -> Value {
        json!({
            "bench": "latency", "path": "copy", "dir": dir, "size_bytes": 64, "mode": "event",
            "frames": 10, "notifications": 20, "latency_p50_ns": 29600, "latency_p99_ns": 60400,
        })
    }

    fn run(copy: f64, staging: f64) -> String {
        let records = [
            net("staging", Some(256), staging, 0),
            net("copy", None, copy, 0),
            json!({
                "bench": "limit", "path": "lines", "dir": "tx", "size_bytes": 64, "stride": 256,
                "copies": 0, "frames_per_s": 80e6,
            }),
            latency("tx"),
            latency("rx"),
            json!({"bench": "restart", "pause": {"attach_ns": 4_130_000, "duplicated": 0, "lost": 1}}),
            json!({
                "bench": "disk-restart", "depth": 32, "size_bytes": 4096, "frames": 500, "lost": 0,
                "latency_most_ns": 9_000_000,
            }),
        ];
        records.iter().map(|r| r.to_string() + "\n").collect()
    }

    #[test]
    fn ratios_are_of_one_run() {
        let machine =
            r#"{"version": "0.1.0, commit abc", "cpu": "AMD", "date": "2026", "virtual_machine": true}"#;
        let text = lines(&[run(2e6, 40e6), run(4e6, 40e6), run(4e6, 60e6)], machine).unwrap();
        let section = Section::parse(&text).unwrap();
        assert_eq!(section.origin[..3], ["commit abc", "2026", "`cargo xtask figures`"]);
        assert_eq!(section.origin[3], "AMD; a virtual machine");
        let table = |id: &str| section.tables.iter().find(|t| t.id == id).unwrap();
        let row = &table("rates").rows[0];
        assert_eq!(row["copy"], json!([4.0, 2.0, 4.0]));
        assert_eq!(row["staging 256 to copy"], json!([15.0, 10.0, 20.0]), "and not 40 over 4");
        assert_eq!((&row["copy grant_ops"], &row["staging 256 published"]), (&json!(1.0), &json!(3.76)));
        assert_eq!(table("rates").columns[2].0, "copy");
        assert_eq!(table("ceilings").rows[0]["reached"], json!(0.5));
        assert_eq!(
            (&table("latency").rows[0]["request_p50_us"], &table("latency").rows[0]["events"]),
            (&json!(29.6), &json!(2.0))
        );
        assert!(table("restart").note.ends_with("lost: 3."));
        assert_eq!(table("disk-restart").rows[0]["requests"], json!(1500));
    }

    #[test]
    fn nothing_measured_is_an_error() {
        assert!(lines(&[String::new()], "{}").is_err() && lines(&["{".into()], "{}").is_err());
    }
}
