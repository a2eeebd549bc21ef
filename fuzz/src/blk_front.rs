//! The back of a disk attacks its front: answers, indices, figures, keys and states; it writes
//! into pages that it was shown, and keeps them mapped.
//!
//! ```text
//!   tape --asks--> FrontVbd --requests--> raw back --answers, keys--> FrontVbd --Answer--> compared with what was asked
//! ```
//! Each request says what was asked, of pages that no other request in flight has, and that are
//! granted while it is; a write's bytes are in them. Answers come out in the ring's order, each for
//! what was asked, once, with the bytes that the back left there; what is none closes the device,
//! and says what is lost. A request from pages of the guest's own is answered when its back has let
//! go of them. What a back can have granted is bounded, and nothing is at the end.

use crate::blk_ring::BlkRing;
use crate::guest_pages::{bytes_of, fill, granted};
use crate::tape::Tape;
use pregrant::blk::disk::{Discard, DiskFigures, IoError, SECTOR_BYTES};
use pregrant::blk::features::{BackFeatures, FrontRequest, figures_pairs};
use pregrant::blk::front::{Answer, Ask, FrontConfig, FrontStep, FrontVbd, NotAsked, OwnAsk};
use pregrant::grants::regions::Granting;
use pregrant::platform::local::{LocalDomain, LocalMap};
use pregrant::platform::{Access, GrantPool, GrantTable, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{
    Abi, OP_DISCARD, OP_FLUSH_DISKCACHE, OP_INDIRECT, OP_READ, OP_WRITE, OP_WRITE_BARRIER, RSP_EOPNOTSUPP,
    RSP_OKAY, Request, Response, Segment,
};
use pregrant::xenbus::bus::OwnKeys;
use pregrant::{GrantRef, PAGE_SIZE, PeerFault};
use pregrant_testkit::bus::{MapBus, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains};
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of operations of one input.
const OPS: usize = 200;
/// Largest number of pages that the back keeps mapped.
const HELD: usize = 24;
/// Pages of the guest's own.
const OWN_PAGES: usize = 40;

/// Keys of a back's directory.
const KEYS: [&str; 16] = [
    "max-ring-page-order",
    "multi-queue-max-queues",
    "feature-max-indirect-segments",
    "feature-persistent",
    "feature-barrier",
    "feature-flush-cache",
    "feature-discard",
    "discard-granularity",
    "discard-alignment",
    "discard-secure",
    "sectors",
    "info",
    "sector-size",
    "physical-sector-size",
    "state",
    "online",
];

#[derive(Clone, Copy)]
enum Asked {
    Read { sector: u64, sectors: u32 },
    Write { sector: u64, len: usize, barrier: bool },
    Flush,
    Discard { sector: u64, sectors: u64, secure: bool },
}

/// A request, as the back sees it.
struct Open {
    tag: u64,
    asked: Asked,
    id: u64,
    op: u8,
    indirect: bool,
    data: Vec<u32>,
    lists: Vec<u32>,
}

/// One queue of the back.
struct Queue {
    ring: BlkRing<LocalMap>,
    req_cons: u32,
    /// Answers that it wrote; it may show another number.
    rsp_prod: u32,
    /// Number of answers that the front took.
    rsp_cons: u32,
    open: Vec<Open>,
    /// Answered requests, with those of their pages that the back had mapped when the answers were
    /// taken.
    waiting: Vec<(Open, Result<(), IoError>)>,
}

struct Game {
    domains: TwoDomains,
    config: FrontConfig,
    front: FrontVbd<LocalDomain>,
    front_bus: MapBus,
    back_bus: MapBus,
    queues: Vec<Queue>,
    /// Pages that the back keeps mapped, with the grants of those that it saw in this connection.
    held: Vec<(Option<GrantRef>, LocalMap)>,
    next_tag: u64,
    now_ns: u64,
    /// For each tag: whether a request for the guest's own pages reads, and how many bytes.
    own: BTreeMap<u64, (bool, usize)>,
}

pub fn blk_front(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut game = Game::new(&mut tape);
    game.connect(&mut tape);
    while tape.more(OPS) {
        game.play(&mut tape);
        game.check();
    }
    game.close();
}

impl Game {
    fn new(tape: &mut Tape<'_>) -> Self {
        let domains = TwoDomains::new();
        domains.xen.stop_clock(1);
        let config = FrontConfig {
            queues: tape.one_of(&[1, 2, 3]),
            ring_order: tape.one_of(&[0, 1, 2]),
            abi: tape.one_of(&[Abi::X86_64, Abi::X86_32]),
            persistent: tape.below(2) == 0,
            granting: tape.one_of(&[Granting::PerFrame, Granting::Standing]),
            max_segments: tape.one_of(&[64, 11, 600]),
            pages: tape.one_of(&[40, 11, 20, 600]),
        };
        let (front_bus, back_bus) = device();
        let mut front = FrontVbd::new(HOST, config, tape.below(4) != 3);
        let memory = GrantTable::pages(&domains.guest, OWN_PAGES).expect("the guest's pages");
        fill(&memory);
        assert!(front.use_memory(Some(memory)).is_none());
        let (queues, held, own) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { domains, config, front, front_bus, back_bus, queues, held, next_tag: 0, now_ns: 1, own }
    }

    fn set(&mut self, key: &str, value: &str) {
        self.back_bus.own.borrow_mut().insert(key.into(), value.into());
    }

    /// All that a back writes, for a disk of this kind or that.
    fn connect(&mut self, tape: &mut Tape<'_>) {
        let offered = BackFeatures {
            max_ring_order: tape.one_of(&[4, 0, 1]),
            max_queues: tape.one_of(&[4, 1, 2]),
            max_indirect_segments: tape.one_of(&[256, 0, 12, 4096]),
            persistent: tape.below(2) == 0,
            barrier: true,
        };
        let discard = Some(Discard { granularity: 4096, alignment: 0, secure: true, zeroes: true });
        let figures = DiskFigures { discard, ..DiskFigures::of(1 << 20) };
        let pairs = [offered.pairs(), figures_pairs(&figures, true)].concat();
        pairs.iter().for_each(|(key, value)| self.set(key, value));
        self.set("state", "2");
        self.step();
        self.set("state", "4");
        self.step();
    }

    /// Makes a step of the front, as its owner does.
    fn step(&mut self) {
        let was_live = self.front.is_live();
        match self.front.step(&self.domains.guest, &mut self.front_bus) {
            Ok(FrontStep::Live) => self.live(),
            Ok(FrontStep::Resized | FrontStep::StaysInUse) => assert!(was_live),
            Ok(FrontStep::Waiting | FrontStep::Closed) => {}
            Err(e) => {
                let text = e.to_string();
                assert!(text.len() < 1000 && !text.contains(char::is_control), "{text:?}");
                self.front.close(&mut self.front_bus, Some(&text)).expect("a store");
            }
        }
        if !self.front.is_live() {
            self.gone();
        }
    }

    /// The queues are gone: each request in flight is lost, once. Those of a front that must close
    /// go when its back does.
    fn gone(&mut self) {
        let mut lost = self.front.take_lost();
        lost.sort_unstable();
        let waiting = self.queues.iter().flat_map(|q| &q.waiting).map(|(open, _)| open);
        let mut open: Vec<u64> =
            self.queues.iter().flat_map(|q| &q.open).chain(waiting).map(|open| open.tag).collect();
        open.sort_unstable();
        if self.front.is_closed() || !lost.is_empty() {
            assert_eq!(lost, open, "what is lost is what was open");
            self.queues.clear();
        }
    }

    /// The back maps the rings that its front names.
    fn live(&mut self) {
        self.queues.clear();
        // The next connection has the same pages, even if still mapped.
        self.held.iter_mut().for_each(|(gref, _)| *gref = None);
        let most = BackFeatures { max_queues: u32::MAX, ..BackFeatures::default() };
        let keys = &mut OwnKeys(&mut self.front_bus);
        let named = FrontRequest::read(&self.domains.host, (GUEST, usize::MAX), keys, &most)
            .expect("an honest front");
        assert_eq!(named.abi, self.config.abi);
        assert_eq!(named.queues.len(), self.front.nr_queues());
        assert!(named.queues.len() <= self.config.queues as usize);
        for keys in named.queues {
            assert!(keys.ring.len() <= 1 << self.config.ring_order);
            let ring = BlkRing::map(&self.domains, named.abi, keys.ring);
            assert_eq!((ring.req_prod(), ring.rsp_prod()), (0, 0));
            let (open, waiting) = (Vec::new(), Vec::new());
            self.queues.push(Queue { ring, req_cons: 0, rsp_prod: 0, rsp_cons: 0, open, waiting });
        }
    }

    fn play(&mut self, tape: &mut Tape<'_>) {
        let live = self.front.is_live();
        match tape.below(16) {
            0..=3 if live => self.ask(tape),
            4..=6 if live => self.answer(tape),
            7 | 8 if live => self.take(tape.below(self.queues.len())),
            // The back shows an index that is none.
            9 if live => {
                let q = tape.below(self.queues.len());
                let queue = &mut self.queues[q];
                let by = tape.one_of(&[1, 40, 0x1000, 0x8000_0000, u32::MAX]);
                queue.ring.show_answers(queue.rsp_prod.wrapping_add(by));
                self.take(q);
            }
            // It keeps a page mapped, or writes to one, or lets go of some.
            10 if live => self.hold(tape),
            11 => drop(self.held.drain(..self.held.len().min(1 + tape.below(8)))),
            // It writes over slots that the front has written.
            12 if live => {
                let Queue { ring, rsp_prod, .. } = &self.queues[tape.below(self.queues.len())];
                let words = [tape.u32(), tape.u32(), tape.u32(), tape.u32()];
                ring.write_answer(rsp_prod.wrapping_add(1 + u32::from(tape.u8() % 16)), words);
                ring.set_event(tape.below(2) == 0, tape.u32());
            }
            13 => {
                let (key, value) = (tape.one_of(&KEYS), self.value(tape));
                self.set(key, &value);
                self.step();
            }
            14 => {
                let states = ["2", "4", "5", "6", "1", "3", "0", "7", "8", "", "x"];
                self.set("state", states[tape.below(states.len())]);
                self.step();
            }
            15 if !live => self.connect(tape),
            _ => {
                self.now_ns += u64::from(tape.u8()) * 10_000_000;
                self.domains.xen.stop_clock(self.now_ns);
                self.step();
            }
        }
    }

    fn value(&self, tape: &mut Tape<'_>) -> String {
        match tape.below(3) {
            0 => tape.u32().to_string(),
            1 => tape.below(9).to_string(),
            _ => tape
                .one_of(&["", "x", "-1", "512", "4096", "8192", "18446744073709551615", "4294967296"])
                .into(),
        }
    }

    /// The front asks, and its request is what was asked.
    fn ask(&mut self, tape: &mut Tape<'_>) {
        let q = tape.below(self.queues.len());
        let sector = u64::from(tape.u32());
        let sectors = match tape.below(4) {
            0 => u32::from(tape.u8()),
            1 => 8 * u32::from(tape.u8() % 12),
            2 if tape.below(8) == 0 => u32::from(tape.u16()) % 5000,
            _ => 8,
        };
        let len = sectors as usize * SECTOR_BYTES - usize::from(tape.below(32) == 31 && sectors > 0);
        // Bytes that tell their place, and whose they are.
        let bytes: Vec<u8> = (0..len).map(|k| (k ^ k >> 9) as u8 ^ self.next_tag as u8).collect();
        let what = tape.u8();
        if what >= 252 {
            return self.ask_own(q, what.is_multiple_of(2), (sector, sectors), tape);
        }
        let (asked, ask) = match what % 6 {
            0 | 1 => (Asked::Read { sector, sectors }, Ask::Read { sector, sectors }),
            2 => (Asked::Write { sector, len, barrier: true }, Ask::Barrier { sector, bytes: &bytes }),
            3 => (Asked::Flush, Ask::Flush),
            4 => {
                let (sectors, secure) = (sectors.into(), len.is_multiple_of(2));
                (Asked::Discard { sector, sectors, secure }, Ask::Discard { sector, sectors, secure })
            }
            _ => (Asked::Write { sector, len, barrier: false }, Ask::Write { sector, bytes: &bytes }),
        };
        let tag = self.next_tag;
        let queue = self.front.queue_mut(q).expect("it is live");
        let (room, most) = (queue.room(), queue.most_bytes());
        match self.front.submit(&self.domains.guest, q, &ask, tag) {
            Ok(()) => {}
            Err(NotAsked::Length) => {
                let most = if matches!(ask, Ask::Barrier { .. }) { 11 * PAGE_SIZE } else { most };
                let fits = len > 0 && len.is_multiple_of(SECTOR_BYTES) && len <= most;
                return assert!(!fits, "{len} bytes are refused");
            }
            Err(NotAsked::Full) => {
                let idle = self.queues[q].open.is_empty() && self.held.is_empty();
                return assert!(room == 0 || !idle, "a queue with nothing in flight is full");
            }
            Err(e) => panic!("{e:?}"),
        }
        self.asked(q, asked, &bytes);
    }

    /// Like `ask`, for data in the guest's own pages.
    fn ask_own(&mut self, q: usize, reads: bool, (sector, sectors): (u64, u32), tape: &mut Tape<'_>) {
        let at = SECTOR_BYTES * (usize::from(tape.u16()) % (8 * OWN_PAGES + 8))
            + usize::from(tape.below(16) == 15);
        let (len, tag) = (sectors as usize * SECTOR_BYTES, self.next_tag);
        let ask = OwnAsk { reads, sector, sectors, at };
        let queue = self.front.queue_mut(q).expect("it is live");
        let (room, most) = (queue.room(), queue.most_bytes());
        match self.front.submit_own(&self.domains.guest, q, &ask, tag) {
            Ok(()) => {}
            Err(NotAsked::Length) => {
                let there = at.is_multiple_of(SECTOR_BYTES) && at + len <= OWN_PAGES * PAGE_SIZE;
                let fits = len > 0 && (at % PAGE_SIZE + len).div_ceil(PAGE_SIZE) * PAGE_SIZE <= most;
                return assert!(!(there && fits), "{len} bytes at {at} are refused");
            }
            Err(NotAsked::Full) => {
                let queue = &self.queues[q];
                let idle = queue.open.is_empty() && queue.waiting.is_empty() && self.held.is_empty();
                return assert!(room == 0 || !idle, "a queue with nothing in flight is full");
            }
            Err(NotAsked::Platform(_)) if self.config.persistent => return,
            Err(e) => panic!("{e:?}"),
        }
        let memory = self.front.memory().expect("it was given");
        let bytes = bytes_of(memory, at, len);
        self.own.insert(tag, (reads, len));
        let asked = match reads {
            true => Asked::Read { sector, sectors },
            false => Asked::Write { sector, len, barrier: false },
        };
        self.asked(q, asked, &bytes);
    }

    /// Checks that the request on the ring is the expected one.
    fn asked(&mut self, q: usize, asked: Asked, bytes: &[u8]) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.front.publish(&self.domains.guest, q);
        let queue = &mut self.queues[q];
        assert_eq!(queue.ring.req_prod(), queue.req_cons.wrapping_add(1));
        let request = queue.ring.request(queue.req_cons);
        queue.req_cons = queue.req_cons.wrapping_add(1);
        let open = self.read(request, asked, tag, bytes);
        let used: BTreeSet<u32> = self.queues.iter().flat_map(|q| &q.open).flat_map(Open::pages).collect();
        assert!(open.pages().all(|gref| !used.contains(&gref)), "a page is in two requests");
        assert_eq!(open.pages().collect::<BTreeSet<_>>().len(), open.pages().count());
        // Where a page is granted for a request, the next one does not get it before its back has
        // let go (XSA-396).
        let per_request = !self.config.persistent && self.config.granting == Granting::PerFrame;
        let kept = |gref: u32| self.held.iter().any(|(held, _)| *held == Some(GrantRef(gref)));
        assert!(
            !per_request || open.pages().all(|gref| !kept(gref)),
            "a page that its back keeps is used again"
        );
        let queue = &mut self.queues[q];
        assert!(queue.open.iter().all(|other| other.id != open.id), "two requests have the same id");
        queue.open.push(open);
    }

    /// A request is what was asked.
    fn read(&self, request: Request, asked: Asked, tag: u64, bytes: &[u8]) -> Open {
        let id = request.id();
        let (op, sector, len) = match asked {
            Asked::Read { sector, sectors } => (OP_READ, sector, sectors as usize * SECTOR_BYTES),
            Asked::Write { sector, len, barrier: true } => (OP_WRITE_BARRIER, sector, len),
            Asked::Write { sector, len, .. } => (OP_WRITE, sector, len),
            Asked::Flush => (OP_FLUSH_DISKCACHE, 0, 0),
            Asked::Discard { .. } => (OP_DISCARD, 0, 0),
        };
        let none = Open { tag, asked, id, op, indirect: false, data: Vec::new(), lists: Vec::new() };
        let (segments, lists) = match request {
            Request::Discard(r) => {
                let Asked::Discard { sector, sectors, secure } = asked else {
                    panic!("a discard without a request")
                };
                assert_eq!((r.sector, r.nr_sectors, r.flag != 0), (sector, sectors, secure));
                return none;
            }
            Request::ReadWrite(r) => {
                assert_eq!((r.op, r.sector), (op, sector));
                (r.segments().expect("of an honest front").to_vec(), Vec::new())
            }
            Request::Indirect(r) => {
                assert_eq!((r.op, r.sector), (op, sector));
                assert!(u32::from(r.nr_segments) <= self.config.max_segments.max(11));
                let lists = r.pages(4096).expect("of an honest front").to_vec();
                let page =
                    |gref: &u32| granted(&self.domains, *gref, 0, PAGE_SIZE).expect("a list is granted");
                let entries: Vec<u8> = lists.iter().flat_map(page).collect();
                let (entries, _) = entries.as_chunks();
                let segments =
                    entries.iter().take(r.nr_segments.into()).map(|bytes| Segment::from_bytes(*bytes));
                (segments.collect(), lists)
            }
            Request::Other { op, .. } => panic!("operation {op}"),
        };
        let sizes: Vec<usize> = segments
            .iter()
            .map(|s| usize::from(s.nr_sectors().expect("an honest front")) * SECTOR_BYTES)
            .collect();
        assert_eq!(sizes.iter().sum::<usize>(), len);
        if op != OP_READ {
            let at = |s: &Segment| (u16::from(s.first_sect) * SECTOR_BYTES as u16, s.gref);
            let pieces = segments.iter().zip(&sizes).flat_map(|(s, size)| {
                granted(&self.domains, at(s).1, at(s).0, *size).expect("a page in flight is granted")
            });
            assert!(pieces.eq(bytes[..len].iter().copied()), "other bytes than those that are to be written");
        }
        let in_memory = self.own.contains_key(&tag);
        assert!(in_memory || segments.iter().all(|s| s.first_sect == 0), "a front of whole pages");
        let data = segments.iter().map(|s| s.gref).collect();
        Open { indirect: !lists.is_empty(), data, lists, ..none }
    }

    /// The back answers: mostly a request that is in flight, and mostly correctly.
    fn answer(&mut self, tape: &mut Tape<'_>) {
        let q = tape.below(self.queues.len());
        let queue = &mut self.queues[q];
        let odd = tape.u8();
        let status = tape.one_of(&[RSP_OKAY, RSP_OKAY, RSP_OKAY, -1, RSP_EOPNOTSUPP, 1, i16::MIN]);
        let answered: BTreeSet<u64> = queue.answers().map(|rsp| rsp.id).collect();
        let left: Vec<&Open> = queue.open.iter().filter(|open| !answered.contains(&open.id)).collect();
        let rsp = match (odd, left.get(usize::from(odd) % left.len().max(1))) {
            (250.., _) => Response { id: tape.u32().into(), op: tape.u8() % 7, status },
            (_, None) => Response { id: (self.next_tag << 32) ^ u64::from(odd), op: OP_READ, status },
            // Another operation, perhaps the same.
            (240..250, Some(open)) => Response { id: open.id, op: odd % 7, status },
            (236..240, Some(open)) => {
                Response { id: open.id ^ 1 << (odd as u64 * 7 % 64), op: open.op, status }
            }
            (232..236, Some(open)) if open.indirect => Response { id: open.id, op: OP_INDIRECT, status },
            (_, Some(open)) => Response { id: open.id, op: open.op, status },
        };
        if let Some(Open { data, op: OP_READ, .. }) = left.iter().find(|open| open.id == rsp.id) {
            for gref in data {
                let map = self.domains.host.map(GUEST, &[GrantRef(*gref)], Access::ReadWrite);
                let page = map.expect("a page that is to be read into is granted");
                assert!(page.copy_in(0, &[odd ^ *gref as u8; PAGE_SIZE]));
            }
        }
        queue.ring.write_answer(queue.rsp_prod, rsp.to_words());
        queue.rsp_prod = queue.rsp_prod.wrapping_add(1);
        queue.ring.show_answers(queue.rsp_prod);
    }

    /// The front takes what is on the ring: all of it, until something is none.
    fn take(&mut self, q: usize) {
        let queue = &mut self.queues[q];
        // What it showed last, for once.
        queue.rsp_prod = queue.ring.rsp_prod();
        let mut expected = Vec::new();
        let mut wrong = None;
        // Grants that its back does not use end, and another request may have them next.
        let is_kept = |open: &mut Open| {
            open.data.retain(|gref| self.held.iter().any(|(held, _)| *held == Some(GrantRef(*gref))));
            !open.data.is_empty()
        };
        for (mut open, outcome) in std::mem::take(&mut queue.waiting) {
            match is_kept(&mut open) {
                true => queue.waiting.push((open, outcome)),
                false => expected.push((open.tag, outcome, Vec::new())),
            }
        }
        if queue.rsp_prod.wrapping_sub(queue.rsp_cons) > queue.req_cons.wrapping_sub(queue.rsp_cons) {
            wrong = Some("an index");
        } else {
            for rsp in queue.answers().collect::<Vec<_>>() {
                let at = queue.open.iter().position(|open| open.id == rsp.id);
                let Some(at) = at.filter(|_| wrong.is_none()) else {
                    wrong = wrong.or(Some("an id"));
                    continue;
                };
                let open = &queue.open[at];
                if rsp.op != open.op && !(open.indirect && rsp.op == OP_INDIRECT) {
                    wrong = Some("an operation");
                    continue;
                }
                let mut open = queue.open.remove(at);
                let outcome = match rsp.status {
                    RSP_OKAY => Ok(()),
                    RSP_EOPNOTSUPP => Err(IoError::NotSupported),
                    _ => Err(IoError::Failed),
                };
                if self.own.contains_key(&open.tag) {
                    match is_kept(&mut open) {
                        true => queue.waiting.push((open, outcome)),
                        false => expected.push((open.tag, outcome, Vec::new())),
                    }
                    continue;
                }
                let mut bytes = Vec::new();
                if let (Asked::Read { sectors, .. }, Ok(())) = (open.asked, outcome) {
                    let page =
                        |gref: &u32| granted(&self.domains, *gref, 0, PAGE_SIZE).expect("granted in flight");
                    bytes = open.data.iter().flat_map(page).collect();
                    bytes.truncate(sectors as usize * SECTOR_BYTES);
                }
                expected.push((open.tag, outcome, bytes));
            }
        }
        queue.rsp_cons = queue.rsp_prod;
        let (mut found, own) = (Vec::new(), &self.own);
        let taken = self.front.take(&self.domains.guest, q, |a: Answer<'_, LocalDomain>| {
            if let Some(&(reads, len)) = own.get(&a.tag) {
                let came = if reads && a.outcome.is_ok() { len } else { 0 };
                assert_eq!((a.len(), a.copy_out(&mut [0; 9])), (came, 0), "its bytes are in the memory");
                return found.push((a.tag, a.outcome, Vec::new()));
            }
            let mut bytes = vec![0; a.len()];
            assert_eq!(a.copy_out(&mut bytes), bytes.len());
            found.push((a.tag, a.outcome, bytes));
        });
        assert!(
            found == expected,
            "answers of {:?}, and those of {:?} are due",
            tags(&found),
            tags(&expected)
        );
        match (taken, wrong) {
            (Ok(n), None) => assert_eq!(n, found.len()),
            (Err(fault), Some(what)) => {
                let fits = match what {
                    "an index" => matches!(fault, PeerFault::RspProdOverrun { .. }),
                    "an id" => matches!(fault, PeerFault::UnknownRequest(_)),
                    _ => matches!(fault, PeerFault::WrongOperation { .. }),
                };
                assert!(fits, "{what}: {fault:?}");
                // As its driver does: this device is over.
                self.front.close(&mut self.front_bus, Some(&fault.to_string())).expect("a store");
            }
            (taken, wrong) => panic!("{taken:?}, and {wrong:?} is wrong"),
        }
    }

    /// The back keeps a page of a request mapped, for longer than the request lives.
    fn hold(&mut self, tape: &mut Tape<'_>) {
        let queue = &self.queues[tape.below(self.queues.len())];
        let pages: Vec<u32> = queue.open.iter().flat_map(Open::pages).collect();
        if self.held.len() < HELD && !pages.is_empty() {
            let gref = GrantRef(pages[usize::from(tape.u8()) % pages.len()]);
            let host = &self.domains.host;
            let is_read = |open: &&Open| open.op == OP_WRITE && open.data.contains(&gref.0);
            let is_own = |open: &Open| self.own.contains_key(&open.tag);
            // The source of a write from the guest's own memory must not be written to.
            let access = match queue.open.iter().find(is_read).is_some_and(is_own) {
                true => {
                    assert!(host.map(GUEST, &[gref], Access::ReadWrite).is_err());
                    Access::ReadOnly
                }
                false => Access::ReadWrite,
            };
            let map = host.map(GUEST, &[gref], access).expect("a page in flight is granted");
            self.held.push((Some(gref), map));
        }
        // It writes into any page that it holds, except where a request's bytes are compared.
        let open: BTreeSet<u32> = self.queues.iter().flat_map(|q| &q.open).flat_map(Open::pages).collect();
        if open.is_empty() {
            let to = self.held.iter().filter(|(_, map)| map.is_writable());
            to.for_each(|(_, map)| assert!(map.copy_in(0, &[tape.u8(); PAGE_SIZE])));
        }
    }

    /// What holds between two operations.
    fn check(&self) {
        let FrontConfig { queues, ring_order, pages, .. } = self.config;
        let (rings, pages) = (1 << ring_order, pages.max(11));
        // A back that allows fewer pages for rings each time gets half of them each time.
        let most = queues as usize * (2 * rings + pages);
        let counts = self.domains.xen.counts();
        let waiting = self.queues.iter().flat_map(|q| &q.waiting).map(|(open, _)| open);
        let open = self.queues.iter().flat_map(|q| &q.open).chain(waiting);
        let own = open.filter(|open| self.own.contains_key(&open.tag)).map(|open| open.data.len());
        let most = most + own.sum::<usize>() + self.held.len();
        assert!(counts.grants <= most, "{} grants, and {most} are all of one connection", counts.grants);
        assert!(self.front.nr_queues() <= queues as usize);
        let names: Vec<String> = self.front_bus.own.borrow().keys().cloned().collect();
        assert!(names.len() < 40, "{names:?}");
    }

    fn close(mut self) {
        self.front.close(&mut self.front_bus, None).expect("a store");
        self.set("state", "6");
        for held in [true, false] {
            if !held {
                self.held.clear();
                self.queues.clear();
            }
            self.front.step(&self.domains.guest, &mut self.front_bus).expect("a back that is closed");
        }
        assert!(self.front.is_closed(), "{:?}", self.front.state());
        let Self { domains, mut front, .. } = self;
        assert!(front.is_memory_free());
        let memory = front.use_memory(None).expect("it was given");
        drop(front);
        assert!(domains.guest.release(memory).is_ok());
        domains.assert_empty();
    }
}

impl Queue {
    /// Answers that are on the ring and were not taken.
    fn answers(&self) -> impl Iterator<Item = Response> {
        let n = self.rsp_prod.wrapping_sub(self.rsp_cons);
        (0..n).map(|k| Response::from_words(self.ring.answer(self.rsp_cons.wrapping_add(k))))
    }
}

impl Open {
    /// All that it has granted.
    fn pages(&self) -> impl Iterator<Item = u32> {
        self.data.iter().chain(&self.lists).copied()
    }
}

fn tags<T>(answers: &[(u64, T, Vec<u8>)]) -> Vec<u64> {
    answers.iter().map(|(tag, ..)| *tag).collect()
}
