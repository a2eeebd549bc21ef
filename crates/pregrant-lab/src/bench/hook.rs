//! `pregrant-lab bench hook`: what a frame hook saves a guest that drops frames, and one that sends
//! them back.
//!
//! A guest and a backend process are each pinned to a core of its own. Each repeat of each row uses
//! a new vif, as in `bench net`.

use super::Result;
use super::net::{Row, data_len, in_poll_mode, platform, queues};
use super::output::{Output, Run};
use super::timing::{Bursts, Timing, few};
use crate::columns::{Columns, or_dash};
use crate::record::published;
use pregrant::net::path::PathName;
use pregrant::wire::netif::MAX_FRAME;
use pregrant_cli::choice::choice;
use pregrant_cli::table::{Table, figure};
use pregrant_cli::usage::Given;
use pregrant_testbed::process::process_command::{BUFFERS_MAX, Case, Dir, RING_SLOTS, RxWay};

/// Arguments of `bench hook`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("0.5")), mut_arg("repeats", |a| a.default_value("3")))]
#[command(after_help = "Examples:
  pregrant-lab bench hook
  pregrant-lab bench hook --size 64 --repeats 9 --json out.jsonl
  pregrant-lab bench hook --size 64 --data-len 256 --queues 4
  pregrant-lab bench hook --size 65535 --repeats 9
  pregrant-lab bench hook --path copy,staging --size 1500
  pregrant-lab bench hook --size 1500 --buffers 256,1024,4096

Frames/s are those that the guest dropped, or sent back. By staging buffers alone are they sent back without a copy. The
published figures are of staging with data length 256, 64 bytes, 1 and 4 queues.
Run it on an idle machine with two cores; results from a loaded machine are meaningless.")]
pub struct HookArgs {
    /// Bytes of a frame, headers included
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 1500], value_parser = clap::value_parser!(u32).range(60..=MAX_FRAME as i64))]
    pub size: Vec<u32>,
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [PathName::Staging], value_parser = choice(PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// Bytes of a frame that fit a staging buffer: 64, 128, 256, 2048, 4096 or 65535; without it
    /// 2048, and 65535 for longer frames
    #[arg(long, value_parser = data_len)]
    pub data_len: Option<u32>,
    /// Staging buffers of each direction
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [RING_SLOTS], value_parser = clap::value_parser!(u32).range(i64::from(RING_SLOTS)..=i64::from(BUFFERS_MAX)))]
    pub buffers: Vec<u32>,
    /// Queues
    #[arg(long, default_value_t = 1, value_parser = queues)]
    pub queues: u32,
    #[command(flatten)]
    pub bursts: Bursts,
    #[command(flatten)]
    pub output: Output,
}

/// The paths by which frames come to a guest.
const PATHS: &[(PathName, &str)] = &[
    (PathName::Staging, "Buffers granted before the data comes"),
    (PathName::Copy, "Batched grant copy"),
    (PathName::Persistent, "Pages that stay mapped once they were seen"),
    (PathName::GrefMapping, "Pages that the guest asked to keep mapped"),
    (PathName::DataRing, "A circular area granted before the data comes"),
    (PathName::Foreign, "Any page of a guest that trusts its backend"),
];

impl HookArgs {
    /// Returns the rows to measure: their sizes, their paths, and their number of buffers if the
    /// path has any.
    fn cases(&self) -> impl Iterator<Item = (u32, PathName, u32)> {
        let with_buffers = move |(size, path)| {
            let buffers = if path == PathName::Staging { &self.buffers[..] } else { &[0] };
            buffers.iter().map(move |&buffers| (size, path, buffers))
        };
        let with_paths = move |&size| self.path.iter().map(move |&path| (size, path));
        self.size.iter().flat_map(with_paths).flat_map(with_buffers)
    }

    /// Returns the length of buffers for frames of `size` bytes.
    fn len_for(&self, size: u32) -> u32 {
        self.data_len.unwrap_or(if size <= 2048 { 2048 } else { MAX_FRAME as u32 })
    }

    /// True if a frame that arrived by this path is sent back in its buffer.
    fn sends_on(&self, path: PathName, size: u32) -> bool {
        let len = self.len_for(size);
        path == PathName::Staging && (size <= len || len as usize >= MAX_FRAME)
    }
}

/// The guest's actions on frames that are measured, each with a description.
const WAYS: [(RxWay, &str); 6] = [
    (RxWay::Stack, "copied, given to smoltcp, dropped there"),
    (RxWay::Allocate, "copied, then to memory of their own, parsed, dropped"),
    (RxWay::Copy, "copied, dropped"),
    (RxWay::Hook, "dropped by a hook"),
    (RxWay::Return, "copied, sent back by a copy"),
    (RxWay::SendOn, "sent back by a hook, in their buffers"),
];

/// Rows that are compared with each other.
const PAIRS: [(RxWay, RxWay); 4] = [
    (RxWay::Hook, RxWay::Stack),
    (RxWay::Hook, RxWay::Allocate),
    (RxWay::Hook, RxWay::Copy),
    (RxWay::SendOn, RxWay::Return),
];

fn words(way: RxWay) -> &'static str {
    WAYS.iter().find(|(of, _)| *of == way).map_or("", |(_, words)| words)
}

pub fn run(args: HookArgs, given: &Given) -> Result<()> {
    if !args.path.contains(&PathName::Staging) {
        given.refuse("data-len", "no path that is measured has staging buffers")?;
        given.refuse("buffers", "no path that is measured has staging buffers")?;
    }
    args.output.run(|run| measure(&args, run))
}

fn measure(args: &HookArgs, run: &mut Run) -> Result<()> {
    let mut rows = Vec::new();
    for (size, path, staging_buffers) in args.cases() {
        let case = Row::new(path, Dir::Rx, size as usize, args.len_for(size)).case;
        let case = Case { staging_buffers, ..case };
        let ways = WAYS.iter().filter(|(way, _)| *way != RxWay::SendOn || args.sends_on(path, size));
        rows.extend(ways.map(|(rx, _)| Row::of("hook", Case { rx: *rx, ..case.clone() })));
    }
    let words =
        |row: &Row| format!("{} {} {} B, {} buffers", row.name(), row.rx, row.size, row.staging_buffers);
    in_poll_mode(run, (&args.bursts, args.queues), &mut rows, words)?;
    run.print(table(&rows))?;
    run.print(method(&rows, args))
}

fn table(rows: &[Row]) -> Table {
    Columns::of(rows)
        .left("path", Row::name)
        .left("frames are", |row| words(row.rx))
        .right("size B", |row| row.size)
        .right("data len", |row| or_dash(row.data_len))
        .right("buffers", |row| or_dash(Some(row.staging_buffers).filter(|n| *n > 0)))
        .ranged("M frames/s", 1e6, |row| row.records.rate())
        .right("guest ns/frame", |row| figure(row.records.each(|r| r.frontend_cpu_ns)))
        .right("backend ns/frame", |row| figure(row.records.each(|r| r.backend_cpu_ns)))
        .right("lost", |row| row.records.sum(|r| r.lost))
        .right("published M/s", |row| published::cell(row.records.first()))
        .grouped(|row| (row.size, row.path, row.staging_buffers))
}

fn method(rows: &[Row], args: &HookArgs) -> String {
    let Bursts { burst, timing: Timing { seconds, repeats } } = args.bursts;
    let mut text = format!(
        "Medians of {repeats} interleaved repeats of {seconds} s, poll mode, {} queue(s), bursts of {burst}.\n",
        args.queues
    );
    text += "The backend makes the head of each frame, 32 bytes with its number; the guest reads every number, whatever it does \
             with the frame. Frames have an EtherType that no stack knows, so smoltcp drops them as soon as it has read that. Frames \
             that are sent back have their addresses exchanged, and the backend fetches them as any others.\n";
    for (size, path, buffers) in args.cases() {
        let by = if buffers > RING_SLOTS { format!(", {buffers} buffers") } else { String::new() };
        for (a, b) in PAIRS {
            let row = |way| {
                rows.iter().find(|row| {
                    (row.rx, row.path, row.size, row.staging_buffers) == (way, path, size as usize, buffers)
                })
            };
            let (Some(one), Some(other)) = (row(a), row(b)) else { continue };
            if let Some(gain) = one.records.ratio(&other.records) {
                text += &format!(
                    "{path}, {size} B{by}, {}: {gain} times the frames that are {}.\n",
                    words(a),
                    words(b)
                );
            }
        }
    }
    text += "These are medians of the repeats' ratios, not ratios of the medians above.\n";
    text += &platform(rows);
    if rows.iter().flat_map(|row| row.records.iter()).any(|r| r.published.is_some()) {
        text += "Published: a Linux guest on real Xen, staging with data length 256, frames dropped in its stack and by an XDP program; \
                 other machines, 2016. Sources: docs/benchmarks.md.\n";
    }
    text + few(repeats)
}
