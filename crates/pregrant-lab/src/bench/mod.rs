//! `pregrant bench`: measurements, as a table for people and as JSON lines for programs.

pub(crate) mod blk;
pub(crate) mod crowd;
pub(crate) mod fairness;
pub(crate) mod hook;
pub(crate) mod latency;
pub(crate) mod limit;
pub(crate) mod neighbour;
pub(crate) mod net;
mod pairs;
pub(crate) mod scale;
pub(crate) mod seating;
pub(crate) mod store;
pub(crate) mod store_load;
pub(crate) mod working_set;

use crate::record::{Record, RecordWriter};
use crate::report::Report;
use crate::usage::Given;
use clap::Subcommand;
use std::path::Path;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Frames through a vif, path by path
    Net(net::NetArgs),
    /// Requests to a disk, path by path
    Blk(blk::BlkArgs),
    /// What a frame hook of the guest's saves: frames that are dropped, and frames that are sent back
    Hook(hook::HookArgs),
    /// Frames from a guest's own buffers: how many the backend's table has, over the number of buffers
    WorkingSet(working_set::WorkingSetArgs),
    /// One frame at a time: how long requests and responses take
    Latency(latency::LatencyArgs),
    /// What a greedy, broken or noisy guest costs another one at the same backend
    Neighbour(neighbour::NeighbourArgs),
    /// What 1 to 256 vifs cost one backend: one of them busy, all of them, none
    Scale(scale::ScaleArgs),
    /// What each of many equal guests gets, and beside a greedy one
    Fairness(fairness::FairnessArgs),
    /// The machine's own ceiling: lines between cores, memcpy, process_vm_readv, wake-ups
    Limit(limit::LimitArgs),
    /// Operations a second of xenstored, over sockets and of its core alone
    Store(store::StoreArgs),
    /// The process that `bench limit` reads from
    #[command(hide = true)]
    LimitTarget,
}

/// Runs it.
pub fn run(command: BenchCommand, given: &Given) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        BenchCommand::Net(args) => net::run(args, given),
        BenchCommand::Blk(args) => blk::run(args, given),
        BenchCommand::Hook(args) => hook::run(args),
        BenchCommand::WorkingSet(args) => working_set::run(args),
        BenchCommand::Latency(args) => latency::run(args),
        BenchCommand::Neighbour(args) => neighbour::run(args),
        BenchCommand::Scale(args) => scale::run(args),
        BenchCommand::Fairness(args) => fairness::run(args),
        BenchCommand::Limit(args) => limit::run(args),
        BenchCommand::Store(args) => store::run(args),
        BenchCommand::LimitTarget => limit::run_target(),
    }
}

/// Measures with somewhere to write to: JSON lines, and the page of a report, which is written also when the run failed.
fn reported(
    json: Option<&Path>,
    report: Option<&Path>,
    measure: impl FnOnce(&mut RecordWriter, &mut Report) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut json = RecordWriter::open(json)?;
    let mut report = Report::open(report)?;
    let outcome = measure(&mut json, &mut report);
    if let (Some(place), false) = (report.write(json.written(), &outcome)?, json.is_stdout()) {
        crate::screen::print(format_args!("Report: {}", place.display()))?;
    }
    outcome
}

/// Fails when a record has frames that were lost, repeated or damaged, or a wake-up that was missed.
pub fn none_went_wrong<'a>(
    records: impl Iterator<Item = &'a Record>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut sums = [0; 4];
    let mut what = "frames";
    for r in records {
        if r.bench == "blk" {
            what = "requests";
        }
        let all = [Some(r.lost), r.repeated, r.damaged, r.missed_wakeups];
        sums.iter_mut().zip(all).for_each(|(sum, n)| *sum += n.unwrap_or(0));
    }
    let words = [
        format!("{what} lost"),
        format!("{what} repeated or late"),
        format!("{what} damaged"),
        "wake-ups missed".into(),
    ];
    let wrong: Vec<String> =
        sums.iter().zip(words).filter(|(n, _)| **n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}: no row here may have one; see the fields lost, repeated, damaged, missed_wakeups",
        wrong.join(", ")
    )
    .into())
}
