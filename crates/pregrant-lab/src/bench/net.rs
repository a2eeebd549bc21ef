//! `pregrant-lab bench net`: frames through a vif, path by path.
//!
//! A guest and a backend process are each pinned to a core of its own. Each repeat of each row uses
//! a new vif, from connect to close. All rows are measured once in each repeat, so that a slow
//! phase of the machine affects all of them.

use super::output::{Output, Run};
use super::stand::Stand;
use super::timing::{Bursts, Timing, few, in_turns};
use super::{Result, pairs};
use crate::columns::{Columns, or_dash};
use crate::record::published::{self, line_rate};
use crate::record::repeats::Repeats;
use crate::record::{Net, Of, Record, WorkingSet};
use pregrant::net::batch::Thresholds;
use pregrant::net::features::BackFeatures;
use pregrant::net::front::CacheMode;
use pregrant::net::front::lent::{RX_HEAD_BYTES, RX_HEAD_LEAST};
use pregrant::net::path::PathName;
use pregrant::net::path::staging::keys::MAX_PAGES_OFFERED;
use pregrant::net::path::staging::list::DataLen;
use pregrant_cli::choice::choice;
use pregrant_cli::screen;
use pregrant_cli::table::{Table, figure};
use pregrant_cli::usage::{Given, Usage};
use pregrant_host::drivers::net::buffer_pool;
use pregrant_host::drivers::{Mode, Placement, RxCoalescing};
use pregrant_testbed::named;
use pregrant_testbed::process::mark::whole_frames;
use pregrant_testbed::process::process_command::{
    BUFFERS_MAX, Buffers, Case, Dir, Fill, RING_SLOTS, Reuse, RxWay, TxWay,
};
use std::collections::BTreeMap;

/// Arguments of `bench net`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |a| a.default_value("0.5")), mut_arg("repeats", |a| a.default_value("3")))]
#[command(after_help = "Examples:
  pregrant-lab bench net --path copy,staging --dir tx,rx --size 64,1500
  pregrant-lab bench net --path staging --dir tx --size 64 --data-len 256 --seconds 1 --json out.jsonl
  pregrant-lab bench net --path staging --size 64 --redo on,off --repeats 9
  pregrant-lab bench net --path copy,staging --size 64 --burst 1,2,4,8,16,32,64
  pregrant-lab bench net --path gref-mapping --dir tx --size 65535 --tx copy,own --repeats 9
  pregrant-lab bench net --path copy --dir rx --size 1500 --rx reference --rx-head 14,64,200,256
  pregrant-lab bench net --path copy --dir rx --size 1500 --mode event --rx-coalesce off,32,load
  pregrant-lab bench net --path map,persistent --dir tx --size 1500 --look --queues 2 --workers 1,2
  pregrant-lab bench net --path copy,staging,staging+copy,staging+map --dir tx --size 256,260 --look
  pregrant-lab bench net --path map --dir tx --size 1500 --look --copy-below 128,2048
  pregrant-lab bench net --path staging --dir rx --size 1500 --data-len 2048 --rx-only

Frames/s are those that arrived, in the time between two marks; lost is sent minus received by number.
A row whose untimed burst comes with a wrong byte fails.
Run it on an idle machine with two cores; results from a loaded machine are meaningless.")]
pub struct NetArgs {
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [NetPath::of(PathName::Copy), NetPath::of(PathName::Staging)], value_parser = choice(NET_PATHS, NetPath::name))]
    pub path: Vec<NetPath>,
    /// Directions, as the guest sees them
    #[arg(long, value_delimiter = ',', default_values_t = [Dir::Tx, Dir::Rx])]
    pub dir: Vec<Dir>,
    /// Bytes of a frame, headers included
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 1500], value_parser = clap::value_parser!(u32).range(60..=65535))]
    pub size: Vec<u32>,
    /// Queues
    #[arg(long, default_value_t = 1, value_parser = queues)]
    pub queues: u32,
    /// Worker threads of the backend, with commas between them; 0: it serves its queues in its one
    /// thread
    #[arg(long, value_delimiter = ',', default_values_t = [0u16], value_parser = clap::value_parser!(u16).range(0..=WORKERS_MOST))]
    pub workers: Vec<u16>,
    /// Bytes of a frame that fit a staging buffer: 64, 128, 256, 2048, 4096 or 65535
    #[arg(long, default_value_t = 256, value_parser = data_len)]
    pub data_len: u32,
    /// Like --data-len, for TX alone
    #[arg(long, value_parser = data_len, conflicts_with = "rx_only")]
    pub tx_data_len: Option<u32>,
    /// Like --data-len, for RX alone
    #[arg(long, value_parser = data_len)]
    pub rx_data_len: Option<u32>,
    /// Staging buffers for RX alone
    #[arg(long)]
    pub rx_only: bool,
    /// With `map`: frames of no more bytes are copied, with commas between the numbers
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [Thresholds::USUAL.copy_below], value_parser = clap::value_parser!(u32).range(i64::from(Thresholds::LEAST)..=65535))]
    pub copy_below: Vec<u32>,
    /// Buffers of each direction and queue, by staging, or pages, by persistent, gref-mapping and
    /// foreign, with commas between them; as many as the ring has slots, 256, at least
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [RING_SLOTS], value_parser = clap::value_parser!(u32).range(i64::from(RING_SLOTS)..=i64::from(BUFFERS_MAX)))]
    pub buffers: Vec<u32>,
    /// Whether the backend keeps redo pages, which let rings survive its crash; both to compare
    #[arg(long, value_delimiter = ',', default_values_t = [Redo::On])]
    pub redo: Vec<Redo>,
    /// TX: the sink needs whole frames (as a switch or a capture does), so that path map maps them;
    /// without this it reads their heads
    #[arg(long)]
    pub look: bool,
    /// TX: whether the guest copies frames to pages that the backend has mapped, or sends them from
    /// where they are; both to see what the copy costs. From there only by `gref-mapping`
    #[arg(long, value_delimiter = ',', default_value = "copy")]
    pub tx: Vec<TxWay>,
    /// RX: whether the guest copies frames, or reads them in the pages that the backend wrote to;
    /// both to see what the copy costs. By reference only where frames come in pages: `copy`,
    /// `persistent`, `gref-mapping` and `foreign`
    #[arg(long, value_delimiter = ',', default_value = "copy")]
    pub rx: Vec<RxWay>,
    /// With --rx reference: bytes of a longer frame that the guest copies, with commas between the
    /// numbers; of less than 64 it copies as much again before it reads the frame's number
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [RX_HEAD_BYTES as u32], value_parser = rx_head())]
    pub rx_head: Vec<u32>,
    /// RX, with --mode event or adaptive: how many frames a guest that sleeps waits for, 100 us at
    /// most: off, a number, or load, with commas between them
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [RxCoalescing::Off])]
    pub rx_coalesce: Vec<RxCoalescing>,
    /// Frames in a burst at most, with commas between the numbers
    #[arg(long, value_delimiter = ',', default_values_t = [64u32], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub burst: Vec<u32>,
    #[command(flatten)]
    pub timing: Timing,
    /// How both ends wait
    #[arg(long, default_value = "poll", value_parser = choice(MODES, Mode::name))]
    pub mode: Mode,
    #[command(flatten)]
    pub output: Output,
}

/// The paths that can be measured, each with its description in the help.
pub const PATHS: &[(PathName, &str)] = &[
    described(PathName::Copy),
    described(PathName::Map),
    described(PathName::Persistent),
    described(PathName::GrefMapping),
    described(PathName::Staging),
    described(PathName::DataRing),
    described(PathName::Foreign),
    described(PathName::GuestCopy),
];
const _: () = assert!(PATHS.len() == PathName::COUNT, "each path is measured");

/// The paths of a guest that only sends to a backend shared with other guests. It maps no pages of
/// theirs, and exports pages for RX only.
pub const SENDERS_PATHS: &[(PathName, &str)] = &[
    described(PathName::Copy),
    described(PathName::Persistent),
    described(PathName::GrefMapping),
    described(PathName::Staging),
    described(PathName::DataRing),
    described(PathName::Foreign),
];

/// Returns a path with its description in the help.
const fn described(path: PathName) -> (PathName, &'static str) {
    let description = match path {
        PathName::Copy => "Batched grant copy",
        PathName::Map => "Copy of the headers, map and unmap of the rest",
        PathName::Persistent => "Pages that stay mapped once they were seen",
        PathName::GrefMapping => "Pages that the guest asked to keep mapped",
        PathName::Staging => "Buffers granted before the data comes",
        PathName::DataRing => "A circular area granted before the data comes",
        PathName::Foreign => "Any page of a guest that trusts its backend: the upper bound",
        PathName::GuestCopy => "Pages that the backend lends: the guest copies (RX)",
    };
    (path, description)
}

/// A path that a row measures, with a second path for what the first does not move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetPath {
    /// The first path of the chain.
    pub path: PathName,
    /// With `staging`, the path for the rest of longer frames, whose heads are in their staging
    /// buffers.
    pub rest: Option<PathName>,
}

impl NetPath {
    pub const fn of(path: PathName) -> Self {
        Self { path, rest: None }
    }

    const fn headed(rest: PathName) -> Self {
        Self { path: PathName::Staging, rest: Some(rest) }
    }

    /// Returns the name for `pregrant back --path`.
    pub fn name(self) -> &'static str {
        match (self.path, self.rest) {
            (path, None) => path.name(),
            (_, Some(rest)) => PathName::staging_and(rest),
        }
    }

    /// True if received frames are in pages that the guest can read by reference.
    fn comes_in_pages(self) -> bool {
        ![PathName::Staging, PathName::DataRing, PathName::GuestCopy].contains(&self.path)
    }

    /// True if the path serves this direction. A back that maps on TX copies on RX, as Linux's
    /// does: with heads that is `staging+copy`. A back that grants pages does so for RX only.
    pub fn serves(self, dir: Dir) -> bool {
        match dir {
            Dir::Tx => self.path != PathName::GuestCopy,
            _ => ![Some(self.path), self.rest].contains(&Some(PathName::Map)),
        }
    }
}

impl std::fmt::Display for NetPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The paths of this bench, each with its description in the help.
const NET_PATHS: &[(NetPath, &str)] = &[
    alone(PathName::Copy),
    alone(PathName::Map),
    alone(PathName::Persistent),
    alone(PathName::GrefMapping),
    alone(PathName::Staging),
    alone(PathName::DataRing),
    alone(PathName::Foreign),
    alone(PathName::GuestCopy),
    (NetPath::headed(PathName::Copy), "Staging, and the head of a longer frame too, its rest by grant copy"),
    (NetPath::headed(PathName::Map), "The same, its rest by map and unmap"),
];
const _: () =
    assert!(NET_PATHS.len() == PathName::COUNT + 2, "each path is measured, and staging by two more ways");

/// Returns a path that moves whole frames, with its description in the help.
const fn alone(path: PathName) -> (NetPath, &'static str) {
    let (path, description) = described(path);
    (NetPath::of(path), description)
}

/// The waiting modes of both ends, each with its description in the help.
pub const MODES: &[(Mode, &str)] = &[
    (Mode::Poll, "Never sleep"),
    (Mode::Event, "Sleep as soon as nothing moves"),
    (Mode::Adaptive, "Spin for a bounded time, then sleep"),
];

named! {
    /// Whether redo pages are kept.
    pub enum Redo {
        /// Redo pages are kept
        On = "on",
        /// Redo pages are not kept
        Off = "off",
    }
}

/// Largest number of workers. Each worker is an attachment, of which a domain has 20, and the
/// control thread uses two.
const WORKERS_MOST: i64 = 16;

/// Parses the number of bytes of a frame's head.
fn rx_head() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(RX_HEAD_LEAST as i64..=RX_HEAD_BYTES as i64)
}

/// Parses a number of queues that the backend offers.
pub fn queues(text: &str) -> std::result::Result<u32, String> {
    let most = BackFeatures::default().max_queues;
    match text.parse() {
        Ok(n) if (1..=most).contains(&n) => Ok(n),
        _ => Err(format!("a number from 1 to {most}, which the backend offers")),
    }
}

/// Parses a length of staging buffers that the backend offers.
pub fn data_len(text: &str) -> std::result::Result<u32, String> {
    let offered = pregrant::net::path::staging::keys::ALL_DATA_LENS;
    match text.parse() {
        Ok(n) if offered.contains(&n) => Ok(n),
        _ => Err(format!("one of {offered:?}, which are the lengths that the backend offers")),
    }
}

/// Number of table entries for the pages of all ids of a queue: 256 of each direction.
pub const STATIC_POOL: usize = 512;
/// Number of the guest's own pages that the table has room for, in addition.
const OWN_PAGES: usize = RING_SLOTS as usize;

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The measured case; its duration and its vif are set for each repeat.
    pub case: Case,
    /// Number of the backend's worker threads; 0: its one thread serves the queues. The testbed has
    /// the same number.
    pub workers: usize,
    /// Name of the bench that the row belongs to.
    pub bench: &'static str,
    /// The records of the row, one for each repeat.
    pub records: Repeats,
    /// A text that says how the platform copied and mapped.
    pub platform: String,
}

impl std::ops::Deref for Row {
    type Target = Case;
    fn deref(&self) -> &Case {
        &self.case
    }
}

impl Row {
    /// Creates a row without records.
    pub fn of(bench: &'static str, case: Case) -> Self {
        Self { case, workers: 0, bench, records: Repeats::default(), platform: String::new() }
    }

    /// Creates a row for frames of `size` bytes, with buffers of this length if the path has some.
    pub fn new(path: PathName, dir: Dir, size: usize, data_len: u32) -> Self {
        let data_len = (path == PathName::Staging).then_some(data_len);
        Self::of("net", Case { size, data_len, ..Case::of(dir, path) })
    }

    /// Returns the path for the rests of frames whose heads come from staging buffers.
    pub fn rest(&self) -> Option<PathName> {
        self.heads.then_some(self.case.rest)
    }

    /// Returns the number of entries in the back's table for the guest's own buffers.
    pub fn table(&self) -> usize {
        self.gref_pages.map_or(0, |pages| pages - STATIC_POOL)
    }

    /// Returns the memory from which frames are sent.
    pub fn tx_way(&self) -> TxWay {
        if self.buffers.is_some() { TxWay::Own } else { TxWay::Copy }
    }

    /// Returns the name of the path for `--path`.
    pub fn name(&self) -> &'static str {
        NetPath { path: self.path, rest: self.rest() }.name()
    }

    /// Returns the data length of staging in the other direction, if it differs; 0: no buffers.
    fn other_data_len(&self) -> Option<u32> {
        let [tx, rx] = self.data_lens?;
        Some(if self.dir == Dir::Tx { rx } else { tx }.unwrap_or(0))
    }

    pub fn measure(
        &mut self,
        stand: &mut Stand,
        seconds: f64,
        burst: u32,
        mode: Mode,
        queues: u32,
    ) -> Result<&Record> {
        let (burst_frames, gives_way) = (burst as usize, stand.gives_way);
        let case = Case { burst: burst_frames, seconds, mode, queues, gives_way, ..self.case.clone() };
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
        record.set_ends(&guest, &back, self.workers);
        record.data_len = self.data_len.map(u64::from);
        record.queues = queues;
        let mut of = Net {
            staging_buffers: Some(self.staging_buffers).filter(|n| *n > RING_SLOTS),
            redo: self.redo,
            look: self.look.then_some(true),
            rx: (self.rx != RxWay::Copy).then(|| self.rx.name().into()),
            rx_head: Some(self.rx_head as u32).filter(|head| *head != RX_HEAD_BYTES as u32),
            other_data_len: self.other_data_len(),
            copy_below: Some(self.copy_below).filter(|bytes| *bytes != Thresholds::USUAL.copy_below),
            grant_copy_bytes: guest.spent.ops.plus(&back.spent.ops).grant_copy_bytes,
            set: None,
        };
        record.rx_coalesce =
            (self.rx_coalescing != RxCoalescing::Off).then(|| self.rx_coalescing.to_string());
        if let (Some(buffers), table, Some(cache)) = (self.buffers, self.table(), guest.cache) {
            if cache.capacity > table || cache.hits + cache.copied != guest.frames {
                return Err(format!("a table of {table} and {} frames: {cache:?}", guest.frames).into());
            }
            let mode = if cache.copying { CacheMode::Copying } else { CacheMode::Caching };
            of.set = Some(WorkingSet {
                buffers: buffers.pages as u32,
                reuse: buffers.reuse.name().into(),
                table: table as u32,
                hit_rate: cache.hits as f64 / guest.frames.max(1) as f64,
                cache_mode: mode.name().into(),
                evictions: cache.evictions,
            });
        }
        record.of = Of::Net(of);
        record.burst = burst;
        record.mode = mode.name().into();
        record.lost = taker.came.lost_of(giver.sent);
        record.checked = Some(taker.checked.min(whole));
        // At 260 bytes the RFC measured the head from its buffer and the rest by map.
        let by = if self.rest() == Some(PathName::Map) { "staging" } else { self.name() };
        let size = self.size as u64;
        let published = match self.rx {
            RxWay::Hook => published::find_by_xdp(by, size, queues),
            RxWay::Copy | RxWay::Reference | RxWay::Stack => {
                published::find(by, self.dir.name(), size, queues)
            }
            RxWay::Allocate | RxWay::Return | RxWay::SendOn => None,
        };
        // The RFC's staging had a data length of 256; what a guest does with a frame that is in its
        // buffer is the same at any.
        let comparable = match self.rx {
            RxWay::Hook | RxWay::Stack => self.size <= 256,
            _ => self.data_len.is_none_or(|n| n == 256),
        };
        // Theirs mapped and unmapped each page.
        let maps = self.path == PathName::Map || self.rest() == Some(PathName::Map);
        let comparable =
            comparable && self.tx_way() == TxWay::Copy && (!maps || self.look) && self.workers <= 1;
        record.published = published.filter(|_| comparable).map(|p| p.frames_per_s);
        if record.checked != Some(whole) {
            return Err(format!("{} of {whole} frames of the untimed burst came", taker.checked).into());
        }
        self.platform = back.platform;
        Ok(self.records.push(record))
    }

    /// True if frames are longer than their buffers, so that the head is in a buffer and the rest
    /// elsewhere.
    pub fn has_heads(&self) -> bool {
        self.heads && self.data_len.is_some_and(|n| self.size > n as usize)
    }
}

impl NetArgs {
    /// Refuses options that would have no effect.
    fn check(&self, given: &Given) -> std::result::Result<(), Usage> {
        if !self.path.iter().any(|path| path.path == PathName::Staging) {
            ["data-len", "tx-data-len", "rx-data-len", "rx-only"].into_iter().try_for_each(|option| {
                given.refuse(option, "no path that is measured has staging buffers")
            })?;
        }
        if !self.path.iter().any(|path| has_buffers(path.path)) {
            given.refuse("buffers", "no path that is measured has a pool of buffers or pages")?;
        }
        if !self.path.iter().any(|path| path.serves(Dir::Tx) && !path.serves(Dir::Rx)) {
            given.refuse("copy-below", "no path that is measured maps frames")?;
        }
        if !self.look {
            given.refuse("copy-below", "without --look no path maps frames")?;
        }
        if !self.dir.contains(&Dir::Tx) {
            ["look", "tx"].into_iter().try_for_each(|option| given.refuse(option, "it is for --dir tx"))?;
        }
        if !self.path.iter().any(|path| path.path == PathName::GrefMapping) {
            given.refuse("tx", "by no path that is measured a frame goes from a page of the guest's own")?;
        }
        if !self.rx.contains(&RxWay::Copy)
            && !self.path.iter().any(|path| path.serves(Dir::Rx) && path.comes_in_pages())
        {
            given.refuse("rx", "no path that is measured brings frames in pages, so that all are copied")?;
        }
        if !self.dir.contains(&Dir::Rx) {
            ["rx", "rx-head", "rx-coalesce"]
                .into_iter()
                .try_for_each(|option| given.refuse(option, "it is for --dir rx"))?;
        }
        if !self.rx.contains(&RxWay::Reference) {
            given.refuse("rx-head", "it is for --rx reference")?;
        }
        if self.mode == Mode::Poll {
            given.refuse("rx-coalesce", "a guest that polls asks for no events (--mode event)")?;
        }
        Ok(())
    }

    /// Returns the data lengths of staging for TX and RX, if the directions differ.
    fn data_lens(&self) -> Option<[Option<u32>; 2]> {
        let [tx, rx] = [self.tx_data_len, self.rx_data_len].map(|len| len.unwrap_or(self.data_len));
        (self.rx_only || tx != rx).then_some([(!self.rx_only).then_some(tx), Some(rx)])
    }

    fn data_len_of(&self, dir: Dir) -> u32 {
        let of = if dir == Dir::Tx { self.tx_data_len } else { self.rx_data_len };
        of.unwrap_or(self.data_len)
    }
}

pub fn run(args: NetArgs, given: &Given) -> Result<()> {
    args.check(given)?;
    args.output.run(|run| measure(&args, run))
}

/// Returns the ways in which a guest receives: by copy or by reference, with the lengths of heads
/// and the coalescing.
fn receptions(args: &NetArgs, dir: Dir, rx: RxWay) -> Vec<(RxWay, usize, RxCoalescing)> {
    let heads = if rx == RxWay::Reference { &args.rx_head[..] } else { &[RX_HEAD_BYTES as u32] };
    let coalescings = if dir == Dir::Rx { &args.rx_coalesce[..] } else { &[RxCoalescing::Off] };
    let all = heads.iter().flat_map(|&head| coalescings.iter().map(move |&c| (rx, head as usize, c)));
    all.collect()
}

/// Returns the kinds of memory from which frames are sent.
fn sources(args: &NetArgs, dir: Dir, path: PathName) -> Vec<Option<Buffers>> {
    if dir != Dir::Tx || path != PathName::GrefMapping {
        return vec![None];
    }
    let own = Buffers { pages: OWN_PAGES, reuse: Reuse::Circular, fill: Fill::Head };
    args.tx.iter().map(|way| (*way == TxWay::Own).then_some(own)).collect()
}

/// True if a guest may have more buffers or pages than its rings have slots.
fn has_buffers(path: PathName) -> bool {
    use PathName as P;
    matches!(path, P::Staging | P::Persistent | P::GrefMapping | P::Foreign)
}

fn measure(args: &NetArgs, run: &mut Run) -> Result<()> {
    let mut rows = Vec::new();
    for &size in &args.size {
        for &dir in &args.dir {
            let is_measured = |path: &&NetPath| {
                path.serves(dir) && !(args.rx_only && dir == Dir::Tx && path.path == PathName::Staging)
            };
            for &NetPath { path, rest } in args.path.iter().filter(is_measured) {
                let look = args.look && dir == Dir::Tx;
                let buffers = if has_buffers(path) { &args.buffers[..] } else { &[0] };
                let in_pages = dir == Dir::Rx && NetPath::of(path).comes_in_pages();
                let ways = args.rx.iter().filter(|&&rx| rx == RxWay::Copy || in_pages);
                for (rx, rx_head, rx_coalescing) in ways.flat_map(|&rx| receptions(args, dir, rx)) {
                    for &redo in &args.redo {
                        let case = Case {
                            redo: redo == Redo::On,
                            look,
                            rx,
                            rx_head,
                            rx_coalescing,
                            rest: rest.unwrap_or(path),
                            heads: rest.is_some(),
                            data_lens: args.data_lens().filter(|_| path == PathName::Staging),
                            ..Row::new(path, dir, size as usize, args.data_len_of(dir)).case
                        };
                        let maps = [path, case.rest].contains(&PathName::Map);
                        let below = if maps { &args.copy_below[..] } else { &[Thresholds::USUAL.copy_below] };
                        let counts = sources(args, dir, path).into_iter().flat_map(|own| {
                            let counts = if own.is_some() { [RING_SLOTS].iter() } else { buffers.iter() };
                            counts.flat_map(move |&n| args.burst.iter().map(move |&burst| (own, n, burst)))
                        });
                        for (own, staging_buffers, burst) in counts {
                            let gref_pages = own.map(|_| STATIC_POOL + OWN_PAGES);
                            let case = Case {
                                buffers: own,
                                gref_pages,
                                staging_buffers,
                                burst: burst as usize,
                                ..case.clone()
                            };
                            let each = below.iter().flat_map(|&b| args.workers.iter().map(move |&w| (b, w)));
                            rows.extend(each.map(|(copy_below, workers)| Row {
                                workers: workers.into(),
                                ..Row::of("net", Case { copy_below, ..case.clone() })
                            }));
                        }
                    }
                }
            }
        }
    }
    for path in args.path.iter().filter(|path| !path.serves(Dir::Rx) && args.dir.contains(&Dir::Rx)) {
        screen::say(format_args!(
            "pregrant-lab: the path {path} serves TX alone (RX is copied): its rows for rx are left out"
        ));
    }
    for path in args.path.iter().filter(|path| !path.serves(Dir::Tx) && args.dir.contains(&Dir::Tx)) {
        screen::say(format_args!(
            "pregrant-lab: the path {path} serves RX alone: its rows for tx are left out"
        ));
    }
    if args.rx_only && args.dir.contains(&Dir::Tx) {
        screen::say(format_args!(
            "pregrant-lab: with --rx-only TX has no staging buffers: its rows by staging are left out"
        ));
    }
    let by_reference = args.rx.contains(&RxWay::Reference) && args.dir.contains(&Dir::Rx);
    for path in args.path.iter().filter(|path| by_reference && path.serves(Dir::Rx) && !path.comes_in_pages())
    {
        screen::say(format_args!(
            "pregrant-lab: frames by {path} come in no pages: its rows for --rx reference are left out"
        ));
    }
    if rows.is_empty() {
        return Err("nothing is left to measure; add --dir tx, another path, or --rx copy".into());
    }
    let mut stands = BTreeMap::new();
    for workers in args.workers.iter().map(|&workers| usize::from(workers)) {
        stands.insert(workers, Stand::with_workers(workers, args.mode, Placement::Balanced)?);
    }
    // In all rows or in none: they are compared.
    let gives_way = stands.values().any(|stand| stand.core_placement().shares_guests_core());
    stands.values_mut().for_each(|stand| stand.gives_way = gives_way);
    let &NetArgs { timing: Timing { repeats, seconds }, mode, queues, .. } = args;
    let words = |row: &Row| {
        let Case { dir, size, burst, staging_buffers, .. } = row.case;
        format!("{} {dir} {size} B, bursts of {burst}, {staging_buffers} buffers", row.name())
    };
    in_turns(run, repeats, &mut rows, words, |run, row| {
        let stand = stands.get_mut(&row.workers).ok_or("no stand with so many workers")?;
        run.write(row.measure(stand, seconds, row.burst as u32, mode, queues)?)?;
        run.page.platform(&row.platform);
        Ok(())
    })?;
    run.print(table(&rows))?;
    run.print(method(&rows, args, stands.values()))
}

/// Measures rows in turns, `repeats` times each, on one new testbed in poll mode with this many
/// queues.
pub fn in_poll_mode(
    run: &mut Run,
    (&Bursts { burst, timing: Timing { seconds, repeats } }, queues): (&Bursts, u32),
    rows: &mut [Row],
    words: impl Fn(&Row) -> String,
) -> Result<()> {
    let mut stand = Stand::start()?;
    in_turns(run, repeats, rows, words, |run, row| {
        run.write(row.measure(&mut stand, seconds, burst, Mode::Poll, queues)?)?;
        run.page.platform(&row.platform);
        Ok(())
    })
}

/// Returns how the platform copied and mapped.
pub fn platform(rows: &[Row]) -> String {
    rows.first().map_or(String::new(), |row| format!("Platform: {}.\n", row.platform))
}

/// Formats the rows as a table.
fn table(rows: &[Row]) -> Table {
    Columns::of(rows.iter().filter(|row| row.records.rate().is_some()))
        .left("path", Row::name)
        .left("dir", |row| match row.rx {
            _ if row.tx_way() == TxWay::Own => format!("{} from own pages", row.dir),
            RxWay::Copy => row.dir.to_string(),
            RxWay::Reference if row.rx_head < RX_HEAD_BYTES => {
                format!("{} by reference, head {}", row.dir, row.rx_head)
            }
            RxWay::Reference => format!("{} by reference", row.dir),
            other => format!("{}, {other}", row.dir),
        })
        .right("size B", |row| row.size)
        .right("data len", |row| match (row.data_len, row.other_data_len()) {
            (Some(len), Some(0)) => format!("{len} ({} alone)", row.dir),
            (Some(len), Some(other)) => format!("{len} (other way {other})"),
            (len, _) => or_dash(len),
        })
        .right("copy below", |row| {
            or_dash(Some(row.copy_below).filter(|_| [row.path, row.case.rest].contains(&PathName::Map)))
        })
        .right("burst", |row| row.burst)
        .right("coalesced", |row| row.rx_coalescing)
        .right("buffers", |row| or_dash(Some(row.staging_buffers).filter(|n| *n > 0)))
        .left("redo", |row| if row.redo { Redo::On } else { Redo::Off })
        .left("workers", |row| or_dash(Some(row.workers).filter(|n| *n > 0)))
        .ranged("M frames/s", 1e6, |row| row.records.rate())
        .median("Gbit/s", 1e9, |row| row.records.summary(|r| r.bits_per_s))
        .right("grant ops/frame", |row| figure(row.records.each(Record::grant_ops)))
        .right("B by grant copy", |row| figure(row.records.each(|r| r.grant_copy_bytes())))
        .right("syscalls/frame", |row| figure(row.records.each(|r| r.syscalls)))
        .right("events/frame", |row| figure(row.records.each(|r| r.notifications)))
        .right("lost", |row| row.records.sum(|r| r.lost))
        .right("published M/s", |row| published::cell(row.records.first()))
        .right("of 40G line", |row| {
            let rate = row.records.rate().map_or(0.0, |rate| rate.median);
            format!("{:.2}", rate / line_rate(40.0, row.size as u64))
        })
        .grouped(|row| (row.size, row.dir))
}

/// Names the rows that have more buffers or pages than our back allows a vif.
fn beyond_the_product(rows: &[Row]) -> String {
    let allowed = |row: &Row| match row.data_len.and_then(DataLen::new) {
        Some(len) => len.buffers_within(MAX_PAGES_OFFERED, 2),
        // No one bounds them.
        None if row.path == PathName::Foreign => u32::MAX,
        None => buffer_pool::allowed_pages(),
    };
    let beyond: BTreeMap<_, _> = rows
        .iter()
        .filter(|row| row.staging_buffers > RING_SLOTS && row.staging_buffers > allowed(row))
        .map(|row| ((row.name(), row.data_len), allowed(row)))
        .collect();
    let words = |((name, len), allowed): ((&str, Option<u32>), u32)| {
        let len = len.map(|len| format!(" of {len}")).unwrap_or_default();
        format!("{name}{len}: {allowed}")
    };
    if beyond.is_empty() {
        return String::new();
    }
    let most: Vec<_> = beyond.into_iter().map(words).collect();
    format!(
        "More buffers than `pregrant back` allows a vif of one queue each way ({}): such rows say what a larger allowance would give.\n",
        most.join(", ")
    )
}

fn method<'a>(rows: &[Row], args: &NetArgs, stands: impl Iterator<Item = &'a Stand>) -> String {
    let mut text = format!(
        "Medians of {} interleaved repeats of {} s, {} mode, {} queue(s).\n",
        args.timing.repeats, args.timing.seconds, args.mode, args.queues
    );
    let mut gives_way = false;
    for stand in stands {
        gives_way |= stand.gives_way;
        text += &match stand.core_placement().nr_workers() {
            0 => format!("Without workers: {}.\n", stand.core_placement().words()),
            n => format!("{n} worker(s): {}.\n", stand.core_placement().words()),
        };
    }
    if gives_way {
        text += "A worker shares the guest's core: only one of the two runs at a time, and the guest yields, in all rows, when it \
                 has nothing to do. Bursts go to the queues in turns, so the slower worker sets the pace. Such rows say what \
                 a worker costs there, not what one is worth.\n";
    }
    text += "Either way one generator writes the head of each frame, 32 bytes with its number, and one checker reads them; the \
             rest of a frame is moved and not read";
    text += if args.look {
        ", but for a private copy of it that each path makes for the sink (TX). "
    } else {
        ". Where a path can leave it where the guest put it, it is not even mapped (`map`, TX; --look has it copied). "
    };
    text += "Before each row, untimed, 64 to 512 whole frames go the same way, and every byte of them is checked.\n";
    text += &(platform(rows) + few(args.timing.repeats));
    text += "Operations, system calls and events a frame are over all repeats: fractions where one serves several.\n";
    text += &pairs::in_words(rows);
    text += &beyond_the_product(rows);
    text +=
        "Published: other machines, real Xen, other years; they show the shape. Sources: docs/benchmarks.md.";
    if rows.iter().flat_map(|row| row.records.iter()).any(published::is_through_stack) {
        text += &format!("\n{}", published::THROUGH_STACK);
    }
    text
}
