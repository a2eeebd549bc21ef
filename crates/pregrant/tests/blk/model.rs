//! Random requests against a model of the disk, both ends of ours, every path, peers dying at any
//! point.
//!
//! ```text
//!   cell: 8 sectors       history: what was written there, in order; a cell has one write in flight at most
//!   read        the last acknowledged write
//!   power lost  any of the writes since the one that the last acknowledged FLUSH (or BARRIER) covered
//! ```
//! The back's process dies between two polls, or in the middle of one, wherever it speaks to its
//! disk; of what its disk still had, some lands before the successor begins, and the rest never. A
//! guest that dies leaves requests, and starts again. Each tag is answered once.
#![cfg(not(miri))]

use crate::world::{HOST, SECTORS, Setting, World, figures};
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd, NotAsked};
use pregrant::blk::path::PathName;
use pregrant::platform::local::LocalDomain;
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::Abi;
use pregrant_testkit::rounds::rounds;
use pregrant_testkit::shared_disk::Died;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const CELL: usize = 8 * 512;
const CELLS: usize = SECTORS as usize / 8;
/// Cells that are asked about.
const USED: usize = 40;
/// The content of a cell that was never written.
const FIRST: u32 = 0;

#[derive(Clone, Debug)]
struct Cell {
    /// Writes, the oldest first that may be on the platter.
    history: Vec<u32>,
    /// Number of these writes that were acknowledged.
    acked: usize,
    busy: bool,
}

#[derive(Clone, Debug)]
enum Asked {
    Read {
        first: usize,
        n: usize,
    },
    Write {
        first: usize,
        n: usize,
        barrier: Option<Vec<u32>>,
    },
    /// For each cell the number of acknowledged writes when the flush was sent.
    Flush(Vec<u32>),
}

struct Game {
    world: World,
    setting: Setting,
    front: FrontVbd<LocalDomain>,
    cells: Vec<Cell>,
    open: BTreeMap<u64, Asked>,
    next_tag: u64,
    next_seed: u32,
    answered: usize,
    deaths: usize,
}

fn cell_bytes(cell: usize, seed: u32) -> Vec<u8> {
    let head = (cell as u64) << 32 | u64::from(seed);
    (0..CELL / 8).flat_map(|k| (head ^ (k as u64) << 48).to_le_bytes()).collect()
}

impl Game {
    fn new(setting: Setting) -> Self {
        let mut world = World::new(setting.back, figures());
        {
            let mut disk = world.disk.inside();
            let all: Vec<u8> = (0..CELLS).flat_map(|cell| cell_bytes(cell, FIRST)).collect();
            (disk.cache, disk.platter) = (all.clone(), all);
            disk.by_hand = true;
        }
        let front = world.front(setting.front);
        let cell = Cell { history: vec![FIRST], acked: 1, busy: false };
        Self {
            world,
            setting,
            front,
            cells: vec![cell; USED],
            open: BTreeMap::new(),
            next_tag: 0,
            next_seed: 1,
            answered: 0,
            deaths: 0,
        }
    }

    fn submit(&mut self, what: u8, first: usize, n: usize) {
        let n = n.min(USED - first);
        let overlaps = self.cells[first..first + n].iter().any(|cell| cell.busy);
        let acked = || self.cells.iter().map(|cell| cell.history[cell.acked - 1]).collect();
        let sector = first as u64 * 8;
        let mut bytes = Vec::new();
        let (asked, ask) = match what {
            0 | 1 if !overlaps => (Asked::Read { first, n }, Ask::Read { sector, sectors: (n * 8) as u32 }),
            2..=5 if !overlaps => {
                let is_read = |asked: &Asked| match asked {
                    Asked::Read { first: f, n: m } => *f < first + n && first < f + m,
                    _ => false,
                };
                if self.open.values().any(is_read) {
                    return;
                }
                bytes.extend((first..first + n).flat_map(|cell| cell_bytes(cell, self.next_seed)));
                if what == 5 && n <= 11 {
                    let asked = Asked::Write { first, n, barrier: Some(acked()) };
                    (asked, Ask::Barrier { sector, bytes: &bytes })
                } else {
                    (Asked::Write { first, n, barrier: None }, Ask::Write { sector, bytes: &bytes })
                }
            }
            6 => (Asked::Flush(acked()), Ask::Flush),
            _ => return,
        };
        match self.front.submit(&self.world.guest, 0, &ask, self.next_tag) {
            Ok(()) => {}
            Err(NotAsked::Full) => return,
            Err(e) => panic!("{e:?}"),
        }
        if let Asked::Write { .. } = asked {
            for cell in &mut self.cells[first..first + n] {
                cell.history.push(self.next_seed);
                cell.busy = true;
            }
            self.next_seed += 1;
        }
        self.open.insert(self.next_tag, asked);
        self.next_tag += 1;
        self.front.publish(&self.world.guest, 0);
    }

    /// A poll, which the back may not survive.
    fn poll(&mut self, lands: usize) {
        let Self { world, .. } = self;
        match catch_unwind(AssertUnwindSafe(|| world.poll_back())) {
            Ok(_) => {}
            Err(why) if why.is::<Died>() => self.kill(lands),
            Err(why) => resume_unwind(why),
        }
    }

    /// The back's process dies, and another one takes over the rings.
    fn kill(&mut self, lands: usize) {
        self.deaths += 1;
        self.world.disk.inside().dies_in = None;
        self.world.disk.lands_at_end(lands);
        assert!(self.world.succeed().expect("a live ring"), "its front is connected");
    }

    fn covered(&mut self, snapshot: &[u32]) {
        for (cell, seed) in self.cells.iter_mut().zip(snapshot) {
            // Writes that a later flush has covered are not there any more.
            if let Some(at) = cell.history.iter().position(|had| had == seed) {
                cell.history.drain(..at);
                cell.acked -= at;
            }
        }
    }

    fn take(&mut self) {
        let mut answers = Vec::new();
        let take = self.front.take(&self.world.guest, 0, |a| {
            let mut bytes = vec![0; a.len()];
            a.copy_out(&mut bytes);
            answers.push((a.tag, a.outcome, bytes));
        });
        take.expect("an honest back");
        for (tag, outcome, bytes) in answers {
            let asked = self.open.remove(&tag).unwrap_or_else(|| panic!("{tag}: twice, or never asked"));
            assert_eq!(outcome, Ok(()), "{asked:?}");
            self.answered += 1;
            match asked {
                Asked::Read { first, n } => {
                    for (cell, bytes) in (first..first + n).zip(bytes.chunks(CELL)) {
                        let Cell { history, acked, .. } = &self.cells[cell];
                        assert!(bytes == cell_bytes(cell, history[acked - 1]), "cell {cell} of {tag}");
                    }
                }
                Asked::Write { first, n, barrier } => {
                    for cell in &mut self.cells[first..first + n] {
                        cell.acked += 1;
                        cell.busy = false;
                    }
                    if let Some(mut snapshot) = barrier {
                        // It covers itself, too.
                        let own = |k: usize| self.cells[k].history[self.cells[k].acked - 1];
                        (first..first + n).for_each(|k| snapshot[k] = own(k));
                        self.covered(&snapshot);
                    }
                }
                Asked::Flush(snapshot) => self.covered(&snapshot),
            }
        }
    }

    /// Unanswered writes of a dead connection may have been executed or not: reads the disk to find
    /// out.
    fn settle(&mut self, power_lost: bool) {
        let mut disk = self.world.disk.inside();
        if power_lost {
            disk.cache = disk.platter.clone();
        }
        for (k, cell) in self.cells.iter_mut().enumerate() {
            let bytes = &disk.cache[k * CELL..(k + 1) * CELL];
            let oldest = if power_lost { 0 } else { cell.acked - 1 };
            let found = cell.history[oldest..].iter().find(|seed| bytes == cell_bytes(k, **seed));
            let Some(&seed) = found else {
                panic!("cell {k} has none of {:?}, power lost: {power_lost}", &cell.history[oldest..])
            };
            // Without power the platter's is what there is.
            let on_platter = &disk.platter[k * CELL..(k + 1) * CELL] == bytes;
            if power_lost || on_platter {
                (cell.history, cell.acked) = (vec![seed], 1);
            } else {
                cell.history.retain(|had| *had != seed);
                cell.history.push(seed);
                cell.acked = cell.history.len();
            }
            cell.busy = false;
        }
    }

    /// The guest is gone, and starts again. Its disk is closed in between.
    fn guest_dies(&mut self, power_lost: bool, lands: usize) {
        self.take();
        self.world.disk.lands_at_end(lands);
        self.world.disk.inside().dies_in = None;
        self.world.back.close(&self.world.host, &mut self.world.back_bus, None).unwrap();
        self.front.step(&self.world.guest, &mut self.world.front_bus).unwrap();
        let mut lost = self.front.take_lost();
        lost.sort_unstable();
        assert_eq!(lost, self.open.keys().copied().collect::<Vec<_>>(), "what is lost is what is open");
        self.open.clear();
        self.settle(power_lost);
        for _ in 0..4 {
            self.world.step_back().unwrap();
            self.front.step(&self.world.guest, &mut self.world.front_bus).unwrap();
        }
        // Another disk driver of the same guest, on the same keys.
        let front = FrontVbd::new(HOST, self.setting.front, false);
        let old = std::mem::replace(&mut self.front, front);
        assert!(old.is_closed(), "{} pages mapped", self.world.xen.counts().mapped);
        self.world.front_bus.own.borrow_mut().insert("state".into(), "1".into());
        assert_eq!(self.world.connect(&mut self.front), [FrontStep::Live]);
    }

    fn act(&mut self, (what, a, b): (u8, u16, u16)) {
        let (a, b) = (usize::from(a), usize::from(b));
        match what {
            0..=11 => self.submit(what % 7, a % USED, 1 + b % [1, 3, 12, 30][a % 4]),
            12..=14 => self.poll(b),
            15..=18 => {
                self.world.disk.inside().do_one(a);
            }
            19 => {
                for _ in 0..a % 20 {
                    self.world.disk.inside().do_one(b);
                }
            }
            20..=22 => self.take(),
            23 => self.world.disk.inside().dies_in = Some(1 + a as u32 % 40),
            24 => self.kill(b),
            25 => {
                // In good order: what was taken is answered.
                self.world.disk.inside().dies_in = None;
                self.world.back.detach(&self.world.host, &mut ());
                self.kill(b);
            }
            26 if a % 3 == 0 => self.guest_dies(b % 2 == 0, b / 2),
            _ => {}
        }
    }

    fn end(mut self) {
        self.world.disk.inside().dies_in = None;
        for _ in 0..10_000 {
            if self.open.is_empty() {
                break;
            }
            self.poll(0);
            while self.world.disk.inside().do_one(0) {}
            self.take();
        }
        assert!(self.open.is_empty(), "without an answer: {:?}", self.open);
        self.world.disk.inside().by_hand = false;
        self.settle(false);
        self.world.end(self.front);
    }
}

fn play(setting: Setting, acts: Vec<(u8, u16, u16)>) -> (usize, usize) {
    let mut game = Game::new(setting);
    acts.into_iter().for_each(|act| game.act(act));
    let counts = (game.answered, game.deaths);
    game.end();
    counts
}

fn settings() -> Vec<Setting> {
    let mut all = Vec::new();
    for path in PathName::ALL {
        for (abi, ring_order) in [(Abi::X86_64, 0), (Abi::X86_32, 0), (Abi::X86_64, 2)] {
            let mut setting = Setting::of(path, abi);
            setting.front = FrontConfig { ring_order, ..setting.front };
            // Less than the front has pages, and less than all that may be in flight.
            setting.back.persistent_pages = 40;
            setting.back.parts_in_flight = 300;
            all.push(setting);
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(32, 96) as u32, ..ProptestConfig::default() })]
    #[test]
    fn what_was_acknowledged_after_a_flush_is_there_no_matter_who_dies(
        which in 0usize..9,
        acts in prop::collection::vec((0u8..27, any::<u16>(), any::<u16>()), 20..400),
    ) {
        play(settings()[which], acts);
    }
}

/// Long games, so that each setting is played, with deaths in the middle of polls, and requests
/// that are done again.
#[test]
fn each_setting_sees_deaths_and_work_done_again() {
    for (k, setting) in settings().into_iter().enumerate() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(k as u64 + 1);
        let mut any = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let mut game = Game::new(setting);
        let mut redone = 0;
        for _ in 0..4000 {
            let word = any();
            let before = game.deaths;
            let counts = game.world.back.shares().first().map_or(0, |s| s.counters.read().redone);
            game.act(((word % 27) as u8, (word >> 16) as u16, (word >> 32) as u16));
            if game.deaths > before {
                redone += counts;
            }
        }
        assert!(
            game.answered > 500 && game.deaths > 50 && redone > 50,
            "{} {} {redone}",
            game.answered,
            game.deaths
        );
        game.end();
    }
}

#[test]
fn a_live_ring_without_its_journal_is_not_taken_up() {
    let mut world = World::new(Setting::of(PathName::Copy, Abi::X86_64).back, figures());
    let mut front = world.front(FrontConfig::default());
    front.submit(&world.guest, 0, &Ask::Flush, 1).unwrap();
    front.publish(&world.guest, 0);
    let gone = pregrant::blk::back::BackVbd::new(
        crate::world::GUEST,
        51712,
        world.config,
        Box::new(world.disk.clone()),
    );
    drop(std::mem::replace(&mut world.back, gone));
    world.back.inherit(&mut world.back_bus).unwrap();
    let image = world.kept("image");
    let no_journal = &mut |name: &str, _: usize| -> Option<Box<dyn SharedBytes + Send>> {
        (name == "image").then(|| Box::new(image.clone()) as _)
    };
    let e = world.back.reattach(&world.host, &mut world.back_bus, no_journal).unwrap_err().to_string();
    assert!(e.contains("journal"), "{e}");
    assert_eq!(world.xen.counts().mapped, 0);
    drop(front);
}
