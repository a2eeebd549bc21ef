//! `pregrant-lab bench between`: a TCP transfer from one guest to another through the backend's
//! switch, with frames delivered in the receiver's turn or in the sender's.
//!
//! Three processes, anywhere on the machine: client, server, and a backend with one worker, as the
//! demo has them.

use super::Result;
use super::output::{Lines, Run};
use super::timing::{few, in_turns};
use crate::columns::{Columns, or_dash};
use crate::record::repeats::Repeats;
use crate::record::{Between, Of, Record};
use crate::stage::{DATA_LEN, MTU, Stage, TRANSFER_BYTES, WORKERS};
use pregrant_cli::choice::choice;
use pregrant_cli::table::{Table, figure};
use pregrant_host::drivers::RxContext;

/// Arguments of `bench between`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant-lab bench between
  pregrant-lab bench between --rx-context same,worker --repeats 9 --json out.jsonl

Run it on an idle machine; results from a loaded machine are meaningless.")]
pub struct BetweenArgs {
    /// In whose turn frames go into the receiver's ring, with commas between the contexts
    #[arg(long, value_delimiter = ',', default_values = ["worker", "same"], value_parser = choice(CONTEXTS, RxContext::name))]
    pub rx_context: Vec<RxContext>,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    #[command(flatten)]
    pub lines: Lines,
}

const CONTEXTS: &[(RxContext, &str)] =
    &[(RxContext::Worker, "the receiver's"), (RxContext::Same, "the sender's")];

struct Row {
    context: RxContext,
    records: Repeats,
}

impl Row {
    fn measure(&mut self) -> Result<&Record> {
        let mut stage = Stage::start_with(self.context)?;
        stage.begin(None, || ())?;
        let done = stage.end()?;
        let (repeated, lost) = done.repeated_and_lost()?;
        let mut record = Record::new("between", "staging", "tx", MTU as u64 + 14);
        record.count(done.frames() / 2, done.sent.seconds);
        record.bits_per_s = done.received.bytes as f64 * 8.0 / done.sent.seconds.max(1e-9);
        record.data_len = Some(DATA_LEN.into());
        record.mode = "adaptive".into();
        record.workers = Some(WORKERS as u32);
        record.of = Of::Between(Between { rx_context: self.context.name().into() });
        record.backend_cpu_ns = done.switched.cpu_ns;
        record.notifications = done.sent.notifications + done.received.notifications;
        (record.lost, record.repeated) = (lost, Some(repeated));
        record.missed_wakeups = Some(done.missed_wakeups());
        Ok(self.records.push(record))
    }
}

pub fn measure(args: &BetweenArgs, run: &mut Run) -> Result<()> {
    let rows = args.rx_context.iter().map(|&context| Row { context, records: Repeats::default() });
    let mut rows: Vec<Row> = rows.collect();
    let words = |row: &Row| format!("rx context {}", row.context);
    in_turns(run, args.repeats, &mut rows, words, |run, row| run.write(row.measure()?))?;
    run.print(table(&rows))?;
    run.print(format_args!(
        "Medians of {} interleaved repeats: each a new machine, and {} MiB over TCP in packets of {MTU} B, by staging. Frames: those of \
         both directions. To worker: the ratio to the same repeat's transfer with --rx-context worker.\n{}",
        args.repeats,
        TRANSFER_BYTES >> 20,
        few(args.repeats)
    ))
}

fn table(rows: &[Row]) -> Table {
    let to_worker = |row: &Row| {
        let worker = rows.iter().find(|row| row.context == RxContext::Worker)?;
        (row.context != RxContext::Worker).then(|| row.records.ratio_of(&worker.records, |r| r.bits_per_s))?
    };
    Columns::of(rows)
        .left("rx context", |row| row.context)
        .ranged("Gbit/s", 1e9, |row| row.records.summary(|r| r.bits_per_s))
        .right("to worker", |row| or_dash(to_worker(row).map(|s| s.middle(1.0))))
        .right("backend ns/frame", |row| figure(row.records.each(|r| r.backend_cpu_ns)))
        .right("events/frame", |row| figure(row.records.each(|r| r.notifications)))
        .all()
}
