//! Each path and chain with each class of frame, number of queues, scatter-gather, workers, and an
//! end that dies: in processes, over the loopback.
//!
//! ```text
//!   cell --> World: frames numbered 0.. both ways --somebody dies in their midst--> more of them --> counters, close, nothing is left
//! ```
//! CI plays rows in which any two levels meet ([`pairs`](crate::pairs)). All cells, every N-th from
//! the K-th on, and one: `PREGRANT_MATRIX=full`, `=K/N`, `==NUMBER cargo test -p pregrant-host
//! --test restart matrix`.
//!
//! In each cell: every byte of every frame is right, each queue's frames come in order, none comes
//! twice and none is missing but for what a death allows (docs/protocol 1.1, R7: what the successor
//! says; a connection that ends: what was on its rings); each went the way that the cell is about,
//! as the back's counters say; at the end no one holds a grant, a mapping or a channel.

use crate::POINTS;
use crate::back::BURST;
use crate::frames;
use crate::pairs::{self, dice};
use crate::traffic::Traffic;
use crate::world::{Back, Counts, Word, World};
use pregrant::PAGE_SIZE;
use pregrant::net::front::{FrontConfig, GrefCache};
use pregrant::net::one_slot::OneSlot;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::port::BURST_FRAMES;
use pregrant_test_machine::one_by_one::alive;
use pregrant_testkit::dice::Dice;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Environment variable that chooses the cells; the file's head explains it.
const MATRIX: &str = "PREGRANT_MATRIX";
const SEED: &str = "PREGRANT_SEED";

/// How frames travel, and by which counters that is checked.
struct Way {
    name: &'static str,
    /// The back's configuration; see `vif_config`.
    back: &'static str,
    front: fn(FrontConfig) -> FrontConfig,
    /// The path by which frames of this length count, from the guest and for it.
    by: fn(usize) -> [By; 2],
}

/// A counter of the back's, and what must not have happened besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// By grant copies only.
    Copy,
    Map,
    /// By pages that stay mapped; the first frame in each page is not served by them.
    Persistent,
    GrefMapping,
    Staging,
    DataRing,
    Foreign,
    /// By copies from pages that the back grants.
    GuestCopy,
}

/// Staging buffers of `len` bytes in both directions.
fn staging(config: FrontConfig, len: u32) -> FrontConfig {
    let len = DataLen::new(len);
    FrontConfig { staging: Buffers::of(len, len), ..config }
}

/// More buffers than a ring has slots: each rests before it is written again.
fn pooled(config: FrontConfig) -> FrontConfig {
    let mut config = staging(config, 2048);
    config.staging.buffers = 700;
    config
}

/// Received ones are sent on.
fn sending_on(config: FrontConfig, len: u32) -> FrontConfig {
    let mut config = staging(config, len);
    config.staging.sent_on = true;
    config
}

fn within(len: usize, most: usize, else_by: By) -> By {
    if len <= most { By::Staging } else { else_by }
}

/// `map` copies the first bytes of a frame, and maps the rest.
fn mapped(len: usize) -> By {
    if len <= 128 { By::Copy } else { By::Map }
}

/// All ways; a new path is one more line.
#[rustfmt::skip]
const WAYS: &[Way] = &[
    Way { name: "copy", back: "copy", front: |c| c, by: |_| [By::Copy; 2] },
    Way { name: "map", back: "map", front: |c| c, by: |len| [mapped(len), By::Copy] },
    Way { name: "persistent", back: "copy", front: |c| FrontConfig { persistent: true, ..c }, by: |_| [By::Persistent; 2] },
    Way { name: "gref-mapping", back: "copy", front: |c| FrontConfig { gref_mapping: true, ..c }, by: |_| [By::GrefMapping; 2] },
    Way { name: OWN_PAGES, back: "copy", front: |c| FrontConfig { gref_mapping: true, ..c }, by: |_| [By::GrefMapping; 2] },
    Way { name: "staging 65535", back: "copy", front: |c| staging(c, 65535), by: |_| [By::Staging; 2] },
    Way { name: "staging, 700 buffers", back: "copy", front: pooled, by: |len| [within(len, 2048, By::Copy); 2] },
    Way { name: "staging 256", back: "copy", front: |c| staging(c, 256), by: |len| [within(len, 256, By::Copy); 2] },
    Way { name: "staging 4096", back: "copy", front: |c| staging(c, 4096), by: |len| [within(len, PAGE_SIZE, By::Copy); 2] },
    Way { name: "staging+map", back: "map,heads", front: |c| staging(c, 256), by: |len| [By::Map, By::Copy].map(|by| within(len, 256, by)) },
    Way { name: "staging+copy", back: "heads", front: |c| staging(c, 256), by: |len| [within(len, 256, By::Copy); 2] },
    Way { name: "data-ring", back: "copy", front: |c| FrontConfig { data_ring: Some(6), ..c }, by: |_| [By::DataRing; 2] },
    Way { name: "foreign", back: "foreign", front: |c| FrontConfig { foreign: true, ..c }, by: |_| [By::Foreign; 2] },
    Way { name: GUEST_COPY, back: "guest-copy", front: |c| FrontConfig { guest_copy: true, ..c }, by: |_| [By::Copy, By::GuestCopy] },
    Way { name: "zerocopy", back: "copy", front: |c| sending_on(c, 2048), by: |len| [within(len, 2048, By::Copy); 2] },
    Way { name: "zerocopy 65535", back: "copy", front: |c| sending_on(c, 65535), by: |_| [By::Staging; 2] },
];
/// The way whose frames are sent from the guest's own pages, which the back has mapped after a
/// while.
const OWN_PAGES: &str = "own pages";
/// Number of frames for which there is room.
const OWN_PLACES: usize = 8;
/// The cells whose guest sends received frames on.
const ZEROCOPY: &str = "zerocopy";
/// The way whose frames are in pages that are lost with their back.
const GUEST_COPY: &str = "guest-copy";

/// Bytes of a frame: short of Ethernet's least, 64, 4 more than a buffer has, an MTU, a page, a
/// large MTU, a segment of 64 KiB.
const SIZES: [usize; 7] = [40, 64, 260, 1514, PAGE_SIZE, 9000, 65535];
const QUEUES: [u32; 3] = [1, 2, 4];
/// Whether the front accepts frames over several slots, and whether the back does.
const SG: [[bool; 2]; 4] = [[true, true], [false, true], [true, false], [false, false]];
const WORKERS: [&str; 2] = ["1", "2"];

/// The end that dies, or ends in good order, while frames are in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Neither,
    /// The back dies at any point of a batch, or between two; another one resumes the live rings.
    BackIsKilled,
    /// Another front in the same domain starts from the beginning.
    FrontDies,
    FrontClosesAndOpens,
    BackClosesAndOpens,
}

const ENDS: [End; 5] =
    [End::Neither, End::BackIsKilled, End::FrontDies, End::FrontClosesAndOpens, End::BackClosesAndOpens];

fn levels() -> [usize; 6] {
    [WAYS.len(), SIZES.len(), QUEUES.len(), SG.len(), WORKERS.len(), ENDS.len()]
}

struct Cell {
    number: usize,
    way: &'static Way,
    len: usize,
    queues: u32,
    sg: [bool; 2],
    workers: &'static str,
    end: End,
}

impl Cell {
    fn numbered(number: usize) -> Self {
        let mut rest = number;
        let mut level = |of: usize| {
            let level = rest % of;
            rest /= of;
            level
        };
        let [way, len, queues, sg, workers, end] = levels().map(&mut level);
        Self {
            number,
            way: &WAYS[way],
            len: SIZES[len],
            queues: QUEUES[queues],
            sg: SG[sg],
            workers: WORKERS[workers],
            end: ENDS[end],
        }
    }

    fn number_of(row: &[usize]) -> usize {
        row.iter().zip(levels()).rev().fold(0, |number, (level, of)| number * of + level)
    }

    /// Whether frames of this length are accepted from the guest, and by it.
    fn taken(&self) -> [bool; 2] {
        let long = self.len > PAGE_SIZE;
        let [front, back] = self.sg;
        // Without the front's sg a frame is as long as one slot may have.
        let buffers = self.config().staging.rx.map(DataLen::value);
        let received = front || self.len <= PAGE_SIZE && OneSlot::with_buffers(buffers).takes(self.len, &[]);
        // A frame that was not received is not sent on.
        [(!long || back) && (!self.sends_on() || received), received]
    }

    fn sends_on(&self) -> bool {
        self.way.name.starts_with(ZEROCOPY)
    }

    fn config(&self) -> FrontConfig {
        let plain = FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() };
        (self.way.front)(FrontConfig { queues: self.queues, sg: self.sg[0], ..plain })
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, way, len, queues, sg: [front, back], workers, end } = self;
        write!(
            f,
            "cell {number}: {}, {len} bytes, {queues} queue(s), sg of front {front}, of back {back}, {workers} worker(s), {end:?}",
            way.name
        )
    }
}

/// The cell that is played, for the message of a failure.
static NOW: Mutex<String> = Mutex::new(String::new());

/// Prints the current cell, if any.
pub fn say_cell() {
    let now = NOW.lock().map_or_else(|poisoned| poisoned.into_inner().clone(), |now| now.clone());
    if !now.is_empty() {
        eprintln!("{now}");
    }
}

/// Prints the cell where an assertion fails.
struct SaysCell;

impl Drop for SaysCell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say_cell();
        }
    }
}

pub fn matrix_of_paths() {
    let seed = std::env::var(SEED).map_or(1, |text| text.parse().expect("a number"));
    let all: usize = levels().iter().product();
    let asked = std::env::var(MATRIX).ok();
    let cells: Vec<usize> = match asked.as_deref() {
        None => pairs::rows(&levels(), seed).iter().map(|row| Cell::number_of(row)).collect(),
        Some("full") => (0..all).collect(),
        Some(text) => match (text.strip_prefix('='), text.split_once('/')) {
            (Some(one), _) => vec![one.parse().expect("a cell's number")],
            (None, Some((from, step))) => {
                let step = step.parse().expect("each so many-th");
                (from.parse().expect("from which on")..all).step_by(step).collect()
            }
            _ => panic!("{MATRIX}={text}: full, K/N or =NUMBER"),
        },
    };
    println!("  seed {seed}: {} of {all} cells", cells.len());
    let began = Instant::now();
    let _says = SaysCell;
    for number in &cells {
        let cell = Cell::numbered(*number);
        *NOW.lock().unwrap() = format!(
            "{cell}; again: {SEED}={seed} {MATRIX}=={number} cargo test -p pregrant-host --test restart matrix"
        );
        alive();
        play(&cell, &mut dice(seed ^ (*number as u64) << 8));
    }
    NOW.lock().unwrap().clear();
    println!("  {:.1} s", began.elapsed().as_secs_f64());
}

/// Both ends of a cell, over what becomes of the back.
struct Stage<'a> {
    cell: &'a Cell,
    world: World,
    back: Back,
    words: String,
    deaths: u32,
}

impl<'a> Stage<'a> {
    fn new(cell: &'a Cell, crash: Option<String>) -> Self {
        let world = World::new();
        world.log.set(Word::Size, cell.len as u32);
        let words = if cell.sg[1] { cell.way.back.into() } else { format!("{},no-sg", cell.way.back) };
        let back = world.back_of(&words, crash, Some(cell.workers.into()));
        Self { cell, world, back, words, deaths: 0 }
    }

    fn another_back(&mut self) {
        self.back = self.world.back_of(&self.words, None, Some(self.cell.workers.into()));
    }

    fn front(&self, numbers: std::ops::Range<u64>) -> Traffic {
        let (guest, config) = (self.world.guest(), self.cell.config());
        let places = if self.cell.way.name == OWN_PAGES { OWN_PLACES } else { 0 };
        let mut traffic = Traffic::with_own_pages(guest, config, true, numbers, (places, self.cell.len));
        traffic.size = Some(self.cell.len);
        traffic.sends_on = self.cell.sends_on();
        traffic
    }

    /// Moves frames on; a back that died has a successor.
    fn step(&mut self, traffic: &mut Traffic, send: bool) {
        traffic.step_and_follow(send);
        if self.back.is_dead() {
            self.deaths += 1;
            assert!((self.cell.end, self.deaths) == (End::BackIsKilled, 1), "a back ended by itself");
            self.another_back();
        }
    }

    /// Waits until the front is connected and the back knows its features.
    fn ready(&mut self, traffic: &mut Traffic) {
        while !traffic.front.vif().is_live() || traffic.front.vif().is_announcing() {
            self.step(traffic, false);
        }
    }

    /// Number of frames that the guest has sent, or that were sent to it if it sends received
    /// frames on.
    fn made(&self, traffic: &Traffic) -> u64 {
        if self.cell.sends_on() { self.next() } else { traffic.numbers.start }
    }

    /// Frames for the guest that the back's port gave.
    fn next(&self) -> u64 {
        self.world.log.get(Word::Next).into()
    }

    /// The back's counts, when they change no more.
    fn counted(&self) -> [Counts; 2] {
        let mut last = self.world.counted();
        loop {
            let now = self.world.counted();
            if now == last {
                return now;
            }
            last = now;
        }
    }
}

fn in_flight(traffic: &Traffic) -> u64 {
    let vif = traffic.front.vif();
    (0..vif.nr_queues()).map(|i| u64::from(vif.in_flight(i))).sum()
}

/// Which of the guest's own pages the back has.
fn caches(traffic: &Traffic) -> impl Iterator<Item = &GrefCache> {
    let vif = traffic.front.vif();
    (0..vif.nr_queues()).filter_map(|i| vif.queue(i)?.tx().cache())
}

fn play(cell: &Cell, dice: &mut Dice) {
    let queues = u64::from(cell.queues);
    // Enough for a batch to die in; and for the pages of all ids to come twice, where it matters
    // whether they do.
    let first = 40 + 15 * queues;
    let twice = 400 * queues / frames::slots(cell.len) as u64;
    let second = if cell.way.name == "persistent" { first + twice } else { first };
    let total = first + second;
    let crash = (cell.end == End::BackIsKilled && dice.below(6) > 0)
        .then(|| format!("{}:{}", POINTS[dice.below(POINTS.len())], 1 + dice.below(10)));
    let dies_at = dice.below(first as usize) as u64;
    let crashes = crash.is_some();
    let [sends, receives] = cell.taken();
    let mut stage = Stage::new(cell, crash);
    let mut traffic = stage.front(0..first);
    stage.ready(&mut traffic);
    stage.world.log.set(Word::Limit, first as u32);
    while stage.made(&traffic) < dies_at {
        stage.step(&mut traffic, true);
    }
    // Of those that were made before: how many may be missing.
    let mut may_miss = [0; 2];
    if ![End::Neither, End::BackIsKilled].contains(&cell.end) {
        may_miss = [in_flight(&traffic), traffic.missing(0..first)];
    }
    match cell.end {
        End::Neither => {}
        End::BackIsKilled if crashes => {}
        End::BackIsKilled => stage.back.kill(),
        End::FrontDies | End::FrontClosesAndOpens => {
            if cell.end == End::FrontClosesAndOpens {
                assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
            }
            let numbers = traffic.numbers.clone();
            let came = traffic.end();
            traffic = stage.front(numbers);
            traffic.go_on(came);
        }
        End::BackClosesAndOpens => {
            stage.back.begin_to_close();
            while !stage.back.is_dead() {
                traffic.step_and_follow(false);
            }
            assert!(stage.back.ended_well());
            stage.another_back();
        }
    }
    stage.ready(&mut traffic);
    while stage.made(&traffic) < first || stage.next() < first {
        stage.step(&mut traffic, true);
    }
    if cell.end == End::BackIsKilled && stage.deaths == 0 {
        stage.back.kill(); // in no batch: there were fewer
    }
    while cell.end == End::BackIsKilled && stage.deaths == 0 {
        stage.step(&mut traffic, true);
    }
    stage.ready(&mut traffic);
    // A guest that was there all the time has sent frames of pages that the back is asked to map.
    let by_reference =
        cell.way.name == OWN_PAGES && sends && [End::Neither, End::BackIsKilled].contains(&cell.end);
    while by_reference && caches(&traffic).any(|cache| cache.stats().misses > 0 && cache.added() == 0) {
        stage.step(&mut traffic, false);
    }
    let hits = |traffic: &Traffic| caches(traffic).map(|cache| cache.stats().hits).sum::<u64>();
    let before = hits(&traffic);
    traffic.numbers.end = if cell.sends_on() { traffic.numbers.end } else { total };
    stage.world.log.set(Word::Limit, total as u32);
    loop {
        let log = &stage.world.log;
        let sent = stage.made(&traffic) == total && (!sends || log.account(first..total).0 == 0);
        let received = stage.next() == total && (!receives || traffic.missing(first..total) == 0);
        if sent && received {
            break;
        }
        stage.step(&mut traffic, true);
    }
    assert!(!by_reference || hits(&traffic) > before, "no frame went from the guest's own pages");
    let mut counts = stage.counted();
    let log = &stage.world.log;
    if cell.end == End::BackIsKilled {
        let [again, lost] = [Word::SaidTwice, Word::SaidLost].map(|word| u64::from(log.get(word)));
        // No more than a batch of each queue.
        assert!(
            again <= BURST_FRAMES as u64 * queues && lost <= u64::from(BURST) * queues,
            "{again}, {lost}"
        );
        // A worker that was not at the point, or none was: it may have been taking a burst from a
        // port.
        let asking = if crashes && cell.workers == "1" { 0 } else { u64::from(BURST) * queues };
        // Answered, and not copied by the guest: a ring of them.
        let lent = if cell.way.name == GUEST_COPY { 256 * queues } else { 0 };
        may_miss = [0, lost + asking + lent];
        assert!(
            u64::from(log.get(Word::Again)) <= again,
            "{} came twice, {again} were said",
            log.get(Word::Again)
        );
    } else {
        assert_eq!(log.get(Word::Again), 0, "frames came twice");
    }
    if cell.sends_on() {
        may_miss[0] += may_miss[1];
    }
    // Frames that were on a ring of another queue.
    let due = |traffic: &Traffic| traffic.missing(0..first) > may_miss[1];
    while receives && due(&traffic) {
        traffic.step_and_follow(true);
    }
    let missing = |sends: bool| if sends { log.account(0..first).0 as u64 } else { 0 };
    while missing(sends) > may_miss[0] {
        traffic.step_and_follow(true);
    }
    assert_eq!((log.get(Word::Damaged), log.get(Word::Reordered)), (0, 0), "damaged, late");
    // A frame that cannot be taken came nowhere, and is counted.
    if !sends {
        assert_eq!(log.account(0..total).0 as u64, total, "frames over several slots from the guest");
    }
    if !receives {
        assert_eq!(traffic.missing(0..total), total, "frames over several slots for the guest");
    }
    if cell.end == End::Neither {
        let whole = |counts: &[Counts; 2]| {
            [sends, receives].into_iter().zip(counts).enumerate().all(|(dir, (taken, counts))| {
                // Those from the guest were dropped there already.
                let dropped = if taken || dir == 0 { 0 } else { total };
                (u64::from(counts.frames), u64::from(counts.dropped))
                    == (if taken { total } else { 0 }, dropped)
            })
        };
        while !whole(&counts) {
            counts = stage.counted();
        }
        let vif = traffic.front.vif();
        let dropped: u64 = (0..vif.nr_queues()).map(|i| vif.queue(i).unwrap().stats().0.dropped).sum();
        let due = if sends || cell.sends_on() && !receives { 0 } else { total };
        assert_eq!(dropped, due, "dropped by the guest");
    }
    // Elsewhere frames came before the back knew all.
    let exact = cell.end == End::Neither;
    for (dir, (taken, counts)) in [sends, receives].into_iter().zip(counts).enumerate() {
        if taken {
            assert_by((cell.way.by)(cell.len)[dir], counts, exact);
        }
    }
    if cell.sends_on() && sends && receives {
        let vif = traffic.front.vif();
        let stats: Vec<_> = (0..vif.nr_queues()).map(|i| vif.queue(i).unwrap().hook_stats()).collect();
        let [on, copied, unsent] =
            [0, 1, 2].map(|k| stats.iter().map(|s| [s.sent_on, s.sent_copied, s.unsent][k]).sum::<u64>());
        let fits = (cell.way.by)(cell.len)[0] == By::Staging;
        assert_eq!(
            (on > 0, copied > 0, unsent),
            (fits, !fits, 0),
            "sent on, by a copy, for want of room not"
        );
    }
    assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
    drop(traffic);
    let Stage { world, back, .. } = stage;
    world.end(back);
}

/// Checks that all frames used that path. `exact`: the back knew all pages before.
fn assert_by(by: By, counts: Counts, exact: bool) {
    let Counts {
        frames,
        granted,
        persistent,
        gref_mapped,
        data_ring,
        foreign,
        guest_copy,
        staged,
        errors,
        maps,
        ..
    } = counts;
    assert!(frames > 0 && errors == 0, "{by:?}: {counts:?}");
    let right = match by {
        By::Copy => granted == frames && maps == 0,
        By::Map => granted == frames && maps > 0,
        By::Persistent => persistent > 0 && persistent + granted == frames,
        By::GrefMapping => gref_mapped > 0 && gref_mapped + granted == frames && (granted == 0 || !exact),
        By::Staging => staged == frames,
        By::Foreign => foreign == frames,
        By::GuestCopy => guest_copy == frames,
        By::DataRing => data_ring > 0 && data_ring + granted == frames,
    };
    assert!(right, "{by:?}: {counts:?}");
}
