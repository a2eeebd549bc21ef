//! The table of flows, as wide as the terminal allows.
//!
//! Control characters are removed from texts that guests can write, so that a guest cannot move the
//! reader's cursor.

use super::Rates;
use super::flow::Flow;
use super::load::Load;
use crate::status_reader::Daemon;
use crate::table::{Align, Table, figure, width};
use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{ModuleStatus, OLDEST_NS};
use std::collections::BTreeMap;

/// A column of the table: its heading, its alignment, how early it is left out on a narrow terminal
/// (0: never), and its cell.
struct Column {
    name: &'static str,
    align: Align,
    gives_way: u8,
    cell: fn(&Flow) -> String,
}

const COLUMNS: [Column; 11] = [
    Column { name: "vif", align: Align::Left, gives_way: 0, cell: |f| format!("{}.{}", f.front, f.handle) },
    Column { name: "dir", align: Align::Left, gives_way: 0, cell: |f| f.dir.into() },
    Column { name: "back", align: Align::Right, gives_way: 8, cell: |f| f.domain.to_string() },
    Column { name: "state", align: Align::Left, gives_way: 3, cell: state },
    Column { name: "queues", align: Align::Right, gives_way: 7, cell: |f| f.queues.to_string() },
    Column { name: "path", align: Align::Left, gives_way: 4, cell: path },
    Column { name: "pages", align: Align::Right, gives_way: 9, cell: pages },
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

/// Heading of the last column, which may be long and is cut at the terminal's edge.
const DROPS: &str = "dropped/s";

/// Formats the lines above, in and below the tables. No line is longer than `columns`.
pub(super) fn render(rates: &Rates<'_>, columns: usize, rows: usize) -> Vec<String> {
    let Rates { daemons, flows, loads } = rates;
    let backs: Vec<&BackStatus> = daemons.iter().filter_map(Daemon::answer).collect();
    let mut above = Vec::new();
    for daemon in *daemons {
        let back = match &daemon.status {
            Ok(back) => back,
            Err(why) => {
                above.push(plain(&format!("{}: {why}", daemon.words())));
                continue;
            }
        };
        if let Some(module) = &back.module {
            above.push(of_module(daemon, back, module));
            continue;
        }
        above.push(format!(
            "{}: process {}, {:.0} s, {}{}, {}",
            daemon.words(),
            back.pid,
            back.uptime_s,
            serves(back),
            carried(&back.workers),
            plain(&back.platform)
        ));
    }
    if daemons.is_empty() {
        above.push("no backend is running".into());
    }
    let mut below = Vec::new();
    for flow in flows.iter().filter(|f| f.dir == "tx") {
        if let Some(why) = &flow.last_failure {
            let (front, handle, times) = (flow.front, flow.handle, flow.faults);
            below.push(format!("vif {front}.{handle} was closed {times} time(s), last: {}", plain(why)));
        }
    }
    for device in loads.iter().map(|load| &load.device) {
        let named = format!("{} {}.{}", plain(&device.class), device.front, device.handle);
        if let Some(why) = &device.waits_for {
            below.push(format!("{named} waits: {}", plain(why)));
        }
        if let Some(why) = &device.last_failure {
            below.push(format!("{named} was closed {} time(s), last: {}", device.faults, plain(why)));
        }
    }
    for back in backs.iter().filter(|back| back.process.missed_wakeups > 0) {
        let (domain, missed) = (back.domain, back.process.missed_wakeups);
        below.push(format!(
            "domain {domain}: {missed} wake-up(s) missed: work was seen late, for it came without an event"
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
    for flow in flows.iter().filter(|f| f.dir == "tx" && f.overflows > 0) {
        let Flow { front, handle, kept_pages, pages_allowed, overflows, .. } = flow;
        below.push(format!(
            "vif {front}.{handle} keeps {kept_pages} page(s) mapped, may keep {pages_allowed} (--persistent-grants, --gref-mappings): \
             {overflows} time(s) one found no place"
        ));
    }
    // The table matters more.
    shorten(&mut below, rows.saturating_sub(above.len() + 3).max(1));
    let mut others = others(loads);
    shorten(&mut others, (rows / 3).max(4));
    above.extend(others);
    let mut table = if flows.is_empty() { Vec::new() } else { fitting(flows, columns) };
    let room = rows.saturating_sub(above.len() + below.len() + 1).max(3);
    shorten(&mut table, room);
    above.into_iter().chain(table).chain(below).map(|line| cut(&line, columns)).collect()
}

/// Describes the kernel's module.
fn of_module(daemon: &Daemon, back: &BackStatus, module: &ModuleStatus) -> String {
    let version = if back.version.is_empty() { String::new() } else { format!(" {}", plain(&back.version)) };
    let lost = match module.maps_lost {
        0 => String::new(),
        lost => format!(", {lost} LOST"),
    };
    let (words, serves, pages) = (daemon.words(), serves(back), module.mapped_pages);
    format!("{words}: the kernel's module{version}, {serves}, {pages} page(s) mapped{lost}")
}

/// Describes the numbers of a backend's devices, for example `2 vif(s)`, `3 vbd(s)` or both.
fn serves(back: &BackStatus) -> String {
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    back.devices.iter().for_each(|device| *classes.entry(&device.class).or_default() += 1);
    if !back.vifs.is_empty() || classes.is_empty() {
        classes.insert("vif", back.vifs.len());
    }
    let each: Vec<_> = classes.iter().rev().map(|(class, n)| format!("{n} {}(s)", plain(class))).collect();
    each.join(", ")
}

/// Describes the load of each worker, if there are several.
fn carried(workers: &[usize]) -> String {
    match workers {
        [] | [_] => String::new(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(usize::to_string).collect();
            format!(", {} workers with {} and {last} queues", workers.len(), first.join(", "))
        }
    }
}

/// Formats the lines for devices that are not vifs: disks, and other devices with the counters of
/// their class.
fn others(loads: &[Load]) -> Vec<String> {
    let mut table = Table::new(&[
        ("device", Align::Left),
        ("back", Align::Right),
        ("state", Align::Left),
        ("requests/s", Align::Right),
        ("read B/s", Align::Right),
        ("written B/s", Align::Right),
        ("latency", Align::Right),
        ("depth", Align::Right),
        ("waiting", Align::Right),
        ("oldest", Align::Right),
        ("what", Align::Left),
        ("counted", Align::Left),
    ]);
    for load in loads {
        let device = &load.device;
        let named = device.counters.iter().chain(device.gauges.iter().filter(|(name, _)| !has_column(name)));
        let throttled = (device.throttled > 0).then(|| format!("throttled {}", device.throttled));
        let counted = named.map(|(name, n)| match name.as_str() {
            KEPT_PAGES => format!("{name} {n} of {}", device.pages_allowed),
            name => format!("{} {n}", plain(name)),
        });
        let counted: Vec<_> = counted.chain(throttled).collect();
        table.row([
            format!("{} {}.{}", plain(&device.class), device.front, device.handle),
            load.domain.to_string(),
            plain(&device.state) + if device.closes_in_use() { ", in use" } else { "" },
            si(load.requests_per_s),
            si(load.bytes_per_s("read")),
            si(load.bytes_per_s("write")),
            load.latency_s.map_or("-".into(), time),
            or_dash(load.depth),
            device.gauges.get(IN_FLIGHT).map_or("-".into(), u64::to_string),
            device.oldest_s().map_or("-".into(), time),
            plain(&device.what),
            counted.join(", "),
        ]);
    }
    if loads.is_empty() {
        return Vec::new();
    }
    table.to_string().lines().map(String::from).collect()
}

/// Returns the table with as many columns as fit.
fn fitting(flows: &[Flow], columns: usize) -> Vec<String> {
    let mut least = 10;
    loop {
        let shown: Vec<&Column> = COLUMNS.iter().filter(|c| c.gives_way < least).collect();
        let headings: Vec<_> =
            shown.iter().map(|c| (c.name, c.align)).chain([(DROPS, Align::Left)]).collect();
        let mut table = Table::new(&headings);
        for flow in flows {
            table.row(shown.iter().map(|c| (c.cell)(flow)).chain([drops(flow)]));
        }
        let lines: Vec<String> = table.to_string().lines().map(String::from).collect();
        // The last column may be cut, but its heading must be visible.
        if least == 1 || lines.first().is_none_or(|heading| width(heading) <= columns) {
            return lines;
        }
        least -= 1;
    }
}

/// The name of the gauge of requests that were taken from the ring and not answered.
const IN_FLIGHT: &str = "in_flight";

/// Returns true if a gauge has a column of its own.
fn has_column(gauge: &str) -> bool {
    [IN_FLIGHT, OLDEST_NS].contains(&gauge)
}

/// Name of the gauge of pages that stay mapped after they were seen.
const KEPT_PAGES: &str = "kept_pages";

/// Describes all paths of a direction, in order. Staging has the length of its buffers, and their
/// number for each queue. If queues differ, there is one list for each of them.
fn path(flow: &Flow) -> String {
    if flow.chains.iter().all(Vec::is_empty) {
        return plain(&flow.path);
    }
    let [lens, counts] =
        [&flow.data_lens, &flow.buffers].map(|all| all.iter().map(u32::to_string).collect::<Vec<_>>());
    let name = |path: &String| match path.starts_with("staging") {
        true if !counts.is_empty() => format!("{path} {} * {}", counts.join("/"), lens.join("/")),
        true if !lens.is_empty() => format!("{path} {}", lens.join("/")),
        _ => path.clone(),
    };
    let chain = |chain: &Vec<String>| chain.iter().map(name).collect::<Vec<_>>().join(", ");
    plain(&flow.chains.iter().map(chain).collect::<Vec<_>>().join(" / "))
}

/// Returns the number of the guest's pages that the vif has mapped. They belong to no direction.
/// The kernel's module has them for all vifs together.
fn pages(flow: &Flow) -> String {
    if flow.dir == "tx" && !flow.is_module { flow.mapped_pages.to_string() } else { String::new() }
}

/// Formats a time in seconds, with three digits and its unit.
fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 0.9995 => figure(s) + " s",
        s if s >= 0.000_999_5 => figure(s * 1e3) + " ms",
        s => figure(s * 1e6) + " us",
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

/// Formats a value with three digits and a decimal prefix: `950`, `12.3k`, `4.56G`.
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

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Truncates the lines to at most this many. The last one then says how many more there are.
fn shorten(lines: &mut Vec<String>, most: usize) {
    let Some(left_out) = lines.len().checked_sub(most).filter(|n| *n > 0) else { return };
    if most == 1 {
        lines.truncate(1);
        lines[0] = format!("(1 of {} lines) {}", left_out + 1, lines[0]);
        return;
    }
    lines.truncate(most - 1);
    lines.push(format!("... {} more line(s)", left_out + 1));
}

/// The end of a line that was cut because it is longer than the terminal is wide.
const CUT: &str = "...";

/// Returns the part of a line that fits on the terminal.
fn cut(line: &str, columns: usize) -> String {
    let line = line.trim_end();
    if width(line) <= columns {
        return line.into();
    }
    let mark = if columns > 2 * CUT.len() { CUT } else { "" };
    let mut end = line.len();
    while width(&line[..end]) > columns - mark.len() {
        end -= line[..end].chars().next_back().map_or(end, char::len_utf8);
    }
    line[..end].trim_end().to_string() + mark
}

#[cfg(test)]
mod tests {
    use super::super::{flow, sample};
    use super::*;
    use crate::status_reader::NoStatus;

    fn daemons(back: &BackStatus) -> Vec<Daemon> {
        vec![Daemon { name: "back", domain: back.domain, status: Ok(back.clone()) }]
    }

    fn later() -> (Vec<Daemon>, Vec<Daemon>) {
        let before = sample::status();
        let mut now = before.clone();
        now.at_ns += 1_000_000_000;
        let tx = &mut now.vifs[0].queues[0].tx;
        (tx.frames, tx.bytes, tx.notifications) =
            (tx.frames + 1_234_567, tx.bytes + 98_765_432, tx.notifications + 12_345);
        now.vifs[0].port_drops.get_mut("rx").unwrap().insert("queue_full".into(), 1542);
        (daemons(&before), daemons(&now))
    }

    fn shown(now: &[Daemon], columns: usize, rows: usize) -> Vec<String> {
        render(&Rates::between(&later().0, now), columns, rows)
    }

    fn with(change: impl FnOnce(&mut BackStatus)) -> Vec<String> {
        let (_, mut now) = later();
        change(now[0].status.as_mut().unwrap());
        shown(&now, 200, 50)
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        let (_, mut now) = later();
        now.push(Daemon {
            name: "blkback",
            domain: 1,
            status: Err(NoStatus::Failed("\u{7}no answer".into())),
        });
        let text = shown(&now, 200, 50).join("\n");
        let golden = "\
domain 0, back: process 4711, 36 s, 2 vif(s), 2 workers with 2 and 0 queues, loopback
domain 1, blkback: ?no answer
vif  dir  back  state      queues  path                             pages  frames/s  bit/s  grant ops/frame  events/frame  dropped/s
---  ---  ----  ---------  ------  -------------------------------  -----  --------  -----  ---------------  ------------  ----------------
5.0  tx      0  Connected       2  copy / staging 1024 * 256, copy   1000     1.23M   790M            0.000         0.010  0
5.0  rx      0  Connected       2  copy / staging 1024 * 256, copy                0      0                -             -  queue_full 1.50k
6.1  tx      0  Closed          0                                       0         0      0                -             -  0
6.1  rx      0  Closed          0                                                 0      0                -             -  0
vif 6.1 was closed 2 time(s), last: its \"ring\"?lied ?[31m\\
domain 0: 2 wake-up(s) missed: work was seen late, for it came without an event
vif 5.0 took no frames and lost its link 3 time(s), was held back by its rate 17 time(s)
vif 5.0 keeps 100 page(s) mapped, may keep 512 (--persistent-grants, --gref-mappings): 5 time(s) one found no place";
        assert_eq!(text, golden);
    }

    #[test]
    fn a_disk_shows_what_it_does_and_what_it_takes() {
        let before = BackStatus { devices: vec![sample::disk()], vifs: Vec::new(), ..sample::status() };
        let mut now = before.clone();
        now.at_ns += 2_000_000_000;
        let device = &mut now.devices[0];
        let write = device.operations.get_mut("write").unwrap();
        (write.requests, write.bytes) = (write.requests + 30_000, write.bytes + 122_880_000);
        write.latency_sum_ns += 12_000_000_000;
        write.latency[3].requests += 30_000;
        let lines = render(&Rates::between(&daemons(&before), &daemons(&now)), 220, 50);
        let golden = "\
device       back  state      requests/s  read B/s  written B/s  latency  depth  waiting  oldest  what                           counted
-----------  ----  ---------  ----------  --------  -----------  -------  -----  -------  ------  -----------------------------  ----------------------------------------------------------------------------
vbd 5.51712     0  Connected       15.0k         0        61.4M   400 us   6.00        3  2.50 s  persistent, /disk.img, 64 MiB  failed 1, overflows 7, redone 0, refused 2, kept_pages 130 of 1056, queues 1";
        assert_eq!(lines[1..4].join("\n"), golden);
    }

    #[test]
    fn a_device_of_another_class_has_a_row() {
        let lines = with(|back| back.devices = vec![sample::device()]);
        let golden = "\
device    back  state   requests/s  read B/s  written B/s  latency  depth  waiting  oldest  what   counted
--------  ----  ------  ----------  --------  -----------  -------  -----  -------  ------  -----  -------------------------
vtoy 5.0     0  Closed           -         -            -        -      -        -       -  a toy  answered 100, throttled 3";
        assert_eq!(lines[1..4].join("\n"), golden);
        // However long it is, no other row is as wide.
        assert!(
            lines.contains(&"vtoy 5.0 was closed 1 time(s), last: it ?[31mran ahead".into()),
            "{lines:?}"
        );
        assert_eq!(lines.len(), with(|_| {}).len() + 4);
    }

    #[test]
    fn one_that_hangs_is_no_absent_one() {
        let daemons = sample::daemons();
        let lines = render(&Rates::between(&[], &daemons), 200, 50);
        assert_eq!(
            lines[2..4],
            [
                "domain 3, back: process 99 runs and does not answer: it is stopped, its control thread hangs, or it has no descriptor left",
                "domain 3, blkback: does not run"
            ]
        );
    }

    #[test]
    fn a_disk_that_is_in_use_while_it_closes_is_shown() {
        let mut closing = sample::disk();
        closing.any.state = "Closing".into();
        for (connected_s, shown) in [(Some(3.0), " Closing, in use "), (None, " Closing ")] {
            let lines = with(|back| {
                back.vifs.clear();
                closing.any.connected_s = connected_s;
                back.devices = vec![closing.clone()];
            });
            assert!(lines.iter().any(|line| line.contains(shown)), "{lines:?}");
        }
    }

    #[test]
    fn what_predecessors_repeated_and_lost_is_shown() {
        let lines = with(|back| {
            back.vifs[0].queues[0].tx.repeated = 5;
            back.vifs[0].queues[1].rx.drops.insert("lost".into(), 7);
        });
        let line = "vif 5.0: with backends that ended, 5 frame(s) may have come twice, 7 are lost";
        assert!(lines.iter().any(|l| l == line), "{lines:?}");
    }

    #[test]
    fn a_narrow_or_low_terminal_is_never_overrun() {
        let (_, now) = later();
        for columns in [1, 10, 20, 33, 40, 60, 80, 100, 120] {
            for rows in [1, 5, 8, 24] {
                let lines = shown(&now, columns, rows);
                assert!(lines.iter().all(|l| width(l) <= columns), "{columns}: {lines:?}");
                assert!(lines.len() <= rows.max(5), "{rows}: {lines:?}");
            }
        }
        let lines = shown(&now, 40, 24);
        assert!(width(&lines[0]) == 40 && lines[0].ends_with("..."), "{lines:?}");
        assert_eq!(lines[1], "vif  dir  frames/s  bit/s  dropped/s");
        assert_eq!(lines[3], "5.0  tx      1.23M   790M  0");
        let lines = with(|back| back.vifs[0].link = false);
        assert!(lines[3].contains("Connected, no link") && !lines[5].contains("no link"), "{lines:?}");
        let lines = shown(&now, 80, 6);
        assert!(lines.iter().any(|l| l.starts_with("... ")), "{lines:?}");
        assert_eq!(render(&Rates::between(&[], &[]), 80, 24), ["no backend is running"]);
    }

    /// The table shows heads from staging buffers, and several paths in a row.
    #[test]
    fn a_chain_is_shown_in_its_order() {
        let of = |chain: &[&str], len: Option<u32>| {
            let mut status = sample::status();
            status.vifs[0].queues.truncate(1);
            let tx = &mut status.vifs[0].queues[0].tx;
            tx.path = chain[0].into();
            tx.chain = chain.iter().map(|path| (*path).into()).collect();
            (tx.data_len, tx.buffers) = (len, len.map(|_| 512));
            path(&flow::flows(&[], &[status])[0])
        };
        assert_eq!(of(&["staging", "copy"], Some(256)), "staging 512 * 256, copy");
        assert_eq!(of(&["staging+copy", "copy"], Some(256)), "staging+copy 512 * 256, copy");
        assert_eq!(of(&["gref-mapping", "map", "copy"], None), "gref-mapping, map, copy");
        assert_eq!(of(&["staging"], Some(65535)), "staging 512 * 65535");
    }

    #[test]
    fn figures_have_prefixes_and_times_units() {
        let shown = [0.0, 0.5, 7.0, 999.4, 1000.0, 12_345.0, 999_600.0, 4.56e9].map(|v| si(Some(v)));
        assert_eq!(shown, ["0", "0.500", "7", "999", "1.00k", "12.3k", "1.00M", "4.56G"]);
        assert_eq!(si(None), "-");
        assert_eq!([0.000_012, 0.000_4, 0.0123, 2.5].map(time), ["12.0 us", "400 us", "12.3 ms", "2.50 s"]);
    }
}
