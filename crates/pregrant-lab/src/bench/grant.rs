//! `pregrant-lab bench grant`: what a grant costs the two domains, by each version of the grant
//! table.

use super::Result;
use super::limit::pair;
use super::output::{Lines, Run};
use super::timing::{Timing, few, in_turns};
use crate::columns::{Columns, or_dash};
use crate::record::Record;
use crate::record::repeats::Repeats;
use pregrant_cli::choice::choice;
use pregrant_cli::table::Table;
use pregrant_loopback::GrantTableVersion;
use pregrant_testbed::grant_cost::{self, OPS, Op, Spent};
use pregrant_testbed::limit::cores;
use std::time::Duration;

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

    fn measure(&self, args: &GrantArgs, cores: [usize; 2]) -> Result<Spent> {
        let run_for = Duration::from_secs_f64(args.timing.seconds);
        grant_cost::measure(self.table, (self.burst, args.size), cores, run_for)
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
