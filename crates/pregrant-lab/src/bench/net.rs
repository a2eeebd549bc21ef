//! `pregrant bench net`: frames through a vif, path by path.
//!
//! A guest and a backend process, each pinned to a core of its own; every row of every repeat is a vif of its own, from
//! connect to close. Rows take turns within a repeat, so that a slow phase of the machine hits all alike.

use super::pairs;
use super::seating::Seating;
use crate::choice::choice;
use crate::process::mark::whole_frames;
use crate::process::order::{Buffers, Case, Dir, Order, Played, Report, RxWay};
use crate::record::published::{self, line_rate};
use crate::record::stats::Summary;
use crate::record::{Record, RecordWriter};
use crate::report::Report as Page;
use crate::screen::{Progress, print};
use crate::table::{Align, Table, figure};
use crate::testbed::{Process, Testbed};
use crate::usage::{Given, Usage};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::CacheMode;
use pregrant::net::path::PathName;
use pregrant_host::drivers::{Mode, Placement};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `bench net`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench net --path copy,staging --dir tx,rx --size 64,1500
  pregrant bench net --path staging --dir tx --size 64 --data-len 256 --seconds 1 --json out.jsonl
  pregrant bench net --path staging --size 64 --redo on,off --repeats 9
  pregrant bench net --path map,persistent --dir tx --size 1500 --look --queues 2 --workers 1,2
  pregrant bench net --path copy,staging,staging+copy,staging+map --dir tx --size 256,260 --look

Frames/s are those that arrived, in the time between two marks; lost is sent minus received by number.
A row whose untimed burst comes with a wrong byte fails.
Run it on an idle machine with two cores; figures of a busy one say nothing.")]
pub struct NetArgs {
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [NetPath::of(PathName::Copy), NetPath::of(PathName::Staging)], value_parser = choice(NET_PATHS, NetPath::name))]
    pub path: Vec<NetPath>,
    /// Directions, as the guest sees them
    #[arg(long, value_delimiter = ',', default_values_t = [DirName::Tx, DirName::Rx])]
    pub dir: Vec<DirName>,
    /// Bytes of a frame, headers included
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 1500], value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: Vec<u32>,
    /// Queues
    #[arg(long, default_value_t = 1, value_parser = queues)]
    pub queues: u32,
    /// Worker threads of the backend, with commas between them; 0: it serves its queues in its one thread
    #[arg(long, value_delimiter = ',', default_values_t = [0u16], value_parser = clap::value_parser!(u16).range(0..=WORKERS_MOST))]
    pub workers: Vec<u16>,
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub seconds: f64,
    /// Bytes of a frame that fit a staging buffer: 64, 128, 256, 2048, 4096 or 65535
    #[arg(long, default_value_t = 256, value_parser = data_len)]
    pub data_len: u32,
    /// Whether the backend keeps the redo page that lets its rings survive it; both to see what it costs
    #[arg(long, value_delimiter = ',', default_values_t = [Redo::On])]
    pub redo: Vec<Redo>,
    /// TX: have private copies of whole frames made for the sink, as a switch or a capture has, so that `map` maps; without
    /// it the sink reads heads alone
    #[arg(long)]
    pub look: bool,
    /// RX: whether the guest copies frames, or reads them in the pages that the backend wrote to; both to see what the copy
    /// costs. By reference only where frames come in pages: `copy`, `persistent`, `gref-mapping`
    /// and `foreign`
    #[arg(long, value_delimiter = ',', default_value = "copy")]
    pub rx: Vec<RxWay>,
    /// Frames in a burst at most
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub burst: u32,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// How both ends wait
    #[arg(long, default_value = "poll", value_parser = choice(MODES, Mode::name))]
    pub mode: Mode,
    /// Write a JSON object per row and repeat to this file ("-": standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots of the results to this folder, as index.html with the records beside it
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// The paths that can be measured.
pub const PATHS: &[(PathName, &str)] = &[
    (PathName::Copy, "Batched grant copy"),
    (PathName::Map, "Copy of the headers, map and unmap of the rest"),
    (PathName::Persistent, "Pages that stay mapped once they were seen"),
    (PathName::GrefMapping, "Pages that the guest asked to keep mapped"),
    (PathName::Staging, "Buffers granted before the data comes"),
    (PathName::DataRing, "A circular area granted before the data comes"),
    (PathName::Foreign, "Any page of a guest that trusts its backend"),
    (PathName::GuestCopy, "Pages that the backend lends: the guest copies"),
];

/// Those of a guest that only sends, to a backend that others share: it maps for none of them, and lends for RX alone.
pub const SENDERS_PATHS: &[(PathName, &str)] = &[PATHS[0], PATHS[2], PATHS[3], PATHS[4], PATHS[5], PATHS[6]];

/// A path of this bench's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetPath {
    /// The first of its chain.
    pub path: PathName,
    /// With `staging`: heads of longer frames come from their buffers, and the rests by this.
    pub rest: Option<PathName>,
}

impl NetPath {
    /// A path by itself.
    pub const fn of(path: PathName) -> Self {
        Self { path, rest: None }
    }

    const fn headed(rest: PathName) -> Self {
        Self { path: PathName::Staging, rest: Some(rest) }
    }

    /// As `pregrant back --path` has it.
    pub fn name(self) -> &'static str {
        match (self.path, self.rest) {
            (path, None) => path.name(),
            (_, Some(rest)) => rest.behind_heads(),
        }
    }

    /// RX: whether frames are in pages that the guest can read by reference.
    fn comes_in_pages(self) -> bool {
        ![PathName::Staging, PathName::DataRing, PathName::GuestCopy].contains(&self.path)
    }

    /// RX is copied by a back that maps TX, as Linux's does, and there it has the buffers' heads by no other way. It lends pages for RX alone.
    fn serves(self, dir: Dir) -> bool {
        match dir {
            Dir::Tx => self.path != PathName::GuestCopy,
            _ => self.path != PathName::Map && self.rest.is_none(),
        }
    }
}

impl std::fmt::Display for NetPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The paths of this bench.
const NET_PATHS: &[(NetPath, &str)] = &[
    (NetPath::of(PathName::Copy), "Batched grant copy"),
    (NetPath::of(PathName::Map), "Copy of the headers, map and unmap of the rest"),
    (NetPath::of(PathName::Persistent), "Pages that stay mapped once they were seen"),
    (NetPath::of(PathName::GrefMapping), "Pages that the guest asked to keep mapped"),
    (NetPath::of(PathName::Staging), "Buffers granted before the data comes"),
    (NetPath::of(PathName::DataRing), "A circular area granted before the data comes"),
    (NetPath::of(PathName::Foreign), "Any page of a guest that trusts its backend: the upper bound"),
    (NetPath::of(PathName::GuestCopy), "Pages that the backend lends: the guest copies (RX)"),
    (NetPath::headed(PathName::Copy), "The same, and the head of a longer frame too, its rest by grant copy"),
    (NetPath::headed(PathName::Map), "The same, its rest by map and unmap"),
];

/// How both ends can wait.
pub const MODES: &[(Mode, &str)] = &[
    (Mode::Poll, "Never sleep"),
    (Mode::Event, "Sleep as soon as nothing moves"),
    (Mode::Adaptive, "Spin for a bounded time, then sleep"),
];

/// The directions that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum DirName {
    /// From the guest
    Tx,
    /// To the guest
    Rx,
}

impl std::fmt::Display for DirName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        })
    }
}

/// Whether redo pages are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Redo {
    /// Redo pages are kept
    On,
    /// Redo pages are not kept
    Off,
}

impl std::fmt::Display for Redo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}

/// A number of seconds that a row can take.
pub fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=3600.0).contains(&s) => Ok(s),
        _ => Err("a number of seconds from 0.01 to 3600, for example 0.5".into()),
    }
}

/// Workers at most: each is an attachment, of which a domain has 20, and the control thread has two.
const WORKERS_MOST: i64 = 16;

/// A number of queues that the backend offers.
fn queues(text: &str) -> std::result::Result<u32, String> {
    let most = BackFeatures::default().max_queues;
    match text.parse() {
        Ok(n) if (1..=most).contains(&n) => Ok(n),
        _ => Err(format!("a number from 1 to {most}, which the backend offers")),
    }
}

fn data_len(text: &str) -> std::result::Result<u32, String> {
    let offered = pregrant::net::features::ALL_DATA_LENS;
    match text.parse() {
        Ok(n) if offered.contains(&n) => Ok(n),
        _ => Err(format!("one of {offered:?}, which are the lengths that the backend offers")),
    }
}

/// The machine with one guest and one backend, each on a core of its own; or one for each worker, as far as there are cores.
pub struct Stand {
    seating: Seating,
    testbed: Testbed,
    back: Process,
    guest: Process,
    vifs: u32,
    /// The guest gives its core away when it has nothing to do.
    pub gives_way: bool,
}

/// The guest of a [`Stand`].
const GUEST: u16 = 5;

/// What the pages of all ids of a queue take of a table: 256 of each direction.
const STATIC_POOL: usize = 512;

impl Stand {
    /// Starts both processes; the backend's has one thread.
    pub fn start() -> Result<Self> {
        Self::with_workers(0, Mode::Poll)
    }

    /// The same, whose backend has so many worker threads that wait in this way; 0: none.
    pub fn with_workers(workers: usize, mode: Mode) -> Result<Self> {
        let seating = Seating::of(workers)?;
        let testbed = Testbed::start()?;
        testbed.guest_domain(GUEST)?;
        let back = testbed.back(seating.back, seating.posts(Placement::Balanced, mode))?;
        let guest = testbed.process("guest", GUEST, seating.guest)?;
        Ok(Self { seating, testbed, back, guest, vifs: 0, gives_way: false })
    }

    /// Whether each end has a core of its own.
    pub fn has_two_cores() -> Result<bool> {
        Ok(crate::limit::cores()?.len() >= 2)
    }

    /// Runs one case; the vif is made and removed here.
    pub fn play(&mut self, mut case: Case) -> Result<(Played, Played)> {
        case.front = GUEST;
        case.handle = self.vifs;
        self.vifs += 1;
        self.testbed.make_vif(GUEST, case.handle)?;
        let handle = case.handle;
        self.back.order(&Order::Case(case.clone()))?;
        self.guest.order(&Order::Case(case))?;
        // The guest's first: when it cannot, the back waits for a vif that will not come.
        let guest = self.guest.report(&mut [&mut self.back])?;
        let back = self.back.report(&mut [&mut self.guest])?;
        let (guest, back) = match (guest, back) {
            (Report::Case(guest), Report::Case(back)) => (*guest, *back),
            other => return Err(format!("an answer to another order: {other:?}").into()),
        };
        self.testbed.remove_vif(GUEST, handle)?;
        Ok((guest, back))
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The path.
    pub path: PathName,
    /// The direction.
    pub dir: Dir,
    /// Bytes of a frame.
    pub size: usize,
    /// Staging's data length, for `staging`.
    pub data_len: Option<u32>,
    /// See [`NetPath`].
    pub rest: Option<PathName>,
    /// Whether the backend keeps redo pages.
    pub redo: Redo,
    /// Whether the sink has private copies of whole frames.
    pub look: bool,
    /// What the guest does with frames that came.
    pub rx: RxWay,
    /// TX: the guest's own buffers that frames are in, and the entries that the back's table has for them.
    pub buffers: Option<(Buffers, usize)>,
    /// Worker threads of the backend; 0: its one thread serves the queues. The stand has as many.
    pub workers: usize,
    /// The bench that it is a row of.
    pub bench: &'static str,
    /// Records, one for each repeat.
    pub records: Vec<Record>,
    /// How the platform did it, in words.
    pub platform: String,
}

impl Row {
    /// A row of nothing yet.
    pub fn new(path: PathName, dir: Dir, size: usize, data_len: u32) -> Self {
        let data_len = (path == PathName::Staging).then_some(data_len);
        let (records, platform) = (Vec::new(), String::new());
        Self {
            path,
            dir,
            size,
            data_len,
            rest: None,
            redo: Redo::On,
            look: false,
            rx: RxWay::Copy,
            buffers: None,
            workers: 0,
            bench: "net",
            records,
            platform,
        }
    }

    /// What it goes by, as `--path` has it.
    pub fn name(&self) -> &'static str {
        NetPath { path: self.path, rest: self.rest }.name()
    }

    /// Measures it once more.
    pub fn measure(
        &mut self,
        stand: &mut Stand,
        seconds: f64,
        burst: u32,
        mode: Mode,
        queues: u32,
    ) -> Result<&Record> {
        let case = Case {
            size: self.size,
            burst: burst as usize,
            seconds,
            mode,
            data_len: self.data_len,
            rest: self.rest.unwrap_or(self.path),
            heads: self.rest.is_some(),
            queues,
            redo: self.redo == Redo::On,
            look: self.look,
            rx: self.rx,
            buffers: self.buffers.map(|(buffers, _)| buffers),
            gref_pages: self.buffers.map(|(_, table)| STATIC_POOL + table),
            gives_way: stand.gives_way,
            ..Case::of(self.dir, self.path)
        };
        let (guest, back) = stand.play(case)?;
        if back.path != self.name() {
            return Err(
                format!("the back ran the path {} where {} was asked for", back.path, self.name()).into()
            );
        }
        let (taker, giver) = if self.dir == Dir::Tx { (&back, &guest) } else { (&guest, &back) };
        // Both ends know how long the untimed burst is: what did not come is not taken for good.
        let whole = whole_frames(self.size) * u64::from(queues);
        let mut record = Record::new(self.bench, self.name(), self.dir.name(), self.size as u64);
        record.count(guest.frames, guest.seconds);
        record.data_len = self.data_len.map(u64::from);
        record.queues = queues;
        record.redo = Some(self.redo == Redo::On);
        record.look = self.look.then_some(true);
        record.rx = (self.rx != RxWay::Copy).then(|| self.rx.name().into());
        if let (Some((buffers, table)), Some(cache)) = (self.buffers, guest.cache) {
            if cache.capacity > table || cache.hits + cache.copied != guest.frames {
                return Err(format!("a table of {table} and {} frames: {cache:?}", guest.frames).into());
            }
            record.buffers = Some(buffers.pages as u32);
            record.reuse = Some(buffers.reuse.name().into());
            record.table = Some(table as u32);
            record.hit_rate = Some(cache.hits as f64 / guest.frames.max(1) as f64);
            record.cache_mode =
                Some(if cache.copying { CacheMode::Copying } else { CacheMode::Caching }.name().into());
            record.evictions = Some(cache.evictions);
        }
        record.burst = burst;
        record.repeat = self.records.len() as u32;
        record.mode = mode.name().into();
        record.lost = taker.missing + giver.sent.saturating_sub(taker.next);
        record.account(&guest, &back);
        record.checked = Some(taker.checked.min(whole));
        let ops = guest.counters.plus(&back.counters);
        record.set_ops(ops);
        record.grant_copy_bytes = Some(ops.grant_copy_bytes);
        record.frontend_cpu_ns = guest.cpu_ns;
        record.set_backend_cpu(&back, self.workers);
        // What the RFC measured at 260 bytes is the head from its buffer and the rest by map.
        let by = if self.rest == Some(PathName::Map) { "staging" } else { self.name() };
        let size = self.size as u64;
        let published = match self.rx {
            RxWay::Hook => published::find_by_xdp(by, size, queues),
            RxWay::Copy | RxWay::Reference | RxWay::Stack => {
                published::find(by, self.dir.name(), size, queues)
            }
            RxWay::Allocate | RxWay::Return | RxWay::SendOn => None,
        };
        // The RFC's staging had a data length of 256; what a guest does with a frame that is in its buffer is the same at any.
        let comparable = match self.rx {
            RxWay::Hook | RxWay::Stack => self.size <= 256,
            _ => self.data_len.is_none_or(|n| n == 256),
        };
        // Theirs mapped and unmapped each page.
        let maps = self.path == PathName::Map || self.rest == Some(PathName::Map);
        let comparable = comparable && (!maps || self.look) && self.workers <= 1;
        record.published = published.filter(|_| comparable).map(|p| p.frames_per_s);
        if record.checked != Some(whole) {
            return Err(format!("{} of {whole} frames of the untimed burst came", taker.checked).into());
        }
        self.platform = back.platform;
        self.records.push(record);
        Ok(&self.records[self.records.len() - 1])
    }

    /// Of the repeats: frames per second.
    pub fn rate(&self) -> Option<Summary> {
        Summary::of(&self.records.iter().map(|r| r.frames_per_s).collect::<Vec<_>>())
    }

    /// Of the repeats' sum: some count for each frame.
    pub fn per_frame(&self, count: impl Fn(&Record) -> u64) -> f64 {
        let frames: u64 = self.records.iter().map(|r| r.frames).sum();
        self.records.iter().map(count).sum::<u64>() as f64 / frames.max(1) as f64
    }

    /// Whether its frames are longer than their buffers, and so have a head there and a rest elsewhere.
    pub fn has_heads(&self) -> bool {
        self.rest.is_some() && self.data_len.is_some_and(|n| self.size > n as usize)
    }

    /// Frames lost in all repeats.
    pub fn lost(&self) -> u64 {
        self.records.iter().map(|r| r.lost).sum()
    }
}

/// The ratio of two rows, repeat by repeat, and its median.
pub fn ratio(a: &Row, b: &Row) -> Option<Summary> {
    let pairs = a.records.iter().zip(&b.records);
    Summary::of_ratios(pairs.map(|(a, b)| (a.frames_per_s, b.frames_per_s)))
}

impl NetArgs {
    /// Refuses what would have no effect.
    fn check(&self, given: &Given) -> std::result::Result<(), Usage> {
        if !self.path.iter().any(|path| path.path == PathName::Staging) {
            given.refuse("data-len", "no path that is measured has staging buffers")?;
        }
        if !self.dir.contains(&DirName::Tx) {
            given.refuse("look", "it is for --dir tx")?;
        }
        if !self.rx.contains(&RxWay::Copy)
            && !self.path.iter().any(|path| path.serves(Dir::Rx) && path.comes_in_pages())
        {
            given.refuse("rx", "no path that is measured brings frames in pages, so that all are copied")?;
        }
        if !self.dir.contains(&DirName::Rx) {
            given.refuse("rx", "it is for --dir rx")?;
        }
        Ok(())
    }
}

/// Runs the benchmark.
pub fn run(args: NetArgs, given: &Given) -> Result<()> {
    args.check(given)?;
    super::reported(args.json.as_deref(), args.report.as_deref(), |json, page| measure(&args, json, page))
}

fn measure(args: &NetArgs, json: &mut RecordWriter, page: &mut Page) -> Result<()> {
    let mut rows = Vec::new();
    for &size in &args.size {
        for &dir in &args.dir {
            let dir = if dir == DirName::Tx { Dir::Tx } else { Dir::Rx };
            for &NetPath { path, rest } in args.path.iter().filter(|path| path.serves(dir)) {
                let look = args.look && dir == Dir::Tx;
                let in_pages = dir == Dir::Rx && NetPath::of(path).comes_in_pages();
                for &rx in args.rx.iter().filter(|&&rx| rx == RxWay::Copy || in_pages) {
                    for &redo in &args.redo {
                        rows.extend(args.workers.iter().map(|&workers| Row {
                            redo,
                            look,
                            rx,
                            workers: usize::from(workers),
                            rest,
                            ..Row::new(path, dir, size as usize, args.data_len)
                        }));
                    }
                }
            }
        }
    }
    for path in args.path.iter().filter(|path| !path.serves(Dir::Rx) && args.dir.contains(&DirName::Rx)) {
        eprintln!("pregrant: the path {path} serves TX alone (RX is copied): its rows for rx are left out");
    }
    for path in args.path.iter().filter(|path| !path.serves(Dir::Tx) && args.dir.contains(&DirName::Tx)) {
        eprintln!("pregrant: the path {path} serves RX alone: its rows for tx are left out");
    }
    let by_reference = args.rx.contains(&RxWay::Reference) && args.dir.contains(&DirName::Rx);
    for path in args.path.iter().filter(|path| by_reference && path.serves(Dir::Rx) && !path.comes_in_pages())
    {
        eprintln!("pregrant: frames by {path} come in no pages: its rows for --rx reference are left out");
    }
    if rows.is_empty() {
        return Err("nothing is left to measure; add --dir tx, another path, or --rx copy".into());
    }
    let mut stands = BTreeMap::new();
    for &workers in &args.workers {
        let workers = usize::from(workers);
        stands.insert(workers, Stand::with_workers(workers, args.mode)?);
    }
    // In all rows or in none: they are compared.
    let gives_way = stands.values().any(|stand| stand.seating.shares_guests_core());
    stands.values_mut().for_each(|stand| stand.gives_way = gives_way);
    let &NetArgs { repeats, seconds, burst, mode, queues, .. } = args;
    let what = |row: &Row| format!("{} {} {} B", row.name(), row.dir.name(), row.size);
    let turns = Turns { repeats, seconds, burst, mode, queues, what };
    turns.play(&mut rows, &mut stands, json, page)?;
    if !json.is_stdout() {
        print(table(&rows))?;
        print(method(&rows, args, stands.values()))?;
    }
    super::none_went_wrong(rows.iter().flat_map(|row| &row.records))
}

/// How the rows of a bench are measured: one after another, as often as there are repeats.
pub(super) struct Turns<F> {
    pub repeats: u32,
    /// Of each row and repeat.
    pub seconds: f64,
    pub burst: u32,
    pub mode: Mode,
    pub queues: u32,
    /// What a row is, for whoever waits.
    pub what: F,
}

impl<F: Fn(&Row) -> String> Turns<F> {
    /// Each row on the stand that has its workers.
    pub fn play(
        &self,
        rows: &mut [Row],
        stands: &mut BTreeMap<usize, Stand>,
        json: &mut RecordWriter,
        page: &mut Page,
    ) -> Result<()> {
        let progress = Progress::new();
        for repeat in 1..=self.repeats {
            for row in &mut *rows {
                progress.show(format_args!("repeat {repeat} of {}: {}", self.repeats, (self.what)(row)));
                let stand = stands.get_mut(&row.workers).ok_or("no stand with so many workers")?;
                json.write(row.measure(stand, self.seconds, self.burst, self.mode, self.queues)?)?;
                page.platform(&row.platform);
            }
        }
        progress.clear();
        Ok(())
    }
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut t = Table::new(&[
        ("path", Align::Left),
        ("dir", Align::Left),
        ("size B", Align::Right),
        ("data len", Align::Right),
        ("redo", Align::Left),
        ("workers", Align::Left),
        ("M frames/s", Align::Right),
        ("(range)", Align::Right),
        ("Gbit/s", Align::Right),
        ("grant ops/frame", Align::Right),
        ("B by grant copy", Align::Right),
        ("syscalls/frame", Align::Right),
        ("events/frame", Align::Right),
        ("lost", Align::Right),
        ("published M/s", Align::Right),
        ("of 40G line", Align::Right),
    ]);
    let mut last = None;
    for row in rows {
        if last.is_some_and(|l| l != (row.size, row.dir)) {
            t.gap();
        }
        last = Some((row.size, row.dir));
        let Some(rate) = row.rate() else { continue };
        let m = |v: f64| figure(v / 1e6);
        t.row([
            row.name().to_string(),
            match row.rx {
                RxWay::Copy => row.dir.name().into(),
                RxWay::Reference => format!("{} by reference", row.dir.name()),
                other => format!("{}, {}", row.dir.name(), other.name()),
            },
            row.size.to_string(),
            row.data_len.map_or("-".into(), |n| n.to_string()),
            row.redo.to_string(),
            if row.workers == 0 { "-".into() } else { row.workers.to_string() },
            m(rate.median),
            format!("({}..{})", m(rate.min), m(rate.max)),
            figure(rate.median * row.size as f64 * 8.0 / 1e9),
            figure(row.per_frame(|r| r.grant_copies + r.grant_maps + r.grant_unmaps)),
            figure(row.per_frame(|r| r.grant_copy_bytes.unwrap_or(0))),
            figure(row.per_frame(|r| r.syscalls)),
            figure(row.per_frame(|r| r.notifications)),
            row.lost().to_string(),
            published::cell(&row.records[0]),
            format!("{:.2}", rate.median / line_rate(40.0, row.size as u64)),
        ]);
    }
    t
}

fn method<'a>(rows: &[Row], args: &NetArgs, stands: impl Iterator<Item = &'a Stand>) -> String {
    let mut text = format!(
        "Medians of {} interleaved repeats of {} s, {} mode, {} queue(s), bursts of {}.\n",
        args.repeats,
        args.seconds,
        args.mode.name(),
        args.queues,
        args.burst
    );
    let mut gives_way = false;
    for stand in stands {
        gives_way |= stand.gives_way;
        text += &match stand.seating.nr_workers() {
            0 => format!("Without workers: {}.\n", stand.seating.words()),
            n => format!("{n} worker(s): {}.\n", stand.seating.words()),
        };
    }
    if gives_way {
        text += "A worker shares the guest's core: only one of the two runs at a time, and the guest yields, in all rows, when it \
                 has nothing to do. Bursts go to the queues in turns, so the slower worker sets the pace. Such rows say what \
                 a worker costs there, not what one is worth.\n";
    }
    text += "Either way one generator writes the head of each frame, 32 bytes with its number, and one checker reads them; the \
             rest of a frame is moved and not looked at";
    text += if args.look {
        ", but for a private copy of it that each path makes for the sink (TX). "
    } else {
        ". Where a path can leave it where the guest put it, it is not even mapped (`map`, TX; --look has it copied). "
    };
    text += "Before each row, untimed, 64 to 512 whole frames go the same way, and \
             every byte of them is checked.\n";
    if let Some(row) = rows.first() {
        text += &format!("Platform: {}.\n", row.platform);
    }
    if args.repeats < 5 {
        text += "So few repeats scatter, the range says how far: --repeats 9 scatters less.\n";
    }
    text += "Operations, system calls and events a frame are over all repeats: fractions where one serves several.\n";
    text += &pairs::in_words(rows);
    text +=
        "Published: other machines, real Xen, other years; they show the shape. Sources: docs/benchmarks.md.";
    if rows.iter().flat_map(|row| &row.records).any(published::is_through_stack) {
        text += &format!("\n{}", published::THROUGH_STACK);
    }
    text
}
