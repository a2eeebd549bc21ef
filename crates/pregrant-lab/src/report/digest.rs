//! Turns records into rows: the repeats of one measurement are put together, with a name that
//! distinguishes it from the others.

use super::quantity::{distinct, per_frame, some};
use crate::record::repeats::Repeats;
use crate::record::stats::Summary;
use crate::record::{DISK_RESTART, Limit, Record};
use pregrant_cli::table::figure;

/// The repeats of one measurement.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The records of the row in the order of the run; there is at least one.
    pub records: Repeats<&'a Record>,
    /// The summary of the frames per second.
    pub rate: Summary,
    /// The name of the path, with its data length and other settings in which rows differ, for
    /// example `staging 256`.
    pub name: String,
}

impl<'a> std::ops::Deref for Row<'a> {
    type Target = Repeats<&'a Record>;
    fn deref(&self) -> &Self::Target {
        &self.records
    }
}

impl<'a> Row<'a> {
    /// Returns the first record of the row, for what all its records have in common.
    pub fn first(&self) -> &'a Record {
        self.records.0[0]
    }

    /// Returns the number of grant operations of both ends.
    pub fn grant_ops(&self) -> u64 {
        self.sum(Record::grant_ops)
    }

    /// Formats a count for each frame, over all repeats.
    pub fn shown_each(&self, count: impl Fn(&Record) -> u64) -> String {
        per_frame(self.sum(count), self.sum(|r| r.frames))
    }

    /// Returns the median of the repeats' bits per second.
    pub fn bits(&self) -> f64 {
        self.summary(|r| r.bits_per_s).map_or(0.0, |s| s.median)
    }

    /// Lists all repeats' frames per second, in units of `unit`.
    pub fn each_rate(&self, unit: f64) -> String {
        self.iter().map(|r| figure(r.frames_per_s / unit)).collect::<Vec<_>>().join(" ")
    }
}

/// The setting of `bench limit` for the headline: single lines handed over.
pub const LINES: Limit = Limit { stride: Some(256), copies: 0, pool: None, work: None };
/// The number of bytes of the shortest frames.
pub const SHORT: u64 = 64;

/// All records of a report, sorted by kind.
#[derive(Debug, Default)]
pub struct Digest<'a> {
    /// The rows of `bench net` and `bench peers`.
    pub net: Vec<Row<'a>>,
    /// The rows of `bench blk`, and those of the disks of `bench peers`.
    pub blk: Vec<Row<'a>>,
    /// The rows of `bench latency`.
    pub latency: Vec<Row<'a>>,
    /// The rows of `bench limit`.
    pub limit: Vec<Row<'a>>,
    pub restarts: Vec<&'a Record>,
    /// The restarts of backends of disks.
    pub disk_restarts: Vec<&'a Record>,
    /// The rows of benches that this page does not know.
    pub others: Vec<Row<'a>>,
    /// The names in `net` and `latency`, each once, with `copy` first. The index of a name selects
    /// its colour and its mark.
    pub series: Vec<String>,
}

impl<'a> Digest<'a> {
    /// Creates the digest of `records`, in the order of the run.
    pub fn of(records: &'a [Record]) -> Self {
        let is = |names: &'static [&'static str]| move |r: &&Record| names.contains(&&*r.bench);
        let on_disk = |r: &&Record| r.of.disk().is_some();
        let requests = records.iter().filter(is(&["blk", "peers"])).filter(on_disk);
        let mut digest = Self {
            net: rows(records.iter().filter(is(&["net", "peers"])).filter(|r| !on_disk(r))),
            blk: rows(requests.filter(|r| !r.is_beside_greedy())),
            latency: rows(records.iter().filter(is(&["latency"]))),
            limit: rows(records.iter().filter(is(&["limit"]))),
            restarts: records.iter().filter(|r| r.pause().is_some()).collect(),
            disk_restarts: records.iter().filter(is(&[DISK_RESTART])).collect(),
            ..Self::default()
        };
        let known = is(&["net", "peers", "blk", "latency", "limit", DISK_RESTART]);
        digest.others = rows(records.iter().filter(|r| !known(r) && r.pause().is_none()));
        // A latency is shown with others of its mode; a rate with all others of its size.
        name_by(&mut digest.net, true);
        name_by(&mut digest.latency, false);
        name_by(&mut digest.others, true);
        digest.series = distinct(digest.net.iter().chain(&digest.latency).map(|row| row.name.clone()));
        let rank = |name: &str| ["copy", "map"].iter().position(|p| name.starts_with(p)).unwrap_or(2);
        digest.series.sort_by_key(|name| rank(name));
        digest
    }

    /// Returns the index of a name among the series.
    pub fn series_of(&self, name: &str) -> usize {
        self.series.iter().position(|s| s == name).unwrap_or(0)
    }

    /// Returns the row of plain `copy` that did the same work as `row`.
    pub fn baseline(&self, row: &Row) -> Option<&Row<'a>> {
        let r = row.first();
        self.net.iter().find(|c| {
            let c = c.first();
            c.path == "copy" && shape(c) == shape(r) && (c.burst, &c.dir) == (r.burst, &r.dir)
        })
    }

    /// Returns the ratio of the rate to that of `copy`: the median of the repeats' ratios.
    pub fn gain(&self, row: &Row) -> Option<f64> {
        self.gains(row).filter(|s| !s.is_loaded).map(|s| s.median)
    }

    /// Returns the ratio as [`gain`](Self::gain) does, together with the least and the greatest
    /// ratio.
    pub fn gains(&self, row: &Row) -> Option<Summary> {
        row.ratio(self.baseline(row)?)
    }

    /// Returns the row of a path to which the ceilings apply: the one with the shortest frames,
    /// from the guest.
    pub fn bound(&self, path: &str) -> Option<&Row<'a>> {
        self.net.iter().find(|row| {
            let r = row.first();
            (&*r.path, &*r.dir, r.size_bytes) == (path, "tx", SHORT)
        })
    }

    /// Returns the ceiling for staged short frames: single lines handed over (`bench limit`'s
    /// headline).
    pub fn lines(&self) -> Option<&Row<'a>> {
        self.limit.iter().find(|row| {
            let r = row.first();
            (&*r.path, r.size_bytes, r.of.limit()) == ("lines", 64, Some(&LINES))
        })
    }

    /// Returns the upper bound of `copy`: its system call alone, for fragments of 64 bytes.
    pub fn remote(&self) -> Option<&Row<'a>> {
        self.limit.iter().find(|row| (&*row.first().path, row.first().size_bytes) == ("process-vm-readv", 64))
    }

    /// Returns the number of frames that were lost in rows of paths and of round trips, where none
    /// may be lost.
    pub fn lost(&self) -> u64 {
        let round_trips = self.latency.iter().filter(|row| row.first().dir == "tx"); // both directions' lines have it
        self.net.iter().chain(round_trips).map(|row| row.sum(|r| r.lost)).fold(0, u64::saturating_add)
    }
}

/// Returns the number of a record's staging buffers, if there are more than slots.
fn buffers(r: &Record) -> Option<u32> {
    r.net()?.staging_buffers
}

/// Returns the settings of a record besides its path.
fn shape(r: &Record) -> impl PartialEq + '_ {
    let net = r.net().map(|net| (net.redo, net.look, &net.rx));
    (r.size_bytes, r.queues, r.workers, &*r.mode, &*r.platform, net)
}

/// Returns true if two records are repeats of one measurement.
fn same(a: &Record, b: &Record) -> bool {
    fn ends(r: &Record) -> impl PartialEq + '_ {
        let disk = r.of.disk().map(|disk| (disk.guests, disk.align, &disk.medium, disk.own_pages));
        (&r.bench, &r.path, &r.dir, r.data_len, r.burst, r.depth, buffers(r), r.of.limit(), disk)
    }
    shape(a) == shape(b) && ends(a) == ends(b)
}

fn rows<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Row<'a>> {
    let mut groups: Vec<Vec<&Record>> = Vec::new();
    for record in records {
        match groups.iter_mut().find(|group| same(group[0], record)) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    let row = |records: Vec<&'a Record>| {
        let records = Repeats(records);
        Some(Row { rate: records.rate()?, records, name: String::new() })
    };
    groups.into_iter().filter_map(row).collect()
}

/// A function that describes a property in which rows may differ.
type Part = fn(&Record) -> String;
const AHEAD: [Part; 3] = [
    |r| some(r.queues, "queue"),
    |r| r.workers.map_or("no workers".into(), |n| some(n, "worker")),
    |r| format!("bursts of {}", r.burst),
];
const MODE: Part = |r| r.mode.clone();
const BEHIND: [Part; 5] = [
    |r| if r.net().is_some_and(|net| !net.redo) { "no redo page" } else { "redo page" }.into(),
    |r| if r.net().is_some_and(|net| net.look.is_some()) { "whole frames read" } else { "heads read" }.into(),
    |r| {
        if r.net().is_some_and(|net| net.rx.is_some()) { "by reference" } else { "copied by the guest" }
            .into()
    },
    |r| buffers(r).map_or("a buffer for each slot".into(), |n| some(n, "buffer")),
    |r| r.platform.clone(),
];

/// Names rows by path and data length, and by every other property in which they differ.
fn name_by(rows: &mut [Row], by_mode: bool) {
    let Some(first) = rows.first().map(Row::first) else { return };
    let mode = by_mode.then_some(&MODE);
    let parts = AHEAD.iter().chain(mode).chain(&BEHIND);
    let differ = parts.filter(|part| rows.iter().any(|row| part(row.first()) != part(first)));
    let differ: Vec<&Part> = differ.collect();
    for row in rows {
        let r = row.first();
        let len = r.data_len.map(|len| format!(" {len}")).unwrap_or_default();
        let parts = differ.iter().map(|part| format!(", {}", part(r)));
        row.name = r.path.clone() + &len + &parts.collect::<String>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Disk, Net, Of, Restart};

    fn net(path: &str, data_len: Option<u64>, rate: f64, repeat: u32) -> Record {
        let mut r = Record { data_len, repeat, ..Record::new("net", path, "tx", 64) };
        r.count(rate as u64, 1.0);
        r
    }

    #[test]
    fn repeats_come_together_and_names_tell_rows_apart() {
        let mut records = vec![net("staging", Some(256), 40.0, 0), net("copy", None, 2.0, 0)];
        records.extend([net("staging", Some(256), 60.0, 1), net("copy", None, 4.0, 1)]);
        let digest = Digest::of(&records);
        assert_eq!(digest.series, ["copy", "staging 256"]);
        let staging = &digest.net[0];
        assert_eq!((staging.records.0.len(), staging.rate.median, staging.rate.max), (2, 50.0, 60.0));
        // The middle of 20 and 15, not 50 over 3.
        assert_eq!(digest.gain(staging), Some(17.5));
        records.push(Record { queues: 2, ..net("copy", None, 9.0, 0) });
        let digest = Digest::of(&records);
        assert_eq!(digest.series, ["copy, 1 queue", "copy, 2 queues", "staging 256, 1 queue"]);
        assert_eq!(digest.gain(&digest.net[0]), Some(17.5), "compared with copy of another number of queues");
        let workers = [None, Some(1), Some(2)].map(|workers| Record { workers, ..net("copy", None, 9.0, 0) });
        assert_eq!(Digest::of(&workers).series, ["copy, no workers", "copy, 1 worker", "copy, 2 workers"]);
        let redo = [true, false].map(|on| Record {
            of: Of::Net(Net { redo: on, ..Net::default() }),
            ..net("copy", None, 9.0, 0)
        });
        assert_eq!(Digest::of(&redo).series, ["copy, redo page", "copy, no redo page"]);
    }

    #[test]
    fn records_go_where_they_belong() {
        let disk = |guests| Record {
            of: Of::Disk(Disk { guests, ..Disk::default() }),
            ..Record::new("blk", "map", "read", 4096)
        };
        let records = [
            Record { of: Of::Restart(Restart::default()), ..Record::new("restart", "staging", "tx", 1514) },
            Record::new(DISK_RESTART, "persistent", "mixed", 4096),
            Record::new("neighbour", "copy", "tx", 64),
            disk(1),
            disk(15),
            Record { lost: 3, ..Record::new("latency", "copy", "tx", 64) },
            Record { lost: 3, ..Record::new("latency", "copy", "rx", 64) },
            Record { of: Of::Limit(LINES), ..Record::new("limit", "lines", "tx", 64) },
        ];
        let d = Digest::of(&records);
        assert_eq!(
            (d.net.len(), d.latency.len(), d.limit.len(), d.restarts.len(), d.others.len()),
            (0, 2, 1, 1, 1)
        );
        assert_eq!(d.blk.len(), 2, "of other numbers of guests");
        assert_eq!(d.disk_restarts.len(), 1);
        assert_eq!((d.lost(), d.lines().is_some(), d.remote().is_none()), (3, true, true));
    }
}
