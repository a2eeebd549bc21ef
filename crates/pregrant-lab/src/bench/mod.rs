//! `pregrant-lab bench`: measurements, as a table for people and as JSON lines for programs.
//!
//! ```text
//!   stand, crowd, blk::stand    a machine with its processes
//!        |  a case, a load
//!        v
//!   a bench's Row --> Repeats: a record for each repeat --> Run (output): JSON lines, the page of a report, a table
//!        ^
//!   timing: how long, how often, in turns
//! ```

pub(crate) mod between;
pub(crate) mod blk;
pub(crate) mod core_placement;
pub(crate) mod crowd;
pub(crate) mod fairness;
pub(crate) mod grant;
pub(crate) mod hook;
pub(crate) mod latency;
pub(crate) mod limit;
pub(crate) mod neighbour;
pub(crate) mod net;
pub(crate) mod output;
mod pairs;
pub(crate) mod peers;
mod program;
pub(crate) mod scale;
pub(crate) mod stand;
pub(crate) mod store;
pub(crate) mod timing;
pub(crate) mod working_set;

use crate::record::Record;
use clap::Subcommand;
use pregrant_cli::usage::Given;
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The bench.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Frames through a vif, path by path
    Net(net::NetArgs),
    /// Requests to a disk, path by path
    Blk(blk::BlkArgs),
    /// Savings by a frame hook of the guest's: frames that are dropped, and frames that are sent
    /// back
    Hook(hook::HookArgs),
    /// Frames from a guest's own buffers: how many the backend's table has, over the number of
    /// buffers
    WorkingSet(working_set::WorkingSetArgs),
    /// One frame at a time: how long requests and responses take
    Latency(latency::LatencyArgs),
    /// Cost of a greedy, broken or noisy guest for another one at the same backend
    Neighbour(neighbour::NeighbourArgs),
    /// Cost of 1 to 256 vifs for one backend: one of them busy, all of them, none
    Scale(scale::ScaleArgs),
    /// Shares of many equal guests, also beside a greedy one
    Fairness(fairness::FairnessArgs),
    /// A transfer from guest to guest through the switch, delivered in the sender's turn or in the
    /// receiver's
    Between(between::BetweenArgs),
    /// Frames through DPDK's memif and vhost-user, requests to a disk through vhost-user-blk, in
    /// turns with ours
    Peers(peers::PeersArgs),
    /// The machine's own ceiling: lines between cores, memcpy, process_vm_readv, wake-ups
    Limit(limit::LimitArgs),
    /// Time to grant, copy and revoke, by each version of the loopback's grant table
    Grant(grant::GrantArgs),
    /// Operations a second of xenstored, over sockets and of its core alone
    Store(store::StoreArgs),
    /// The process that `bench limit` reads from
    #[command(hide = true)]
    LimitTarget,
}

pub fn run(command: BenchCommand, given: &Given) -> Result<()> {
    match command {
        BenchCommand::Net(args) => net::run(args, given),
        BenchCommand::Blk(args) => blk::run(args, given),
        BenchCommand::Hook(args) => hook::run(args, given),
        BenchCommand::WorkingSet(args) => args.output.run(|run| working_set::measure(&args, run)),
        BenchCommand::Latency(args) => args.output.run(|run| latency::measure_all(&args, run)),
        BenchCommand::Neighbour(args) => args.lines.run(|run| neighbour::measure(&args, run)),
        BenchCommand::Scale(args) => args.lines.run(|run| scale::measure(&args, run)),
        BenchCommand::Fairness(args) => args.lines.run(|run| fairness::measure(&args, run)),
        BenchCommand::Between(args) => args.lines.run(|run| between::measure(&args, run)),
        BenchCommand::Peers(args) => args.output.run(|run| peers::measure(&args, run)),
        BenchCommand::Limit(args) => args.output.run(|run| limit::measure(&args, run)),
        BenchCommand::Grant(args) => args.lines.run(|run| grant::measure(&args, run)),
        BenchCommand::Store(args) => args.lines.run(|run| store::measure(&args, run)),
        BenchCommand::LimitTarget => limit::run_target(),
    }
}

/// Fails when a record has frames that were lost, repeated or damaged, or a wake-up that was
/// missed.
pub fn none_went_wrong<'a>(records: impl IntoIterator<Item = &'a Record>) -> Result<()> {
    let mut sums = [0; 4];
    let mut what = "frames";
    // Both directions' records of a latency have the same account.
    for r in records.into_iter().filter(|r| (&*r.bench, &*r.dir) != ("latency", "rx")) {
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
