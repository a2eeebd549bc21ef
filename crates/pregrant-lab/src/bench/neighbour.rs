//! `pregrant bench neighbour`: what a greedy, broken or noisy guest costs another one at the same backend.
//!
//! ```text
//!   core 1   measured guest (yields whenever its ring is full), beside it at the lowest priority: the neighbour, xenstored
//!   core 2   the backend, alone: one thread that serves both
//!
//!   --workers 1   core 1: also the backend's control thread     core 2: the worker that serves both
//!   --workers 2   core 1: also that, and the neighbour's worker (with three cores: core 3)     core 2: the measured guest's
//! ```
//! By `copy` the backend has most of the work: its core is the bottleneck, and the guests' core is idle half of the time. By
//! `staging` a batch is short, and the neighbour's are long. What the neighbour takes of the guests' core is no fault of the backend: the row
//! `spinning`, a process that uses up the core and has no vif, shows how much that is, and the others are held against it.

use super::net::{SENDERS_PATHS, seconds};
use super::seating::Seating;
use crate::choice::choice;
use crate::process::order::{Case, Dir, Nuisance, Order, Played, Report};
use crate::record::stats::Summary;
use crate::record::{Record, RecordWriter};
use crate::screen::{Progress, print};
use crate::table::{Align, Table, figure};
use crate::testbed::{Process, Testbed};
use clap::ValueEnum;
use pregrant::net::path::PathName;
use pregrant_host::drivers::{Mode, Placement};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `bench neighbour`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench neighbour
  pregrant bench neighbour --neighbour broken,greedy --repeats 21 --json out.jsonl
  pregrant bench neighbour --neighbour greedy-long --path copy --workers 1,2

Each kind of neighbour is measured with a guest that offers all that is taken, and with one that offers --offer of that,
burst by burst, and makes up for no more than one burst that it could not send. A greedy neighbour may take its half of the
backend; no other may cost more than 5 %. A backend that stands still shows in the gaps.")]
pub struct NeighbourArgs {
    /// Kinds of neighbours, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = KINDS.map(Shown))]
    pub neighbour: Vec<Shown>,
    /// The measured guest's path, with commas between several; its neighbours know copy alone
    #[arg(long, value_delimiter = ',', default_values_t = [PathName::Copy, PathName::Staging], value_parser = choice(SENDERS_PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// Worker threads of the backend, with commas between them; 0: its one thread serves both guests, 1: one worker does, 2: the
    /// neighbour has the other
    #[arg(long, value_delimiter = ',', default_values_t = [0u16], value_parser = clap::value_parser!(u16).range(0..=2))]
    pub workers: Vec<u16>,
    /// What the measured guest offers in its second rows, in per cent of what is taken from it alone
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub offer: u32,
    /// Bytes of the measured guest's frames
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: u32,
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 0.1, value_parser = seconds)]
    pub seconds: f64,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Write a JSON object per row and repeat to this file ("-": standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Those that can be chosen; what they are held against is always measured.
const KINDS: [Nuisance; 7] = [
    Nuisance::Idle,
    Nuisance::Broken,
    Nuisance::Storming,
    Nuisance::Flipping,
    Nuisance::Stalled,
    Nuisance::Greedy,
    Nuisance::GreedyLong,
];

/// A kind, as the command line writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown(Nuisance);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl ValueEnum for Shown {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Shown; 7] = [
            Shown(KINDS[0]),
            Shown(KINDS[1]),
            Shown(KINDS[2]),
            Shown(KINDS[3]),
            Shown(KINDS[4]),
            Shown(KINDS[5]),
            Shown(KINDS[6]),
        ];
        &ALL
    }
    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        self.0.to_possible_value()
    }
}

/// Staging's data length.
const DATA_LEN: u32 = 2048;
/// The measured guest, and the first of its neighbours: each has a domain of its own. Guests are placed by their numbers: of
/// two workers the measured one has the first, its neighbours the other.
const GUEST: u16 = 6;
const FIRST_NEIGHBOUR: u16 = 101;

/// The machine with the backend and the measured guest.
struct Stand {
    testbed: Testbed,
    back: Process,
    guest: Process,
    seating: Seating,
    vifs: u32,
    neighbours: u16,
}

impl Stand {
    fn with_workers(workers: usize) -> Result<Self> {
        let seating = Seating::of(workers)?;
        let guests = seating.guest;
        // Broker and xenstored are threads of this process: they take the guests' core, and give way on it.
        let testbed = std::thread::spawn(move || {
            crate::process::stay_on(guests).map_err(|e| e.to_string())?;
            rustix::process::nice(19).map_err(|e| format!("cannot give way: {e}"))?;
            Testbed::start().map_err(|e| e.to_string())
        });
        let testbed = testbed.join().map_err(|_| "the testbed's thread panicked")??;
        testbed.guest_domain(GUEST)?;
        let back = testbed.back(seating.back, seating.posts(Placement::Fixed, Mode::Adaptive))?;
        let guest = testbed.process("guest", GUEST, seating.guest)?;
        Ok(Self { testbed, back, guest, seating, vifs: 0, neighbours: 0 })
    }

    /// The guest's account and the back's, with such a neighbour from before until after.
    fn play(&mut self, row: &Row, args: &NeighbourArgs, rate: Option<f64>) -> Result<(Played, Played)> {
        let (nuisance, size) = (row.nuisance, args.size as usize);
        let handle = self.vifs;
        self.vifs += 1;
        let case = Case {
            front: GUEST,
            handle,
            size,
            seconds: args.seconds,
            data_len: row.data_len(),
            rate,
            gives_way: true,
            ..Case::of(Dir::Tx, row.path)
        };
        self.back.order(&Order::Beside { case: case.clone(), nuisance })?;
        let neighbour = self.begin(nuisance, size)?;
        self.testbed.make_vif(GUEST, handle)?;
        self.guest.order(&Order::Case(case))?;
        let guest = self.guest.report(&mut [&mut self.back])?;
        let back = self.back.report(&mut [&mut self.guest])?;
        self.testbed.remove_vif(GUEST, handle)?;
        if let Some((mut process, domid)) = neighbour {
            process.kill()?;
            if nuisance.has_vif() {
                self.testbed.remove_vif(domid, 0)?;
            }
        }
        match (guest, back) {
            (Report::Case(guest), Report::Case(back)) => Ok((*guest, *back)),
            other => Err(format!("an answer to another order: {other:?}").into()),
        }
    }

    /// Starts the neighbour, and waits until it is what it is to be.
    fn begin(&mut self, nuisance: Nuisance, size: usize) -> Result<Option<(Process, u16)>> {
        if nuisance == Nuisance::Absent {
            return Ok(None);
        }
        let domid = FIRST_NEIGHBOUR + self.neighbours;
        self.neighbours += 2; // all odd: at the second of two workers
        self.testbed.guest_domain(domid)?;
        if nuisance.has_vif() {
            self.testbed.make_vif(domid, 0)?;
        }
        let mut process = self.testbed.process("guest", domid, self.seating.guest)?;
        let size = if nuisance == Nuisance::GreedyLong { 65535 } else { size };
        process.order(&Order::Annoy { nuisance, size })?;
        process.report(&mut [&mut self.back, &mut self.guest])?;
        Ok(Some((process, domid)))
    }
}

/// One row: a kind of neighbour beside a guest that offers all it can, or some.
struct Row {
    path: PathName,
    nuisance: Nuisance,
    /// What it offers, as a part of what is taken from it alone; None: all that it can.
    paced: Option<f64>,
    /// Worker threads of the backend.
    workers: usize,
    records: Vec<Record>,
}

impl Row {
    fn new(path: PathName, nuisance: Nuisance, paced: Option<f64>, workers: usize) -> Self {
        Self { path, nuisance, paced, workers, records: Vec::new() }
    }

    fn data_len(&self) -> Option<u32> {
        (self.path == PathName::Staging).then_some(DATA_LEN)
    }

    /// Whether the other is the row that this one is held against, if it has that neighbour.
    fn is_like(&self, other: &Row) -> bool {
        (self.path, self.paced, self.workers) == (other.path, other.paced, other.workers)
    }

    fn rates(&self) -> Vec<f64> {
        self.records.iter().map(|r| r.frames_per_s).collect()
    }

    /// What the measured guest has a right to, as a part of what it gets beside a neighbour without a vif.
    fn fair_share(&self) -> f64 {
        // Beside a neighbour at another worker: all of its own.
        let greedy = self.workers < 2 && matches!(self.nuisance, Nuisance::Greedy | Nuisance::GreedyLong);
        if greedy { (0.5 / self.paced.unwrap_or(1.0)).min(1.0) } else { 1.0 }
    }

    fn measure(&mut self, stand: &mut Stand, args: &NeighbourArgs, alone: f64) -> Result<&Record> {
        let rate = self.paced.map(|part| alone * part);
        let (guest, back) = stand.play(self, args, rate)?;
        let mut record = Record::new("neighbour", &self.path.to_string(), "tx", args.size.into());
        record.count(guest.frames, guest.seconds);
        record.data_len = self.data_len().map(u64::from);
        record.burst = 64;
        record.repeat = self.records.len() as u32;
        record.mode = "adaptive".into();
        record.lost = back.missing + guest.sent.saturating_sub(back.next);
        record.account(&guest, &back);
        let gaps = back.gaps.as_ref().ok_or("the back did not measure gaps")?;
        (record.longest_gap_ns, record.gap_p99_ns) = (Some(gaps.most_ns), Some(gaps.p99_ns));
        record.set_ops(guest.counters.plus(&back.counters));
        record.frontend_cpu_ns = guest.cpu_ns;
        record.set_backend_cpu(&back, self.workers);
        record.neighbour = Some(self.nuisance.name().into());
        record.neighbour_frames_per_s = Some(back.others as f64 / back.seconds.max(1e-9));
        record.offered_per_s = rate;
        self.records.push(record);
        Ok(&self.records[self.records.len() - 1])
    }
}

/// Repeat by repeat, `row` against `base`.
fn ratio(row: &Row, base: &Row) -> Option<Summary> {
    let pairs = row.records.iter().zip(&base.records);
    Summary::of(&pairs.map(|(a, b)| a.frames_per_s / b.frames_per_s).collect::<Vec<_>>())
}

/// Runs the benchmark.
pub fn run(args: NeighbourArgs) -> Result<()> {
    let mut json = RecordWriter::open(args.json.as_deref())?;
    let mut rows = Vec::new();
    let workers = args.workers.iter().map(|&workers| usize::from(workers));
    for (&path, workers) in args.path.iter().flat_map(|path| workers.clone().map(move |n| (path, n))) {
        for paced in [None, Some(f64::from(args.offer) / 100.0)] {
            let bases = [Nuisance::Absent, Nuisance::Spinning];
            let kinds = bases.into_iter().chain(args.neighbour.iter().map(|k| k.0));
            rows.extend(kinds.map(|kind| Row::new(path, kind, paced, workers)));
        }
    }
    let mut stands = BTreeMap::new();
    for workers in workers {
        stands.insert(workers, Stand::with_workers(workers)?);
    }
    let progress = Progress::new();
    for repeat in 0..args.repeats {
        for i in 0..rows.len() {
            let kind = |r: &Row| (r.path, r.workers, r.nuisance, r.paced.is_none());
            let all = (rows[i].path, rows[i].workers, Nuisance::Absent, true);
            let alone = rows.iter().find(|r| kind(r) == all);
            let alone = alone.and_then(|r| Summary::of(&r.rates())).map_or(0.0, |s| s.median);
            let row = &mut rows[i];
            progress.show(format_args!("repeat {} of {}: {}", repeat + 1, args.repeats, row.nuisance.name()));
            let stand = stands.get_mut(&row.workers).ok_or("no stand with so many workers")?;
            json.write(row.measure(stand, &args, alone)?)?;
        }
    }
    progress.clear();
    if !json.is_stdout() {
        print(table(&rows))?;
        print(method(&args, stands.values()))?;
    }
    super::none_went_wrong(rows.iter().flat_map(|row| &row.records))
}

/// Where the threads of a stand are, as lines.
fn on_cores(seating: &Seating) -> String {
    let words = seating.words();
    match seating.nr_workers() {
        0 => format!("Without workers: {words}.\n"),
        1 => format!("1 worker, which serves both: {words}.\n"),
        _ if seating.shares_guests_core() => format!(
            "2 workers, the second for the neighbour: {words}. There are no more cores: what the neighbour's worker takes of \
             the guests' core the measured guest has not, which is no fault of a worker's.\n"
        ),
        _ => format!("2 workers, the second for the neighbour: {words}.\n"),
    }
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::new(&[
        ("path", Align::Left),
        ("workers", Align::Left),
        ("offered", Align::Left),
        ("neighbour", Align::Left),
        ("M frames/s", Align::Right),
        ("(range)", Align::Right),
        ("neighbour's M/s", Align::Right),
        ("of spinning", Align::Right),
        ("(range)", Align::Right),
        ("fair share", Align::Right),
        ("of fair share", Align::Right),
        ("gap us, 99 %", Align::Right),
        ("longest gap ms", Align::Right),
        ("(most)", Align::Right),
    ]);
    for (i, row) in rows.iter().enumerate() {
        if i > 0 && !rows[i - 1].is_like(row) {
            t.gap();
        }
        let base = rows.iter().find(|r| r.nuisance == Nuisance::Spinning && r.is_like(row));
        let (Some(rate), Some(of)) = (Summary::of(&row.rates()), base.and_then(|base| ratio(row, base)))
        else {
            continue;
        };
        let m = |v: f64| figure(v / 1e6);
        let gaps = |ns: fn(&Record) -> Option<u64>| {
            Summary::of(&row.records.iter().filter_map(|r| ns(r).map(|ns| ns as f64)).collect::<Vec<_>>())
        };
        let longest = gaps(|r| r.longest_gap_ns);
        let others: Vec<f64> = row.records.iter().filter_map(|r| r.neighbour_frames_per_s).collect();
        t.row([
            row.path.to_string(),
            if row.workers == 0 { "-".into() } else { row.workers.to_string() },
            row.paced.map_or("all".into(), |part| format!("{:.0} %", part * 100.0)),
            row.nuisance.name().into(),
            m(rate.median),
            format!("({}..{})", m(rate.min), m(rate.max)),
            Summary::of(&others).map_or("-".into(), |o| m(o.median)),
            figure(of.median),
            format!("({}..{})", figure(of.min), figure(of.max)),
            figure(row.fair_share()),
            figure(of.median / row.fair_share()),
            gaps(|r| r.gap_p99_ns).map_or("-".into(), |g| figure(g.median / 1e3)),
            longest.map_or("-".into(), |g| figure(g.median / 1e6)),
            longest.map_or("-".into(), |g| format!("({})", figure(g.max / 1e6))),
        ]);
    }
    t
}

fn method<'a>(args: &NeighbourArgs, stands: impl Iterator<Item = &'a Stand>) -> String {
    let cores: String = stands.map(|stand| on_cores(&stand.seating)).collect();
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
        args.repeats, args.seconds, args.size, args.offer,
    )
}
