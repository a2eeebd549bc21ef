//! Formats the table, and describes how its figures were measured.

use super::stand::{Plan, Stand};
use super::{BlkArgs, Row};
use crate::bench::timing::few;
use crate::columns::{Columns, or_dash};
use crate::record::Record;
use crate::record::published::{PUBLISHED_DISKS, in_full};
use crate::record::stats::Summary;
use pregrant::blk::path::PathName;
use pregrant_cli::table::{Table, figure};
use pregrant_testbed::process::disks::disks_command::Buffers;
use pregrant_testbed::process::disks::load::WHOLE_EACH;
use std::collections::BTreeMap;

/// Formats the rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let each = |row: &Row, count: fn(&Record) -> u64| figure(row.records.each(count));
    let gib = f64::from(1 << 30);
    Columns::of(rows.iter().filter(|row| row.greedy.is_none() && row.records.rate().is_some()))
        .left("path", |row| row.plan.path_name())
        .left("disk", |row| row.plan.medium)
        .left("dir", |row| row.dir)
        .right("size B", |row| row.size)
        .right("align", |row| row.align)
        .right("depth", |row| row.depth)
        .right("guests", |row| row.plan.guests)
        .right("workers", |row| row.plan.workers)
        .left("waits", |row| row.plan.mode())
        .ranged("k IOPS", 1e3, |row| row.records.rate())
        .median("GiB/s", gib, |row| row.records.summary(|r| r.frames_per_s * row.size as f64))
        .median("latency us", 1e3, |row| row.records.middle(Record::p50))
        .median("99 %", 1e3, |row| row.records.middle(Record::p99))
        .right("copies/req", |row| each(row, |r| r.grant_copies))
        .right("maps/req", |row| each(row, |r| r.grant_maps))
        .right("unmaps/req", |row| each(row, |r| r.grant_unmaps))
        .right("syscalls/req", |row| each(row, |r| r.syscalls))
        .right("events/req", |row| each(row, |r| r.notifications))
        .right("guest CPU ns/req", |row| each(row, |r| r.frontend_cpu_ns))
        .right("back CPU ns/req", |row| each(row, |r| r.backend_cpu_ns))
        .right("published k", |row| or_dash(row.records.first().published.map(|p| figure(p / 1e3))))
        .grouped(|row| (row.work(), row.plan.medium, row.plan.guests, row.plan.workers))
}

/// Returns the pairs of rows whose plans differ only in the setting that `other` changes.
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

/// Describes how the figures were measured, and which of them are compared.
pub fn method(rows: &[Row], args: &BlkArgs, stands: &BTreeMap<Plan, Stand>, platform: &str) -> String {
    let mut text = format!(
        "Medians of {} interleaved repeats of {} s; requests at random places of a disk, one for each guest{}.\n\
         One guest: it polls for answers all the time, and a worker that finds nothing spins before it sleeps (poll). Several guests, \
         a thread each on one core: each sleeps when its requests are all in flight, and so does the backend when there are none (event).\n",
        args.timing.repeats,
        args.timing.seconds,
        if args.image.is_some() {
            ": in RAM, and on a file by io_uring, past the page cache where it allows that"
        } else {
            " in RAM"
        },
    );
    let mut seen = Vec::new();
    for (plan, stand) in stands {
        if !seen.contains(&plan.workers) {
            seen.push(plan.workers);
            text += &format!("{} worker(s): {}.\n", plan.workers, stand.core_placement.words());
        }
    }
    if stands.values().any(|stand| stand.gives_way) {
        text += "A worker shares the guests' core: only one of the two runs at a time, and a guest that polls yields, in all rows, when it \
                 has nothing to do. Such rows say what a worker costs there, not what one is worth.\n";
    }
    text += &format!(
        "Latency: from when a request was written to the ring until its answer was taken, median and 99 of 100. Operations, system calls and \
         events of both ends over all repeats: fractions where one serves several. The front copies its data to and from \
         granted pages, but where these are the guest's own. Each read is checked: number and generation of every sector, and in one of {WHOLE_EACH} reads every byte; all disks \
         were written whole before.\nPlatform: {platform}.\n"
    );
    text += few(args.timing.repeats);
    let compared = |other: &dyn Fn(Plan) -> Option<Plan>, words: &dyn Fn(&Summary) -> String| {
        let mut text = String::new();
        for (a, b) in pairs(rows, other) {
            if let Some(of) = a.records.ratio(&b.records) {
                text += &format!("{}: {}.\n", a.words(), words(&of));
            }
        }
        text
    };
    for base in [PathName::Map, PathName::Copy] {
        let to_base = |plan: Plan| (plan.path == PathName::Persistent).then_some(Plan { path: base, ..plan });
        text += &compared(&to_base, &|gain| format!("{gain} times {base}"));
        let to_own = |plan: Plan| to_base(plan).map(|plan| Plan { buffers: Buffers::Own, ..plan });
        text += &compared(&to_own, &|gain| format!("{gain} times {base} with own pages"));
    }
    for greedy in rows.iter().filter(|row| row.greedy.is_some()) {
        let equal = rows.iter().find(|row| row.is_equal_load_of(greedy));
        let Some((equal, kept)) = equal.and_then(|equal| Some((equal, greedy.kept(equal)?))) else {
            continue;
        };
        let (bytes, all) = (greedy.longest(), greedy.plan.guests);
        text += &format!(
            "{}: beside a last one whose requests have {bytes} B each of the others keeps {kept} of the requests that each has at equal load",
            greedy.words()
        );
        // In a short time on a busy machine a worker may have had no two of them at a time.
        if let (Some(share), Some(dearer)) = (greedy.share(), greedy.dearer(equal)) {
            text += &format!(
                "; it has {share} of its share, 1/{all}, of the backend's time; each of its requests takes {dearer} times as much"
            );
        }
        text += ".\n";
    }
    let least = args.guests.iter().copied().min().unwrap_or(1);
    let to_least = |plan: Plan| (plan.guests > least).then_some(Plan { guests: least, ..plan });
    text += &compared(&to_least, &|part| format!("in sum {part} of what {least} get(s)"));
    let to_one = |plan: Plan| (plan.workers > 1).then_some(Plan { workers: 1, ..plan });
    text += &compared(&to_one, &|gain| format!("{gain} times one worker"));
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
