//! The table of flows, as wide as the terminal allows.
//!
//! Texts that guests can steer lose their control characters: nothing that a guest does moves the reader's cursor.

use super::flow::Flow;
use pregrant_host::drivers::BackStatus;
use pregrant_lab::table::{Align, Table, figure, width};
use std::collections::BTreeMap;

/// A column: heading, side, how soon it gives way on a narrow terminal (0: never), and its cell.
struct Column {
    name: &'static str,
    align: Align,
    gives_way: u8,
    cell: fn(&Flow) -> String,
}

const COLUMNS: [Column; 10] = [
    Column { name: "vif", align: Align::Left, gives_way: 0, cell: |f| format!("{}.{}", f.front, f.handle) },
    Column { name: "dir", align: Align::Left, gives_way: 0, cell: |f| f.dir.into() },
    Column { name: "back", align: Align::Right, gives_way: 8, cell: |f| f.domain.to_string() },
    Column { name: "state", align: Align::Left, gives_way: 3, cell: state },
    Column { name: "queues", align: Align::Right, gives_way: 7, cell: |f| f.queues.to_string() },
    Column { name: "path", align: Align::Left, gives_way: 4, cell: |f| plain(&f.path) },
    Column { name: "frames/s", align: Align::Right, gives_way: 0, cell: |f| si(f.rate.frames_per_s) },
    Column { name: "bit/s", align: Align::Right, gives_way: 1, cell: |f| si(f.rate.bits_per_s) },
    Column {
        name: "grant ops/frame",
        align: Align::Right,
        gives_way: 5,
        cell: |f| or_dash(f.rate.grant_ops_per_frame),
    },
    Column {
        name: "events/frame",
        align: Align::Right,
        gives_way: 6,
        cell: |f| or_dash(f.rate.notifications_per_frame),
    },
];

/// The last one: it may be long, and is cut at the terminal's edge.
const DROPS: &str = "dropped/s";

/// What is above, in and below the table; no line is longer than `columns`.
pub fn render(
    backs: &[BackStatus],
    flows: &[Flow],
    failed: &[String],
    columns: usize,
    rows: usize,
) -> Vec<String> {
    let mut above = Vec::new();
    for back in backs {
        above.push(format!(
            "domain {}: process {}, {:.0} s, {}{}, {}",
            back.domain,
            back.pid,
            back.uptime_s,
            serves(back),
            carried(&back.workers),
            plain(&back.platform)
        ));
    }
    if backs.is_empty() {
        above.push("no backend is running".into());
    }
    let mut below: Vec<String> = failed.iter().map(|why| plain(why)).collect();
    for flow in flows.iter().filter(|f| f.dir == "tx") {
        if let Some(why) = &flow.last_failure {
            let (front, handle, times) = (flow.front, flow.handle, flow.faults);
            below.push(format!("vif {front}.{handle} was closed {times} time(s), last: {}", plain(why)));
        }
    }
    for back in backs.iter().filter(|back| back.process.missed_wakeups > 0) {
        let (domain, missed) = (back.domain, back.process.missed_wakeups);
        below.push(format!(
            "domain {domain}: {missed} wake-up(s) missed: work was seen late that no event had told of"
        ));
    }
    for vif in backs.iter().flat_map(|back| &back.vifs) {
        let twice: u64 = vif.queues.iter().map(|q| q.tx.repeated).sum();
        let lost: u64 = vif.queues.iter().filter_map(|q| q.rx.drops.get("lost")).sum();
        if twice + lost > 0 {
            let (front, handle) = (vif.front, vif.handle);
            below.push(format!(
                "vif {front}.{handle}: with backends that ended, {twice} frame(s) may have come twice, {lost} are lost"
            ));
        }
    }
    for flow in flows.iter().filter(|f| f.dir == "tx" && f.stalls + f.credit_waits > 0) {
        let Flow { front, handle, stalls, credit_waits, .. } = flow;
        below.push(format!(
            "vif {front}.{handle} took no frames and lost its link {stalls} time(s), was held back by its rate {credit_waits} time(s)"
        ));
    }
    // The table matters more.
    below.truncate(rows.saturating_sub(above.len() + 3).max(1));
    above.extend(others(backs).into_iter().take(rows / 3));
    let mut table = if flows.is_empty() { Vec::new() } else { fitting(flows, columns) };
    let room = rows.saturating_sub(above.len() + below.len() + 1).max(3);
    if table.len() > room {
        let left_out = table.len() - room + 1;
        table.truncate(room - 1);
        table.push(format!("... {left_out} more line(s)"));
    }
    above.into_iter().chain(table).chain(below).map(|line| cut(&line, columns)).collect()
}

/// What a backend serves: `2 vif(s)`, `3 vbd(s)`, both.
fn serves(back: &BackStatus) -> String {
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    back.devices.iter().for_each(|device| *classes.entry(&device.class).or_default() += 1);
    if !back.vifs.is_empty() || classes.is_empty() {
        classes.insert("vif", back.vifs.len());
    }
    let each: Vec<_> = classes.iter().rev().map(|(class, n)| format!("{n} {}(s)", plain(class))).collect();
    each.join(", ")
}

/// What each worker carries, where there are several.
fn carried(workers: &[usize]) -> String {
    match workers {
        [] | [_] => String::new(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(usize::to_string).collect();
            format!(", {} workers with {} and {last} queues", workers.len(), first.join(", "))
        }
    }
}

/// Devices that are no vifs, with what their class counts.
fn others(backs: &[BackStatus]) -> Vec<String> {
    let mut table = Table::new(&[
        ("device", Align::Left),
        ("back", Align::Right),
        ("state", Align::Left),
        ("throttled", Align::Right),
        ("what", Align::Left),
        ("counted", Align::Left),
    ]);
    for (back, device) in backs.iter().flat_map(|b| b.devices.iter().map(move |d| (b.domain, d))) {
        let counted: Vec<_> =
            device.counters.iter().map(|(name, n)| format!("{} {n}", plain(name))).collect();
        let waits = device.waits_for.as_ref().map(|why| format!("; waits: {}", plain(why)));
        let last = device
            .last_failure
            .as_ref()
            .map(|why| format!("; closed {} time(s), last: {}", device.faults, plain(why)));
        table.row([
            format!("{} {}.{}", plain(&device.class), device.front, device.handle),
            back.to_string(),
            plain(&device.state) + if device.closes_in_use() { ", in use" } else { "" },
            device.throttled.to_string(),
            plain(&device.what),
            counted.join(", ") + &waits.unwrap_or_default() + &last.unwrap_or_default(),
        ]);
    }
    if backs.iter().all(|back| back.devices.is_empty()) {
        return Vec::new();
    }
    table.to_string().lines().map(String::from).collect()
}

/// The table with as many columns as fit.
fn fitting(flows: &[Flow], columns: usize) -> Vec<String> {
    let mut least = 9;
    loop {
        let shown: Vec<&Column> = COLUMNS.iter().filter(|c| c.gives_way < least).collect();
        let headings: Vec<_> =
            shown.iter().map(|c| (c.name, c.align)).chain([(DROPS, Align::Left)]).collect();
        let mut table = Table::new(&headings);
        for flow in flows {
            table.row(shown.iter().map(|c| (c.cell)(flow)).chain([drops(flow)]));
        }
        let lines: Vec<String> = table.to_string().lines().map(String::from).collect();
        // The last column may be cut, but its heading is to be seen.
        if least == 1 || lines.first().is_none_or(|heading| width(heading) <= columns) {
            return lines;
        }
        least -= 1;
    }
}

fn state(flow: &Flow) -> String {
    let no_link = flow.state == "Connected" && !flow.link;
    plain(&flow.state) + if no_link { ", no link" } else { "" }
}

fn drops(flow: &Flow) -> String {
    let Some(seconds) = flow.rate.seconds else { return "-".into() };
    let each = flow.rate.dropped.iter();
    let each: Vec<_> =
        each.map(|(why, n)| format!("{} {}", plain(why), si(Some(*n as f64 / seconds)))).collect();
    if each.is_empty() { "0".into() } else { each.join(", ") }
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or("-".into(), figure)
}

/// Three digits and a decimal prefix: `950`, `12.3k`, `4.56G`.
pub fn si(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".into() };
    match value {
        v if v >= 999.5e6 => figure(v / 1e9) + "G",
        v if v >= 999.5e3 => figure(v / 1e6) + "M",
        v if v >= 999.5 => figure(v / 1e3) + "k",
        v if v == v.trunc() => format!("{v:.0}"),
        v => figure(v),
    }
}

/// Without control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The part of a line that fits.
fn cut(line: &str, columns: usize) -> String {
    let mut end = line.len();
    while width(&line[..end]) > columns {
        end -= line[..end].chars().next_back().map_or(end, char::len_utf8);
    }
    line[..end].trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{flow, sample};
    use super::*;
    use pregrant_host::drivers::status::DeviceStatus;

    fn later() -> (Vec<BackStatus>, Vec<Flow>) {
        let before = sample::status();
        let mut now = before.clone();
        now.at_ns += 1_000_000_000;
        let tx = &mut now.vifs[0].queues[0].tx;
        (tx.frames, tx.bytes, tx.notifications) =
            (tx.frames + 1_234_567, tx.bytes + 98_765_432, tx.notifications + 12_345);
        now.vifs[0].port_drops.get_mut("rx").unwrap().insert("queue_full".into(), 1542);
        let flows = flow::flows(&[before], std::slice::from_ref(&now));
        (vec![now], flows)
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        let (backs, flows) = later();
        let failed = ["/tmp/back-1.status: \u{7}no answer".to_string()];
        let text = render(&backs, &flows, &failed, 200, 50).join("\n");
        let golden = "\
domain 0: process 4711, 36 s, 2 vif(s), 2 workers with 2 and 0 queues, loopback
vif  dir  back  state      queues  path          frames/s  bit/s  grant ops/frame  events/frame  dropped/s
---  ---  ----  ---------  ------  ------------  --------  -----  ---------------  ------------  ----------------
5.0  tx      0  Connected       2  copy+staging     1.23M   790M            0.000         0.010  0
5.0  rx      0  Connected       2  copy+staging         0      0                -             -  queue_full 1.50k
6.1  tx      0  Closed          0                       0      0                -             -  0
6.1  rx      0  Closed          0                       0      0                -             -  0
/tmp/back-1.status: ?no answer
vif 6.1 was closed 2 time(s), last: its \"ring\"?lied ?[31m\\
domain 0: 2 wake-up(s) missed: work was seen late that no event had told of
vif 5.0 took no frames and lost its link 3 time(s), was held back by its rate 17 time(s)";
        assert_eq!(text, golden);
    }

    #[test]
    fn a_device_of_another_class_has_a_row() {
        let (mut backs, flows) = later();
        backs[0].devices = vec![sample::device()];
        let lines = render(&backs, &flows, &[], 200, 50);
        let golden = "\
device    back  state   throttled  what   counted
--------  ----  ------  ---------  -----  -------------------------------------------------------
vtoy 5.0     0  Closed          3  a toy  answered 100; closed 1 time(s), last: it ?[31mran ahead";
        assert_eq!(lines[1..4].join("\n"), golden);
        assert_eq!(
            lines.len(),
            render(&[BackStatus { devices: Vec::new(), ..backs[0].clone() }], &flows, &[], 200, 50).len() + 3
        );
    }

    #[test]
    fn a_disk_that_is_in_use_while_it_closes_is_shown() {
        let (mut backs, flows) = later();
        let closing = DeviceStatus { state: "Closing".into(), ..sample::device() };
        for (connected_s, shown) in [(Some(3.0), "Closing, in use"), (None, "Closing ")] {
            backs[0].devices = vec![DeviceStatus { connected_s, ..closing.clone() }];
            let lines = render(&backs, &flows, &[], 200, 50);
            assert!(lines[3].contains(shown), "{lines:?}");
        }
    }

    #[test]
    fn what_predecessors_repeated_and_lost_is_told() {
        let (mut backs, flows) = later();
        backs[0].vifs[0].queues[0].tx.repeated = 5;
        backs[0].vifs[0].queues[1].rx.drops.insert("lost".into(), 7);
        let lines = render(&backs, &flows, &[], 200, 50);
        let line = "vif 5.0: with backends that ended, 5 frame(s) may have come twice, 7 are lost";
        assert!(lines.iter().any(|l| l == line), "{lines:?}");
    }

    #[test]
    fn a_narrow_or_low_terminal_is_never_overrun() {
        let (backs, flows) = later();
        for columns in [1, 10, 20, 33, 40, 60, 80, 100, 120] {
            for rows in [1, 5, 8, 24] {
                let lines = render(&backs, &flows, &[], columns, rows);
                assert!(lines.iter().all(|l| width(l) <= columns), "{columns}: {lines:?}");
                assert!(lines.len() <= rows.max(5), "{rows}: {lines:?}");
            }
        }
        let lines = render(&backs, &flows, &[], 40, 24);
        assert_eq!(lines[1], "vif  dir  frames/s  bit/s  dropped/s");
        assert_eq!(lines[3], "5.0  tx      1.23M   790M  0");
        let stalled: Vec<Flow> = flows.iter().map(|f| Flow { link: false, ..f.clone() }).collect();
        let lines = render(&backs, &stalled, &[], 120, 24);
        assert!(lines[3].contains("Connected, no link") && !lines[5].contains("no link"), "{lines:?}");
        let lines = render(&backs, &flows, &[], 80, 6);
        assert!(lines.iter().any(|l| l.starts_with("... ")), "{lines:?}");
        assert_eq!(render(&[], &[], &[], 80, 24), ["no backend is running"]);
    }

    #[test]
    fn figures_have_prefixes() {
        let shown = [0.0, 0.5, 7.0, 999.4, 1000.0, 12_345.0, 999_600.0, 4.56e9].map(|v| si(Some(v)));
        assert_eq!(shown, ["0", "0.500", "7", "999", "1.00k", "12.3k", "1.00M", "4.56G"]);
        assert_eq!(si(None), "-");
    }
}
