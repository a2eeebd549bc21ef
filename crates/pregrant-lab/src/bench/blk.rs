//! `pregrant-lab bench blk`: requests to disks in RAM and on files, path by path.
//!
//! Guests and backend are processes of their own. For each path, number of guests and number of
//! workers there is a machine, and all of them at once, each asleep while another is measured; rows
//! take turns within a repeat, so that a slow phase of the machine hits all alike. See [`stand`]
//! for who is where, and `process/disks` for what guests do.

pub(super) mod anchors;
pub(super) mod medium;
pub(super) mod stand;
pub(super) mod storage_daemon;
mod words;

use super::Result;
use super::output::{Output, Run};
use super::timing::{Timing, in_turns};
use crate::record::published;
use crate::record::repeats::Repeats;
use crate::record::stats::Summary;
use crate::record::{Disk, Of, Record};
use medium::{Files, Medium};
use pregrant::blk::path::PathName;
use pregrant_cli::choice::choice;
use pregrant_cli::usage::Given;
use pregrant_testbed::process::disks::disks_command::{Buffers, Dir, GREEDY_DEPTH};
use stand::{Most, Plan, Stand};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

/// Arguments of `bench blk`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant-lab bench blk
  pregrant-lab bench blk --size 4096,65536,1048576 --depth 1,8,32 --guests 1 --json out.jsonl
  pregrant-lab bench blk --guests 1,2,4,8,15 --depth 32 --workers 1,2 --repeats 9
  pregrant-lab bench blk --path persistent --guests 1 --depth 32 --anchors
  pregrant-lab bench blk --path persistent --guests 1 --depth 1,32,256 --image /dev/shm/disk
  pregrant-lab bench blk --guests 4 --depth 256 --greedy 1048576

Each guest has a disk of its own, in RAM and with --image on a file too; its requests are at random places of all of it. Each read is checked against the last
write: the number and the generation of each sector, and now and then every byte.
Run it on an idle machine with two cores; results from a loaded machine are meaningless.")]
pub struct BlkArgs {
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = PathName::ALL, value_parser = choice(PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// Whose pages requests have: the front's, which it copies to and from, or the guest's own,
    /// granted for each request; both to see what the copy costs. Not with `persistent`
    #[arg(long, value_delimiter = ',', default_values_t = [Buffers::Pool])]
    pub buffers: Vec<Buffers>,
    /// Reads, writes, or as many of these as of those
    #[arg(long, value_delimiter = ',', default_values_t = [Dir::Read, Dir::Write])]
    pub dir: Vec<Dir>,
    /// Bytes of a request: a multiple of 512, at most 1048576
    #[arg(long, value_delimiter = ',', default_values_t = [4096u32], value_parser = size)]
    pub size: Vec<u32>,
    /// Bytes that each request begins at a multiple of
    #[arg(long, value_delimiter = ',', default_values_t = [4096u32], value_parser = align)]
    pub align: Vec<u32>,
    /// Requests in flight, of each guest
    #[arg(long, value_delimiter = ',', default_values_t = [1u16, 32], value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: Vec<u16>,
    /// Guests, with commas between the numbers
    #[arg(long, value_delimiter = ',', default_values_t = [1u16, 15], value_parser = clap::value_parser!(u16).range(1..=64))]
    pub guests: Vec<u16>,
    /// Worker threads of the backend, with commas between the numbers
    #[arg(long, value_delimiter = ',', default_values_t = [1u16], value_parser = clap::value_parser!(u16).range(1..=16))]
    pub workers: Vec<u16>,
    /// In a second row of each with several guests the last one's requests have this length: what
    /// it costs the others. These need a depth at which the backend, and not the guests' own core,
    /// is what they wait for: 256
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub greedy: Option<u32>,
    /// Serve disks from files too, as pregrant blkback does: FILE, and for more disks FILE.1,
    /// FILE.2; they are made, and removed at the end
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    #[command(flatten)]
    pub timing: Timing,
    /// Measure fio's nbd engine and a vhost-user-blk client on qemu-storage-daemon, and fio's
    /// io_uring on a file beside, if these programs are here
    #[arg(long)]
    pub anchors: bool,
    #[command(flatten)]
    pub output: Output,
}

const PATHS: &[(PathName, &str)] = &[
    (PathName::Copy, "Batched grant copy"),
    (PathName::Map, "Map and unmap"),
    (PathName::Persistent, "Pages that stay mapped once they were seen"),
];

fn size(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(n) if (512..=1 << 20).contains(&n) && n % 512 == 0 => Ok(n),
        _ => Err("a multiple of 512 from 512 to 1048576, for example 4096".into()),
    }
}

fn align(text: &str) -> std::result::Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("one of 512 and 4096".into()),
    }
}

/// A row of the table, with the settings that all its repeats share.
pub struct Row {
    plan: Plan,
    dir: Dir,
    /// Length of a request in bytes.
    size: usize,
    /// Requests begin at multiples of this number of bytes.
    align: usize,
    /// Number of requests that each guest keeps in flight.
    depth: usize,
    /// Length of the last guest's requests, if it is greedy: then only the others are counted.
    greedy: Option<usize>,
    /// True if this is the greedy guest's row, or the row that it is compared with.
    is_compared: bool,
    records: Repeats,
}

impl Row {
    pub fn of(plan: Plan, dir: Dir, size: usize, align: usize, depth: usize) -> Self {
        let records = Repeats::default();
        Self { plan, dir, size, align, depth, greedy: None, is_compared: false, records }
    }

    pub fn measure(&mut self, stand: &mut Stand, seconds: f64) -> Result<&Record> {
        let window = stand.run(self, seconds)?;
        let Plan { path, guests, workers, buffers, .. } = self.plan;
        let mut record = Record::new("blk", path.name(), self.dir.name(), self.size as u64);
        let counted = window.requests.len() - usize::from(self.greedy.is_some());
        record.count(window.requests[..counted].iter().sum(), window.seconds);
        let by_guest = || window.back.devices_ns.iter().map(|(_, ns)| *ns).collect();
        record.of = Of::Disk(Disk {
            guests: guests.into(),
            align: Some(self.align as u32),
            medium: Some(self.plan.medium.name().into()),
            own_pages: (buffers == Buffers::Own).then_some(true),
            neighbour: self.greedy.map(|bytes| format!("greedy, {bytes} B")),
            neighbour_frames_per_s: self
                .greedy
                .map(|_| window.requests[counted..].iter().sum::<u64>() as f64 / window.seconds),
            guests_worker_ns: self.is_compared.then(by_guest),
            ..Disk::default()
        });
        record.queues = self.plan.queues();
        record.depth = Some(self.depth as u32);
        record.workers = Some(workers as u32);
        record.mode = self.plan.mode().name().into();
        record.set_spent(&window.guests, &window.back);
        record.missed_wakeups = Some(window.back.missed_wakeups + window.rested.missed_wakeups);
        record.lost = window.rested.failed;
        record.damaged = Some(window.rested.damaged);
        record.checked = Some(window.rested.checked);
        record.set_latencies(&window.rested.latency);
        let published = published::find_disks(path.name(), self.size as u64, guests.into());
        record.published = published.map(|p| p.requests_per_s);
        Ok(self.records.push(record))
    }

    /// Largest number of bytes in flight, for one guest.
    fn in_flight(&self) -> usize {
        let greedy = self.greedy.map_or(0, |bytes| bytes * self.depth.min(GREEDY_DEPTH));
        greedy.max(self.depth * self.size)
    }

    /// Returns the number of bytes of the longest request.
    fn longest(&self) -> usize {
        self.greedy.unwrap_or(0).max(self.size)
    }

    /// Returns the settings that a row shares with rows of other paths and of other numbers of
    /// guests and workers.
    fn work(&self) -> impl PartialEq + Copy + use<> {
        (self.dir, self.size, self.align, self.depth)
    }

    /// Returns true if this is the row without a greedy guest that `greedy` must be compared with.
    fn is_equal_load_of(&self, greedy: &Row) -> bool {
        self.greedy.is_none() && self.plan == greedy.plan && self.work() == greedy.work()
    }

    /// Returns the rate of each guest that is not greedy, relative to its rate at `equal` load. It
    /// is the median of the repeats' ratios.
    fn kept(&self, equal: &Row) -> Option<Summary> {
        let all = f64::from(self.plan.guests);
        Some(self.records.ratio(&equal.records)?.per((all - 1.0) / all))
    }

    /// Returns the worker time of the guests that are not greedy, as a part of their fair share. It
    /// is the median of the repeats.
    fn share(&self) -> Option<Summary> {
        let shares = self.records.iter().filter_map(|record| {
            let by_guest = record.of.disk()?.guests_worker_ns.as_deref()?;
            let (_, others) = by_guest.split_last()?;
            let (all, others) = (by_guest.iter().sum::<u64>(), others.iter().sum::<u64>());
            let fair = (by_guest.len() - 1) as f64 / by_guest.len() as f64;
            (all > 0).then(|| others as f64 / all as f64 / fair)
        });
        Summary::of(&shares.collect::<Vec<_>>())
    }

    /// Returns the workers' time for each counted request, relative to that at `equal` load. It is
    /// the median of the repeats' ratios.
    fn dearer(&self, equal: &Row) -> Option<Summary> {
        // The greedy one is no part of either.
        self.records.ratio_of(&equal.records, |record| {
            let by_guest =
                record.of.disk().and_then(|disk| disk.guests_worker_ns.as_deref()).unwrap_or_default();
            let counted = by_guest.len().saturating_sub(usize::from(record.is_beside_greedy()));
            by_guest.iter().take(counted).sum::<u64>() as f64 / record.frames.max(1) as f64
        })
    }

    fn words(&self) -> String {
        let Plan { medium, guests, workers, .. } = self.plan;
        let path = self.plan.path_name();
        format!(
            "{path} on {medium} {} {} B, depth {}, {guests} guest(s), {workers} worker(s)",
            self.dir, self.size, self.depth
        )
    }
}

impl BlkArgs {
    /// Returns the paths, each with the owner of the pages that its requests use.
    fn paths(&self) -> impl Iterator<Item = (PathName, Buffers)> {
        let own = |path| path != PathName::Persistent;
        self.path.iter().flat_map(move |&path| {
            let buffers = self.buffers.iter().filter(move |&&buffers| buffers == Buffers::Pool || own(path));
            buffers.map(move |&buffers| (path, buffers))
        })
    }
}

pub fn run(args: BlkArgs, given: &Given) -> Result<()> {
    if args.guests.iter().all(|&guests| guests == 1) {
        given.refuse("greedy", "a guest that is alone takes nothing of others (--guests)")?;
    }
    if args.path.iter().all(|&path| path == PathName::Persistent) {
        given
            .refuse("buffers", "with persistent a reference goes on naming its page, which is the front's")?;
    }
    args.output.run(|run| measure(&args, run))
}

/// Returns the work of each row: bytes, alignment, direction and depth.
fn works(args: &BlkArgs) -> impl Iterator<Item = (u32, u32, Dir, u16)> {
    let with_depths =
        move |(size, align, dir)| args.depth.iter().map(move |&depth| (size, align, dir, depth));
    let with_dirs = move |(size, align)| args.dir.iter().map(move |&dir| (size, align, dir));
    let with_aligns = move |&size| args.align.iter().map(move |&align| (size, align));
    args.size.iter().flat_map(with_aligns).flat_map(with_dirs).flat_map(with_depths)
}

/// Returns the machines for one path: one for each kind of disk, number of guests and number of
/// workers.
fn machines(args: &BlkArgs) -> impl Iterator<Item = (Medium, u16, u16)> {
    let with_media = move |(guests, workers)| Medium::of(args).map(move |medium| (medium, guests, workers));
    let with_workers = move |&guests| args.workers.iter().map(move |&workers| (guests, workers));
    args.guests.iter().flat_map(with_workers).flat_map(with_media)
}

fn rows(args: &BlkArgs) -> Vec<Row> {
    let mut rows = Vec::new();
    for (size, align, dir, depth) in works(args) {
        for (medium, guests, workers) in machines(args) {
            let is_compared = args.greedy.is_some() && guests > 1;
            let greedy = args.greedy.filter(|_| is_compared).map(|bytes| bytes as usize);
            for greedy in [None].into_iter().chain(greedy.map(Some)) {
                rows.extend(args.paths().map(|(path, buffers)| {
                    let plan = Plan { path, buffers, medium, guests, workers: workers.into() };
                    let row = Row::of(plan, dir, size as usize, align as usize, depth.into());
                    Row { greedy, is_compared, ..row }
                }));
            }
        }
    }
    rows
}

fn measure(args: &BlkArgs, run: &mut Run) -> Result<()> {
    let Timing { seconds, repeats } = args.timing;
    let mut rows = rows(args);
    let most = Most::of(rows.iter());
    let mut stands: BTreeMap<Plan, Stand> = BTreeMap::new();
    let mut made = 0;
    for row in &rows {
        if let Entry::Vacant(place) = stands.entry(row.plan) {
            let Plan { path, medium, guests, workers, .. } = row.plan;
            run.progress
                .show(format_args!("{path} on {medium}, {guests} guest(s), {workers} worker(s): connecting"));
            let files = args.image.as_deref().map(|first| Files { first, made });
            place.insert(Stand::start(row.plan, &most, files)?);
            if medium == Medium::File {
                made += usize::from(guests);
            }
        }
    }
    // In all rows or in none: they are compared.
    let gives_way = stands.values().any(|stand| stand.core_placement.shares_guests_core());
    stands.values_mut().for_each(|stand| stand.gives_way = gives_way);
    let mut anchors = if args.anchors { anchors::Anchors::start(args)? } else { anchors::Anchors::default() };
    for _ in 0..repeats {
        in_turns(run, 1, &mut rows, Row::words, |run, row| {
            let stand = stands.get_mut(&row.plan).ok_or("no such machine")?;
            run.write(row.measure(stand, seconds)?)
        })?;
        anchors.measure(seconds, run)?;
    }
    let platform = stands.values_mut().next().map(Stand::platform).transpose()?.unwrap_or_default();
    run.page.platform(&platform);
    run.print(words::table(&rows))?;
    if args.anchors {
        run.print(anchors.table(&rows))?;
    }
    run.print(words::method(&rows, args, &stands, &platform))
}
