//! `pregrant bench fairness`: what each of many guests gets that all want as much as there is, and beside a greedy one.
//!
//! ```text
//!   core 1   all guests: one thread fills their rings in turn, faster than the backend empties one
//!   core 2   the backend: it is what they share
//! ```
//! The guests are in one process so that no guest waits for a processor that another one has. Its thread has most of its time
//! left, as the table's last columns show of the backend's.

use super::crowd::{Cores, DATA_LEN, Plan, Stand, Window, make_room};
use super::net::{SENDERS_PATHS, seconds};
use crate::choice::choice;
use crate::process::crowd::order::Load;
use crate::record::stats::Summary;
use crate::record::{Record, RecordWriter};
use crate::screen::{Progress, print};
use crate::table::{Align, Table, figure};
use pregrant::net::path::PathName;
use pregrant_host::drivers::Mode;
use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `bench fairness`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench fairness
  pregrant bench fairness --guests 32 --greedy none --workers 1,2 --seconds 5 --json out.jsonl

Spread: the standard deviation of what the guests got, over their mean, in one run. At equal load it is to be below 0.5 %.
Beside a greedy guest each of the others is to keep what it had: 1 in the column \"kept\".")]
pub struct FairnessArgs {
    /// Numbers of guests, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [4u16, 32], value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub guests: Vec<u16>,
    /// How the last guest is greedy, with commas between the ways
    #[arg(long, value_delimiter = ',', default_values = ["none", "long", "queues"])]
    pub greedy: Vec<Greed>,
    /// Worker threads of the backend, with commas between the numbers
    #[arg(long, value_delimiter = ',', default_values_t = [1u16], value_parser = clap::value_parser!(u16).range(1..=16))]
    pub workers: Vec<u16>,
    /// The guests' path
    #[arg(long, default_value_t = PathName::Copy, value_parser = choice(SENDERS_PATHS, PathName::name))]
    pub path: PathName,
    /// Bytes of a frame
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: u32,
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Write a JSON object per row and repeat to this file ("-": standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What the last guest does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Greed {
    /// What the others do
    None,
    /// It sends frames of 65535 bytes
    Long,
    /// It sends on four queues
    Queues,
}

impl Greed {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Long => "long",
            Self::Queues => "queues",
        }
    }
}

/// Queues of a guest that has several.
const GREEDY_QUEUES: u32 = 4;
/// Bytes of long frames.
const LONG: usize = 65535;

struct Row {
    guests: u16,
    workers: u16,
    greed: Greed,
    runs: Vec<Run>,
}

/// What the guests got in one repeat.
struct Run {
    /// Frames a second, of those that are not greedy.
    others: Vec<f64>,
    /// Of the greedy one, if there is one.
    greedy: Option<f64>,
    /// CPU time by worker, as a part of the time.
    workers: Vec<f64>,
}

impl Run {
    fn of(window: &Window, guests: usize, greed: Greed) -> Self {
        let rates: Vec<f64> =
            window.frames.iter().map(|frames| *frames as f64 / window.seconds.max(1e-9)).collect();
        let (others, greedy) = match greed {
            Greed::None => (&rates[..guests], None),
            Greed::Long => (&rates[..guests - 1], Some(rates[guests - 1])),
            // The one behind the others, in the last one's place.
            Greed::Queues => (&rates[..guests - 1], Some(rates[guests])),
        };
        let part = |ns: &u64| *ns as f64 / 1e9 / window.seconds.max(1e-9);
        Self {
            others: others.to_vec(),
            greedy,
            workers: window.spent.workers_cpu_ns.iter().map(part).collect(),
        }
    }

    fn mean(&self) -> f64 {
        self.others.iter().sum::<f64>() / self.others.len().max(1) as f64
    }

    fn sum(&self) -> f64 {
        self.others.iter().sum::<f64>() + self.greedy.unwrap_or(0.0)
    }

    /// Standard deviation over mean.
    fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.others.iter().map(|rate| (rate - mean).powi(2)).sum();
        (squares / self.others.len().max(1) as f64).sqrt() / mean.max(1e-9)
    }

    /// Most less least, over mean.
    fn width(&self) -> f64 {
        let most = self.others.iter().copied().fold(f64::MIN, f64::max);
        let least = self.others.iter().copied().fold(f64::MAX, f64::min);
        (most - least) / self.mean().max(1e-9)
    }
}

impl Row {
    fn loads(&self, size: usize) -> Vec<Load> {
        let n = usize::from(self.guests);
        let mut loads: Vec<_> = (0..n).map(|member| Load { member, size }).collect();
        match self.greed {
            Greed::None => {}
            Greed::Long => loads[n - 1].size = LONG,
            Greed::Queues => loads[n - 1].member = n,
        }
        loads
    }

    fn measure(&mut self, stand: &mut Stand, args: &FairnessArgs) -> Result<Record> {
        let window = stand.send(self.loads(args.size as usize), args.seconds)?;
        let run = Run::of(&window, self.guests.into(), self.greed);
        let mut record = Record::new("fairness", &args.path.to_string(), "tx", args.size.into());
        record.data_len = (args.path == PathName::Staging).then_some(DATA_LEN.into());
        record.burst = 64;
        record.mode = Mode::Adaptive.name().into();
        record.repeat = self.runs.len() as u32;
        record.workers = Some(self.workers.into());
        // The one with several queues is there in all rows, and silent in most.
        record.vifs = Some(u32::from(self.guests) + 1);
        record.busy = Some(self.guests.into());
        record.neighbour = Some(self.greed.name().into());
        record.neighbour_frames_per_s = run.greedy;
        window.set(&mut record);
        record.guests_frames_per_s = Some(run.others.clone());
        record.spread = Some(run.spread());
        self.runs.push(run);
        Ok(record)
    }
}

/// Runs the benchmark.
pub fn run(args: FairnessArgs) -> Result<()> {
    let mut json = RecordWriter::open(args.json.as_deref())?;
    make_room(args.guests.iter().max().map_or(0, |n| usize::from(*n) + 1))?;
    let (cores, progress) = (Cores::of_machine()?, Progress::new());
    let mut rows = Vec::new();
    for &workers in &args.workers {
        for &guests in &args.guests {
            let row = |&greed| Row { guests, workers, greed, runs: Vec::new() };
            let mut group: Vec<Row> = args.greedy.iter().map(row).collect();
            progress.show(format_args!("{guests} guests connect, {workers} worker(s)"));
            let mut queues = vec![1; guests.into()];
            queues.push(GREEDY_QUEUES);
            let plan = Plan { queues, workers: workers.into(), mode: Mode::Adaptive, path: args.path };
            let mut stand = Stand::start(&plan, &cores)?;
            for repeat in 0..args.repeats {
                for row in &mut group {
                    progress.show(format_args!(
                        "{guests} guests, {workers} worker(s), repeat {} of {}: {}",
                        repeat + 1,
                        args.repeats,
                        row.greed.name()
                    ));
                    json.write(&row.measure(&mut stand, &args)?)?;
                }
            }
            rows.extend(group);
        }
    }
    progress.clear();
    if !json.is_stdout() {
        print(table(&rows))?;
        print(method(&args, &cores))?;
    }
    super::none_went_wrong(json.written().iter())
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::new(&[
        ("workers", Align::Right),
        ("guests", Align::Right),
        ("greedy", Align::Left),
        ("sum, M frames/s", Align::Right),
        ("(range)", Align::Right),
        ("spread, %", Align::Right),
        ("(range)", Align::Right),
        ("most-least, %", Align::Right),
        ("kept", Align::Right),
        ("(range)", Align::Right),
        ("greedy M/s", Align::Right),
        ("CPU by worker, %", Align::Right),
    ]);
    let of = |row: &Row, figure: &dyn Fn(&Run) -> f64| {
        Summary::of(&row.runs.iter().map(figure).collect::<Vec<_>>())
    };
    for (i, row) in rows.iter().enumerate() {
        let group = |row: &Row| (row.workers, row.guests);
        if i > 0 && group(&rows[i - 1]) != group(row) {
            t.gap();
        }
        let (Some(sum), Some(spread), Some(width)) =
            (of(row, &Run::sum), of(row, &Run::spread), of(row, &Run::width))
        else {
            continue;
        };
        let equal = rows.iter().find(|base| group(base) == group(row) && base.greed == Greed::None);
        let kept = equal.filter(|_| row.greed != Greed::None).and_then(|equal| {
            Summary::of_ratios(row.runs.iter().zip(&equal.runs).map(|(a, b)| (a.mean(), b.mean())))
        });
        let m = |v: f64| figure(v / 1e6);
        let percent = |v: f64| figure(v * 100.0);
        let worker = |w: usize| {
            let parts = Summary::of(&row.runs.iter().map(|run| run.workers[w]).collect::<Vec<_>>());
            parts.map_or("-".into(), |parts| format!("{:.0}", parts.median * 100.0))
        };
        let workers: Vec<_> = (0..usize::from(row.workers)).map(worker).collect();
        t.row([
            row.workers.to_string(),
            row.guests.to_string(),
            row.greed.name().into(),
            m(sum.median),
            format!("({}..{})", m(sum.min), m(sum.max)),
            percent(spread.median),
            format!("({}..{})", percent(spread.min), percent(spread.max)),
            percent(width.median),
            kept.map_or("-".into(), |kept| figure(kept.median)),
            kept.map_or("-".into(), |kept| format!("({}..{})", figure(kept.min), figure(kept.max))),
            of(row, &|run| run.greedy.unwrap_or(0.0)).filter(|_| row.greed != Greed::None).map_or(
                "-".into(),
                |greedy| {
                    if greedy.median < 1e5 { format!("{:.4}", greedy.median / 1e6) } else { m(greedy.median) }
                },
            ),
            workers.join(" "),
        ]);
    }
    t
}

fn method(args: &FairnessArgs, cores: &Cores) -> String {
    format!(
        "Medians of {} interleaved repeats of {} s. {}\n\
         Each guest has a domain and a vif of its own, and a ring that is kept full with frames of {} B; one thread fills all of them in \
         turn.\n\
         Greedy: the last guest does what the others do (none), sends frames of {LONG} B (long), or has {GREEDY_QUEUES} queues, each kept full \
         (queues).\n\
         Spread: standard deviation over mean of the frames that the guests got in one repeat, without the greedy one; most-least: the \
         widest difference, over the same mean.\n\
         Kept: what each of the others had, to what each guest had at equal load, repeat by repeat. The backend shares its time by vif: 1 is \
         a fair share.",
        args.repeats,
        args.seconds,
        cores.describe(),
        args.size,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_of_those_who_are_not_greedy() {
        let window = |frames: &[u64]| Window { seconds: 2.0, frames: frames.to_vec(), ..Window::default() };
        let run = Run::of(&window(&[200, 200, 200, 400, 0]), 4, Greed::None);
        assert_eq!((run.mean(), run.greedy), (125.0, None));
        assert!((run.spread() - 43.301 / 125.0).abs() < 1e-4, "{}", run.spread());
        assert!((run.width() - 100.0 / 125.0).abs() < 1e-9);
        let run = Run::of(&window(&[200, 200, 200, 4, 0]), 4, Greed::Long);
        assert_eq!((run.spread(), run.width(), run.greedy, run.sum()), (0.0, 0.0, Some(2.0), 302.0));
        let run = Run::of(&window(&[200, 200, 200, 0, 800]), 4, Greed::Queues);
        assert_eq!((run.mean(), run.greedy), (100.0, Some(400.0)));
    }
}
