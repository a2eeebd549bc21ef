//! `pregrant bench`: measurements, as a table for people and as JSON lines for programs.

pub mod limit;
// Its other rows are for the benchmarks of the paths.
#[allow(dead_code)]
pub mod published;
pub mod record;
pub mod stats;
pub mod table;

use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The machine's own ceiling: lines between cores, memcpy, process_vm_readv, wake-ups
    Limit(limit::LimitArgs),
    /// The process that `bench limit` reads from
    #[command(hide = true)]
    LimitTarget,
}

/// Runs it.
pub fn run(command: BenchCommand) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        BenchCommand::Limit(args) => limit::run(args),
        BenchCommand::LimitTarget => limit::run_target(),
    }
}
