//! `pregrant-lab bench neighbour`: what a greedy, broken or noisy guest costs another one at the
//! same backend.
//!
//! ```text
//!   core 1   measured guest (yields whenever its ring is full), beside it at the lowest priority: the neighbour, xenstored
//!   core 2   the backend, alone: one thread that serves both
//!
//!   --workers 1   core 1: also the backend's control thread     core 2: the worker that serves both
//!   --workers 2   core 1: also that, and the neighbour's worker (with three cores: core 3)     core 2: the measured guest's
//! ```
//! By `copy` the backend has most of the work: its core is the bottleneck, and the guests' core is
//! idle half of the time. By `staging` a batch is short, and the neighbour's are long. Time of the
//! guests' core that the neighbour takes is no fault of the backend: the row `spinning`, a process
//! that uses up the core and has no vif, shows how much that is, and the others are held against
//! it.

use super::Result;
use super::core_placement::CorePlacement;
use super::net::SENDERS_PATHS;
use super::output::{Lines, Run};
use super::stand::Stand;
use super::timing::{Timing, in_turns};
use crate::columns::{Columns, or_dash};
use crate::record::repeats::Repeats;
use crate::record::stats::Summary;
use crate::record::{Neighbour, Of, Record};
use clap::ValueEnum;
use pregrant::net::path::PathName;
use pregrant_cli::choice::choice;
use pregrant_cli::table::{Table, figure};
use pregrant_testbed::process::process_command::{Case, Dir, Nuisance};
use std::collections::BTreeMap;

/// Arguments of `bench neighbour`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("0.1")), mut_arg("repeats", |a| a.default_value("7")))]
#[command(after_help = "Examples:
  pregrant-lab bench neighbour
  pregrant-lab bench neighbour --neighbour broken,greedy --repeats 21 --json out.jsonl
  pregrant-lab bench neighbour --neighbour greedy-long --path copy --workers 1,2

Each kind of neighbour is measured with a guest that offers all that is taken, and with one that offers --offer of that,
burst by burst, and makes up for no more than one burst that it could not send. A greedy neighbour may take its half of the
backend; no other may cost more than 5 %. A backend that stands still shows in the gaps.")]
pub struct NeighbourArgs {
    /// Kinds of neighbours, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = Nuisance::value_variants().iter().copied())]
    pub neighbour: Vec<Nuisance>,
    /// The measured guest's path, with commas between several; its neighbours know copy alone
    #[arg(long, value_delimiter = ',', default_values_t = [PathName::Copy, PathName::Staging], value_parser = choice(SENDERS_PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// Worker threads of the backend, with commas between them; 0: its one thread serves both
    /// guests, 1: one worker does, 2: the neighbour has the other
    #[arg(long, value_delimiter = ',', default_values_t = [0u16], value_parser = clap::value_parser!(u16).range(0..=2))]
    pub workers: Vec<u16>,
    /// Load of the measured guest in its second rows, in per cent of its rate alone
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub offer: u32,
    /// Bytes of the measured guest's frames
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: u32,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub lines: Lines,
}

const DATA_LEN: u32 = 2048;

/// A row: a kind of neighbour beside a guest that offers its full or a limited load.
struct Row {
    path: PathName,
    nuisance: Nuisance,
    /// The guest's load as a part of its rate without a neighbour; None: full load.
    paced: Option<f64>,
    /// Number of worker threads of the backend.
    workers: usize,
    records: Repeats,
}

impl Row {
    fn new(path: PathName, nuisance: Nuisance, paced: Option<f64>, workers: usize) -> Self {
        Self { path, nuisance, paced, workers, records: Repeats::default() }
    }

    fn data_len(&self) -> Option<u32> {
        (self.path == PathName::Staging).then_some(DATA_LEN)
    }

    /// True if `other` is the row to compare this one with, if that row has this neighbour.
    fn is_like(&self, other: &Row) -> bool {
        (self.path, self.paced, self.workers) == (other.path, other.paced, other.workers)
    }

    /// Returns the part that the measured guest can claim of its rate beside a neighbour without a
    /// vif.
    fn fair_share(&self) -> f64 {
        // Beside a neighbour at another worker: all of its own.
        let greedy = self.workers < 2 && matches!(self.nuisance, Nuisance::Greedy | Nuisance::GreedyLong);
        if greedy { (0.5 / self.paced.unwrap_or(1.0)).min(1.0) } else { 1.0 }
    }

    fn measure(&mut self, stand: &mut Stand, args: &NeighbourArgs, alone: f64) -> Result<&Record> {
        let rate = self.paced.map(|part| alone * part);
        let (guest, back) = stand.play(Case {
            size: args.size as usize,
            seconds: args.timing.seconds,
            data_len: self.data_len(),
            rate,
            gives_way: true,
            beside: Some(self.nuisance),
            ..Case::of(Dir::Tx, self.path)
        })?;
        let mut record = Record::new("neighbour", self.path.name(), "tx", args.size.into());
        record.set_ends(&guest, &back, self.workers);
        record.data_len = self.data_len().map(u64::from);
        record.burst = 64;
        record.mode = "adaptive".into();
        record.lost = back.came.lost_of(guest.sent);
        let gaps = back.gaps.as_ref().ok_or("the back did not measure gaps")?;
        record.of = Of::Neighbour(Neighbour {
            neighbour: self.nuisance.name().into(),
            neighbour_frames_per_s: back.others as f64 / back.spent.seconds().max(1e-9),
            longest_gap_ns: gaps.most_ns,
            gap_p99_ns: gaps.p99_ns,
            offered_per_s: rate,
        });
        Ok(self.records.push(record))
    }
}

pub fn measure(args: &NeighbourArgs, run: &mut Run) -> Result<()> {
    let mut rows = Vec::new();
    let workers = args.workers.iter().map(|&workers| usize::from(workers));
    for (&path, workers) in args.path.iter().flat_map(|path| workers.clone().map(move |n| (path, n))) {
        for paced in [None, Some(f64::from(args.offer) / 100.0)] {
            let kinds = [Nuisance::Absent, Nuisance::Spinning].iter().chain(&args.neighbour);
            rows.extend(kinds.map(|&kind| Row::new(path, kind, paced, workers)));
        }
    }
    let mut stands = BTreeMap::new();
    for workers in workers {
        stands.insert(workers, Stand::that_gives_way(workers)?);
    }
    // By path and workers: what is taken from the guest alone.
    let mut alone: BTreeMap<(PathName, usize), f64> = BTreeMap::new();
    in_turns(
        run,
        args.timing.repeats,
        &mut rows,
        |row| row.nuisance.to_string(),
        |run, row| {
            let of = (row.path, row.workers);
            let stand = stands.get_mut(&row.workers).ok_or("no stand with so many workers")?;
            run.write(row.measure(stand, args, alone.get(&of).copied().unwrap_or(0.0))?)?;
            if (row.nuisance, row.paced) == (Nuisance::Absent, None) {
                alone.extend(row.records.rate().map(|rate| (of, rate.median)));
            }
            Ok(())
        },
    )?;
    run.print(table(&rows))?;
    run.print(method(args, stands.values()))
}

/// Describes the cores of a testbed's threads, in lines of text.
fn on_cores(core_placement: &CorePlacement) -> String {
    let words = core_placement.words();
    match core_placement.nr_workers() {
        0 => format!("Without workers: {words}.\n"),
        1 => format!("1 worker, which serves both: {words}.\n"),
        _ if core_placement.shares_guests_core() => format!(
            "2 workers, the second for the neighbour: {words}. There are no more cores: what the neighbour's worker takes of \
             the guests' core the measured guest has not, which is no fault of a worker's.\n"
        ),
        _ => format!("2 workers, the second for the neighbour: {words}.\n"),
    }
}

fn table(rows: &[Row]) -> Table {
    let of_spinning = |row: &Row| -> Option<Summary> {
        let base = rows.iter().find(|r| r.nuisance == Nuisance::Spinning && r.is_like(row))?;
        row.records.ratio(&base.records)
    };
    let of = |row: &Row, figure: fn(&Neighbour) -> f64| {
        row.records.summary(|r| r.of.neighbour().map_or(f64::NAN, figure))
    };
    let longest = |row: &Row| of(row, |of| of.longest_gap_ns as f64);
    Columns::of(rows.iter().filter(|row| of_spinning(row).is_some()))
        .left("path", |row| row.path)
        .left("workers", |row| or_dash(Some(row.workers).filter(|n| *n > 0)))
        .left("offered", |row| row.paced.map_or("all".into(), |part| format!("{:.0} %", part * 100.0)))
        .left("neighbour", |row| row.nuisance)
        .ranged("M frames/s", 1e6, |row| row.records.rate())
        .median("neighbour's M/s", 1e6, |row| of(row, |of| of.neighbour_frames_per_s))
        .ranged("of spinning", 1.0, of_spinning)
        .right("fair share", |row| figure(row.fair_share()))
        .right("of fair share", |row| or_dash(of_spinning(row).map(|of| of.middle(row.fair_share()))))
        .median("gap us, 99 %", 1e3, |row| of(row, |of| of.gap_p99_ns as f64))
        .median("longest gap ms", 1e6, longest)
        .right("(most)", |row| or_dash(longest(row).map(|gap| format!("({})", figure(gap.max / 1e6)))))
        .grouped(|row| (row.path, row.paced.is_some(), row.workers))
}

fn method<'a>(args: &NeighbourArgs, stands: impl Iterator<Item = &'a Stand>) -> String {
    let cores: String = stands.map(|stand| on_cores(stand.core_placement())).collect();
    format!(
        "Medians of {} interleaved repeats of {} s. Neighbour and xenstored at the lowest priority, on the guest's core.\n\
         {cores}\
         The measured guest sends frames of {} B in bursts of 64, yields when its ring is full or it is ahead of its rate; \
         \"{} %\": of what is taken from it alone, and what it could not send in time it makes up for by one burst at \
         most.\n\
         Gaps: time between two of its bursts at the backend's port, the 99th percentile of a row (median of the repeats), \
         and the longest of a row (median, and most of all repeats).\n\
         \"of spinning\": against a neighbour that burns the guests' core and has no vif, repeat by repeat. Below 0.95 \
         in the last column, where ranges are narrow: the backend's doing.",
        args.timing.repeats, args.timing.seconds, args.size, args.offer,
    )
}
