//! `pregrant bench hook`: what a frame hook saves a guest that drops frames, and one that sends them back.
//!
//! A guest and a backend process, each pinned to a core of its own; every row of every repeat is a vif of its own, as in `bench net`.

use super::net::{Row, Stand, Turns, ratio, seconds};
use crate::process::order::{Dir, RxWay};
use crate::record::{RecordWriter, published};
use crate::report::Report as Page;
use crate::screen::print;
use crate::table::{Align, Table, figure};
use pregrant::net::path::PathName;
use pregrant_host::drivers::Mode;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Buffers that both sizes fit.
const DATA_LEN: u32 = 2048;

/// Arguments of `bench hook`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench hook
  pregrant bench hook --size 64 --repeats 9 --json out.jsonl

Frames/s are those that the guest dropped, or sent back, by way of staging buffers of 2048 bytes.
Run it on an idle machine with two cores; figures of a busy one say nothing.")]
pub struct HookArgs {
    /// Bytes of a frame, headers included
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 1500], value_parser = clap::value_parser!(u32).range(60..=2048))]
    pub size: Vec<u32>,
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
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
    /// Write a page with plots of the results to this folder, as index.html with the records beside it
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// What a guest does with the frames of a row, and in words.
const WAYS: [(RxWay, &str); 6] = [
    (RxWay::Stack, "copied, given to smoltcp, dropped there"),
    (RxWay::Allocate, "copied, then to memory of their own, parsed, dropped"),
    (RxWay::Copy, "copied, dropped"),
    (RxWay::Hook, "dropped by a hook"),
    (RxWay::Return, "copied, sent back by a copy"),
    (RxWay::SendOn, "sent back by a hook, in their buffers"),
];

/// What is compared with what.
const PAIRS: [(RxWay, RxWay); 4] = [
    (RxWay::Hook, RxWay::Stack),
    (RxWay::Hook, RxWay::Allocate),
    (RxWay::Hook, RxWay::Copy),
    (RxWay::SendOn, RxWay::Return),
];

fn words(way: RxWay) -> &'static str {
    WAYS.iter().find(|(of, _)| *of == way).map_or("", |(_, words)| words)
}

/// Runs the benchmark.
pub fn run(args: HookArgs) -> Result<()> {
    super::reported(args.json.as_deref(), args.report.as_deref(), |json, page| measure(&args, json, page))
}

fn measure(args: &HookArgs, json: &mut RecordWriter, page: &mut Page) -> Result<()> {
    let mut rows = Vec::new();
    for &size in &args.size {
        rows.extend(WAYS.map(|(rx, _)| Row {
            rx,
            bench: "hook",
            ..Row::new(PathName::Staging, Dir::Rx, size as usize, DATA_LEN)
        }));
    }
    let &HookArgs { repeats, seconds, burst, .. } = args;
    let what = |row: &Row| format!("{} {} B", row.rx.name(), row.size);
    let turns = Turns { repeats, seconds, burst, mode: Mode::Poll, queues: 1, what };
    turns.play(&mut rows, &mut BTreeMap::from([(0, Stand::start()?)]), json, page)?;
    if !json.is_stdout() {
        print(table(&rows))?;
        print(method(&rows, args))?;
    }
    super::none_went_wrong(rows.iter().flat_map(|row| &row.records))
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::new(&[
        ("frames are", Align::Left),
        ("size B", Align::Right),
        ("M frames/s", Align::Right),
        ("(range)", Align::Right),
        ("guest ns/frame", Align::Right),
        ("backend ns/frame", Align::Right),
        ("lost", Align::Right),
        ("published M/s", Align::Right),
    ]);
    let mut last = None;
    for row in rows {
        if last.is_some_and(|size| size != row.size) {
            t.gap();
        }
        last = Some(row.size);
        let Some(rate) = row.rate() else { continue };
        let m = |v: f64| figure(v / 1e6);
        t.row([
            words(row.rx).into(),
            row.size.to_string(),
            m(rate.median),
            format!("({}..{})", m(rate.min), m(rate.max)),
            figure(row.per_frame(|r| r.frontend_cpu_ns)),
            figure(row.per_frame(|r| r.backend_cpu_ns)),
            row.lost().to_string(),
            published::cell(&row.records[0]),
        ]);
    }
    t
}

fn method(rows: &[Row], args: &HookArgs) -> String {
    let mut text = format!(
        "Medians of {} interleaved repeats of {} s, poll mode, one queue, bursts of {}, staging buffers of {DATA_LEN} bytes.\n",
        args.repeats, args.seconds, args.burst
    );
    text += "The backend makes the head of each frame, 32 bytes with its number; the guest reads every number, whatever it does \
             with the frame. Frames have an EtherType that no stack knows, so smoltcp drops them as soon as it has read that. Frames \
             that are sent back have their addresses exchanged, and the backend fetches them as any others.\n";
    for &size in &args.size {
        for (a, b) in PAIRS {
            let row = |way| rows.iter().find(|row| row.rx == way && row.size == size as usize);
            let (Some(one), Some(other)) = (row(a), row(b)) else { continue };
            if let Some(gain) = ratio(one, other) {
                text += &format!(
                    "{size} B, {}: {} ({}..{}) times the frames that are {}.\n",
                    words(a),
                    figure(gain.median),
                    figure(gain.min),
                    figure(gain.max),
                    words(b)
                );
            }
        }
    }
    text += "These are medians of the repeats' ratios, not ratios of the medians above.\n";
    if let Some(row) = rows.first() {
        text += &format!("Platform: {}.\n", row.platform);
    }
    if rows.iter().flat_map(|row| &row.records).any(|r| r.published.is_some()) {
        text += "Published: a Linux guest on real Xen, staging with data length 256, frames dropped in its stack and by an XDP program; \
                 other machines, 2016. Sources: docs/benchmarks.md.\n";
    }
    if args.repeats < 5 {
        text += "So few repeats scatter, the range says how far: --repeats 9 scatters less.\n";
    }
    text
}
