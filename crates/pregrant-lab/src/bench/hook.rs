//! `pregrant bench hook`: what a frame hook saves a guest that drops frames, and one that sends
//! them back.
//!
//! A guest and a backend process, each pinned to a core of its own; every row of every repeat is a
//! vif of its own, as in `bench net`.

use super::Result;
use super::net::{Row, in_poll_mode, platform};
use super::output::{Output, Run};
use super::timing::{Bursts, Timing, few};
use crate::process::process_command::{Case, Dir, RxWay};
use crate::record::published;
use crate::table::{Table, figure};
use pregrant::net::path::PathName;

/// Buffers that both sizes fit.
const DATA_LEN: u32 = 2048;

/// Arguments of `bench hook`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("0.5")), mut_arg("repeats", |a| a.default_value("3")))]
#[command(after_help = "Examples:
  pregrant bench hook
  pregrant bench hook --size 64 --repeats 9 --json out.jsonl

Frames/s are those that the guest dropped, or sent back, by way of staging buffers of 2048 bytes.
Run it on an idle machine with two cores; results from a loaded machine are meaningless.")]
pub struct HookArgs {
    /// Bytes of a frame, headers included
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 1500], value_parser = clap::value_parser!(u32).range(60..=2048))]
    pub size: Vec<u32>,
    #[command(flatten)]
    pub bursts: Bursts,
    #[command(flatten)]
    pub output: Output,
}

/// A guest's action on the frames of a row, and in words.
const WAYS: [(RxWay, &str); 6] = [
    (RxWay::Stack, "copied, given to smoltcp, dropped there"),
    (RxWay::Allocate, "copied, then to memory of their own, parsed, dropped"),
    (RxWay::Copy, "copied, dropped"),
    (RxWay::Hook, "dropped by a hook"),
    (RxWay::Return, "copied, sent back by a copy"),
    (RxWay::SendOn, "sent back by a hook, in their buffers"),
];

/// The rows that are compared.
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
pub fn measure(args: &HookArgs, run: &mut Run) -> Result<()> {
    let mut rows = Vec::new();
    for &size in &args.size {
        let case = Row::new(PathName::Staging, Dir::Rx, size as usize, DATA_LEN).case;
        rows.extend(WAYS.map(|(rx, _)| Row::of("hook", Case { rx, ..case.clone() })));
    }
    in_poll_mode(run, &args.bursts, &mut rows, |row| format!("{} {} B", row.rx, row.size))?;
    run.print(table(&rows))?;
    run.print(method(&rows, args))
}

fn table(rows: &[Row]) -> Table {
    Table::of(rows)
        .left("frames are", |row| words(row.rx))
        .right("size B", |row| row.size)
        .ranged("M frames/s", 1e6, |row| row.records.rate())
        .right("guest ns/frame", |row| figure(row.records.each(|r| r.frontend_cpu_ns)))
        .right("backend ns/frame", |row| figure(row.records.each(|r| r.backend_cpu_ns)))
        .right("lost", |row| row.records.sum(|r| r.lost))
        .right("published M/s", |row| published::cell(row.records.first()))
        .grouped(|row| row.size)
}

fn method(rows: &[Row], args: &HookArgs) -> String {
    let Bursts { burst, timing: Timing { seconds, repeats } } = args.bursts;
    let mut text = format!(
        "Medians of {repeats} interleaved repeats of {seconds} s, poll mode, one queue, bursts of {burst}, staging buffers of {DATA_LEN} bytes.\n",
    );
    text += "The backend makes the head of each frame, 32 bytes with its number; the guest reads every number, whatever it does \
             with the frame. Frames have an EtherType that no stack knows, so smoltcp drops them as soon as it has read that. Frames \
             that are sent back have their addresses exchanged, and the backend fetches them as any others.\n";
    for &size in &args.size {
        for (a, b) in PAIRS {
            let row = |way| rows.iter().find(|row| row.rx == way && row.size == size as usize);
            let (Some(one), Some(other)) = (row(a), row(b)) else { continue };
            if let Some(gain) = one.records.ratio(&other.records) {
                text += &format!("{size} B, {}: {gain} times the frames that are {}.\n", words(a), words(b));
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
