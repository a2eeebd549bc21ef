//! Disks of `bench peers`: the same requests to files in memory by our `persistent` and through a
//! vhost-user-blk server, in turns.
//!
//! ```text
//!   ring | persistent read, depth 1 | ring | vhost-user-blk read, depth 1 | ring | persistent write ...     a repeat
//! ```

use super::{PeersArgs, rings_words, times};
use crate::bench::Result;
use crate::bench::blk;
use crate::bench::blk::anchors::{VHOST_USER, VhostUser};
use crate::bench::blk::medium::{Files, Medium};
use crate::bench::blk::stand::{Most, Plan, Stand};
use crate::bench::blk::storage_daemon::Folder;
use crate::bench::output::Run;
use crate::bench::timing::in_turns;
use crate::columns::{Columns, or_dash};
use crate::record::repeats::Repeats;
use crate::record::{Disk, Of, Record};
use pregrant::blk::path::PathName;
use pregrant_cli::table::Table;
use pregrant_testbed::process::disks::disks_command::{Buffers, Dir, Load};

/// Length and alignment of a request in bytes.
const SIZE: usize = 4096;

const PLAN: Plan =
    Plan { path: PathName::Persistent, buffers: Buffers::Pool, medium: Medium::File, guests: 1, workers: 1 };

struct Line {
    ours: Option<Box<blk::Row>>,
    dir: Dir,
    depth: u16,
    records: Repeats,
}

impl Line {
    fn name(&self) -> &'static str {
        if self.ours.is_some() { PathName::Persistent.name() } else { VHOST_USER }
    }
}

/// Measures the disks. Returns the reason if the peer could not be measured.
pub fn measure(args: &PeersArgs, ring: impl Fn() -> Result<f64>, run: &mut Run) -> Result<Option<String>> {
    let folder = Folder::make("peers")?;
    let depth = args.depth.iter().copied().max().unwrap_or(1).into();
    let (mut peer, missing) = match VhostUser::start(&folder, depth, SIZE) {
        Ok(peer) => (Some(peer), None),
        Err(why) => (None, Some(format!("{VHOST_USER}: {why}"))),
    };
    let image = folder.dir.join("persistent");
    let most = Most { depth, size: SIZE, in_flight: depth * SIZE };
    let mut stand = Stand::start(PLAN, &most, Some(Files { first: &image, made: 0 }))?;
    stand.gives_way = stand.core_placement.shares_guests_core();
    let mut lines = Vec::new();
    for &depth in &args.depth {
        for dir in [Dir::Read, Dir::Write] {
            let row = Box::new(blk::Row::of(PLAN, dir, SIZE, SIZE, depth.into()));
            let line = |ours| Line { ours, dir, depth, records: Repeats::default() };
            lines.push(line(Some(row)));
            lines.extend(peer.as_ref().map(|_| line(None)));
        }
    }
    let seconds = args.timing.seconds;
    let mut before = ring()?;
    let words = |line: &Line| format!("{} {}, depth {}", line.name(), line.dir, line.depth);
    in_turns(run, args.timing.repeats, &mut lines, words, |run, line| {
        let mut record = match (&mut line.ours, &mut peer) {
            (Some(row), _) => Record { bench: "peers".into(), ..row.measure(&mut stand, seconds)?.clone() },
            (None, Some(peer)) => {
                let mut record = Record::new("peers", VHOST_USER, line.dir.name(), SIZE as u64);
                let load = Load::of(line.dir, SIZE, SIZE, line.depth.into());
                peer.measure(&load, seconds, &mut record)?;
                record.depth = Some(line.depth.into());
                record.of = Of::Disk(Disk { guests: 1, ..Disk::default() });
                Record { platform: "host".into(), ..record }
            }
            (None, None) => return Err("a peer that was not started".into()),
        };
        let after = ring()?;
        if let Of::Disk(disk) = &mut record.of {
            disk.ring_per_s = Some([before, after]);
        }
        before = after;
        run.write(line.records.push(record))
    })?;
    run.print(table(&lines))?;
    run.print(format_args!(
        "Requests of {SIZE} B at random places of files in memory, 256 MiB; both ends poll. vhost-user-blk: qemu-storage-daemon's I/O \
         thread with io_uring, and a client (blkio, ring of 256) that copies and checks as our guest does. {}",
        rings_words()
    ))?;
    Ok(missing)
}

/// Returns the ratio of one of our rows to the peer's rate; None for a row of a peer.
fn times_the_peer(lines: &[Line], line: &Line) -> Option<String> {
    line.ours.as_ref()?;
    let peer = lines
        .iter()
        .find(|other| other.ours.is_none() && (other.dir, other.depth) == (line.dir, line.depth))?;
    Some(times(&line.records, &peer.records))
}

fn table(lines: &[Line]) -> Table {
    Columns::of(lines)
        .left("by", Line::name)
        .left("dir", |line| line.dir)
        .right("depth", |line| line.depth)
        .ranged("k requests/s", 1e3, |line| line.records.rate())
        .median("latency us", 1e3, |line| line.records.middle(Record::p50))
        .median("ring M/s before", 1e6, |line| super::ring(&line.records, 0))
        .median("after", 1e6, |line| super::ring(&line.records, 1))
        .left("times vhost-user-blk", |line| or_dash(times_the_peer(lines, line)))
        .grouped(|line| (line.depth, line.dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_the_same_depth_and_direction_are_compared() {
        let line = |ours: bool, dir, depth: u16, rates: &[f64]| {
            let record = |&frames_per_s: &f64| Record {
                frames_per_s,
                of: Of::Disk(Disk { ring_per_s: Some([50.0, 50.0]), ..Disk::default() }),
                ..Record::default()
            };
            let row = || Box::new(blk::Row::of(PLAN, dir, SIZE, SIZE, depth.into()));
            let records = Repeats(rates.iter().map(record).collect());
            Line { ours: ours.then(row), dir, depth, records }
        };
        let lines = [
            line(true, Dir::Read, 1, &[30.0]),
            line(false, Dir::Write, 1, &[1.0]),
            line(false, Dir::Read, 32, &[2.0]),
            line(false, Dir::Read, 1, &[10.0]),
        ];
        assert_eq!(times_the_peer(&lines, &lines[0]).unwrap(), "3.00 (3.00..3.00) (1 of 1)");
        assert_eq!(times_the_peer(&lines, &lines[1]), None);
        assert_eq!(times_the_peer(&lines[..2], &lines[0]), None, "the peer is missing");
    }
}
