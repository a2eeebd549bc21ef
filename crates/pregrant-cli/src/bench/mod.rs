//! `pregrant bench`: measurements, as a table for people and as JSON lines for programs.

pub mod latency;
pub mod limit;
pub mod neighbour;
pub mod net;
pub mod published;
pub mod record;
pub mod stats;
pub mod store;
pub mod store_load;
pub mod table;

use crate::report::Report;
use clap::Subcommand;
use record::RecordWriter;
use std::path::Path;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Frames through a vif, path by path
    Net(net::NetArgs),
    /// One frame at a time: how long requests and responses take
    Latency(latency::LatencyArgs),
    /// What a greedy, broken or noisy guest costs another one at the same backend
    Neighbour(neighbour::NeighbourArgs),
    /// The machine's own ceiling: lines between cores, memcpy, process_vm_readv, wake-ups
    Limit(limit::LimitArgs),
    /// Operations a second of xenstored, over sockets and of its core alone
    Store(store::StoreArgs),
    /// The process that `bench limit` reads from
    #[command(hide = true)]
    LimitTarget,
}

/// Runs it.
pub fn run(command: BenchCommand) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        BenchCommand::Net(args) => net::run(args),
        BenchCommand::Latency(args) => latency::run(args),
        BenchCommand::Neighbour(args) => neighbour::run(args),
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
