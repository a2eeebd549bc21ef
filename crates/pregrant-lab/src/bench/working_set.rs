//! `pregrant bench working-set`: frames that are sent from a guest's own buffers, over the number of buffers.
//!
//! A guest and a backend process, each pinned to a core of its own; every row of every repeat is a vif of its own, as in `bench net`.
//! The question is of the review of staging grants (2016): whether the working set of a guest's buffers is small enough for a
//! cache of references, and what becomes of one that is not.

use super::net::{Row, Stand, Turns, ratio, seconds};
use crate::process::order::{Buffers, Dir, Fill, Reuse};
use crate::record::{Record, RecordWriter};
use crate::report::Report as Page;
use crate::screen::print;
use crate::table::{Align, Table, figure};
use pregrant::net::path::PathName;
use pregrant_host::drivers::Mode;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `bench working-set`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench working-set
  pregrant bench working-set --buffers 256,1024 --reuse uniform --size 4096 --repeats 9 --json out.jsonl

Rows are pairs: frames copied into the static pool, and frames sent from their buffers where the backend has these.
Run it on an idle machine with two cores; figures of a busy one say nothing.")]
pub struct WorkingSetArgs {
    /// Buffers that the guest's frames are in, a page each
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 256, 512, 1024, 2048, 4096], value_parser = clap::value_parser!(u32).range(64..=8192))]
    pub buffers: Vec<u32>,
    /// How often frames come back to a buffer
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Reuse::Uniform, Reuse::Skewed])]
    pub reuse: Vec<Reuse>,
    /// What the guest writes to a buffer before its frame is sent
    #[arg(long, value_enum, default_value_t = Fill::Whole)]
    pub fill: Fill,
    /// Entries that the backend's table has for them
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub table: u32,
    /// Bytes of a frame, headers included
    #[arg(long, default_value_t = 1496, value_parser = clap::value_parser!(u32).range(60..=4096))]
    pub size: u32,
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 0.25, value_parser = seconds)]
    pub seconds: f64,
    /// Frames in a burst at most
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub burst: u32,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Write a JSON object per row and repeat to this file ("-": standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with the results to this folder, as index.html with the records beside it
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(args: WorkingSetArgs) -> Result<()> {
    super::reported(args.json.as_deref(), args.report.as_deref(), |json, page| measure(&args, json, page))
}

fn measure(args: &WorkingSetArgs, json: &mut RecordWriter, page: &mut Page) -> Result<()> {
    let mut rows = Vec::new();
    for &reuse in &args.reuse {
        for &pages in &args.buffers {
            // Without entries everything is copied.
            rows.extend([0, args.table as usize].map(|table| Row {
                buffers: Some((Buffers { pages: pages as usize, reuse, fill: args.fill }, table)),
                bench: "working-set",
                ..Row::new(PathName::GrefMapping, Dir::Tx, args.size as usize, 0)
            }));
        }
    }
    let &WorkingSetArgs { repeats, seconds, burst, .. } = args;
    let pages = |row: &Row| row.buffers.map_or(0, |(buffers, _)| buffers.pages);
    let what = |row: &Row| format!("{} buffers, {}", pages(row), way(row));
    let turns = Turns { repeats, seconds, burst, mode: Mode::Poll, queues: 1, what };
    turns.play(&mut rows, &mut BTreeMap::from([(0, Stand::start()?)]), json, page)?;
    if !json.is_stdout() {
        print(table(&rows))?;
        print(method(&rows, args))?;
    }
    super::none_went_wrong(rows.iter().flat_map(|row| &row.records))
}

fn way(row: &Row) -> &'static str {
    if row.buffers.is_some_and(|(_, table)| table > 0) { "cache" } else { "static pool" }
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::new(&[
        ("reuse", Align::Left),
        ("buffers", Align::Right),
        ("frames go by", Align::Left),
        ("hit rate", Align::Right),
        ("mode", Align::Left),
        ("M frames/s", Align::Right),
        ("(range)", Align::Right),
        ("of static pool", Align::Right),
        ("(range)", Align::Right),
        ("pages out/s", Align::Right),
        ("guest ns/frame", Align::Right),
        ("backend ns/frame", Align::Right),
        ("lost", Align::Right),
    ]);
    for pair in rows.chunks(2) {
        for row in pair {
            let (Some((buffers, _)), Some(rate)) = (row.buffers, row.rate()) else { continue };
            let cached = way(row) == "cache";
            let m = |v: f64| figure(v / 1e6);
            let frames: u64 = row.records.iter().map(|r| r.frames).sum();
            let hits: f64 = row.records.iter().map(|r| r.hit_rate.unwrap_or(0.0) * r.frames as f64).sum();
            let seconds: f64 = row.records.iter().map(|r| r.seconds).sum();
            let evictions: u64 = row.records.iter().filter_map(|r| r.evictions).sum();
            let gain = ratio(row, &pair[0]).filter(|_| cached);
            let only = |text: String| if cached { text } else { "-".into() };
            t.row([
                buffers.reuse.name().into(),
                buffers.pages.to_string(),
                way(row).into(),
                only(format!("{:.3}", hits / frames.max(1) as f64)),
                only(modes(&row.records)),
                m(rate.median),
                format!("({}..{})", m(rate.min), m(rate.max)),
                gain.as_ref().map_or("-".into(), |gain| figure(gain.median)),
                gain.map_or(String::new(), |gain| format!("({}..{})", figure(gain.min), figure(gain.max))),
                only(figure(evictions as f64 / seconds.max(f64::MIN_POSITIVE))),
                figure(row.per_frame(|r| r.frontend_cpu_ns)),
                figure(row.per_frame(|r| r.backend_cpu_ns)),
                row.lost().to_string(),
            ]);
        }
        t.gap();
    }
    t
}

/// The mode at the end of all repeats, or that it was not the same.
fn modes(records: &[Record]) -> String {
    let mut all: Vec<&str> = records.iter().filter_map(|r| r.cache_mode.as_deref()).collect();
    all.dedup();
    if all.len() > 1 { "either".into() } else { all.concat() }
}

fn method(rows: &[Row], args: &WorkingSetArgs) -> String {
    let mut text = format!(
        "Medians of {} interleaved repeats of {} s, poll mode, one queue, frames of {} bytes in bursts of {}, after 150 ms or \
         more that do not count, until the table has what fits; the backend's table has {} entries for buffers.\n",
        args.repeats, args.seconds, args.size, args.burst, args.table
    );
    text += match args.fill {
        Fill::Whole => {
            "A buffer is a page of the guest's, with one frame in it. Before each frame the guest writes all of it, with its number in the head, as a \
             kernel that copies it from a program: in both rows, so that what they differ in is the front's own copy. "
        }
        Fill::Head => {
            "A buffer is a page of the guest's, with one frame in it. Before each frame the guest writes its head, 32 bytes with its number, as a \
             kernel that sends a file from where it lies. The rest comes by the front's copy alone, or not at all: it may still be in the backend's \
             cache, so such rows are the most that sending from buffers can gain. "
        }
    };
    text += "Buffers on their way are not used; of the others each comes as often (uniform), or nine of ten frames are in an eighth of them (skewed). \
             In the rows of the static pool the front copies each frame to a page that the backend has mapped from the beginning; in \
             those of the cache it does so where the backend does not have the buffer. The backend copies each frame, and reads its number.\n";
    text += "The hit rate is of frames that were sent from their buffers. Copying: the buffers do not fit the table, and nothing comes or goes any \
             more; those that are there are used. The ratio is the median of the repeats' ratios to the row above, not the ratio \
             of the medians.\n";
    if let Some(row) = rows.first() {
        text += &format!("Platform: {}.\n", row.platform);
    }
    if args.repeats < 5 {
        text += "So few repeats scatter, the range says how far: --repeats 9 scatters less.\n";
    }
    text
}
