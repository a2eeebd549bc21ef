//! The table, and how its figures came about.

use super::stand::{Plan, Stand};
use super::{BlkArgs, Row, ratio};
use crate::process::disks::load::WHOLE_EACH;
use crate::record::published::{PUBLISHED_DISKS, in_full};
use crate::record::stats::Summary;
use crate::table::{Align, Table, figure};
use pregrant::blk::path::PathName;
use std::collections::BTreeMap;

/// The rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut t = Table::new(&[
        ("path", Align::Left),
        ("dir", Align::Left),
        ("size B", Align::Right),
        ("align", Align::Right),
        ("depth", Align::Right),
        ("guests", Align::Right),
        ("workers", Align::Right),
        ("waits", Align::Left),
        ("k IOPS", Align::Right),
        ("(range)", Align::Right),
        ("GiB/s", Align::Right),
        ("latency us", Align::Right),
        ("99 %", Align::Right),
        ("copies/req", Align::Right),
        ("maps/req", Align::Right),
        ("unmaps/req", Align::Right),
        ("syscalls/req", Align::Right),
        ("events/req", Align::Right),
        ("guest CPU ns/req", Align::Right),
        ("back CPU ns/req", Align::Right),
        ("published k", Align::Right),
    ]);
    let mut last = None;
    for row in rows.iter().filter(|row| row.greedy.is_none()) {
        let group = (row.work(), row.plan.guests, row.plan.workers);
        if last.is_some_and(|last| last != group) {
            t.gap();
        }
        last = Some(group);
        let Some(rate) = row.summary(|r| r.frames_per_s) else { continue };
        let k = |v: f64| figure(v / 1e3);
        let us = |of: fn(&crate::record::Record) -> Option<u64>| {
            let summary = row.summary(|r| of(r).unwrap_or(0) as f64);
            summary.map_or("-".into(), |s| figure(s.median / 1e3))
        };
        t.row([
            row.plan.path.to_string(),
            row.dir.name().into(),
            row.size.to_string(),
            row.align.to_string(),
            row.depth.to_string(),
            row.plan.guests.to_string(),
            row.plan.workers.to_string(),
            row.plan.mode().to_string(),
            k(rate.median),
            format!("({}..{})", k(rate.min), k(rate.max)),
            figure(rate.median * row.size as f64 / f64::from(1 << 30)),
            us(|r| r.latency_p50_ns),
            us(|r| r.latency_p99_ns),
            figure(row.per_request(|r| r.grant_copies)),
            figure(row.per_request(|r| r.grant_maps)),
            figure(row.per_request(|r| r.grant_unmaps)),
            figure(row.per_request(|r| r.syscalls)),
            figure(row.per_request(|r| r.notifications)),
            figure(row.per_request(|r| r.frontend_cpu_ns)),
            figure(row.per_request(|r| r.backend_cpu_ns)),
            row.records[0].published.map_or("-".into(), k),
        ]);
    }
    t
}

/// Pairs of rows that differ in their plans alone, as `other` has it.
fn pairs<'a>(
    rows: &'a [Row],
    other: impl Fn(Plan) -> Option<Plan> + 'a,
) -> impl Iterator<Item = (&'a Row, &'a Row)> {
    let equals = || rows.iter().filter(|row| row.greedy.is_none());
    equals().filter_map(move |a| {
        let plan = other(a.plan)?;
        equals().find(|b| b.plan == plan && b.work() == a.work()).map(|b| (a, b))
    })
}

fn times(of: Summary) -> String {
    format!("{} ({}..{})", figure(of.median), figure(of.min), figure(of.max))
}

/// How the figures came about, and what of them is compared.
pub fn method(rows: &[Row], args: &BlkArgs, stands: &BTreeMap<Plan, Stand>, platform: &str) -> String {
    let mut text = format!(
        "Medians of {} interleaved repeats of {} s; requests at random places of a RAM disk, one for each guest.\n\
         One guest: it looks for answers all the time, and a worker that finds nothing spins before it sleeps (poll). Several guests, \
         a thread each on one core: each sleeps when its requests are all in flight, and so does the backend when there are none (event).\n",
        args.repeats, args.seconds
    );
    let mut seen = Vec::new();
    for (plan, stand) in stands {
        if !seen.contains(&plan.workers) {
            seen.push(plan.workers);
            text += &format!("{} worker(s): {}.\n", plan.workers, stand.words());
        }
    }
    if stands.values().any(|stand| stand.gives_way) {
        text += "A worker shares the guests' core: only one of the two runs at a time, and a guest that polls yields, in all rows, when it \
                 has nothing to do. Such rows say what a worker costs there, not what one is worth.\n";
    }
    text += &format!(
        "Latency: from when a request was written to the ring until its answer was taken, median and 99 of 100. Operations, system calls and \
         events of both ends over all repeats: fractions where one serves several. On every path the front copies its data to and from \
         granted pages. Each read is checked: number and generation of every sector, and in one of {WHOLE_EACH} reads every byte; all disks \
         were written whole before.\nPlatform: {platform}.\n"
    );
    if args.repeats < 5 {
        text += "So few repeats scatter, the range says how far: --repeats 9 scatters less.\n";
    }
    for base in [PathName::Map, PathName::Copy] {
        let to_base = |plan: Plan| (plan.path == PathName::Persistent).then_some(Plan { path: base, ..plan });
        for (a, b) in pairs(rows, to_base) {
            if let Some(gain) = ratio(a, b) {
                text += &format!("{}: {} times {base}.\n", a.words(), times(gain));
            }
        }
    }
    for greedy in rows.iter().filter(|row| row.greedy.is_some()) {
        let equal = rows.iter().find(|row| row.is_equal_load_of(greedy));
        let Some((equal, kept)) = equal.and_then(|equal| Some((equal, greedy.kept(equal)?))) else {
            continue;
        };
        let (bytes, all) = (greedy.longest(), greedy.plan.guests);
        text += &format!(
            "{}: beside a last one whose requests have {bytes} B each of the others keeps {} of the requests that each has at equal load",
            greedy.words(),
            times(kept)
        );
        // In a short time on a busy machine a worker may have had no two of them at a time.
        if let (Some(share), Some(dearer)) = (greedy.share(), greedy.dearer(equal)) {
            text += &format!(
                "; it has {} of its share, 1/{all}, of the backend's time, of which each takes {} times as much",
                times(share),
                times(dearer)
            );
        }
        text += ".\n";
    }
    let least = args.guests.iter().copied().min().unwrap_or(1);
    let to_least = |plan: Plan| (plan.guests > least).then_some(Plan { guests: least, ..plan });
    for (a, b) in pairs(rows, to_least) {
        if let Some(part) = ratio(a, b) {
            text += &format!("{}: in sum {} of what {least} get(s).\n", a.words(), times(part));
        }
    }
    let to_one = |plan: Plan| (plan.workers > 1).then_some(Plan { workers: 1, ..plan });
    for (a, b) in pairs(rows, to_one) {
        if let Some(gain) = ratio(a, b) {
            text += &format!("{}: {} times one worker.\n", a.words(), times(gain));
        }
    }
    text += "Ratios are the medians of the repeats' ratios, with their range.\nPublished:";
    for p in PUBLISHED_DISKS {
        text += &format!(" {} guests, {}: {} IOPS in sum;", p.guests, p.path, p.requests_per_s);
    }
    let sources: Vec<&str> = PUBLISHED_DISKS.iter().filter_map(|p| in_full(p.source)).collect();
    text += &format!(
        " {}. Another machine, real Xen, another year: they show the shape.",
        sources.first().unwrap_or(&"")
    );
    text
}
