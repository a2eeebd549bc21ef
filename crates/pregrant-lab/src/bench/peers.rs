//! `pregrant-lab bench peers`: frames through our paths and through DPDK's memif and vhost-user, in
//! turns on the same two cores; then [requests to disks](disks), beside vhost-user-blk.
//!
//! ```text
//!   ring | staging tx 64 B | ring | memif tx 64 B | ring | vhost-user tx 64 B | ring | staging rx ...      a repeat
//! ```
//! Machines that are shared have phases: the cores are far from each other for some time, or slow.
//! A bare ring before and after each row says which phase it had. Rows of one repeat are compared
//! only where their rings were alike.

mod disks;
mod huge_pages;
mod testpmd;

use super::net::{NetPath, PATHS, Row};
use super::output::{Output, Run};
use super::stand::Stand;
use super::timing::{Timing, few, in_turns};
use super::{Result, limit};
use crate::columns::{Columns, or_dash};
use crate::record::repeats::Repeats;
use crate::record::stats::Summary;
use crate::record::{Of, Peers, Record};
use pregrant::net::path::PathName;
use pregrant::net::path::staging::list::DataLen;
use pregrant_cli::choice::choice;
use pregrant_cli::table::Table;
use pregrant_host::drivers::Mode;
use pregrant_host::drivers::net::buffer_pool;
use pregrant_testbed::limit::lines::{self, Copies};
use pregrant_testbed::named;
use pregrant_testbed::process::process_command::{BUFFERS_MAX, Dir, RING_SLOTS};
use std::time::Duration;
use testpmd::Pair;

/// Largest number of frames in one of our bursts.
const BURST: u32 = 64;
/// The time that a bare ring is measured.
const RING: Duration = Duration::from_millis(50);
/// Two rates of a bare ring count as equal if they differ by no more than this.
const ALIKE: f64 = 0.2;
/// Longest frame that fits a buffer of memif or vhost-user here.
const LONGEST: i64 = 1514;

/// Arguments of `bench peers`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("0.3")))]
#[command(after_help = "Examples:
  pregrant-lab bench peers
  pregrant-lab bench peers --size 1500 --dir rx --repeats 9 --json peers.jsonl
  pregrant-lab bench peers --peer vhost-user-blk --repeats 9

Frames need dpdk-testpmd (Debian: apt install dpdk-dev librte-net-memif23 librte-net-vhost23 librte-net-virtio23) and huge pages, which it
asks for and never sets up; disks need qemu-storage-daemon (qemu-system-common). Peers that cannot be measured are named, with the reason.
Run it on an idle machine with two cores; results from a loaded machine are meaningless.")]
pub struct PeersArgs {
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [PathName::Staging], value_parser = choice(PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// The others; ours are measured beside: frames for the first two, disks for the last
    #[arg(long, value_delimiter = ',', default_values_t = [Peer::Memif, Peer::VhostUser, Peer::VhostUserBlk])]
    pub peer: Vec<Peer>,
    /// Directions, as the guest sees them
    #[arg(long, value_delimiter = ',', default_values_t = [Dir::Tx, Dir::Rx])]
    pub dir: Vec<Dir>,
    /// Bytes of a frame, headers included
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 256, 1500], value_parser = clap::value_parser!(u32).range(60..=LONGEST))]
    pub size: Vec<u32>,
    /// Staging buffers of each direction; without it as many as `pregrant front` has at `pregrant
    /// back`: twice a core's private cache, within what a vif is allowed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(i64::from(RING_SLOTS)..=i64::from(BUFFERS_MAX)))]
    pub buffers: Option<u32>,
    /// Requests in flight, to disks
    #[arg(long, value_delimiter = ',', default_values_t = [1u16, 32, 256], value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: Vec<u16>,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

named! {
    /// The other implementation, measured beside this one for comparison.
    pub enum Peer {
        /// DPDK's memif; the guest is its client
        Memif = "memif",
        /// DPDK's vhost-user, split rings; the guest is virtio-user
        VhostUser = "vhost-user",
        /// A disk of qemu-storage-daemon, by vhost-user
        VhostUserBlk = "vhost-user-blk",
    }
}

enum By {
    Ours(Box<Row>),
    Peer(Peer),
}

struct Line {
    by: By,
    dir: Dir,
    size: u32,
    records: Repeats,
}

impl Line {
    fn name(&self) -> &'static str {
        match &self.by {
            By::Ours(row) => row.name(),
            By::Peer(peer) => peer.name(),
        }
    }

    /// Returns true if this is the row of a peer that moves the same frames.
    fn is_peer_of(&self, other: &Self) -> bool {
        matches!(self.by, By::Peer(_)) && (self.dir, self.size) == (other.dir, other.size)
    }
}

pub fn measure(args: &PeersArgs, run: &mut Run) -> Result<()> {
    let cores = limit::pair(&pregrant_testbed::limit::cores()?)?;
    if cores[0] == cores[1] {
        return Err("this process may use one core only, and a ring needs two (taskset, cpuset)".into());
    }
    let ring = || -> Result<f64> {
        let lines = lines::hand_over(cores, 256, 32, Copies::None, RING)?;
        Ok(lines.frames as f64 / lines.seconds)
    };
    let (disks, frames): (Vec<Peer>, Vec<Peer>) =
        args.peer.iter().partition(|&&peer| peer == Peer::VhostUserBlk);
    let mut missing = Vec::new();
    if !frames.is_empty() {
        missing.extend(measure_frames(args, &frames, cores, ring, run)?);
    }
    if !disks.is_empty() {
        missing.extend(disks::measure(args, ring, run)?);
    }
    run.print(few(args.timing.repeats))?;
    for what in &missing {
        run.print(format_args!("Not measured: {what}."))?;
    }
    Ok(())
}

/// Measures the rows of frames. Returns the peers that could not be measured, each with the reason.
fn measure_frames(
    args: &PeersArgs,
    peers: &[Peer],
    cores: [usize; 2],
    ring: impl Fn() -> Result<f64>,
    run: &mut Run,
) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    let mut pairs = Vec::new();
    for &peer in peers {
        match Pair::start(peer, cores) {
            Ok(pair) => pairs.push((peer, pair)),
            Err(e) => missing.push(format!("{peer}: {e}")),
        }
    }
    let mut lines = Vec::new();
    for &size in &args.size {
        for &dir in &args.dir {
            let line = |by| Line { by, dir, size, records: Repeats::default() };
            for &path in args.path.iter().filter(|&&path| NetPath::of(path).serves(dir)) {
                // A frame fits its staging buffer, as it fits the others' buffers.
                let data_len = if size <= 256 { 256 } else { 2048 };
                let Row { mut case, .. } = Row::new(path, dir, size as usize, data_len);
                if path == PathName::Staging {
                    let len = DataLen::new(data_len).ok_or("no length of a staging buffer")?;
                    let usual = || buffer_pool::offered(len).max(RING_SLOTS);
                    case.staging_buffers = args.buffers.unwrap_or_else(usual);
                }
                lines.push(line(By::Ours(Box::new(Row::of("peers", case)))));
            }
            lines.extend(pairs.iter().map(|(peer, _)| line(By::Peer(*peer))));
        }
    }
    let mut stand = Stand::start()?;
    let mut before = ring()?;
    let words = |line: &Line| format!("{} {} {} B", line.name(), line.dir, line.size);
    in_turns(run, args.timing.repeats, &mut lines, words, |run, line| {
        let mut record = match &mut line.by {
            By::Ours(row) => {
                let record = row.measure(&mut stand, args.timing.seconds, BURST, Mode::Poll, 1)?.clone();
                run.page.platform(&row.platform);
                record
            }
            By::Peer(peer) => {
                let pair = pairs.iter_mut().find(|(of, _)| of == peer);
                let (_, pair) = pair.ok_or("a peer that was not started")?;
                let (frames, seconds) = pair.play(line.dir, line.size, args.timing.seconds)?;
                let mut record = Record::new("peers", peer.name(), line.dir.name(), line.size.into());
                record.count(frames, seconds);
                Record { platform: "host".into(), ..record }
            }
        };
        let after = ring()?;
        record.of = Of::Peers(Peers { ring_per_s: [before, after], ours: record.net().cloned() });
        before = after;
        run.write(line.records.push(record))
    })?;
    run.print(table(&lines))?;
    run.print(format_args!(
        "Medians of {} interleaved repeats of {} s, poll mode, one queue; guest on core {}, the other end on core {}. \
         testpmd: txonly into rxonly, frames counted by the receiver; memif with rings of 1024 and buffers of 2048, vhost-user with \
         rings of 256.\n{}",
        args.timing.repeats,
        args.timing.seconds,
        cores[0],
        cores[1],
        rings_words()
    ))?;
    Ok(missing)
}

fn rings_words() -> String {
    format!(
        "ring M/s: lines a second through a bare ring before and after the row. A repeat in which the rings of two rows differ by more \
         than {} % is not compared; in brackets, how many were.",
        ALIKE * 100.0
    )
}

fn ring_per_s(record: &Record) -> [f64; 2] {
    let disk = || record.of.disk()?.ring_per_s;
    record.of.peers().map(|of| of.ring_per_s).or_else(disk).unwrap_or_default()
}

/// Returns the rate of the bare ring: at index 0 before a row's repeats, at index 1 after them.
fn ring(records: &Repeats, at: usize) -> Option<Summary> {
    records.summary(|r| ring_per_s(r)[at])
}

/// True if two records were measured in the same phase of the machine, by the rate of a bare ring.
fn alike(a: &Record, b: &Record) -> bool {
    let rings = [a, b].map(ring_per_s);
    let (least, most) =
        rings.iter().flatten().fold((f64::MAX, 0.0), |(least, most), ring| (ring.min(least), ring.max(most)));
    least > 0.0 && most <= least * (1.0 + ALIKE)
}

/// Describes the ratio of one row to another, from repeats in the same phase of the machine, and
/// the number of these repeats.
fn times(row: &Repeats, base: &Repeats) -> String {
    let repeats = row.iter().zip(base.iter());
    let same = repeats.filter(|(a, b)| alike(a, b) && b.frames_per_s > 0.0);
    let all: Vec<_> = same.map(|(a, b)| a.frames_per_s / b.frames_per_s).collect();
    let of = format!("({} of {})", all.len(), row.0.len());
    let times = Summary::of(&all).map(|times| Summary { is_loaded: row.is_loaded_with(base), ..times });
    times.map_or(format!("- {of}"), |times| format!("{times} {of}"))
}

/// Returns the ratio of one of our rows to the better peer; None for a row of a peer.
fn times_the_better(lines: &[Line], line: &Line) -> Option<String> {
    let By::Ours(_) = line.by else { return None };
    let peers = lines.iter().filter(|other| other.is_peer_of(line));
    let better = peers.max_by(|a, b| {
        let rate = |line: &Line| line.records.rate().map_or(0.0, |rate| rate.median);
        rate(a).total_cmp(&rate(b))
    })?;
    Some(times(&line.records, &better.records))
}

fn table(lines: &[Line]) -> Table {
    Columns::of(lines)
        .left("by", Line::name)
        .left("dir", |line| line.dir)
        .right("size B", |line| line.size)
        .right("buffers", |line| or_dash(line.records.first().net().and_then(|net| net.staging_buffers)))
        .ranged("M frames/s", 1e6, |line| line.records.rate())
        .median("Gbit/s", 1e9, |line| line.records.summary(|r| r.bits_per_s))
        .median("ring M/s before", 1e6, |line| ring(&line.records, 0))
        .median("after", 1e6, |line| ring(&line.records, 1))
        .left("times the better peer", |line| or_dash(times_the_better(lines, line)))
        .grouped(|line| (line.size, line.dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(by: By, rates: &[(f64, f64)]) -> Line {
        let record = |&(frames_per_s, ring): &(f64, f64)| Record {
            frames_per_s,
            of: Of::Peers(Peers { ring_per_s: [ring, ring * 1.1], ours: None }),
            ..Record::default()
        };
        Line { by, dir: Dir::Tx, size: 64, records: Repeats(rates.iter().map(record).collect()) }
    }

    #[test]
    fn rows_of_unlike_phases_are_not_compared() {
        let row = Row::new(PathName::Staging, Dir::Tx, 64, 256);
        let ours = By::Ours(Box::new(row));
        let lines = [
            line(ours, &[(40.0, 50.0), (30.0, 50.0), (40.0, 50.0)]),
            line(By::Peer(Peer::Memif), &[(20.0, 52.0), (20.0, 20.0), (10.0, 50.0)]),
            line(By::Peer(Peer::VhostUser), &[(1.0, 50.0); 3]),
        ];
        assert_eq!(times_the_better(&lines, &lines[0]).unwrap(), "3.00 (2.00..4.00) (2 of 3)");
        assert_eq!(times_the_better(&lines, &lines[1]), None);
        assert!(table(&lines).to_string().contains("2 of 3"));
    }

    #[test]
    fn a_ring_that_changed_meanwhile_is_like_none() {
        let record =
            |ring_per_s| Record { of: Of::Peers(Peers { ring_per_s, ours: None }), ..Record::default() };
        let [steady, changed] = [[50.0, 55.0], [50.0, 90.0]].map(record);
        assert!(alike(&steady, &steady));
        assert!(!alike(&steady, &changed) && !alike(&changed, &changed));
        assert!(!alike(&steady, &Record::default()), "no ring");
    }
}
