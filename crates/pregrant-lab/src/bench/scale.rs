//! `pregrant bench scale`: what many vifs cost at one backend, when one of them is busy, when all are, and when none is.
//!
//! ```text
//!   machines with 1 vif     machine with 8 vifs      64      256          all of them at once, each with its own backend
//!     '------- idle, all at once, for some seconds ------'
//!     '------- then in turns, repeat by repeat: one sends; one sends single frames; all send
//! ```
//! So each figure stands beside that of a machine with the first number of vifs, taken within the same second or two.
//!
//! What a guest gets depends on where its pages lie, by a fifth and more. So in each repeat another guest is the busy one, and of
//! the machines that the others are held against there are as many as that takes ([`MOST_BASES`]).

use super::crowd::{Cores, DATA_LEN, Echoes, Plan, Stand, Window, make_room, since};
use super::net::{PATHS, seconds};
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
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `bench scale`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench scale
  pregrant bench scale --vifs 1,64 --workers 1 --path copy --repeats 21 --json out.jsonl

Each vif is a guest's of its own. The backend waits in event mode: one that has nothing to do sleeps.
What one busy vif gets, its latency, and the CPU time of a backend whose guests are all idle are to be the same however many
vifs there are beside it: within 5 %.")]
pub struct ScaleArgs {
    /// Numbers of vifs, with commas between them; the others are held against the first
    #[arg(long, value_delimiter = ',', default_values_t = [1u16, 8, 64, 256], value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub vifs: Vec<u16>,
    /// Worker threads of the backend, with commas between the numbers
    #[arg(long, value_delimiter = ',', default_values_t = [1u16, 2], value_parser = clap::value_parser!(u16).range(1..=16))]
    pub workers: Vec<u16>,
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [PathName::Copy, PathName::Staging], value_parser = choice(PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// Bytes of a frame
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: u32,
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 0.1, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds for which all are idle
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub idle: f64,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Write a JSON object per row and repeat to this file ("-": standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Machines with the first number of vifs, at most.
const MOST_BASES: u32 = 8;
/// How long backends have for what comes after connecting, before they are idle.
const SETTLE: Duration = Duration::from_millis(500);

/// One number of vifs, of one path, with so many workers.
struct Row {
    path: PathName,
    workers: u16,
    vifs: u16,
    one: Vec<Window>,
    all: Vec<Window>,
    echoes: Vec<Echoes>,
    /// By machine.
    idle: Vec<Idle>,
}

/// What a backend did while all of its guests were idle.
struct Idle {
    cpu_ns: u64,
    syscalls: u64,
}

impl Row {
    /// A record with what all of the row's have.
    fn record(&self, args: &ScaleArgs, dir: &str, busy: u16, repeat: usize) -> Record {
        let mut record = Record::new("scale", &self.path.to_string(), dir, args.size.into());
        record.data_len = (self.path == PathName::Staging).then_some(DATA_LEN.into());
        record.burst = 64;
        record.mode = Mode::Event.name().into();
        record.repeat = repeat as u32;
        record.workers = Some(self.workers.into());
        record.vifs = Some(self.vifs.into());
        record.busy = Some(busy.into());
        record
    }

    /// One sends, then single frames, then all send.
    fn measure(&mut self, stand: &mut Stand, args: &ScaleArgs) -> Result<[Record; 4]> {
        let (size, repeat) = (args.size as usize, self.one.len());
        let load = |member| Load { member, size };
        let busy = repeat * usize::from(self.vifs) / args.repeats.max(1) as usize;
        let one = stand.send(vec![load(busy)], args.seconds)?;
        let echoes = stand.echo(args.seconds)?;
        let all = stand.send((0..usize::from(self.vifs)).map(load).collect(), args.seconds)?;
        let mut records = [
            self.record(args, "tx", 1, repeat),
            self.record(args, "tx", 1, repeat),
            self.record(args, "rx", 1, repeat),
            self.record(args, "tx", self.vifs, repeat),
        ];
        one.set(&mut records[0]);
        for (record, took) in records[1..3].iter_mut().zip([&echoes.guest.request, &echoes.guest.response]) {
            record.size_bytes = 64;
            record.burst = 1;
            echoes.set(record);
            record.latency_p50_ns = Some(took.p50_ns);
            record.latency_p99_ns = Some(took.p99_ns);
            record.latency_histogram = Some(took.histogram.clone());
        }
        all.set(&mut records[3]);
        self.one.push(one);
        self.echoes.push(echoes);
        self.all.push(all);
        Ok(records)
    }
}

/// Runs the benchmark.
pub fn run(args: ScaleArgs) -> Result<()> {
    let mut json = RecordWriter::open(args.json.as_deref())?;
    let first =
        args.vifs.first().map_or(0, |&vifs| (bases(vifs, args.repeats) - 1) as usize * usize::from(vifs));
    make_room(first + args.vifs.iter().map(|n| usize::from(*n)).sum::<usize>())?;
    let (cores, progress) = (Cores::of_machine()?, Progress::new());
    let mut rows = Vec::new();
    for &path in &args.path {
        for &workers in &args.workers {
            let row = |&vifs| Row {
                path,
                workers,
                vifs,
                one: Vec::new(),
                all: Vec::new(),
                echoes: Vec::new(),
                idle: Vec::new(),
            };
            let mut group: Vec<Row> = args.vifs.iter().map(row).collect();
            measure(&mut group, &args, &cores, &progress, &mut json)?;
            rows.extend(group);
        }
    }
    progress.clear();
    if !json.is_stdout() {
        print(frames_table(&rows, &args))?;
        print(quiet_table(&rows, &args))?;
        print(method(&args, &cores))?;
    }
    super::none_went_wrong(json.written().iter())
}

/// Rows of the same path and workers, beside each other.
fn measure(
    group: &mut [Row],
    args: &ScaleArgs,
    cores: &Cores,
    progress: &Progress,
    json: &mut RecordWriter,
) -> Result<()> {
    // By row.
    let mut machines: Vec<Vec<Stand>> = Vec::new();
    for (i, row) in group.iter().enumerate() {
        progress.show(format_args!("{}, {} worker(s): {} vif(s) connect", row.path, row.workers, row.vifs));
        let plan = Plan {
            queues: vec![1; row.vifs.into()],
            workers: row.workers.into(),
            mode: Mode::Event,
            path: row.path,
        };
        let stands = if i == 0 { bases(row.vifs, args.repeats) } else { 1 };
        machines.push((0..stands).map(|_| Stand::start(&plan, cores)).collect::<Result<_>>()?);
    }
    progress.show(format_args!("{}, {} worker(s): idle", group[0].path, group[0].workers));
    std::thread::sleep(SETTLE);
    let mut begun = Vec::new();
    for stand in machines.iter_mut().flatten() {
        // Twice: an order has a price, and is none of an idle backend's.
        let first = stand.spent()?;
        let second = stand.spent()?;
        begun.push((since(&second, &first), second));
    }
    std::thread::sleep(Duration::from_secs_f64(args.idle));
    let mut begun = begun.into_iter();
    for (stands, row) in machines.iter_mut().zip(&mut *group) {
        for (stand, (price, began)) in stands.iter_mut().zip(&mut begun) {
            let ended = stand.spent()?;
            let spent = since(&ended, &began);
            let idle = Idle {
                cpu_ns: spent.cpu_ns.saturating_sub(price.cpu_ns),
                syscalls: spent.ops.syscalls.saturating_sub(price.ops.syscalls),
            };
            let mut record = row.record(args, "tx", 0, row.idle.len());
            record.count(0, spent.at_ns as f64 / 1e9);
            record.set_ops(spent.ops);
            record.backend_cpu_ns = idle.cpu_ns;
            record.missed_wakeups = Some(spent.missed_wakeups);
            json.write(&record)?;
            row.idle.push(idle);
        }
    }
    for repeat in 0..args.repeats as usize {
        for (stands, row) in machines.iter_mut().zip(&mut *group) {
            progress.show(format_args!(
                "{}, {} worker(s), repeat {} of {}: {} vif(s)",
                row.path,
                row.workers,
                repeat + 1,
                args.repeats,
                row.vifs
            ));
            let turn = repeat % stands.len();
            for record in row.measure(&mut stands[turn], args)? {
                json.write(&record)?;
            }
        }
    }
    Ok(())
}

/// How many machines the others are held against, so that each repeat can have another guest.
fn bases(vifs: u16, repeats: u32) -> u32 {
    repeats.div_ceil(vifs.into()).clamp(1, MOST_BASES)
}

fn rate(window: &Window) -> f64 {
    window.sum() as f64 / window.seconds.max(1e-9)
}

fn summary<T>(of: &[T], figure: impl Fn(&T) -> f64) -> Option<Summary> {
    Summary::of(&of.iter().map(figure).collect::<Vec<_>>())
}

fn ratio<T>(of: &[T], base: &[T], figure: impl Fn(&T) -> f64) -> Option<Summary> {
    Summary::of_ratios(of.iter().zip(base).map(|(a, b)| (figure(a), figure(b))))
}

/// Nanoseconds of the backend's CPU time for each frame: what a busy machine takes away is not in it.
fn cost(window: &Window) -> f64 {
    window.spent.cpu_ns as f64 / window.sum().max(1) as f64
}

/// A median and its range, as cells.
fn cells(of: Option<Summary>, shown: impl Fn(f64) -> String) -> [String; 2] {
    of.map_or(["-".into(), "-".into()], |s| {
        [shown(s.median), format!("({}..{})", shown(s.min), shown(s.max))]
    })
}

/// The rows, each with that which it is held against, and whether it begins a group.
fn with_base(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row, bool)> {
    let group = |row: &Row| (row.path, row.workers);
    rows.iter().enumerate().map(move |(i, row)| {
        let base = rows.iter().find(|base| group(base) == group(row)).unwrap_or(row);
        (row, base, i > 0 && group(&rows[i - 1]) != group(row))
    })
}

/// Frames, of one and of all.
fn frames_table(rows: &[Row], args: &ScaleArgs) -> Table {
    let first = format!("of {}'s", args.vifs[0]);
    let mut t = Table::new(&[
        ("path", Align::Left),
        ("workers", Align::Right),
        ("vifs", Align::Right),
        ("one busy, M frames/s", Align::Right),
        ("(range)", Align::Right),
        (&first, Align::Right),
        ("(range)", Align::Right),
        ("CPU ns/frame", Align::Right),
        (&first, Align::Right),
        ("(range)", Align::Right),
        ("all busy, M frames/s", Align::Right),
        ("(range)", Align::Right),
        ("CPU ns/frame", Align::Right),
    ]);
    let m = |v: f64| figure(v / 1e6);
    for (row, base, begins) in with_base(rows) {
        if begins {
            t.gap();
        }
        let mut row_cells = vec![row.path.to_string(), row.workers.to_string(), row.vifs.to_string()];
        row_cells.extend(cells(summary(&row.one, rate), m));
        row_cells.extend(cells(ratio(&row.one, &base.one, rate), figure));
        row_cells.extend(cells(summary(&row.one, cost), figure).into_iter().take(1));
        row_cells.extend(cells(ratio(&row.one, &base.one, cost), figure));
        row_cells.extend(cells(summary(&row.all, rate), m));
        row_cells.extend(cells(summary(&row.all, cost), figure).into_iter().take(1));
        t.row(row_cells);
    }
    t
}

/// Single frames, and nothing.
fn quiet_table(rows: &[Row], args: &ScaleArgs) -> Table {
    let idle = format!("idle CPU, ms in {} s", args.idle);
    let first = format!("of {}'s", args.vifs[0]);
    let mut t = Table::new(&[
        ("path", Align::Left),
        ("workers", Align::Right),
        ("vifs", Align::Right),
        ("request us, median", Align::Right),
        ("99 %", Align::Right),
        (&first, Align::Right),
        ("(range)", Align::Right),
        ("response us, median", Align::Right),
        ("99 %", Align::Right),
        ("syscalls/wake-up", Align::Right),
        ("CPU us/wake-up", Align::Right),
        (&first, Align::Right),
        ("(range)", Align::Right),
        (&idle, Align::Right),
        (&first, Align::Right),
        ("idle syscalls", Align::Right),
        (&first, Align::Right),
    ]);
    let us = |v: f64| figure(v / 1e3);
    let request = |e: &Echoes| e.guest.request.p50_ns as f64;
    let (idle_cpu, idle_syscalls) = (|i: &Idle| i.cpu_ns as f64, |i: &Idle| i.syscalls as f64);
    let woken = |e: &Echoes| e.spent.cpu_ns as f64 / e.guest.wakeups.max(1) as f64;
    for (row, base, begins) in with_base(rows) {
        if begins {
            t.gap();
        }
        let echo = |of: &dyn Fn(&Echoes) -> f64| summary(&row.echoes, of).map_or(0.0, |s| s.median);
        let mut row_cells = vec![row.path.to_string(), row.workers.to_string(), row.vifs.to_string()];
        row_cells.extend([us(echo(&request)), us(echo(&|e| e.guest.request.p99_ns as f64))]);
        row_cells.extend(cells(ratio(&row.echoes, &base.echoes, request), figure));
        row_cells.push(us(echo(&|e| e.guest.response.p50_ns as f64)));
        row_cells.push(us(echo(&|e| e.guest.response.p99_ns as f64)));
        row_cells.push(figure(echo(&Echoes::syscalls_a_wakeup)));
        row_cells.push(us(echo(&woken)));
        row_cells.extend(cells(ratio(&row.echoes, &base.echoes, woken), figure));
        for (of, unit) in [(&idle_cpu as &dyn Fn(&Idle) -> f64, 1e6), (&idle_syscalls, 1.0)] {
            let median = |row: &Row| summary(&row.idle, of).map_or(0.0, |s| s.median);
            row_cells.push(figure(median(row) / unit));
            row_cells.push(figure(median(row) / median(base).max(1.0)));
        }
        t.row(row_cells);
    }
    t
}

fn method(args: &ScaleArgs, cores: &Cores) -> String {
    format!(
        "Medians of {} repeats of {} s, in turns between machines with {} vifs that are all there at once; \"of {}'s\": against \
         such a machine, repeat by repeat, median and range.\n{}\n\
         Where its pages lie makes a fifth and more of what a guest gets: in each repeat another guest is the busy one, as far as there are \
         others, and there are {} machine(s) with {} vif(s).\n\
         Each vif is a guest's of its own; the guests are one process, whose one thread keeps the ring of the busy one full, or \
         those of all, with frames of {} B in bursts of 64.\n\
         The backend is in event mode. Request: a single frame of 64 B from the first guest to its port, both ends asleep before; \
         response: back from there. Wake-up: each time that an event of the guest woke the backend.\n\
         CPU: of the whole backend, by the kernel's account. Where other processes use the same cores, it says more than frames/s.\n\
         Idle: all vifs connected and nothing moves; all machines at the same time, once; system calls are \
         counted, and nothing else on the machine changes them.",
        args.repeats,
        args.seconds,
        args.vifs.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
        args.vifs[0],
        cores.describe(),
        bases(args.vifs[0], args.repeats),
        args.vifs[0],
        args.size,
    )
}
