//! `pregrant-lab bench scale`: what many vifs cost at one backend, when one of them is busy, when
//! all are, and when none is.
//!
//! ```text
//!   machines with 1 vif     machine with 8 vifs      64      256          all of them at once, each with its own backend
//!     '------- idle, all at once, for some seconds ------'
//!     '------- then in turns, repeat by repeat: one sends; one sends single frames; all send
//! ```
//! So each figure stands beside that of a machine with the first number of vifs, taken within the
//! same second or two.
//!
//! A guest's rate depends on which pages it has, by a fifth and more. So in each repeat another
//! guest is the busy one, and of the machines that the others are held against there are as many as
//! that takes ([`MOST_BASES`]).

use super::Result;
use super::crowd::{Cores, DATA_LEN, Plan, Stand, Window, make_room};
use super::net::PATHS;
use super::output::{Lines, Run};
use super::timing::{Timing, seconds};
use crate::columns::Columns;
use crate::record::repeats::Repeats;
use crate::record::stats::{LOADED, Summary};
use crate::record::{Of, Record, Scale};
use pregrant::net::path::PathName;
use pregrant::net::path::staging::list::DataLen;
use pregrant_cli::choice::choice;
use pregrant_cli::table::{Table, figure};
use pregrant_host::drivers::net::buffer_pool;
use pregrant_host::drivers::{Mode, Placement};
use pregrant_testbed::process::process_command::{BUFFERS_MAX, Load, RING_SLOTS};
use std::time::Duration;

/// Arguments of `bench scale`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("0.1")))]
#[command(after_help = "Examples:
  pregrant-lab bench scale
  pregrant-lab bench scale --vifs 1,64 --workers 1 --path copy --repeats 21 --json out.jsonl

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
    /// Staging buffers of each direction that a guest asks for; without it as many as hold twice a
    /// core's private cache
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(i64::from(RING_SLOTS)..=i64::from(BUFFERS_MAX)))]
    pub buffers: Option<u32>,
    /// Bytes of a frame
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: u32,
    /// Seconds for which all are idle
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub idle: f64,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub lines: Lines,
}

/// Largest number of machines with the first number of vifs.
const MOST_BASES: u32 = 8;
/// The time that backends may need to finish their work after connecting, before they are idle.
const SETTLE: Duration = Duration::from_millis(500);

/// A row of the table: a number of vifs, a path, and a number of workers.
#[derive(Default)]
struct Row {
    path: PathName,
    workers: u16,
    vifs: u16,
    /// Results with one guest that sends, with single frames of one guest and their echoes, and
    /// with all guests sending.
    one: Repeats,
    requests: Repeats,
    responses: Repeats,
    all: Repeats,
    /// Nanoseconds of the backend's CPU time for each time that a single frame woke it.
    woken_ns: Vec<f64>,
    /// For each machine, the resources that the backend used while all guests were idle: CPU time
    /// in ns, and system calls.
    idle: Vec<[f64; 2]>,
    /// For each machine, the backend's memory in bytes: its own, and the mapped pages of guests.
    memory: Vec<[u64; 2]>,
}

impl Row {
    /// Creates a record with the fields that all records of the row share.
    fn record(&self, args: &ScaleArgs, dir: &str, busy: u16, syscalls_a_wakeup: Option<f64>) -> Record {
        let mut record = Record::new("scale", &self.path.to_string(), dir, args.size.into());
        record.data_len = (self.path == PathName::Staging).then_some(DATA_LEN.into());
        record.burst = 64;
        record.mode = Mode::Event.name().into();
        record.workers = Some(self.workers.into());
        let of = Scale { vifs: self.vifs.into(), busy: busy.into(), syscalls_a_wakeup, ..Scale::default() };
        record.of = Of::Scale(of);
        record
    }

    /// Measures one sender, then single frames, then all senders at once.
    fn measure(&mut self, stand: &mut Stand, args: &ScaleArgs, run: &mut Run) -> Result<()> {
        let (size, repeat) = (args.size as usize, self.one.0.len());
        let load = |member| Load { member, size };
        let busy = repeat * usize::from(self.vifs) / args.timing.repeats.max(1) as usize;
        let sent = |window: &Window, busy| {
            let mut record = self.record(args, "tx", busy, None);
            window.set(&mut record);
            record
        };
        let one = sent(&stand.send(vec![load(busy)], args.timing.seconds)?, 1);
        let echoes = stand.echo(args.timing.seconds)?;
        let all = stand.send((0..usize::from(self.vifs)).map(load).collect(), args.timing.seconds)?;
        let all = sent(&all, self.vifs);
        let [request, response] =
            echoes.guest.latency.as_ref().ok_or("the guest did not measure a latency")?;
        let syscalls = Some(echoes.a_wakeup(echoes.spent.ops.syscalls));
        let [request, response] = [("tx", request), ("rx", response)].map(|(dir, took)| {
            let mut record = Record { size_bytes: 64, burst: 1, ..self.record(args, dir, 1, syscalls) };
            echoes.set(&mut record);
            record.set_latencies(took);
            record
        });
        self.woken_ns.push(echoes.a_wakeup(echoes.spent.cpu_ns));
        run.write(self.one.push(one))?;
        run.write(self.requests.push(request))?;
        run.write(self.responses.push(response))?;
        run.write(self.all.push(all))
    }
}

pub fn measure(args: &ScaleArgs, run: &mut Run) -> Result<()> {
    let first = args
        .vifs
        .first()
        .map_or(0, |&vifs| (bases(vifs, args.timing.repeats) - 1) as usize * usize::from(vifs));
    make_room(first + args.vifs.iter().map(|n| usize::from(*n)).sum::<usize>())?;
    let cores = Cores::of_machine()?;
    let mut rows = Vec::new();
    for &path in &args.path {
        for &workers in &args.workers {
            let row = |&vifs| Row { path, workers, vifs, ..Row::default() };
            let mut group: Vec<Row> = args.vifs.iter().map(row).collect();
            measure_group(&mut group, args, &cores, run)?;
            rows.extend(group);
        }
    }
    run.print(frames_table(&rows, args))?;
    run.print(quiet_table(&rows, args))?;
    run.print(method(args, &cores))
}

/// Measures the rows that have the same path and number of workers.
fn measure_group(group: &mut [Row], args: &ScaleArgs, cores: &Cores, run: &mut Run) -> Result<()> {
    // By row.
    let mut machines: Vec<Vec<Stand>> = Vec::new();
    let usual = || DataLen::new(DATA_LEN).map_or(0, |len| buffer_pool::buffers(len, 2, None));
    let buffers = args.buffers.unwrap_or_else(usual);
    for (i, row) in group.iter().enumerate() {
        run.progress
            .show(format_args!("{}, {} worker(s): {} vif(s) connect", row.path, row.workers, row.vifs));
        let plan = Plan {
            queues: vec![1; row.vifs.into()],
            workers: row.workers.into(),
            place: Placement::Balanced,
            mode: Mode::Event,
            path: row.path,
            buffers: if buffers > RING_SLOTS { buffers.min(BUFFERS_MAX) } else { 0 },
        };
        let stands = if i == 0 { bases(row.vifs, args.timing.repeats) } else { 1 };
        machines.push((0..stands).map(|_| Stand::start(&plan, cores)).collect::<Result<_>>()?);
    }
    run.progress.show(format_args!("{}, {} worker(s): idle", group[0].path, group[0].workers));
    std::thread::sleep(SETTLE);
    let mut started = Vec::new();
    for stand in machines.iter_mut().flatten() {
        // Twice: an order has a price, and is none of an idle backend's.
        let first = stand.spent()?;
        let second = stand.spent()?;
        started.push((second.since(&first), second));
    }
    std::thread::sleep(Duration::from_secs_f64(args.idle));
    let mut started = started.into_iter();
    for (stands, row) in machines.iter_mut().zip(&mut *group) {
        for (stand, (price, began)) in stands.iter_mut().zip(&mut started) {
            let spent = stand.spent()?.since(&began);
            let cpu_ns = spent.cpu_ns.saturating_sub(price.cpu_ns);
            let mut record = Record { repeat: row.idle.len() as u32, ..row.record(args, "tx", 0, None) };
            record.count(0, spent.seconds());
            record.set_ops(spent.ops);
            record.backend_cpu_ns = cpu_ns;
            record.missed_wakeups = Some(spent.missed_wakeups);
            let memory = stand.memory()?;
            row.memory.push(memory);
            if let Of::Scale(of) = &mut record.of {
                [of.own_bytes, of.mapped_bytes] = memory.map(Some);
            }
            run.write(&record)?;
            let syscalls = spent.ops.syscalls.saturating_sub(price.ops.syscalls);
            row.idle.push([cpu_ns as f64, syscalls as f64]);
        }
    }
    for repeat in 0..args.timing.repeats as usize {
        for (stands, row) in machines.iter_mut().zip(&mut *group) {
            run.progress.show(format_args!(
                "{}, {} worker(s), repeat {} of {}: {} vif(s)",
                row.path,
                row.workers,
                repeat + 1,
                args.timing.repeats,
                row.vifs
            ));
            let turn = repeat % stands.len();
            row.measure(&mut stands[turn], args, run)?;
        }
    }
    Ok(())
}

/// Returns how many machines with the first number of vifs are started, with which the others are
/// compared. Each repeat can then have another guest.
fn bases(vifs: u16, repeats: u32) -> u32 {
    repeats.div_ceil(vifs.into()).clamp(1, MOST_BASES)
}

/// Returns the nanoseconds of the backend's CPU time for each frame, without time that other
/// programs used.
fn cost(record: &Record) -> f64 {
    record.backend_cpu_ns as f64 / record.frames.max(1) as f64
}

fn syscalls_a_wakeup(record: &Record) -> f64 {
    record.of.scale().and_then(|of| of.syscalls_a_wakeup).unwrap_or(0.0)
}

/// Returns the row with which another row is compared.
fn base_of<'a>(rows: &'a [Row], row: &'a Row) -> &'a Row {
    rows.iter().find(|base| (base.path, base.workers) == (row.path, row.workers)).unwrap_or(row)
}

/// Returns the settings that identify a row.
fn columns(rows: &[Row]) -> Columns<'_, Row> {
    Columns::of(rows)
        .left("path", |row| row.path)
        .right("workers", |row| row.workers)
        .right("vifs", |row| row.vifs)
}

/// Formats a table of frames, for one sender and for all.
fn frames_table(rows: &[Row], args: &ScaleArgs) -> Table {
    let first = format!("of {}'s", args.vifs[0]);
    let to_base = |row: &Row, of: fn(&Record) -> f64| row.one.ratio_of(&base_of(rows, row).one, of);
    columns(rows)
        .ranged("one busy, M frames/s", 1e6, |row| row.one.rate())
        .ranged(&first, 1.0, |row| to_base(row, |r| r.frames_per_s))
        .median("CPU ns/frame", 1.0, |row| row.one.summary(cost))
        .ranged(&first, 1.0, |row| to_base(row, cost))
        .ranged("all busy, M frames/s", 1e6, |row| row.all.rate())
        .median("CPU ns/frame", 1.0, |row| row.all.summary(cost))
        .grouped(|row| (row.path, row.workers))
}

fn quiet_table(rows: &[Row], args: &ScaleArgs) -> Table {
    let idle_cpu = format!("idle CPU, ms in {} s", args.idle);
    let first = format!("of {}'s", args.vifs[0]);
    let base = |row| base_of(rows, row);
    let p50 = |r: &Record| r.p50().unwrap_or(0) as f64;
    let is_loaded = |row: &Row| row.requests.is_loaded_with(&base_of(rows, row).requests);
    let woken = |row: &Row| {
        let pairs = row.woken_ns.iter().copied().zip(base_of(rows, row).woken_ns.iter().copied());
        Some(Summary { is_loaded: is_loaded(row), ..Summary::of_ratios(pairs)? })
    };
    let idle = |row: &Row, what: usize| {
        Summary::of(&row.idle.iter().map(|idle| idle[what]).collect::<Vec<_>>()).map_or(0.0, |s| s.median)
    };
    let mib = |row: &Row, what: usize| {
        let most = row.memory.iter().map(|bytes| bytes[what]).max().unwrap_or(0);
        figure(most as f64 / f64::from(1 << 20))
    };
    let idle_to_base = |row, what| match is_loaded(row) {
        true => LOADED.into(),
        false => figure(idle(row, what) / idle(base(row), what).max(1.0)),
    };
    columns(rows)
        .median("request us, median", 1e3, |row| row.requests.middle(Record::p50))
        .median("99 %", 1e3, |row| row.requests.middle(Record::p99))
        .ranged(&first, 1.0, |row| row.requests.ratio_of(&base(row).requests, p50))
        .median("response us, median", 1e3, |row| row.responses.middle(Record::p50))
        .median("99 %", 1e3, |row| row.responses.middle(Record::p99))
        .median("syscalls/wake-up", 1.0, |row| row.requests.summary(syscalls_a_wakeup))
        .median("CPU us/wake-up", 1e3, |row| Summary::of(&row.woken_ns))
        .ranged(&first, 1.0, woken)
        .right(&idle_cpu, |row| figure(idle(row, 0) / 1e6))
        .right(&first, |row| idle_to_base(row, 0))
        .right("own MiB", move |row| mib(row, 0))
        .right("mapped MiB", move |row| mib(row, 1))
        .right("idle syscalls", |row| figure(idle(row, 1)))
        .right(&first, |row| idle_to_base(row, 1))
        .grouped(|row| (row.path, row.workers))
}

fn method(args: &ScaleArgs, cores: &Cores) -> String {
    format!(
        "Medians of {} repeats of {} s, in turns between machines with {} vifs that are all there at once; \"of {}'s\": against \
         such a machine, repeat by repeat, median and range.\n{}\n\
         A guest's rate depends on which pages it has, by a fifth and more: in each repeat another guest is the busy one, if there are \
         others, and there are {} machine(s) with {} vif(s).\n\
         Each vif is a guest's of its own; the guests are one process, whose one thread keeps the ring of the busy one full, or \
         those of all, with frames of {} B in bursts of 64.\n\
         The backend is in event mode. Request: a single frame of 64 B from the first guest to its port, both ends asleep before; \
         response: back from there. Wake-up: each time that an event of the guest woke the backend.\n\
         CPU: of the whole backend, by the kernel's account. Where other processes use the same cores, it says more than frames/s.\n\
         Idle: all vifs connected and nothing moves; all machines at the same time, once; system calls are \
         counted, and nothing else on the machine changes them.\n\
         Own, mapped: memory of the backend's process then, and pages of guests in it.",
        args.timing.repeats,
        args.timing.seconds,
        args.vifs.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
        args.vifs[0],
        cores.describe(),
        bases(args.vifs[0], args.timing.repeats),
        args.vifs[0],
        args.size,
    )
}
