//! `pregrant-lab bench fairness`: what each of many guests gets that all want as much as there is,
//! and beside a greedy one.
//!
//! ```text
//!   core 1   all guests: one thread fills their rings in turn, faster than the backend empties one
//!   core 2   the backend: it is what they share
//! ```
//! The guests are in one process so that no guest waits for a processor that another one has. Its
//! thread has most of its time left, as the table's last columns show of the backend's.

use super::Result;
use super::crowd::{Cores, DATA_LEN, Plan, Stand, Window, make_room};
use super::net::SENDERS_PATHS;
use super::output::{Lines, Run};
use super::timing::{Timing, in_turns};
use crate::columns::{Columns, or_dash};
use crate::record::published;
use crate::record::repeats::Repeats;
use crate::record::stats::Summary;
use crate::record::{Fairness, Of, Record};
use pregrant::net::path::PathName;
use pregrant_cli::choice::choice;
use pregrant_cli::table::{Table, figure};
use pregrant_host::drivers::{Mode, Placement};
use pregrant_testbed::named;
use pregrant_testbed::process::process_command::Load;

/// Arguments of `bench fairness`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("1")))]
#[command(after_help = "Examples:
  pregrant-lab bench fairness
  pregrant-lab bench fairness --guests 32 --greedy none --workers 1,2 --seconds 5 --json out.jsonl
  pregrant-lab bench fairness --guests 4 --greedy none --workers 2 --place fixed,balanced,own

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
    /// Which worker gets a guest's queues, with commas between the placements; own: one for each
    /// guest, whatever --workers says
    #[arg(long, value_delimiter = ',', default_values = ["balanced"], value_parser = choice(PLACES, Placement::name))]
    pub place: Vec<Placement>,
    /// The guests' path
    #[arg(long, default_value_t = PathName::Copy, value_parser = choice(SENDERS_PATHS, PathName::name))]
    pub path: PathName,
    /// Bytes of a frame
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: u32,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub lines: Lines,
}

named! {
    /// The behaviour of the last guest.
    pub enum Greed {
        /// The load of the others
        None = "none",
        /// It sends frames of 65535 bytes
        Long = "long",
        /// It sends on four queues
        Queues = "queues",
    }
}

const PLACES: &[(Placement, &str)] = &[
    (Placement::Fixed, "by the guest's number, as netback before 2013"),
    (Placement::Balanced, "the one that carries least"),
    (Placement::Own, "a thread for each guest, as netback since 2013"),
];

/// Number of queues of a guest that has several.
const GREEDY_QUEUES: u32 = 4;
/// Length of long frames in bytes.
const LONG: usize = 65535;

struct Row {
    guests: u16,
    /// Number of workers; 0: a thread for each guest.
    workers: u16,
    place: Placement,
    greed: Greed,
    records: Repeats,
}

/// Returns the frames per second of one repeat: of each guest that is not greedy, and of the greedy
/// guest, if there is one.
fn shares(window: &Window, guests: usize, greed: Greed) -> (Vec<f64>, Option<f64>) {
    let rates: Vec<f64> =
        window.frames.iter().map(|frames| *frames as f64 / window.seconds.max(1e-9)).collect();
    match greed {
        Greed::None => (rates[..guests].to_vec(), None),
        Greed::Long => (rates[..guests - 1].to_vec(), Some(rates[guests - 1])),
        // The one behind the others, in the last one's place.
        Greed::Queues => (rates[..guests - 1].to_vec(), Some(rates[guests])),
    }
}

fn others(record: &Record) -> &[f64] {
    record.of.fairness().map_or(&[], |of| &of.guests_frames_per_s)
}

fn greedy(record: &Record) -> Option<f64> {
    record.of.fairness()?.neighbour_frames_per_s
}

fn mean(others: &[f64]) -> f64 {
    others.iter().sum::<f64>() / others.len().max(1) as f64
}

/// Returns the standard deviation divided by the mean.
fn spread(others: &[f64]) -> f64 {
    let mean = mean(others);
    let squares: f64 = others.iter().map(|rate| (rate - mean).powi(2)).sum();
    (squares / others.len().max(1) as f64).sqrt() / mean.max(1e-9)
}

/// Returns the difference between the largest and the smallest rate, divided by the mean.
fn width(others: &[f64]) -> f64 {
    let most = others.iter().copied().fold(f64::MIN, f64::max);
    let least = others.iter().copied().fold(f64::MAX, f64::min);
    (most - least) / mean(others).max(1e-9)
}

/// Returns the sum of the rates of all guests.
fn sum(record: &Record) -> f64 {
    others(record).iter().sum::<f64>() + greedy(record).unwrap_or(0.0)
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

    fn measure(&mut self, stand: &mut Stand, args: &FairnessArgs) -> Result<&Record> {
        let window = stand.send(self.loads(args.size as usize), args.timing.seconds)?;
        let (others, greedy) = shares(&window, self.guests.into(), self.greed);
        let mut record = Record::new("fairness", args.path.name(), "tx", args.size.into());
        record.data_len = (args.path == PathName::Staging).then_some(DATA_LEN.into());
        record.burst = 64;
        record.mode = Mode::Adaptive.name().into();
        record.workers = Some(self.workers.into());
        window.set(&mut record);
        record.of = Of::Fairness(Fairness {
            place: self.place.name().into(),
            // The one with several queues is there in all rows, and silent in most.
            vifs: u32::from(self.guests) + 1,
            busy: self.guests.into(),
            neighbour: self.greed.name().into(),
            neighbour_frames_per_s: greedy,
            spread: spread(&others),
            guests_frames_per_s: others,
        });
        Ok(self.records.push(record))
    }
}

pub fn measure(args: &FairnessArgs, run: &mut Run) -> Result<()> {
    make_room(args.guests.iter().max().map_or(0, |n| usize::from(*n) + 1))?;
    let cores = Cores::of_machine()?;
    let mut rows = Vec::new();
    for (place, workers) in teams(args) {
        for &guests in &args.guests {
            let row = |&greed| Row { guests, workers, place, greed, records: Repeats::default() };
            let mut group: Vec<Row> = args.greedy.iter().map(row).collect();
            run.progress.show(format_args!("{guests} guests connect, {workers} worker(s), {place}"));
            let mut queues = vec![1; guests.into()];
            queues.push(GREEDY_QUEUES);
            let plan = Plan {
                queues,
                workers: workers.into(),
                place,
                mode: Mode::Adaptive,
                path: args.path,
                buffers: 0,
            };
            let mut stand = Stand::start(&plan, &cores)?;
            let words = |row: &Row| format!("{guests} guests, {workers} worker(s), {place}, {}", row.greed);
            in_turns(run, args.timing.repeats, &mut group, words, |run, row| {
                run.write(row.measure(&mut stand, args)?)
            })?;
            rows.extend(group);
        }
    }
    run.print(table(&rows))?;
    run.print(method(args, &cores))
}

/// Returns the placements and numbers of the backend's workers. With a worker for each guest there
/// is only one row, whatever numbers are given.
fn teams(args: &FairnessArgs) -> Vec<(Placement, u16)> {
    let of = |place: &Placement| match place {
        Placement::Own => vec![(Placement::Own, 0)],
        place => args.workers.iter().map(|workers| (*place, *workers)).collect(),
    };
    args.place.iter().flat_map(of).collect()
}

fn table(rows: &[Row]) -> Table {
    let group = |row: &Row| (row.place.name(), row.workers, row.guests);
    let published = |row: &Row| {
        let equal = row.greed == Greed::None;
        or_dash(equal.then(|| published::find_width(row.place.name(), row.guests)).flatten().map(figure))
    };
    let kept = |row: &Row| -> Option<Summary> {
        let equal = rows.iter().find(|base| group(base) == group(row) && base.greed == Greed::None)?;
        let kept = || row.records.ratio_of(&equal.records, |r| mean(others(r)));
        (row.greed != Greed::None).then(kept).flatten()
    };
    let rate = |row: &Row| -> Option<String> {
        let greedy = row.records.summary(|r| greedy(r).unwrap_or(f64::NAN))?.median;
        Some(if greedy < 1e5 { format!("{:.4}", greedy / 1e6) } else { figure(greedy / 1e6) })
    };
    let worker = |row: &Row, w: usize| {
        let part = |r: &Record| {
            let ns = r.worker_cpu_ns.as_deref().and_then(|all| all.get(w)).copied().unwrap_or(0);
            ns as f64 / 1e9 / r.seconds.max(1e-9)
        };
        or_dash(row.records.summary(part).map(|part| format!("{:.0}", part.median * 100.0)))
    };
    Columns::of(rows.iter().filter(|row| row.records.rate().is_some()))
        .left("place", |row| row.place)
        .right("workers", |row| or_dash((row.workers > 0).then_some(row.workers)))
        .right("guests", |row| row.guests)
        .left("greedy", |row| row.greed)
        .ranged("sum, M frames/s", 1e6, |row| row.records.summary(sum))
        .ranged("spread, %", 0.01, |row| row.records.summary(|r| spread(others(r))))
        .median("most-least, %", 0.01, |row| row.records.summary(|r| width(others(r))))
        .right("published", published)
        .ranged("kept", 1.0, kept)
        .right("greedy M/s", |row| or_dash(rate(row)))
        .right("CPU by worker, %", |row| {
            (0..usize::from(row.workers)).map(|w| worker(row, w)).collect::<Vec<_>>().join(" ")
        })
        .grouped(group)
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
         Published: most-least of 4 guests, four threads of netback with a fixed share of the vifs, and a thread a vif (W. Liu, xen-devel, \
         2013).\n\
         Kept: what each of the others had, to what each guest had at equal load, repeat by repeat. The backend shares its time by vif: 1 is \
         a fair share.",
        args.timing.repeats,
        args.timing.seconds,
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
        let (others, greedy) = shares(&window(&[200, 200, 200, 400, 0]), 4, Greed::None);
        assert_eq!((mean(&others), greedy), (125.0, None));
        assert!((spread(&others) - 43.301 / 125.0).abs() < 1e-4, "{}", spread(&others));
        assert!((width(&others) - 100.0 / 125.0).abs() < 1e-9);
        let (others, greedy) = shares(&window(&[200, 200, 200, 4, 0]), 4, Greed::Long);
        assert_eq!((spread(&others), width(&others), greedy), (0.0, 0.0, Some(2.0)));
        let of =
            Fairness { neighbour_frames_per_s: greedy, guests_frames_per_s: others, ..Fairness::default() };
        let record = Record { of: Of::Fairness(of), ..Record::new("fairness", "copy", "tx", 64) };
        assert_eq!(sum(&record), 302.0);
        let (others, greedy) = shares(&window(&[200, 200, 200, 0, 800]), 4, Greed::Queues);
        assert_eq!((mean(&others), greedy), (100.0, Some(400.0)));
    }
}
