//! Formats the figures as Markdown for a page of documentation: one sentence, then the machine,
//! then tables with ranges.
//!
//! A report has it as figures.md. docs/results.md has the same figures, by `cargo xtask figures`.

use super::digest::{Digest, Row, SHORT};
use super::facts::Facts;
use super::quantity::duration;
use super::story::direction;
use super::waits::way;
use crate::columns::{Columns, or_dash};
use crate::record::stats::Summary;
use crate::record::{Pause, Record, published};
use pregrant_cli::table::{Table, figure};
use std::fmt::Write;

/// Returns the text; None if there are no rates.
pub fn markdown(d: &Digest, facts: &Facts) -> Option<String> {
    if d.net.is_empty() {
        return None;
    }
    let mut parts: Vec<String> = headline(d).into_iter().collect();
    parts.push(machine(d, facts));
    parts.push(rates(d));
    parts.extend(ceilings(d));
    parts.extend(latencies(d));
    parts.extend(restarts(d));
    parts.extend(disk_restarts(d));
    Some(parts.join("\n\n") + "\n")
}

/// Describes the ratio of staging to `copy` at the shortest frames, for readers who read only the
/// first line.
fn headline(d: &Digest) -> Option<String> {
    let row = d.bound("staging")?;
    let (copy, gain) = (d.baseline(row)?, d.gains(row)?);
    Some(format!(
        "Frames of {SHORT} bytes {}, on the loopback: {} million a second by `staging`, {} million by this project's own `copy`: {} \
         times as many (medians of {} repeats; ranges in parentheses).",
        direction("tx"),
        row.rate.per(1e6),
        copy.rate.per(1e6),
        gain,
        row.records.0.len(),
    ))
}

fn machine(d: &Digest, facts: &Facts) -> String {
    let mut known = vec![format!("Pregrant {}", facts.version.as_deref().unwrap_or("of an unknown version"))];
    let texts = [&facts.cpu, &facts.kernel, &facts.date];
    known.extend(texts.into_iter().flatten().map(|text| plain(text)));
    if facts.virtual_machine == Some(true) {
        known.push("a virtual machine".into());
    }
    if let Some(cores) = &facts.pinned {
        known.push(format!("cores pinned: {}", plain(cores)));
    }
    let mut text = format!("{}. Frames lost in all rows: {}.", known.join("; "), d.lost());
    if let Some(platform) = &facts.platform {
        let _ = write!(text, " Platform: {}.", plain(platform));
    }
    if let Some(loaded) = facts.loaded() {
        let _ = write!(text, " **{loaded}.**");
    }
    if let Some(why) = &facts.failed {
        let _ = write!(text, " **The run failed: {}.**", plain(why));
    }
    text
}

fn rates(d: &Digest) -> String {
    let rows = Columns::of(&d.net)
        .left("dir", |row| &row.first().dir)
        .right("bytes", |row| row.first().size_bytes)
        .left("path", |row| &row.name)
        .right("M frames/s", |row| row.rate.per(1e6))
        .right("Gbit/s", |row| figure(row.bits() / 1e9))
        .right("grant ops/frame", |row| row.shown_each(Record::grant_ops))
        .right("events/frame", |row| row.shown_each(|r| r.notifications))
        .right("times copy", |row| or_dash(d.gains(row)))
        .right("published M/s", |row| published::cell(row.first()))
        .right("lost", |row| row.sum(|r| r.lost))
        .all();
    let mut text = table(&rows);
    if d.net.iter().map(Row::first).any(published::is_through_stack) {
        let _ = write!(text, "\n\n{}", published::THROUGH_STACK.replacen('*', "\\*", 1));
    }
    text
}

fn ceilings(d: &Digest) -> Option<String> {
    let line = |ceiling: Option<&Row>, what: &str, path: &str| {
        let (ceiling, row) = (ceiling?, d.bound(path)?);
        Some(format!(
            "{what}: {} million a second; `{path}` reaches {} of that.",
            ceiling.rate.per(1e6),
            row.part_of(ceiling)?.middle(1.0)
        ))
    };
    let lines = line(d.lines(), "Cache lines from core to core", "staging");
    let calls = line(d.remote(), "Pieces of 64 bytes by a bare `process_vm_readv`", "copy");
    let text: Vec<String> = lines.into_iter().chain(calls).collect();
    (!text.is_empty()).then(|| format!("Ceilings at {SHORT} bytes, TX. {}", text.join(" ")))
}

fn latencies(d: &Digest) -> Option<String> {
    let rows = Columns::of(&d.latency)
        .left("path", |row| &row.name)
        .left("mode", |row| &row.first().mode)
        .left("way", way)
        .median("median us", 1e3, |row| row.middle(Record::p50))
        .median("99 % us", 1e3, |row| row.middle(Record::p99))
        .right("round trips", |row| row.sum(|r| r.frames))
        .right("events/round trip", |row| row.shown_each(|r| r.notifications))
        .all();
    (!d.latency.is_empty()).then(|| table(&rows))
}

fn restarts(d: &Digest) -> Option<String> {
    let pauses: Vec<&Pause> = d.restarts.iter().filter_map(|r| r.pause()).collect();
    type Time = (&'static str, fn(&Pause) -> u64);
    const TIMES: [Time; 4] = [
        ("startup of the new process", |p| p.start_ns),
        ("the pause: from its attach to the first frame at a port", |p| p.attach_ns),
        ("no frame at any guest, from the kill", |p| p.silence_ns),
        ("no frame at one guest, at most", |p| p.longest_gap_ns),
    ];
    let all = |(what, field): Time| {
        let values: Vec<f64> = pauses.iter().map(|p| field(p) as f64).collect();
        Some((what, Summary::of(&values)?))
    };
    let times: Vec<(&str, Summary)> = TIMES.into_iter().map(all).collect::<Option<_>>()?;
    let times = Columns::of(&times)
        .left("time", |(what, _)| what)
        .right("median", |(_, s)| duration(s.median))
        .right("range", |(_, s)| format!("{} to {}", duration(s.min), duration(s.max)))
        .all();
    let sum = |field: fn(&Pause) -> u64| pauses.iter().map(|p| field(p)).fold(0, u64::saturating_add);
    Some(format!(
        "The backend killed in the middle of a TCP transfer, {} time(s). Frames that came to a port twice: {}; lost: {}.\n\n{}",
        pauses.len(),
        sum(|p| p.duplicated),
        sum(|p| p.lost),
        table(&times)
    ))
}

fn disk_restarts(d: &Digest) -> Option<String> {
    let first = d.disk_restarts.first()?;
    let sum =
        |field: fn(&Record) -> u64| d.disk_restarts.iter().map(|r| field(r)).fold(0, u64::saturating_add);
    let longest: Vec<f64> = d.disk_restarts.iter().filter_map(|r| r.longest()).map(|ns| ns as f64).collect();
    let longest = Summary::of(&longest)?;
    Some(format!(
        "The backend of a disk killed with {} requests of {} bytes in flight, {} time(s). Requests in all: {}; failed: {}; reads with \
         other bytes than were written: {}. The longest request: {} ({} to {}).",
        first.depth.unwrap_or(1),
        first.size_bytes,
        d.disk_restarts.len(),
        sum(|r| r.frames),
        sum(|r| r.lost),
        sum(|r| r.damaged.unwrap_or(0)),
        duration(longest.median),
        duration(longest.min),
        duration(longest.max)
    ))
}

fn table(of: &Table) -> String {
    let heads: Vec<&str> = of.columns().iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!("| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for row in of.rows() {
        let cells: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
        let _ = write!(text, "\n| {} |", cells.join(" | "));
    }
    text
}

/// Escapes text that may come from any file, so that it ends no cell and is not read as markup.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '<' | '>' | '[' | ']' | '`' | '*' | '_' | '\\' | '&' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{DISK_RESTART, Of, Restart, Took};

    fn net(path: &str, rate: u64, repeat: u32) -> Record {
        let copies = if path == "copy" { rate } else { 0 };
        let mut r = Record { repeat, grant_copies: copies, ..Record::new("net", path, "tx", 64) };
        r.count(rate, 1.0);
        r
    }

    fn records() -> Vec<Record> {
        let rates = [(2_000_000, 40_000_000), (2_500_000, 45_000_000), (3_000_000, 50_000_000)];
        let pairs = rates.iter().zip(0..);
        let mut records: Vec<Record> = pairs
            .flat_map(|(&(copy, staging), i)| [net("copy", copy, i), net("staging", staging, i)])
            .collect();
        for silence_ns in [7_000_000, 9_000_000, 8_000_000] {
            let pause = Pause { silence_ns, lost: 1, ..Pause::default() };
            let of = Of::Restart(Restart { pause });
            records.push(Record { of, ..Record::new("restart", "staging", "tx", 1514) });
            let latency_most_ns = Some(silence_ns + 3_000_000);
            let took = Some(Took { latency_most_ns, ..Took::default() });
            let disk = Record::new(DISK_RESTART, "persistent", "mixed", 4096);
            records.push(Record { frames: 1000, depth: Some(32), took, ..disk });
        }
        records
    }

    #[test]
    fn each_figure_has_its_range() {
        let facts = Facts { version: Some("0.1.0, commit abc".into()), ..Facts::default() };
        let text = markdown(&Digest::of(&records()), &facts).unwrap();
        let first = text.lines().next().unwrap();
        assert!(
            first.contains("45.0 (40.0..50.0) million") && first.contains("18.0 (16.7..20.0) times"),
            "{first}"
        );
        for line in [
            "Pregrant 0.1.0, commit abc. Frames lost in all rows: 0.",
            "| tx | 64 | copy | 2.50 (2.00..3.00) | 1.28 | 1.00 | 0 | 1.00 (1.00..1.00) | - | 0 |",
            "| no frame at any guest, from the kill | 8.00 ms | 7.00 ms to 9.00 ms |",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert!(text.contains("3 time(s). Frames that came to a port twice: 0; lost: 3."), "{text}");
        let disk = "32 requests of 4096 bytes in flight, 3 time(s). Requests in all: 3000; failed: 0; reads with other bytes than \
                    were written: 0. The longest request: 11.0 ms (10.0 ms to 12.0 ms).";
        assert!(text.contains(disk), "{text}");
    }

    #[test]
    fn strange_texts_end_no_cell() {
        let mut records = records();
        for r in &mut records {
            r.path += "|<b>\n";
        }
        let text = markdown(&Digest::of(&records), &Facts::default()).unwrap();
        assert!(text.contains("copy\\|\\<b\\> "), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_text() {
        assert_eq!(markdown(&Digest::of(&[]), &Facts::default()), None);
    }
}
