//! `pregrant-lab bench grant`: what a grant costs the two domains, by each version of the grant
//! table.
//!
//! ```text
//!   core 1: guest    grant a burst of pages -->         --> revoke them one by one    then the same with pages that
//!   core 2: backend                          copy of each                              are given back all at once
//! ```
//! Both are threads of this process, so that nothing but the lines of the table and of the statuses
//! goes from core to core. A phase is timed as a whole, by the side whose work it is.

use super::Result;
use super::limit::pair;
use super::output::{Lines, Run};
use super::timing::{Timing, few, in_turns};
use crate::columns::{Columns, or_dash};
use crate::record::Record;
use crate::record::repeats::Repeats;
use pregrant::platform::{Access, CopyOp, GrantPool, LocalBytes, PeerMem, Platform};
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, GrantRef};
use pregrant_cli::choice::choice;
use pregrant_cli::table::Table;
use pregrant_loopback::{Broker, DomainSpec, GrantTableVersion, Hooks, Loopback};
use pregrant_testbed::limit::{cores, pin};
use pregrant_testbed::named;
use std::error::Error;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Arguments of `bench grant`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant-lab bench grant
  pregrant-lab bench grant --table v1,v2 --burst 1,64 --seconds 1 --repeats 9 --json out.jsonl

Run it on an idle machine with two cores; results from a loaded machine are meaningless.")]
pub struct GrantArgs {
    /// Grant tables, with commas between them
    #[arg(long, value_delimiter = ',', default_values = ["v1", "v2"], value_parser = choice(TABLES, GrantTableVersion::name))]
    pub table: Vec<GrantTableVersion>,
    /// Grants of a burst, with commas between the numbers
    #[arg(long, value_delimiter = ',', default_values_t = [64u16], value_parser = clap::value_parser!(u16).range(1..=512))]
    pub burst: Vec<u16>,
    /// Bytes that are copied of each page
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub size: u16,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub lines: Lines,
}

const TABLES: &[(GrantTableVersion, &str)] = &[
    (GrantTableVersion::V1, "the use of a page is noted in its grant"),
    (GrantTableVersion::V2, "the use of a page is noted apart from its grant"),
];

const BACK: DomId = DomId(0);
const GUEST: DomId = DomId(5);

named! {
    pub enum Op {
        /// A page is granted.
        Grant = "grant",
        /// Bytes of the page are copied, in a batch.
        Copy = "copy",
        /// The grant is revoked alone.
        Revoke = "revoke",
        /// The grant is revoked together with all grants of its region.
        Release = "release",
    }
}

const OPS: [Op; 4] = [Op::Grant, Op::Copy, Op::Revoke, Op::Release];

/// For each op of [`OPS`], its time, and how often it was done.
#[derive(Clone, Copy, Default)]
struct Spent {
    ns: [u64; OPS.len()],
    times: [u64; OPS.len()],
}

impl Spent {
    fn time<T>(&mut self, op: Op, times: usize, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.ns[op as usize] += start.elapsed().as_nanos() as u64;
        self.times[op as usize] += times as u64;
        done
    }
}

/// The message by which a burst is given to the backend, to be copied. The next type is the
/// backend's answer: what the copy cost.
type ToBack = Vec<GrantRef>;
type FromBack = std::result::Result<Spent, String>;

/// Receives one message, by polling if the other side has a core of its own.
fn next<T>(from: &Receiver<T>, shared_core: bool) -> Option<T> {
    loop {
        match from.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if shared_core => std::thread::yield_now(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
}

/// Runs the backend's side: copies pages as asked, until the guest has finished.
fn copy_bursts(
    back: &Loopback,
    size: u16,
    shared_core: bool,
    bursts: &Receiver<ToBack>,
    done: &SyncSender<FromBack>,
) {
    let mut bytes = Vec::new();
    let mut ops: Vec<CopyOp> = Vec::new();
    while let Some(grefs) = next(bursts, shared_core) {
        bytes.resize(grefs.len() * usize::from(size), 0);
        ops.clear();
        ops.extend(grefs.iter().enumerate().map(|(i, &gref)| CopyOp {
            gref,
            len: size,
            at: i as u32 * u32::from(size),
            ..CopyOp::NOTHING
        }));
        let mut spent = Spent::default();
        let copied = spent.time(Op::Copy, ops.len(), || {
            back.peer().copy(GUEST, LocalBytes::FromPeer(&mut bytes), &mut ops)
        });
        let failed = ops.iter().map(|op| op.status).find(|status| *status != GrantStatus::OKAY);
        let outcome = match (copied, failed) {
            (Ok(()), None) => Ok(spent),
            (Err(e), _) => Err(e.to_string()),
            (Ok(()), Some(status)) => Err(format!("a granted page was not copied: {status}")),
        };
        if done.send(outcome).is_err() {
            return;
        }
    }
}

/// A row of the table: a grant table version and a burst length, measured on a machine of its own.
struct Row {
    table: GrantTableVersion,
    burst: usize,
    records: [Repeats; OPS.len()],
}

impl Row {
    fn new(table: GrantTableVersion, burst: usize) -> Self {
        Self { table, burst, records: Default::default() }
    }

    fn measure(&self, args: &GrantArgs, [guest_core, back_core]: [usize; 2]) -> Result<Spent> {
        let shared_core = guest_core == back_core;
        let broker = Broker::start(None, Hooks::default())?;
        broker.use_grant_tables(self.table);
        broker.create_domain(DomainSpec::driver(BACK))?;
        broker.create_domain(DomainSpec::guest(GUEST))?;
        let (guest, back) = (broker.attach(GUEST)?, broker.attach(BACK)?);
        let (to_back, bursts) = sync_channel::<ToBack>(1);
        let (done, from_back) = sync_channel::<FromBack>(1);
        std::thread::scope(|scope| {
            let size = args.size;
            scope.spawn(move || {
                // If it cannot be pinned, the guest cannot either, and reports that.
                let _ = pin(back_core);
                copy_bursts(&back, size, shared_core, &bursts, &done);
            });
            // A thread of its own: this one stays where it may be.
            let run_for = Duration::from_secs_f64(args.timing.seconds);
            let guest = scope.spawn(move || -> std::result::Result<Spent, Box<dyn Error + Send + Sync>> {
                pin(guest_core)?;
                let copy = |grefs: &[GrantRef]| {
                    to_back.send(grefs.to_vec()).map_err(|_| "the backend's thread ended")?;
                    next(&from_back, shared_core).unwrap_or(Err("the backend's thread ended".into()))
                };
                // Once for caches and first touches.
                self.rounds(&guest, Duration::ZERO, copy)?;
                self.rounds(&guest, run_for, copy)
            });
            let spent = guest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            spent.map_err(|e| e.to_string().into())
        })
    }

    /// Runs the guest's side: rounds of all operations until the time is over, at least one round.
    fn rounds(
        &self,
        guest: &Loopback,
        run_for: Duration,
        copy: impl Fn(&[GrantRef]) -> FromBack,
    ) -> std::result::Result<Spent, Box<dyn Error + Send + Sync>> {
        let grants = guest.grants();
        let table = grants.per_frame().ok_or("the loopback grants page by page")?;
        let pages = table.pages(self.burst)?;
        let mut refs = vec![GrantRef::NONE; self.burst];
        let mut spent = Spent::default();
        let start = Instant::now();
        loop {
            let granted = spent.time(Op::Grant, self.burst, || {
                refs.iter_mut().enumerate().try_for_each(|(page, gref)| {
                    table.grant(BACK, &pages, page, Access::ReadOnly).map(|made| *gref = made)
                })
            });
            granted?;
            let copied = copy(&refs)?;
            spent.ns[Op::Copy as usize] += copied.ns[Op::Copy as usize];
            spent.times[Op::Copy as usize] += copied.times[Op::Copy as usize];
            spent
                .time(Op::Revoke, self.burst, || refs.iter().try_for_each(|gref| table.revoke(*gref)))
                .map_err(|_| "a page that was copied is in use")?;
            let region = grants.alloc(BACK, Access::ReadOnly, &mut refs)?;
            copy(&refs)?;
            spent
                .time(Op::Release, self.burst, || grants.release(region))
                .map_err(|_| "a region that was copied is in use")?;
            if start.elapsed() >= run_for {
                break;
            }
        }
        grants.release(pages).map_err(|_| "a revoked page is in use")?;
        Ok(spent)
    }

    fn record(&self, op: Op, spent: &Spent, size: u16) -> Record {
        let size = if op == Op::Copy { size.into() } else { 0 };
        let mut record = Record::new("grant", self.table.name(), op.name(), size);
        record.burst = self.burst as u32;
        record.count(spent.times[op as usize], spent.ns[op as usize] as f64 / 1e9);
        record.grant_copies = if op == Op::Copy { record.frames } else { 0 };
        record
    }
}

pub fn measure(args: &GrantArgs, run: &mut Run) -> Result<()> {
    let pair = pair(&cores()?)?;
    let bursts = args.burst.iter().map(|&burst| usize::from(burst));
    let mut rows: Vec<Row> =
        bursts.flat_map(|burst| args.table.iter().map(move |&table| Row::new(table, burst))).collect();
    let words = |row: &Row| format!("grant table {}, {} at a time", row.table.name(), row.burst);
    in_turns(run, args.timing.repeats, &mut rows, words, |run, row| {
        let spent = row.measure(args, pair)?;
        OPS.into_iter().try_for_each(|op| {
            let record = row.record(op, &spent, args.size);
            run.write(row.records[op as usize].push(record))
        })
    })?;
    run.print(table(&rows))?;
    run.print(method(args, pair))
}

fn table(rows: &[Row]) -> Table {
    let cells: Vec<(&Row, Op)> =
        rows.iter().flat_map(|row| OPS.into_iter().map(move |op| (row, op))).collect();
    let each = |(row, op): &(&Row, Op)| {
        row.records[*op as usize].summary(|r| r.seconds * 1e9 / r.frames.max(1) as f64)
    };
    let of_v1 = |(row, op): &(&Row, Op)| {
        let v1 = rows.iter().find(|v1| v1.table == GrantTableVersion::V1 && v1.burst == row.burst)?;
        let cost = |r: &Record| r.seconds / r.frames.max(1) as f64;
        let ratio = row.records[*op as usize].ratio_of(&v1.records[*op as usize], cost)?;
        (row.table != GrantTableVersion::V1).then_some(ratio)
    };
    Columns::of(&cells)
        .right("burst", |(row, _)| row.burst)
        .left("table", |(row, _)| row.table.name())
        .left("what", |(_, op)| op.name())
        .ranged("ns each", 1.0, each)
        .right("to v1", |cell| or_dash(of_v1(cell).map(|s| s.middle(1.0))))
        .grouped(|(row, _)| (row.burst, row.table.name()))
}

fn method(args: &GrantArgs, [guest, back]: [usize; 2]) -> String {
    let where_they_are = if guest == back {
        format!("Guest and backend share core {guest}, the only one, and the figures say little.")
    } else {
        format!("The guest is on core {guest}, the backend on core {back}.")
    };
    format!(
        "Medians of {} interleaved repeats of {} s. {where_they_are}\n\
         Each round: the guest grants a burst of pages one by one; the backend copies {} B of each, in one batch (a system call, or one for each of \
         less than 8); the guest revokes them one by one. Then it grants as many with a region, which are copied, and releases the region.\n\
         ns each: the time of a phase, by the side whose work it is, over the grants in it. To v1: the ratio of the same repeat's times.\n{}",
        args.timing.repeats,
        args.timing.seconds,
        args.size,
        few(args.timing.repeats)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_op_of_each_table_is_timed_once_for_each_grant() {
        use clap::Parser;
        #[derive(Parser)]
        struct Command {
            #[command(flatten)]
            args: GrantArgs,
        }
        let args = Command::parse_from(["grant", "--seconds", "0.01", "--burst", "3,9"]).args;
        let pair = pair(&cores().unwrap()).unwrap();
        let mut rows: Vec<Row> = GrantTableVersion::ALL.map(|table| Row::new(table, 9)).into();
        for row in &mut rows {
            let spent = row.measure(&args, pair).unwrap();
            assert!(spent.ns.iter().all(|ns| *ns > 0));
            assert!(spent.times.iter().all(|n| *n == spent.times[0] && n.is_multiple_of(9) && *n > 0));
            OPS.iter().for_each(|op| {
                let record = row.record(*op, &spent, args.size);
                row.records[*op as usize].push(record);
            });
        }
        let shown = table(&rows);
        assert_eq!(shown.rows().iter().filter(|row| !row.is_empty()).count(), 2 * OPS.len());
    }
}
