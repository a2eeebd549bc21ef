//! `pregrant-lab bench working-set`: frames that are sent from a guest's own buffers, over the
//! number of buffers.
//!
//! A guest and a backend process, each pinned to a core of its own; every row of every repeat is a
//! vif of its own, as in `bench net`. The question is of the review of staging grants (2016):
//! whether the working set of a guest's buffers is small enough for a cache of references, and what
//! becomes of one that is not.

use super::Result;
use super::net::{Row, STATIC_POOL, in_poll_mode, platform};
use super::output::{Output, Run};
use super::timing::{Bursts, Timing, few};
use crate::columns::{Columns, or_dash};
use crate::record::stats::Summary;
use crate::record::{Record, WorkingSet};
use pregrant::net::path::PathName;
use pregrant_cli::table::{Table, figure};
use pregrant_testbed::process::process_command::{Buffers, Case, Dir, Fill, Reuse};

/// Arguments of `bench working-set`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("0.25")), mut_arg("repeats", |a| a.default_value("3")))]
#[command(mut_arg("report", |a| a.help("Write a page with the results to this folder, as index.html with the records beside it")))]
#[command(after_help = "Examples:
  pregrant-lab bench working-set
  pregrant-lab bench working-set --buffers 256,1024 --reuse uniform --size 4096 --repeats 9 --json out.jsonl

Rows are pairs: frames copied into the static pool, and frames sent from their buffers where the backend has these.
Run it on an idle machine with two cores; results from a loaded machine are meaningless.")]
pub struct WorkingSetArgs {
    /// Buffers that the guest's frames are in, a page each
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 256, 512, 1024, 2048, 4096], value_parser = clap::value_parser!(u32).range(64..=8192))]
    pub buffers: Vec<u32>,
    /// Number of times frames come back to a buffer
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Reuse::Uniform, Reuse::Skewed])]
    pub reuse: Vec<Reuse>,
    /// Bytes that the guest writes to a buffer before its frame is sent
    #[arg(long, value_enum, default_value_t = Fill::Whole)]
    pub fill: Fill,
    /// Entries that the backend's table has for them
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub table: u32,
    /// Bytes of a frame, headers included
    #[arg(long, default_value_t = 1496, value_parser = clap::value_parser!(u32).range(60..=4096))]
    pub size: u32,
    #[command(flatten)]
    pub bursts: Bursts,
    #[command(flatten)]
    pub output: Output,
}

pub fn measure(args: &WorkingSetArgs, run: &mut Run) -> Result<()> {
    let mut rows = Vec::new();
    for &reuse in &args.reuse {
        for &pages in &args.buffers {
            // Without entries everything is copied.
            let buffers = Some(Buffers { pages: pages as usize, reuse, fill: args.fill });
            rows.extend([0, args.table as usize].map(|table| {
                let gref_pages = Some(STATIC_POOL + table);
                let case = Row::new(PathName::GrefMapping, Dir::Tx, args.size as usize, 0).case;
                Row::of("working-set", Case { buffers, gref_pages, ..case })
            }));
        }
    }
    in_poll_mode(run, (&args.bursts, 1), &mut rows, |row| format!("{} buffers, {}", pages(row), way(row)))?;
    run.print(table(&rows))?;
    run.print(method(&rows, args))
}

fn pages(row: &Row) -> usize {
    row.buffers.map_or(0, |buffers| buffers.pages)
}

fn is_cached(row: &Row) -> bool {
    row.table() > 0
}

fn way(row: &Row) -> &'static str {
    if is_cached(row) { "cache" } else { "static pool" }
}

fn table(rows: &[Row]) -> Table {
    // Each row of the cache follows that of the static pool.
    let gain = |(i, row): &(usize, &Row)| -> Option<Summary> {
        is_cached(row).then(|| row.records.ratio(&rows[i - 1].records)).flatten()
    };
    let only = |row: &Row, of: fn(&Row) -> String| or_dash(is_cached(row).then(|| of(row)));
    let numbered: Vec<(usize, &Row)> = rows.iter().enumerate().collect();
    let mut table = Columns::of(&numbered)
        .left("reuse", |(_, row)| row.buffers.map_or("", |buffers| buffers.reuse.name()))
        .right("buffers", |(_, row)| pages(row))
        .left("frames go by", |(_, row)| way(row))
        .right("hit rate", |(_, row)| only(row, hit_rate))
        .left("mode", |(_, row)| only(row, |row| modes(row.records.iter())))
        .ranged("M frames/s", 1e6, |(_, row)| row.records.rate())
        .median("of static pool", 1.0, gain)
        .right("(range)", |row| gain(row).map_or(String::new(), |gain| gain.range()))
        .right("pages out/s", |(_, row)| only(row, pages_out))
        .right("guest ns/frame", |(_, row)| figure(row.records.each(|r| r.frontend_cpu_ns)))
        .right("backend ns/frame", |(_, row)| figure(row.records.each(|r| r.backend_cpu_ns)))
        .right("lost", |(_, row)| row.records.sum(|r| r.lost))
        .grouped(|(i, _)| i / 2);
    table.gap();
    table
}

fn set(record: &Record) -> Option<&WorkingSet> {
    record.net()?.set.as_ref()
}

fn hit_rate(row: &Row) -> String {
    let hits: f64 = row.records.iter().map(|r| set(r).map_or(0.0, |s| s.hit_rate) * r.frames as f64).sum();
    format!("{:.3}", hits / row.records.sum(|r| r.frames).max(1) as f64)
}

fn pages_out(row: &Row) -> String {
    let seconds: f64 = row.records.iter().map(|r| r.seconds).sum();
    let evictions = row.records.sum(|r| set(r).map_or(0, |s| s.evictions));
    figure(evictions as f64 / seconds.max(f64::MIN_POSITIVE))
}

/// Returns the mode at the end of all repeats, or a note that the repeats' modes differed.
fn modes<'a>(records: impl Iterator<Item = &'a Record>) -> String {
    let mut all: Vec<&str> = records.filter_map(|r| Some(&*set(r)?.cache_mode)).collect();
    all.dedup();
    if all.len() > 1 { "either".into() } else { all.concat() }
}

fn method(rows: &[Row], args: &WorkingSetArgs) -> String {
    let Bursts { burst, timing: Timing { seconds, repeats } } = args.bursts;
    let mut text = format!(
        "Medians of {repeats} interleaved repeats of {seconds} s, poll mode, one queue, frames of {} bytes in bursts of {burst}, after \
         150 ms or more that do not count, until the table has what fits; the backend's table has {} entries for buffers.\n",
        args.size, args.table
    );
    text += match args.fill {
        Fill::Whole => {
            "A buffer is a page of the guest's, with one frame in it. Before each frame the guest writes all of it, with its number in the head, as a \
             kernel that copies it from a program: in both rows, so that what they differ in is the front's own copy. "
        }
        Fill::Head => {
            "A buffer is a page of the guest's, with one frame in it. Before each frame the guest writes its head, 32 bytes with its number, as a \
             kernel that sends a file from the page cache. The rest comes by the front's copy alone, or not at all: it may still be in the backend's \
             cache, so such rows are the most that sending from buffers can gain. "
        }
    };
    text += "Buffers on their way are not used; of the others each comes as often (uniform), or nine of ten frames are in an eighth of them (skewed). \
             In the rows of the static pool the front copies each frame to a page that the backend has mapped from the beginning; in \
             those of the cache it does so where the backend does not have the buffer. The backend copies each frame, and reads its number.\n";
    text += "The hit rate is of frames that were sent from their buffers. Copying: the buffers do not fit the table, and nothing comes or goes any \
             more; those that are there are used. The ratio is the median of the repeats' ratios to the row above, not the ratio \
             of the medians.\n";
    text + &platform(rows) + few(repeats)
}
