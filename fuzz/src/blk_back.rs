//! The guest attacks its disk's back: slots of any kind, lists, indices, keys, grants; over copy,
//! map and persistent.
//!
//! ```text
//!   tape --operations--> raw guest --rings, pages, keys--> BackVbd --orders--> disk
//!                            |                                |                  |
//!                            '------ blk_model.rs: what the rules say -----------'   at each call, and after each poll
//! ```
//! Each request has one answer, when it is due and not before, with the status that the rules give
//! it and zeroes in its pads; the disk gets what may be done, in order, and nothing else; the
//! guest's memory changes where a read says, and nowhere else; what is written is the guest's. What
//! is mapped is bounded, and nothing is at the end. The disk does what it is given in any order,
//! fails, hangs, and grows; the back's process dies between two polls or in one, and another one
//! takes the rings up.
//!
//! A guest that names a page of its own ring as data may have the disk write anything there. Then
//! no panic, and nothing that is mapped at the end, is all that is asked.

use crate::blk_model::{Asked, Due, Meanwhile, Model, ModelDisk};
use crate::blk_ring::BlkRing;
use crate::guest_pages::{GuestPages, Right};
use crate::tape::Tape;
use pregrant::blk::back::{BackVbd, VbdConfig};
use pregrant::blk::disk::{Discard, DiskFigures, IoError};
use pregrant::blk::features::{BackFeatures, RING_ORDER, queue_prefix, ring_key};
use pregrant::blk::path::PathName;
use pregrant::platform::Events;
use pregrant::platform::local::{LocalChan, LocalDomain, Pages};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{
    Abi, DISCARD_SECURE, DiscardRequest, IndirectRequest, OP_FLUSH_DISKCACHE, OP_READ, OP_WRITE,
    OP_WRITE_BARRIER, Request, RwRequest, SLOT_WORDS_MAX, Segment,
};
use pregrant::xenbus::back::PreviousState;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::bus::{MapBus, device};
use pregrant_testkit::shared_disk::Died;
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Largest number of operations of one input.
const OPS: usize = 200;
/// The guest's pages: data and lists.
const PAGES: usize = 12;
/// Sectors of the disk as it is made.
const SECTORS: u64 = 512;
/// Largest number of segments that is offered: more than one page of a list holds.
const LONG: u32 = 600;

/// One queue of the guest.
struct Queue {
    ring: BlkRing,
    chan: LocalChan,
    req_prod: u32,
    /// Number of these requests that the back may have seen.
    shown: u32,
    /// The index that the guest shows is another one.
    lying: bool,
    /// Number of requests that the back has taken.
    cons: u32,
    rsp_cons: u32,
    /// Requests that were taken and not answered, oldest first.
    open: Vec<(u32, Request)>,
    /// Number of these that a successor must take again.
    again: usize,
}

struct Game {
    domains: TwoDomains,
    pages: GuestPages,
    disk: ModelDisk,
    config: VbdConfig,
    page_limit: usize,
    back: BackVbd<LocalDomain>,
    front_bus: MapBus,
    back_bus: MapBus,
    kept: BTreeMap<String, Pages>,
    queues: Vec<Queue>,
    /// The model's lane of the first queue.
    lanes: usize,
    next_id: u64,
    now_ns: u64,
}

pub fn blk_back(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut game = Game::new(&mut tape);
    game.connect(&mut tape);
    while tape.more(OPS) {
        if game.names_ring() {
            game.play_on(&mut tape);
        } else {
            game.play(&mut tape);
        }
    }
    game.close();
}

impl Game {
    fn new(tape: &mut Tape<'_>) -> Self {
        let domains = TwoDomains::new();
        domains.xen.stop_clock(1);
        let pages = GuestPages::new(&domains, PAGES, Right::Write);
        let path = tape.one_of(&PathName::ALL);
        let features = BackFeatures {
            max_ring_order: 2,
            max_queues: 3,
            max_indirect_segments: tape.one_of(&[20, LONG, 0]),
            persistent: path == PathName::Persistent,
            barrier: tape.below(4) != 1,
        };
        let config = VbdConfig {
            features,
            fallback: if path == PathName::Map { PathName::Map } else { PathName::Copy },
            persistent_pages: tape.one_of(&[64, 0, 3, 8]),
            parts_in_flight: tape.one_of(&[700, 1, 60]),
            native_sectors: true,
        };
        let what = tape.u8();
        let bit = |n: u8| what >> n & 1 == 1;
        let image = DiskFigures {
            sector_size: if bit(0) { 4096 } else { 512 },
            read_only: bit(1) && bit(2),
            flush: !bit(3),
            discard: bit(4).then_some(Discard {
                granularity: 4096,
                alignment: 0,
                secure: bit(5),
                zeroes: bit(7),
            }),
            ..DiskFigures::of(SECTORS)
        };
        let page_limit = tape.one_of(&[usize::MAX, usize::MAX, 40, 1300]);
        let disk = Model::disk(image, path, pages.region.clone());
        disk.lock().at_once = bit(6);
        let (front_bus, back_bus) = device();
        back_bus.own.borrow_mut().insert("mode".into(), "w".into());
        let back = fresh(config, page_limit, &disk);
        let (kept, queues) = (BTreeMap::new(), Vec::new());
        let mut game = Self {
            domains,
            pages,
            disk,
            config,
            page_limit,
            back,
            front_bus,
            back_bus,
            kept,
            queues,
            lanes: 0,
            next_id: 0,
            now_ns: 1,
        };
        game.pages.kept = path != PathName::Copy;
        game.publish_rights();
        game
    }

    fn publish_rights(&mut self) {
        self.disk.lock().rights = self.pages.rights();
    }

    fn names_ring(&self) -> bool {
        self.disk.lock().names_ring()
    }

    fn path(&self) -> PathName {
        self.disk.lock().path
    }

    /// Number of ring pages.
    fn ring_pages(&self) -> usize {
        self.queues.iter().map(|q| q.ring.refs.len()).sum()
    }

    /// Makes a step of the back, as its owner does: an error closes the device.
    fn step(&mut self) -> bool {
        let Self { back, domains, back_bus, kept, .. } = self;
        let stepped = back.step(&domains.host, back_bus, &mut |name, bytes| keep(kept, name, bytes));
        self.check_step(stepped.map(|_| true))
    }

    /// Closes the device after an error. False: it was one.
    fn check_step(&mut self, what: Result<bool, ConnectError<String>>) -> bool {
        let Err(e) = what else { return true };
        let text = e.to_string();
        assert!(text.len() < 1000 && !text.contains(char::is_control), "{text:?}");
        self.back.close(&self.domains.host, &mut self.back_bus, Some(&text)).expect("a store");
        assert_eq!(self.domains.xen.counts().mapped, 0, "an error leaves pages mapped");
        false
    }

    /// A front connects: rings, channels and keys, sometimes unusual ones.
    fn connect(&mut self, tape: &mut Tape<'_>) {
        let abi = tape.one_of(&[Abi::X86_64, Abi::X86_32]);
        let (n, order) = (1 + tape.one_of(&[0, 0, 1, 2]), tape.below(3));
        let start = if tape.below(2) == 0 { 0 } else { u32::MAX - u32::from(tape.u8() % 64) };
        // A grant that is over has a number that a ring may get.
        let over = |right: &(u32, Right)| right.1 == Right::None;
        while let Some(page) = self.pages.rights().iter().position(over) {
            self.pages.grant(&self.domains, page, Right::Write);
        }
        self.publish_rights();
        self.set("state", "1");
        assert!(self.step(), "nothing was wrong");
        let persists = self.config.features.persistent;
        if order > 0 {
            self.set(RING_ORDER, &order.to_string());
        }
        for i in 0..n {
            let ring = BlkRing::new(&self.domains, abi, 1 << order, start);
            let (chan, port) = self.domains.guest.offer(HOST).expect("a channel");
            let at = queue_prefix(i, n);
            for (k, gref) in ring.refs.iter().enumerate() {
                self.set(&(at + &ring_key("", k, order > 0)), &gref.0.to_string());
            }
            self.set(&format!("{at}event-channel"), &port.0.to_string());
            self.queues.push(Queue {
                ring,
                chan,
                req_prod: start,
                shown: start,
                lying: false,
                cons: start,
                rsp_cons: start,
                open: Vec::new(),
                again: 0,
            });
        }
        let refs = self.queues.iter().flat_map(|q| &q.ring.refs).map(|gref| gref.0);
        self.disk.lock().rings = refs.collect();
        self.set("multi-queue-num-queues", &n.to_string());
        self.set("protocol", abi.protocol());
        self.set("feature-persistent", if persists { "1" } else { "0" });
        let odd = tape.below(16) == 15;
        if odd {
            let key = tape.one_of(&[
                "ring-ref",
                "ring-page-order",
                "event-channel",
                "protocol",
                "multi-queue-num-queues",
            ]);
            let value = tape.one_of(&["", "0", "3", "4", "99999", "-1", "x", "4294967296", "x86_32-abi"]);
            let at = queue_prefix(tape.below(n), n);
            self.set(&format!("{at}{key}"), value);
        }
        self.set("state", "3");
        let n_queues = self.queues.len();
        if self.step() && self.back.is_connected() {
            self.set("state", "4");
            let mut model = self.disk.lock();
            model.known_figures = *self.back.figures().expect("it is connected");
            model.barrier = self.front_bus.peer.borrow()["feature-barrier"] == "1";
            model.max_indirect = self.config.features.max_indirect_segments as u16;
            assert_eq!(model.known_figures.sectors, model.image.sectors);
            drop(model);
            assert_eq!(self.back.queues().len(), if odd { self.back.queues().len() } else { n_queues });
            self.lanes = self.disk.lock().last_lanes(self.back.queues().len());
            // An odd key may be one of fewer pages than the rings have.
            if !odd {
                self.check();
            }
        }
        if !self.back.is_connected() || self.back.queues().len() != n_queues || odd {
            self.disconnect();
        }
    }

    fn set(&mut self, key: &str, value: &str) {
        self.front_bus.own.borrow_mut().insert(key.into(), value.into());
    }

    /// The front disconnects, and the back must release everything of its.
    fn disconnect(&mut self) {
        self.set("state", "6");
        assert!(self.step(), "nothing is read of a front that goes");
        assert!(!self.back.is_connected());
        assert_eq!(self.domains.xen.counts().mapped, 0, "a disk that is closed holds on to pages");
        self.disk.lock().disconnected();
        for Queue { ring, chan, .. } in self.queues.drain(..) {
            drop(chan);
            ring.close(&self.domains);
        }
        let own = &mut *self.front_bus.own.borrow_mut();
        own.retain(|key, _| ["backend", "state"].contains(&key.as_str()));
        assert_eq!(self.domains.xen.counts().channels, 0);
    }

    fn play(&mut self, tape: &mut Tape<'_>) {
        if self.queues.is_empty() {
            return self.connect(tape);
        }
        let q = tape.below(self.queues.len());
        match tape.below(20) {
            0..=3 => {
                let request = self.transfer(tape);
                self.push(q, &request);
            }
            4 => {
                for _ in 0..1 + tape.below(40) {
                    let request = self.plain(tape.u8());
                    self.push(q, &request);
                }
            }
            5 => {
                let request = self.indirect(tape);
                for _ in 0..tape.one_of(&[1, 1, 1, 12]) {
                    self.push(q, &request);
                }
            }
            6 => {
                let request = self.other(tape);
                self.push(q, &request);
            }
            // The last slot once more, but for a byte.
            7 => {
                let mut words = self.queues[q].ring.words(self.queues[q].req_prod.wrapping_sub(1));
                let at = tape.below(112);
                words[at / 4] ^= u32::from(tape.u8()) << (at % 4 * 8);
                self.push_words(q, &words);
            }
            8 => {
                let right =
                    tape.one_of(&[Right::None, Right::Read, Right::Write, Right::Write, Right::Stranger]);
                self.pages.grant(&self.domains, tape.below(PAGES), right);
                self.publish_rights();
            }
            9 => self.disk.lock().write(tape.below(PAGES) * PAGE_SIZE, &[tape.u8(); PAGE_SIZE]),
            10 => {
                let meanwhile = if tape.below(2) == 0 {
                    Meanwhile::Page(tape.below(PAGES), tape.u8())
                } else {
                    let request = self.transfer(tape);
                    let Queue { ring, cons, .. } = &self.queues[q];
                    let index = cons.wrapping_add(tape.below(ring.size as usize) as u32);
                    Meanwhile::Slot(ring.clone(), index, ring.to_words(&request))
                };
                self.disk.lock().meanwhile = Some(meanwhile);
                self.poll(q);
                self.disk.lock().meanwhile = None;
            }
            11 => {
                let lane = self.lanes + q;
                for _ in 0..tape.one_of(&[1, 1, 3, 40]) {
                    self.disk.lock().perform_one(lane, tape.u8().into());
                }
            }
            12 => {
                let outcome =
                    tape.one_of(&[Ok(()), Ok(()), Err(IoError::Failed), Err(IoError::NotSupported)]);
                let mut model = self.disk.lock();
                (model.outcome, model.at_once) = (outcome, tape.below(2) == 0);
            }
            13 => self.show_wrong_index(q, tape),
            14 => {
                let sectors = tape.one_of(&[SECTORS, SECTORS / 2, 8, 0, SECTORS * 2]);
                self.resize(sectors, tape.below(2) == 0);
            }
            15 => self.succeed(tape),
            16 => {
                self.disk.lock().dies_in = Some(1 + u32::from(tape.u8() % 32));
                self.poll(q);
                self.disk.lock().dies_in = None;
            }
            17 => self.arm(q),
            18 if tape.below(4) == 0 => self.disconnect(),
            18 => {
                self.now_ns += u64::from(tape.u8()) * 10_000_000;
                self.domains.xen.stop_clock(self.now_ns);
                let Queue { ring, .. } = &self.queues[q];
                ring.set_event(tape.below(2) == 0, tape.u32());
            }
            _ => self.poll(q),
        }
    }

    /// Like [`play`](Self::play), while the content of the rings is unknown.
    fn play_on(&mut self, tape: &mut Tape<'_>) {
        let q = tape.below(self.queues.len());
        match tape.below(8) {
            0 | 1 => {
                let request = self.transfer(tape);
                let Queue { ring, req_prod, .. } = &mut self.queues[q];
                ring.write(*req_prod, &ring.to_words(&request));
                *req_prod = req_prod.wrapping_add(1);
                ring.show(*req_prod);
            }
            2 | 3 => drop(self.disk.lock().perform_one(self.lanes + q, tape.u8().into())),
            4 => {
                self.disk.lock().lands = tape.u8();
                if tape.below(2) == 0 {
                    self.back.detach(&self.domains.host, &mut ());
                }
                self.die(0);
            }
            5 => {
                self.disk.lock().dies_in = Some(1 + u32::from(tape.u8() % 32));
                self.poll(q);
                self.disk.lock().dies_in = None;
            }
            _ => self.poll(q),
        }
    }

    fn id(&mut self, tape: &mut Tape<'_>) -> u64 {
        // At times the one before.
        self.next_id += u64::from(tape.below(4) != 3);
        self.next_id << 33 | self.next_id
    }

    /// A segment, right if the tape has nothing odd.
    fn segment(&self, tape: &mut Tape<'_>) -> Segment {
        let odd = tape.u8();
        let gref = if odd >= 250 { u32::MAX - 7 } else { self.pages.gref(tape.below(PAGES)) };
        let (first_sect, last_sect) = match odd {
            240..=244 => (tape.u8(), tape.u8()),
            128..=239 => (odd % 8, odd % 8),
            _ => (0, 7),
        };
        Segment { gref, first_sect, last_sect }
    }

    fn sector(&self, tape: &mut Tape<'_>) -> u64 {
        let at = u64::from(tape.u8());
        match tape.below(12) {
            0..=7 => at * 8,
            8 => at,
            9 => SECTORS - at % 16,
            10 => u64::MAX - at,
            _ => 1 << (at % 64),
        }
    }

    fn transfer(&mut self, tape: &mut Tape<'_>) -> Request {
        let ops = [OP_READ, OP_READ, OP_WRITE, OP_WRITE, OP_FLUSH_DISKCACHE, OP_WRITE_BARRIER];
        let op = tape.one_of(&ops);
        let n = tape.one_of(&[1, 1, 2, 3, 11, 0, 12, 255]);
        let mut seg = [Segment::default(); 11];
        seg.iter_mut().take(n.into()).for_each(|seg| *seg = self.segment(tape));
        let (id, sector) = (self.id(tape), self.sector(tape));
        Request::ReadWrite(RwRequest { op, nr_segments: n, handle: 3, id, sector, seg })
    }

    fn plain(&mut self, what: u8) -> Request {
        self.next_id += 1;
        let mut seg = [Segment::default(); 11];
        seg[0] = Segment { gref: self.pages.gref(what.into()), first_sect: 0, last_sect: 7 };
        let (op, sector) = (if what < 128 { OP_READ } else { OP_WRITE }, u64::from(what) % (SECTORS / 8) * 8);
        Request::ReadWrite(RwRequest { op, nr_segments: 1, handle: 0, id: self.next_id, sector, seg })
    }

    /// A list, written into pages of the guest's.
    fn indirect(&mut self, tape: &mut Tape<'_>) -> Request {
        let n = tape.one_of(&[12, 20, 1, 2, 21, 0, 511, 512, 513, LONG as u16, LONG as u16 + 1, u16::MAX]);
        let mut grefs = [0; 8];
        let first = tape.below(PAGES);
        grefs
            .iter_mut()
            .take(1 + tape.below(3))
            .enumerate()
            .for_each(|(k, gref)| *gref = self.pages.gref(first + k));
        let mut one = self.segment(tape);
        if n > 20 {
            (one.first_sect, one.last_sect) = (0, 0);
        }
        let mut odd = [self.segment(tape), self.segment(tape)];
        match tape.below(4) {
            0 | 1 => odd = [one; 2],
            2 => odd = [Segment { gref: u32::MAX - 7, ..one }; 2],
            _ => {}
        }
        let fills = tape.below(4) != 3;
        for (page, odd) in odd.into_iter().enumerate().filter(|_| fills) {
            let is_odd = |k: usize| k == 7 || k + 1 == usize::from(n);
            let entries: Vec<u8> =
                (0..512).flat_map(|k| if is_odd(k) { odd } else { one }.to_bytes()).collect();
            self.disk.lock().write((first + page) % PAGES * PAGE_SIZE, &entries);
        }
        let (id, sector) = (self.id(tape), self.sector(tape) % 64);
        let op =
            tape.one_of(&[OP_READ, OP_WRITE, OP_READ, OP_WRITE, OP_FLUSH_DISKCACHE, 6, OP_WRITE_BARRIER]);
        Request::Indirect(IndirectRequest { op, nr_segments: n, handle: 0, id, sector, grefs })
    }

    fn other(&mut self, tape: &mut Tape<'_>) -> Request {
        let (id, sector) = (self.id(tape), self.sector(tape));
        match tape.below(4) {
            0 => Request::Other { op: tape.one_of(&[4, 7, 255, 128]), id },
            _ => {
                let nr_sectors = match tape.below(4) {
                    0 => u64::MAX - u64::from(tape.u8()),
                    1 => u64::from(tape.u8()),
                    _ => u64::from(tape.u8() % 8) * 8,
                };
                let flag = tape.one_of(&[0, 0, DISCARD_SECURE, 0xfe]);
                Request::Discard(DiscardRequest { flag, handle: 1, id, sector, nr_sectors })
            }
        }
    }

    fn push(&mut self, q: usize, request: &Request) {
        if let Some(queue) = self.queues.get(q) {
            let words = queue.ring.to_words(request);
            self.push_words(q, &words);
        }
    }

    /// Writes a slot and shows it, if there is room.
    fn push_words(&mut self, q: usize, words: &[u32; SLOT_WORDS_MAX]) {
        let queue = &mut self.queues[q];
        if queue.req_prod.wrapping_sub(queue.rsp_cons) == queue.ring.size {
            return self.poll(q);
        }
        queue.ring.write(queue.req_prod, words);
        queue.req_prod = queue.req_prod.wrapping_add(1);
        if !queue.lying {
            queue.ring.show(queue.req_prod);
            queue.shown = queue.req_prod;
        }
    }

    /// The guest publishes an invalid index, and keeps it or not.
    fn show_wrong_index(&mut self, q: usize, tape: &mut Tape<'_>) {
        let queue = &mut self.queues[q];
        let by = tape.one_of(&[0x1000, 0x8000_0000, u32::MAX, u32::MAX - 200]);
        queue.ring.show(queue.req_prod.wrapping_add(by));
        queue.lying = true;
        self.poll(q);
        if let Some(queue) = self.queues.get_mut(q).filter(|_| tape.below(2) == 0) {
            queue.ring.show(queue.req_prod);
            (queue.shown, queue.lying) = (queue.req_prod, false);
        }
    }

    /// Polls this queue, which the back may not survive, and checks all that is certain.
    fn poll(&mut self, q: usize) {
        let lane = self.lanes + q;
        let before = self.redone(q);
        self.ask(q);
        let Self { back, domains, .. } = self;
        let polled = catch_unwind(AssertUnwindSafe(|| back.queues()[q].poll(&domains.host)));
        if self.names_ring() {
            return match polled {
                Err(why) if why.is::<Died>() => self.die(0),
                Err(why) => resume_unwind(why),
                Ok(Err(fault)) => self.end_by(fault),
                Ok(Ok(_)) => {}
            };
        }
        let queue = &mut self.queues[q];
        let cons = self.back.queues()[q].requests();
        let taken = cons.wrapping_sub(queue.cons) as usize;
        assert!(taken <= queue.req_prod.wrapping_sub(queue.cons) as usize, "more is taken than was asked");
        let again = (self.back.shares()[q].counters.read().redone - before) as usize;
        let queue = &mut self.queues[q];
        queue.cons = cons;
        let took = self.disk.lock().taken(lane, again + taken);
        queue.open.extend(took[again..].iter().map(|asked| (asked.index, asked.request)));
        queue.again = queue.again.checked_sub(again).expect("no more than there were");
        match polled {
            Err(why) if why.is::<Died>() => {
                self.die(0);
                return self.disk.lock().forget_memory();
            }
            Err(why) => resume_unwind(why),
            Ok(Err(fault)) => {
                let queue = &self.queues[q];
                assert!(queue.lying && matches!(fault, PeerFault::ReqProdOverrun { .. }), "{fault:?}");
            }
            Ok(Ok(_)) => {}
        }
        let due = self.disk.lock().after_poll(lane, again + taken);
        self.answers(q, due);
        self.check();
        if let Ok(Err(fault)) = polled {
            self.end_by(fault);
        }
    }

    /// Informs the model of the requests that a poll of this queue may take.
    fn ask(&self, q: usize) {
        let Queue { ring, open, again, cons, req_prod, .. } = &self.queues[q];
        let again = open[open.len() - again..].iter();
        let again = again.map(|&(index, request)| Asked { index, request, again: true });
        let n = req_prod.wrapping_sub(*cons).min(ring.size);
        let indices = (0..n).map(|k| cons.wrapping_add(k));
        let new = indices.map(|index| Asked { index, request: ring.request(index), again: false });
        self.disk.lock().before_poll(self.lanes + q, again.chain(new));
    }

    fn end_by(&mut self, fault: PeerFault) {
        self.back.close(&self.domains.host, &mut self.back_bus, Some(&fault.to_string())).expect("a store");
        self.disconnect();
    }

    fn redone(&self, q: usize) -> u64 {
        self.back.shares()[q].counters.read().redone
    }

    /// Checks that these answers are on the ring, and no others.
    fn answers(&mut self, q: usize, due: Vec<Due>) {
        let queue = &mut self.queues[q];
        let n = queue.ring.rsp_prod().wrapping_sub(queue.rsp_cons);
        assert!(n <= queue.ring.size);
        let mut found: Vec<_> = (0..n).map(|k| queue.ring.answer(queue.rsp_cons.wrapping_add(k))).collect();
        let mut expected: Vec<_> = due.iter().map(|(_, answer)| answer.to_words()).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "the answers of queue {q}");
        queue.rsp_cons = queue.rsp_cons.wrapping_add(n);
        for (index, _) in due {
            let at = queue.open.iter().position(|(open, _)| *open == index).expect("it was taken");
            queue.open.remove(at);
        }
    }

    /// Checks what must be true between two polls.
    fn check(&mut self) {
        let rings = self.ring_pages();
        let (counts, path) = (self.domains.xen.counts(), self.path());
        let n = self.queues.len();
        let model = self.disk.lock();
        model.compare();
        let parts: Vec<usize> = (0..n).map(|q| model.parts(self.lanes + q)).collect();
        let most = usize::from(model.max_indirect).max(11);
        drop(model);
        let budget = (self.config.parts_in_flight.max(n * most) / n).max(most);
        assert!(parts.iter().all(|parts| *parts <= budget), "{parts:?} parts in flight, of {budget}");
        let kept: usize = self.back.shares().iter().map(|share| share.kept_pages()).sum();
        let in_flight: usize = parts.iter().sum();
        assert!(kept <= self.config.persistent_pages.max(in_flight) * n);
        let mapped = match path {
            PathName::Copy => rings..=rings,
            // Pages that do not fit are copied.
            PathName::Map => rings..=rings + in_flight,
            PathName::Persistent => rings + kept..=rings + kept + in_flight,
        };
        assert!(mapped.contains(&counts.mapped), "{} pages mapped, and {mapped:?} are right", counts.mapped);
        assert!(counts.most_mapped <= self.page_limit.max(rings), "more was mapped than may be (XSA-300)");
        assert!(counts.mapped <= self.back.mapped_pages().max(rings));
    }

    /// The image has another length now, and its back gets that or checks itself.
    fn resize(&mut self, sectors: u64, checks: bool) {
        self.disk.lock().image.sectors = sectors;
        if checks {
            self.back.check_length(&mut self.back_bus).expect("a store");
        } else {
            self.back.resize(&mut self.back_bus, sectors).expect("a store");
        }
        self.disk.lock().known_figures.sectors = sectors;
        self.is_notified();
    }

    /// The guest sees how long its disk is.
    fn is_notified(&self) {
        let known_figures = self.front_bus.peer.borrow()["sectors"].clone();
        assert_eq!(known_figures, self.disk.lock().known_figures.sectors.to_string());
    }

    /// The back ends, in good order or not, and another one is there; its image may have changed.
    fn succeed(&mut self, tape: &mut Tape<'_>) {
        self.disk.lock().lands = tape.u8();
        let grows = tape.one_of(&[0, 0, 0, 8, -8]);
        match tape.below(4) {
            0 => self.drain(false),
            1 => self.drain(true),
            _ => {}
        }
        self.die(grows);
    }

    /// The back answers the requests that it took, unless its disk hangs, and releases everything.
    fn drain(&mut self, hangs: bool) {
        for q in 0..self.queues.len() {
            self.disk.lock().before_poll(self.lanes + q, std::iter::empty());
        }
        self.disk.lock().hangs = hangs;
        self.back.detach(&self.domains.host, &mut ());
        self.disk.lock().hangs = false;
        for q in 0..self.queues.len() {
            let due = self.disk.lock().due_at_end(self.lanes + q);
            self.answers(q, due);
            // Those that a predecessor took, and this one never came to.
            let Queue { open, again, .. } = &self.queues[q];
            assert!(open.len() == *again || hangs, "a disk that works, and requests without an answer");
        }
        assert_eq!(self.domains.xen.counts().mapped, 0);
    }

    /// The process dies; the next one takes over the live rings.
    fn die(&mut self, grows: i64) {
        self.disk.lock().dies_in = None;
        self.back = fresh(self.config, self.page_limit, &self.disk);
        assert_eq!(self.domains.xen.counts().mapped, 0, "a dead back has nothing mapped");
        let known_figures = self.disk.lock().known_figures.sectors;
        let sectors = known_figures.saturating_add_signed(grows);
        self.disk.lock().image.sectors = sectors;
        for queue in &mut self.queues {
            queue.again = queue.open.len();
        }
        assert_eq!(self.back.inherit(&mut self.back_bus), Ok(PreviousState::Connected));
        let Self { back, domains, back_bus, kept, .. } = self;
        let up = back.reattach(&domains.host, back_bus, &mut |name, bytes| keep(kept, name, bytes));
        let is_up = up.as_ref().is_ok_and(|up| *up);
        let lied = self.names_ring() || self.queues.iter().any(|q| q.lying);
        assert!(is_up == (sectors >= known_figures) || lied && !is_up, "{up:?}");
        if !self.check_step(up) {
            return self.disconnect();
        }
        let n = self.queues.len();
        let mut model = self.disk.lock();
        model.known_figures.sectors = sectors;
        self.lanes = model.last_lanes(n);
        drop(model);
        self.is_notified();
    }

    /// A queue that sleeps is woken by what it waits for: a request, or its disk.
    fn arm(&mut self, q: usize) {
        self.poll(q);
        let known = !self.names_ring();
        let Some(queue) = self.queues.get(q).filter(|queue| known && !queue.lying) else { return };
        let left = queue.cons != queue.req_prod || queue.again > 0;
        let work = self.back.queues()[q].arm(&self.domains.host).expect("an honest index");
        let waits = self.back.queues()[q].in_flight() > 0;
        assert!(work || !left || waits, "it sleeps while there are requests");
    }

    /// True if a queue has requests that its back must answer.
    fn owes(&self, q: usize) -> bool {
        let owes = |queue: &Queue| !queue.open.is_empty() || queue.cons != queue.req_prod;
        !self.names_ring() && self.queues.get(q).is_some_and(owes)
    }

    /// All that was asked is answered, and nothing is left.
    fn close(mut self) {
        for q in 0..self.queues.len() {
            let lane = self.lanes + q;
            let Some(queue) = self.queues.get_mut(q) else { break };
            queue.ring.show(queue.req_prod);
            queue.lying = false;
            let mut turns = 0;
            while self.owes(q) {
                self.poll(q);
                while self.disk.lock().perform_one(lane, 0) {}
                turns += 1;
                assert!(turns < 2000, "requests without an answer: {:?}", self.queues[q].open);
            }
        }
        if !self.queues.is_empty() {
            self.disconnect();
        }
        let Self { domains, pages, back, disk, .. } = self;
        drop((back, disk));
        pages.close(&domains);
        domains.assert_empty();
    }
}

fn fresh(config: VbdConfig, page_limit: usize, disk: &ModelDisk) -> BackVbd<LocalDomain> {
    let mut back = BackVbd::new(GUEST, 51712, config, Box::new(disk.clone()));
    back.limit_pages(page_limit);
    back
}

fn keep(kept: &mut BTreeMap<String, Pages>, name: &str, bytes: usize) -> Option<Box<dyn SharedBytes + Send>> {
    let pages = || Pages::new(bytes.div_ceil(PAGE_SIZE));
    Some(Box::new(kept.entry(name.into()).or_insert_with(pages).clone()))
}
