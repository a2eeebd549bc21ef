//! `pregrant-lab bench limit`: the machine's own ceiling.
//!
//! The rows answer one question each, with no driver in the way: how many cache lines a second can
//! go from one core to another, what more buffers than a ring has slots are worth, how fast memcpy
//! is, what grant copy's system call costs in batches,
//! what a wake-up costs. Repeats are interleaved, so that a slow phase of the machine hits all rows
//! alike.

use super::Result;
use super::output::{Output, Run};
use super::timing::Timing;
use crate::columns::{Columns, or_dash};
use crate::record::published::line_rate;
use crate::record::repeats::Repeats;
use crate::record::{Limit, Of, Record};
use pregrant_cli::screen;
use pregrant_cli::table::{Table, figure};
use pregrant_testbed::limit::lines::{self, Copies};
use pregrant_testbed::limit::remote::{self, Target};
use pregrant_testbed::limit::{self, Measured, memory, pool, wake};
use std::io;
use std::process::Command;
use std::time::Duration;

/// The hidden subcommand that runs the process whose memory is read.
const TARGET_SUBCOMMAND: [&str; 2] = ["bench", "limit-target"];

/// Arguments of `bench limit`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.value_parser(seconds)))]
#[command(
    after_help = "Examples:\n  pregrant-lab bench limit\n  pregrant-lab bench limit --seconds 1 --json limit.jsonl\n  \
    pregrant-lab bench limit --pool 256,512,1024,2048,4096,8192\n  pregrant-lab bench limit --pool 2048 --work 0,16,32,64\n\n\
    The first row is the headline: 64-byte frames in slots 256 bytes apart, one line handed per frame.\n\
    Run it on an idle machine; results from a loaded machine are meaningless."
)]
pub struct LimitArgs {
    #[command(flatten)]
    pub timing: Timing,
    /// Lines handed over at a time; try 8, 16 and 64 too, the best differs from machine to machine
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=i64::from(lines::MAX_BATCH)))]
    pub burst: u32,
    /// Buffers that frames of 64, 256 and 1500 bytes are handed over by, in a ring of 256 slots:
    /// powers of two
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [256u32, 2048, 8192], value_parser = buffers)]
    pub pool: Vec<u32>,
    /// Work of each end for a frame, as a chain of this many multiplications: it stands for a
    /// driver's own work, which does not overlap with copies
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0u32], value_parser = clap::value_parser!(u32).range(..=i64::from(pool::WORK_MAX)))]
    pub work: Vec<u32>,
    #[command(flatten)]
    pub output: Output,
}

fn buffers(text: &str) -> std::result::Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if (lines::SLOTS..=pool::BUFFERS_MAX).contains(&n) && n.is_power_of_two() => Ok(n),
        _ => Err("a power of two from 256 to 32768, for example 8192".into()),
    }
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.001..=3600.0).contains(&s) => Ok(s),
        _ => Err("a number of seconds from 0.001 to 3600, for example 0.5".into()),
    }
}

/// A row of the table, with what it measures and its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Row {
    Lines { stride: usize, copies: Copies },
    Pool { size: usize, buffers: u32, work: u32 },
    Memory { size: usize },
    Remote { size: usize },
    Wake,
}

/// All rows except those for pools, which follow the first of these.
const ROWS: [Row; 14] = [
    Row::Lines { stride: 256, copies: Copies::None },
    Row::Lines { stride: 64, copies: Copies::None },
    Row::Lines { stride: 2048, copies: Copies::None },
    Row::Lines { stride: 256, copies: Copies::Both },
    Row::Lines { stride: 64, copies: Copies::Both },
    Row::Memory { size: 64 },
    Row::Memory { size: 256 },
    Row::Memory { size: 1500 },
    Row::Memory { size: 65535 },
    Row::Remote { size: 64 },
    Row::Remote { size: 256 },
    Row::Remote { size: 1500 },
    Row::Remote { size: 4096 },
    Row::Wake,
];

/// Lengths of frames that are passed through a pool.
const POOLED: [usize; 3] = [64, 256, 1500];

/// Returns all rows, for these numbers of buffers and these amounts of other work.
fn rows(pools: &[u32], works: &[u32]) -> Vec<Row> {
    let lines = |row: &&Row| matches!(row, Row::Lines { .. });
    let pooled = POOLED.iter().flat_map(|&size| {
        let of = move |&buffers| works.iter().map(move |&work| Row::Pool { size, buffers, work });
        pools.iter().flat_map(of)
    });
    let (before, behind) = (ROWS.iter().filter(lines), ROWS.iter().filter(|row| !lines(row)));
    before.copied().chain(pooled).chain(behind.copied()).collect()
}

impl Row {
    fn needs_two_cores(self) -> bool {
        matches!(self, Row::Lines { .. } | Row::Pool { .. } | Row::Wake)
    }

    /// Creates the record of this row, with nothing counted yet.
    fn record(self, burst: u32) -> Record {
        let sized = |path, size, burst, stride, copies| Record {
            burst,
            platform: "host".into(),
            of: Of::Limit(Limit { stride, copies, pool: None, work: None }),
            ..Record::new("limit", path, "tx", size as u64)
        };
        let host = |path, size, burst, copies| sized(path, size, burst, None, copies);
        match self {
            Row::Lines { stride, copies } => {
                let (path, times) = match copies {
                    Copies::None => ("lines", 0),
                    Copies::Both => ("lines-copied", 2),
                };
                sized(path, lines::LINE, burst, Some(stride as u64), times)
            }
            Row::Pool { size, buffers, work } => {
                let stride = Some(pool::stride(size) as u64);
                let of = Of::Limit(Limit {
                    stride,
                    copies: 2,
                    pool: Some(buffers),
                    work: (work > 0).then_some(work),
                });
                Record { of, ..host("pool", size, burst, 2) }
            }
            Row::Memory { size } => host("memcpy", size, 1, 1),
            Row::Remote { size } => host("process-vm-readv", size, remote::PIECES as u32, 1),
            // A round trip moves the eight bytes of a counter each way.
            Row::Wake => Record { mode: "event".into(), ..host("eventfd-round-trip", 8, 1, 0) },
        }
    }

    fn label(self) -> String {
        self.record(1).ceiling()
    }

    fn measure(
        self,
        cores: [usize; 2],
        burst: u32,
        run_for: Duration,
        target: Option<&Target>,
    ) -> io::Result<Measured> {
        match self {
            Row::Lines { stride, copies } => lines::hand_over(cores, stride, burst, copies, run_for),
            Row::Pool { size, buffers, work } => pool::frames(cores, size, buffers, work, burst, run_for),
            Row::Memory { size } => memory::copy(cores[1], size, run_for),
            Row::Remote { size } => match target {
                Some(target) => target.read(cores[1], size, run_for),
                None => Err(io::Error::other("there is no process to read from")),
            },
            Row::Wake => wake::round_trips(cores, run_for),
        }
    }
}

/// Returns two of these cores; if there is only one, it is returned twice.
pub fn pair(cores: &[usize]) -> Result<[usize; 2]> {
    match cores {
        [a, b, ..] => Ok([*a, *b]),
        [only] => Ok([*only, *only]),
        [] => Err("the kernel names no core that this process may use; see taskset -p".into()),
    }
}

/// Measures every row and prints the table.
pub fn measure(args: &LimitArgs, run: &mut Run) -> Result<()> {
    let Timing { seconds, repeats } = args.timing;
    let cores = limit::cores()?;
    let mut notes = Vec::new();
    let pair = pair(&cores)?;
    if pair[0] == pair[1] {
        notes.push(
            "this process may use one core only: what needs two (lines, eventfd) is left out. Give it another one \
             (taskset, cpuset) to measure them"
                .to_string(),
        );
    }
    let target = Target::start(Command::new(std::env::current_exe()?).args(TARGET_SUBCOMMAND));
    let mut target = target.inspect_err(|e| notes.push(format!("process_vm_readv is left out: {e}"))).ok();

    let run_for = Duration::from_secs_f64(seconds);
    let mut rows: Vec<_> =
        rows(&args.pool, &args.work).into_iter().map(|row| (row, Repeats::default())).collect();
    let mut failed = vec![false; rows.len()];
    for repeat in 1..=repeats {
        run.progress.show(format_args!("bench limit: repeat {repeat} of {repeats}"));
        for ((row, records), failed) in rows.iter_mut().zip(&mut failed) {
            let no_target = matches!(row, Row::Remote { .. }) && target.is_none();
            if *failed || no_target || (row.needs_two_cores() && cores.len() < 2) {
                continue;
            }
            match row.measure(pair, args.burst, run_for, target.as_ref()) {
                Ok(m) => run.write(records.push(filled(row.record(args.burst), &m)))?,
                Err(e) => {
                    alive(&mut target)?;
                    *failed = true;
                    notes.push(format!("{}: {e}", row.label()));
                }
            }
        }
    }
    run.print(table(&rows))?;
    run.print(format_args!(
        "Medians of {repeats} repeats; cores {} and {}. A pool that the cores' private caches cannot hold is the limit of long frames, not \
         the ring's 256 slots. Line rate of 40 Gbit/s at 64 B: {} M frames/s.",
        pair[0],
        pair[1],
        figure(line_rate(40.0, 64) / 1e6)
    ))?;
    for note in &notes {
        screen::say(format_args!("note: {note}"));
    }
    alive(&mut target)?;
    if rows.iter().all(|(_, records)| records.0.is_empty()) {
        return Err("nothing could be measured; the notes above say why".into());
    }
    Ok(())
}

/// Returns an error if the target was killed. A missing result is then a failure, and not a
/// property of the machine.
fn alive(target: &mut Option<Target>) -> Result<()> {
    match target.as_mut().map(Target::check_alive) {
        Some(Err(e)) => Err(format!("{e}; its rows would be missing or wrong, run bench limit again").into()),
        _ => Ok(()),
    }
}

/// The two rows with which others are compared: single lines handed over (the headline), and grant
/// copy's system call at 64 B.
pub struct Ceiling {
    pair: [usize; 2],
    target: Target,
}

impl Ceiling {
    /// Number of lines that are passed on at a time, as in `bench limit` unless an option changes
    /// it.
    const BURST: u32 = 32;

    /// Starts the process whose memory is read. None: this process may use only one core.
    pub fn start() -> Result<Option<Self>> {
        let cores = limit::cores()?;
        let [a, b, ..] = cores[..] else { return Ok(None) };
        let target = Target::start(Command::new(std::env::current_exe()?).args(TARGET_SUBCOMMAND))?;
        Ok(Some(Self { pair: [a, b], target }))
    }

    /// Measures each of the two rows once: the lines, and process_vm_readv.
    pub fn measure(&self, seconds: f64) -> io::Result<[Record; 2]> {
        let row = |row: Row| {
            let m =
                row.measure(self.pair, Self::BURST, Duration::from_secs_f64(seconds), Some(&self.target))?;
            Ok::<_, io::Error>(filled(row.record(Self::BURST), &m))
        };
        Ok([row(ROWS[0])?, row(Row::Remote { size: 64 })?])
    }
}

fn filled(mut record: Record, m: &Measured) -> Record {
    record.count(m.frames, m.seconds);
    record.syscalls = m.syscalls;
    record.frontend_cpu_ns = m.giver_cpu_ns;
    record.backend_cpu_ns = m.taker_cpu_ns;
    record
}

fn table(rows: &[(Row, Repeats)]) -> Table {
    let millions = |v: f64| figure(v / 1e6);
    Columns::of(rows.iter().filter(|(_, records)| records.rate().is_some()))
        .left("what", |(row, _)| row.label())
        .right("size B", |(row, _)| row.record(1).size_bytes)
        .median("M/s", 1e6, |(_, records)| records.rate())
        .right("min", |(_, records)| or_dash(records.rate().map(|s| millions(s.min))))
        .right("max", |(_, records)| or_dash(records.rate().map(|s| millions(s.max))))
        .right("ns each", |(_, records)| or_dash(records.rate().map(|s| figure(1e9 / s.median))))
        .median("Gbit/s", 1e9, |(_, records)| records.summary(|r| r.bits_per_s))
        .grouped(|(row, _)| std::mem::discriminant(row))
}

/// Runs the process whose memory is read: sleeps until its standard input ends.
pub fn run_target() -> Result<()> {
    Ok(remote::serve_target(std::io::stdin().lock(), std::io::stdout().lock())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant_cli::table::width;

    #[test]
    fn the_headline_is_the_first_row_and_unmistakable() {
        let headline = ROWS[0].record(32);
        assert_eq!((headline.path.as_str(), headline.size_bytes), ("lines", 64));
        let lines = Some(&Limit { stride: Some(256), copies: 0, pool: None, work: None });
        assert_eq!(headline.of.limit(), lines);
        let same = ROWS.iter().filter(|r| {
            let r = r.record(32);
            (r.size_bytes, r.of.limit()) == (64, lines)
        });
        assert_eq!(same.count(), 1);
    }

    #[test]
    fn the_table_fits_a_terminal_and_leaves_out_what_was_not_measured() {
        let rates = [123_456_789.0, 1.0, 987_654_321.0];
        let of = |row: Row| rates.map(|frames_per_s| Record { frames_per_s, ..row.record(1) });
        let mut rows: Vec<_> = super::rows(&[256, 32768], &[0, 4096])
            .into_iter()
            .map(|row| (row, Repeats(of(row).into())))
            .collect();
        let text = table(&rows).to_string();
        assert!(text.lines().all(|line| width(line) <= 100), "{text}");
        rows.last_mut().unwrap().1.0.clear();
        assert!(text.contains("eventfd") && !table(&rows).to_string().contains("eventfd"));
    }

    #[test]
    fn a_record_is_filled_from_what_was_counted() {
        let m = Measured { frames: 1000, seconds: 0.5, giver_cpu_ns: 7, taker_cpu_ns: 8, syscalls: 9 };
        let mut records = Repeats::default();
        (0..3).for_each(|_| drop(records.push(ROWS[0].record(32)).clone()));
        let r = records.push(filled(ROWS[0].record(32), &m));
        assert_eq!((r.repeat, r.frames, r.frames_per_s, r.syscalls), (3, 1000, 2000.0, 9));
        assert_eq!((r.frontend_cpu_ns, r.backend_cpu_ns, r.burst, r.mode.as_str()), (7, 8, 32, "poll"));
    }

    #[test]
    fn seconds_have_to_make_sense() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "NaN", "inf", "x", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
