//! Gref mappings between our two ends, and with requests written by the test: requested, used
//! without grant operations, limited, given back; also across a back's death (docs/protocol 2.11).
#![cfg(not(miri))]

use crate::raw_ring::RawRing;

use pregrant::net::back::control_page::CONTROL_BYTES;
use pregrant::net::back::{BackQueue, BackVif, ControlPage, Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontStep, FrontVif, Granting};
use pregrant::net::path::PathConfig;
use pregrant::net::path::gref_mapping::requests::{MAPS_PER_TURN, UNANSWERED_MAX};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalCounts, LocalDomain, LocalXen, Pages};
use pregrant::platform::{Access, GrantPool};
use pregrant::port::{Arena, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlResponse, CtrlType, GREF_READONLY, GrefEntry};
use pregrant::xenbus::BackDevice;
use pregrant::xenbus::back::PageShare;
use pregrant::{DomId, GrantRef, PAGE_SIZE};
use pregrant_testkit::bus::{MapBus, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};
use std::collections::BTreeMap;

pub const SUCCESS: u32 = 0;
const NOT_SUPPORTED: u32 = 1;
pub const INVALID: u32 = 2;

#[derive(Clone)]
pub struct Kept {
    pub control: Pages,
    pub pages: BTreeMap<String, Pages>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { control: Pages::new(CONTROL_BYTES / PAGE_SIZE), pages: BTreeMap::new() }
    }
}

impl Kept {
    pub fn page(&mut self, name: &str, bytes: usize) -> Option<Box<dyn SharedBytes + Send>> {
        let page = self.pages.entry(name.into()).or_insert_with(|| Pages::new(bytes.div_ceil(PAGE_SIZE)));
        Some(Box::new(page.clone()))
    }
}

/// One vif with both ends on one machine.
pub struct Pair {
    pub xen: LocalXen,
    pub g: LocalDomain,
    pub h: LocalDomain,
    pub front: FrontVif<LocalDomain>,
    pub back: BackVif<LocalDomain>,
    pub config: VifConfig,
    pub page_limit: usize,
    pub fb: MapBus,
    pub bb: MapBus,
    pub kept: Kept,
}

/// A front that has its pages mapped.
pub fn announcing() -> FrontConfig {
    FrontConfig { gref_mapping: true, ..by_hand() }
}

/// A front whose owner sends the control requests.
pub fn by_hand() -> FrontConfig {
    FrontConfig {
        staging: Buffers::NONE,
        granting: Granting::Standing,
        ctrl_ring: true,
        ..FrontConfig::default()
    }
}

/// A back with this many entries per queue, and no other way to keep pages mapped.
pub fn entries(gref_pages: usize) -> VifConfig {
    VifConfig {
        paths: PathConfig { gref_mapping: gref_pages, ..PathConfig::default() },
        ..VifConfig::default()
    }
}

impl Pair {
    pub fn new(front: FrontConfig, config: VifConfig) -> Self {
        Self::within(front, config, usize::MAX)
    }

    pub fn within(front: FrontConfig, config: VifConfig, page_limit: usize) -> Self {
        let mut pair = Self::connected(front, config, page_limit);
        while pair.front.is_announcing() {
            pair.back.poll_ctrl(&pair.h).expect("an honest front");
            pair.front.turn(&pair.g).expect("an honest back");
        }
        pair
    }

    /// The front has asked its first question, if it has any.
    pub fn connected(front: FrontConfig, config: VifConfig, page_limit: usize) -> Self {
        Self::around(FrontVif::new(HOST, front, false), config, page_limit, |_, _| {})
    }

    /// Like `new`, with a front that `equip` changes before it connects.
    pub fn around(
        mut front: FrontVif<LocalDomain>,
        config: VifConfig,
        page_limit: usize,
        equip: impl FnOnce(&LocalDomain, &mut FrontVif<LocalDomain>),
    ) -> Self {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (fb, bb) = device();
        equip(&g, &mut front);
        let kept = Kept::default();
        let back = Self::back(&config, &kept, page_limit);
        let mut pair = Self { xen, g, h, front, back, config, page_limit, fb, bb, kept };
        pair.connect();
        pair
    }

    /// Steps both ends until frames can travel.
    pub fn connect(&mut self) {
        for _ in 0..8 {
            let Self { back, h, bb, kept, .. } = self;
            back.step(h, bb, &mut |name, n| kept.page(name, n)).expect("an honest front");
            self.front.step(&self.g, &mut self.fb).expect("an honest back");
        }
        assert!(self.front.is_live());
    }

    pub fn back(config: &VifConfig, kept: &Kept, page_limit: usize) -> BackVif<LocalDomain> {
        let mut back = BackVif::new(GUEST, 0, config.clone());
        back.keep_control(ControlPage::new(kept.control.clone()).expect("a page"));
        back.limit_pages(page_limit);
        back
    }

    /// The back dies, and another one takes over the rings.
    pub fn restart(&mut self) {
        let Self { h, bb, kept, .. } = self;
        self.back = Self::back(&self.config, kept, self.page_limit);
        assert!(self.back.reattach(h, bb, &mut |name, n| kept.page(name, n)).expect("live rings"));
    }

    /// Moves this many frames of `len` bytes in each direction on queue `q`, and checks each.
    /// Returns what that cost.
    pub fn exchange(&mut self, q: usize, frames: usize, len: usize) -> LocalCounts {
        let before = self.xen.counts();
        let bytes = |k: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + k) as u8).collect() };
        let (mut port, mut scratch, mut into) = (TestPort::default(), Arena::new(), Arena::new());
        for k in 0..frames {
            let mut burst = Arena::new();
            assert!(burst.push(&bytes(k), Offload::default()));
            assert_eq!(self.front.queue_mut(q).unwrap().send(&self.g, &burst.burst()), Ok(1));
            self.back.poll_tx(&self.h, q, &mut port, &mut scratch).expect("good frames");
            self.front.queue_mut(q).unwrap().reclaim(&self.g, 1).expect("good answers");
            assert_eq!(port.took.pop().map(|f| f.0), Some(bytes(k)), "frame {k} from the guest");
            port.gives.push_back((bytes(k + 1), Offload::default()));
            self.back.poll_rx(&self.h, q, &mut port).expect("good slots");
            into.clear();
            assert_eq!(self.front.queue_mut(q).unwrap().recv(&self.g, &mut into, 1), Ok(1));
            assert_eq!(into.burst().frame(0), bytes(k + 1), "frame {k} for the guest");
        }
        self.xen.counts().since(&before)
    }

    /// Asks by the front's own means.
    pub fn ask(&mut self, msg_type: CtrlType, queue: u32, entries: &[GrefEntry]) {
        let ctrl = self.front.ctrl().expect("a control ring");
        let asked = match msg_type {
            CtrlType::AddGrefMapping => ctrl.add_grefs(&self.g, queue, entries),
            CtrlType::DelGrefMapping => ctrl.del_grefs(&self.g, queue, entries),
            other => ctrl.ask(&self.g, other, [queue, 0, 0]),
        };
        assert_eq!(asked, Ok(()));
    }

    pub fn answer(&mut self) -> Option<(u32, u32)> {
        let answer = self.front.ctrl().expect("a control ring").answer().expect("an honest back");
        answer.map(|CtrlResponse { status, data, .. }| (status, data))
    }

    /// Lets the back go on until there is nothing to do.
    pub fn turns(&mut self) -> usize {
        (0..).take_while(|_| self.back.poll_ctrl(&self.h).expect("an honest front") == Polled::More).count()
    }

    /// Asks, and gives the answer: status and data.
    pub fn asked(&mut self, msg_type: CtrlType, queue: u32, entries: &[GrefEntry]) -> (u32, u32) {
        self.ask(msg_type, queue, entries);
        self.turns();
        self.answer().expect("an answer")
    }

    /// The first `n` TX and RX pages of queue `q`, as an honest front announces them.
    pub fn pages(&self, q: usize, n: usize) -> Vec<GrefEntry> {
        let [tx, rx] = self.front.queue(q).unwrap().page_refs();
        let of = |refs: &[GrantRef], flags| -> Vec<_> {
            refs[..n].iter().map(|gref| GrefEntry { gref: gref.0, flags, status: 7 }).collect()
        };
        [of(tx, GREF_READONLY), of(rx, 0)].concat()
    }

    pub fn mapped(&self) -> usize {
        self.xen.counts().mapped
    }

    pub fn close(mut self) {
        self.back.close(&self.h, &mut self.bb, None).expect("a map");
        assert_eq!(self.mapped(), 0, "closed, and something is mapped");
        while !self.front.is_closed() {
            self.front.step(&self.g, &mut self.fb).expect("a map");
        }
        assert_eq!(self.xen.counts().grants, 0);
    }
}

/// Linux's netback, unbound and bound again, is in states 4, 1, 2 and 4; its new instance takes
/// over the rings with an empty table.
#[test]
fn another_back_is_asked_from_the_beginning() {
    for states in [&["1", "2"][..], &["2"], &["3"]] {
        let mut pair = Pair::new(announcing(), entries(768));
        pair.exchange(0, 30, 900);
        for state in states {
            pair.bb.own.borrow_mut().insert("state".into(), (*state).into());
            assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Waiting);
        }
        assert!(pair.front.is_live(), "the rings live on");
        pair.kept = Kept::default();
        pair.bb.own.borrow_mut().insert("state".into(), "4".into());
        pair.restart();
        assert_eq!(pair.back.gref_pages(0), [0, 0], "its table is its own");
        assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Renewed);
        assert!(pair.front.is_announcing());
        assert!(pair.exchange(0, 30, 900).copies > 0, "frames travel meanwhile");
        while pair.front.is_announcing() {
            pair.back.poll_ctrl(&pair.h).expect("an honest front");
            pair.front.turn(&pair.g).expect("an honest back");
        }
        assert_eq!((pair.front.gref_pages(0), pair.back.gref_pages(0)), (512, [512, 256]));
        assert_eq!(pair.exchange(0, 30, 900).copies, 0);
        assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Waiting, "once");
        pair.close();
    }
}

/// A question that was under way when the back went: its answer is no one's.
#[test]
fn another_back_is_asked_once_what_was_asked_before_is_answered() {
    let mut pair = Pair::connected(announcing(), entries(768), usize::MAX);
    pair.bb.own.borrow_mut().insert("state".into(), "2".into());
    pair.front.step(&pair.g, &mut pair.fb).expect("a map");
    pair.kept = Kept::default();
    pair.bb.own.borrow_mut().insert("state".into(), "4".into());
    pair.restart();
    assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Renewed);
    for _ in 0..8 {
        pair.front.turn(&pair.g).expect("an honest back");
        assert!(pair.front.is_announcing());
    }
    while pair.front.is_announcing() {
        pair.back.poll_ctrl(&pair.h).expect("an honest front");
        pair.front.turn(&pair.g).expect("an honest back");
    }
    assert_eq!((pair.front.gref_pages(0), pair.back.gref_pages(0)), (512, [512, 256]));
    pair.close();
}

/// Memory that was shared at set-up and is not accepted any more would be read wrongly: such a vif
/// is closed and set up again.
#[test]
fn a_back_that_does_not_take_what_was_shared_is_connected_again() {
    let front = FrontVif::new(HOST, FrontConfig::default(), true);
    let mut pair = Pair::around(front, VifConfig::default(), usize::MAX, |_, _| {});
    assert!(pair.front.staging_accepted(0));
    pair.bb.own.borrow_mut().insert("state".into(), "2".into());
    pair.front.step(&pair.g, &mut pair.fb).expect("a map");
    pair.bb.own.borrow_mut().retain(|key, _| !key.contains("staging"));
    pair.bb.own.borrow_mut().insert("state".into(), "4".into());
    assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Waiting);
    assert_eq!((pair.front.is_live(), pair.fb.own.borrow()["state"].as_str()), (false, "5"));
    pair.connect();
    pair.exchange(0, 30, 900);
}

pub const ADD: CtrlType = CtrlType::AddGrefMapping;
pub const DEL: CtrlType = CtrlType::DelGrefMapping;
pub const SIZE: CtrlType = CtrlType::GetGrefMappingSize;

#[test]
fn announced_pages_take_no_grant_operation() {
    for queues in [1, 2] {
        let mut pair = Pair::new(FrontConfig { queues, ..announcing() }, entries(768));
        let n = queues as usize;
        assert_eq!(pair.mapped(), 512 * n + 2 * n + 1, "pages, rings, the control ring");
        for q in 0..n {
            assert_eq!((pair.front.gref_pages(q), pair.back.gref_pages(q)), (512, [512, 256]));
            assert_eq!(pair.back.path_names(q), ("gref-mapping", "gref-mapping"));
            let mut frames = 0;
            for len in [60, 900, 4096, 9000] {
                let took = pair.exchange(q, 300, len);
                assert_eq!((took.copies, took.maps, took.unmaps), (0, 0, 0), "{len} bytes");
                frames += 300;
                let (tx, rx) = pair.back.stats(q);
                assert_eq!((tx.gref_mapping, rx.gref_mapping), (frames, frames));
                assert_eq!((tx.granted, tx.persistent, tx.staging), (0, 0, 0));
            }
        }
        assert_eq!(pair.back.pages().needed, pair.mapped());
        pair.close();
    }
}

/// Whatever the back answers, frames travel.
#[test]
fn a_front_goes_without_what_it_does_not_get() {
    let no_ring = BackFeatures { ctrl_ring: false, ..BackFeatures::default() };
    let persistent = BackFeatures::default();
    // The front's pages that the back has in the end, and its paths.
    for (front, back, page_limit, reported, paths) in [
        (announcing(), VifConfig { features: no_ring, ..entries(768) }, usize::MAX, 0, "copy"),
        (announcing(), entries(0), usize::MAX, 0, "copy"),
        (announcing(), entries(100), usize::MAX, 100, "gref-mapping"),
        (announcing(), entries(512), 3 + 200, 200, "gref-mapping"),
        (announcing(), entries(512), 3, 0, "copy"),
        (by_hand(), entries(512), usize::MAX, 0, "copy"),
        (
            FrontConfig { persistent: true, ..announcing() },
            VifConfig { features: persistent, ..entries(64) },
            usize::MAX,
            64,
            "gref-mapping",
        ),
    ] {
        let what = format!("{reported} of {:?}", back.paths.gref_mapping);
        let mut pair = Pair::within(front, back, page_limit);
        assert_eq!((pair.front.gref_pages(0), pair.back.gref_pages(0)[0]), (reported, reported), "{what}");
        assert_eq!(pair.back.path_names(0), (paths, paths), "{what}");
        for len in [60, 5000] {
            pair.exchange(0, 600, len);
        }
        let (tx, rx) = pair.back.stats(0);
        assert_eq!((tx.gref_mapping > 0, rx.gref_mapping > 0), (reported > 0, reported > 0), "{what}");
        for stats in [tx, rx] {
            assert_eq!(stats.gref_mapping + stats.granted + stats.persistent, 1200, "{what}");
        }
        assert!(pair.mapped() <= page_limit);
        pair.close();
    }
}

#[test]
fn an_add_is_all_or_nothing() {
    let mut pair = Pair::new(by_hand(), entries(300));
    let good = pair.pages(0, 140);
    let mapped = pair.mapped();
    let mut refs = [GrantRef::NONE];
    let strangers = pair.g.alloc(DomId(9), Access::ReadWrite, &mut refs).expect("a page");
    let entry = |gref, flags| GrefEntry { gref, flags, status: 0 };
    let tx = pair.front.queue(0).unwrap().page_refs()[0].last().expect("pages").0;
    for (last, why) in [
        (entry(0, 0), "reference 0"),
        (entry(4_000_000, 0), "it is not granted"),
        (entry(refs[0].0, 0), "a stranger's"),
        (entry(tx, 0), "to be written, and granted for reading"),
        (entry(tx, 2), "an unknown flag"),
        (good[0], "listed twice"),
    ] {
        // Where it fails at the end, in the middle, and at once.
        for n in [280, 100, 0] {
            let list = [&good[..n], &[last], &good[n..]].concat();
            assert_eq!(pair.asked(ADD, 0, &list), (INVALID, 0), "{why}");
            assert_eq!((pair.mapped(), pair.back.gref_pages(0)), (mapped, [0, 0]), "{why}");
        }
    }
    let [tx, rx] = pair.front.queue(0).unwrap().page_refs();
    let many: Vec<_> = tx.iter().chain(rx).map(|gref| entry(gref.0, GREF_READONLY)).collect();
    assert_eq!(pair.asked(ADD, 0, &many[..301]), (INVALID, 0), "more than the table has");
    assert_eq!(pair.asked(ADD, 0, &[]), (INVALID, 0), "no entry");
    assert_eq!(pair.asked(ADD, 1, &good), (INVALID, 0), "no such queue");
    assert_eq!(pair.asked(ADD, u32::MAX, &good), (INVALID, 0), "no such queue");
    assert_eq!(pair.asked(SIZE, 1, &[]), (INVALID, 0));
    assert_eq!(pair.asked(SIZE, 0, &[]), (SUCCESS, 300));
    assert_eq!(pair.mapped(), mapped);
    assert_eq!(pair.asked(ADD, 0, &good), (SUCCESS, 280));
    assert_eq!((pair.mapped(), pair.back.gref_pages(0)), (mapped + 280, [280, 140]));
    assert_eq!(pair.asked(ADD, 0, &many[200..221]), (INVALID, 0), "21 more than there is room for");
    assert_eq!(pair.asked(ADD, 0, &many[200..220]), (SUCCESS, 20));
    assert_eq!(pair.asked(ADD, 0, &good[..1]), (INVALID, 0), "it is there already");
    assert_eq!(pair.asked(SIZE, 0, &[]), (SUCCESS, 300), "the most, and not what is left");
    assert!(pair.g.release(strangers).is_ok());
    pair.close();
}

/// Filling each queue's table once is part of a connection, since every guest that uses the path
/// does it. Everything else that a guest asks for is counted: pages that are added again after they
/// were deleted, refused pages, and its requests.
#[test]
fn filling_the_tables_once_is_not_counted() {
    let mut pair = Pair::new(FrontConfig { queues: 8, ..by_hand() }, entries(768));
    let mut refs = [GrantRef::NONE; 768];
    let region = pair.g.alloc(HOST, Access::ReadWrite, &mut refs).expect("pages");
    let list: Vec<_> = refs.iter().map(|gref| GrefEntry { gref: gref.0, flags: 0, status: 0 }).collect();
    // The counts of a request, and all of its operations.
    let ask = |pair: &mut Pair, msg_type, q, list: &[GrefEntry]| {
        pair.ask(msg_type, q, list);
        let (mut all, mut filling) = (0, 0);
        while pair.back.poll_ctrl(&pair.h).expect("an honest front") == Polled::More {
            let work = pair.back.ctrl_work();
            assert!(work.filling <= work.all);
            (all, filling) = (all + work.all, filling + work.filling);
        }
        (pair.answer().expect("an answer").0, all, all - filling)
    };
    for q in 0..8 {
        assert_eq!(ask(&mut pair, SIZE, q, &[]), (SUCCESS, 1, 1));
        assert_eq!(ask(&mut pair, ADD, q, &list[..512]), (SUCCESS, 513, 1), "queue {q}");
        assert_eq!(ask(&mut pair, ADD, q, &list[512..]), (SUCCESS, 257, 1), "queue {q}");
    }
    for _ in 0..3 {
        assert_eq!(ask(&mut pair, DEL, 3, &list[..512]), (SUCCESS, 513, 513));
        assert_eq!(ask(&mut pair, ADD, 3, &list[..512]), (SUCCESS, 513, 513));
    }
    // Another back, which mapped them all again by itself, on the same connection.
    pair.restart();
    assert_eq!(pair.back.gref_pages(3), [768, 768]);
    assert_eq!(ask(&mut pair, DEL, 3, &list[..512]), (SUCCESS, 513, 513));
    assert_eq!(ask(&mut pair, ADD, 3, &list[..512]), (SUCCESS, 513, 513));
    pair.back.close(&pair.h, &mut pair.bb, None).expect("a map");
    assert!(pair.g.release(region).is_ok());

    // An ADD that fails is not for nothing again and again: what it mapped is unmapped, and that is
    // counted.
    let mut pair = Pair::new(by_hand(), entries(300));
    let good = pair.pages(0, 100);
    let bad = [&good[..], &[GrefEntry { gref: 4_000_000, flags: 0, status: 0 }]].concat();
    let counted: Vec<_> = (0..4).map(|_| ask(&mut pair, ADD, 0, &bad)).collect();
    assert_eq!(counted[0], (INVALID, 402, 201), "a request, and 200 pages back");
    assert_eq!((counted[2], counted[3]), ((INVALID, 402, 402), (INVALID, 402, 402)));
    pair.close();
}

/// Lists as a guest may place them: no page of its own, a page that is not writable, more entries
/// than a page has.
#[test]
fn lists_that_are_of_no_use() {
    let mut pair = Pair::new(by_hand(), entries(768));
    assert_eq!(pair.asked(ADD, 0, &pair.pages(0, 4)), (SUCCESS, 8));
    let mapped = pair.mapped();
    let mut refs = [GrantRef::NONE];
    let page = pair.g.alloc(HOST, Access::ReadOnly, &mut refs).expect("a page");
    let list: Vec<u8> = pair.pages(0, 8)[4..].iter().flat_map(|e| e.to_bytes()).collect();
    assert!(page.copy_in(0, &list));
    let mut raw = |msg_type, data| {
        let ctrl = pair.front.ctrl().expect("a control ring");
        assert_eq!(ctrl.ask(&pair.g, msg_type, data), Ok(()));
        while pair.back.poll_ctrl(&pair.h) == Ok(Polled::More) {}
        let answer =
            pair.front.ctrl().and_then(|ctrl| ctrl.answer().expect("an honest back")).expect("an answer");
        (answer.status, answer.data)
    };
    for msg_type in [ADD, DEL] {
        for data in
            [[0, 0, 1], [0, 4_000_000, 1], [0, refs[0].0, 0], [0, refs[0].0, 513], [0, refs[0].0, u32::MAX]]
        {
            assert_eq!(raw(msg_type, data), (INVALID, 0), "{msg_type:?} {data:?}");
        }
    }
    assert_eq!(raw(DEL, [0, refs[0].0, 4]), (INVALID, 0), "no status can be written");
    assert_eq!(raw(ADD, [0, refs[0].0, 4]), (SUCCESS, 4), "none has to be");
    let mut after = vec![0; list.len()];
    assert!(page.copy_out(0, &mut after));
    assert_eq!(after, list, "it is the guest's");
    assert_eq!(pair.mapped(), mapped + 4);
    assert!(pair.g.release(page).is_ok());
    pair.close();
}

#[test]
fn a_del_says_what_it_unmapped() {
    let mut pair = Pair::new(by_hand(), entries(768));
    let all = pair.pages(0, 256);
    let mapped = pair.mapped();
    assert_eq!(pair.asked(ADD, 0, &all), (SUCCESS, all.len() as u32));
    // Two that are not there, and one twice.
    let some = [
        &all[..100],
        &[all[3], GrefEntry { gref: 0, ..all[0] }, GrefEntry { gref: 4_000_000, ..all[0] }],
        &all[256..300],
    ]
    .concat();
    assert_eq!(pair.asked(DEL, 0, &some), (SUCCESS, 144));
    let statuses = pair.front.ctrl().and_then(|ctrl| ctrl.statuses(some.len())).expect("a list").to_vec();
    let not: Vec<_> = (0..).zip(&statuses).filter(|(_, status)| **status != 0).collect();
    assert_eq!(not, [(100, &2), (101, &2), (102, &2)]);
    assert_eq!((pair.mapped(), pair.back.gref_pages(0)), (mapped + 368, [368, 212]));
    // They go by grant copy from now on, the others as before.
    let took = pair.exchange(0, 256, 700);
    assert_eq!((took.copies, took.maps), (144, 0));
    assert_eq!(pair.asked(DEL, 0, &some), (SUCCESS, 0), "none of them is there");
    let statuses = pair.front.ctrl().and_then(|ctrl| ctrl.statuses(some.len())).expect("a list").to_vec();
    assert!(statuses.iter().all(|status| *status == 2));
    // There is room for them again, and in the end for all.
    assert_eq!(pair.asked(ADD, 0, &all[..100]), (SUCCESS, 100));
    assert_eq!(pair.asked(DEL, 0, &all), (SUCCESS, 468));
    assert_eq!(
        (pair.mapped(), pair.back.gref_pages(0), pair.back.path_names(0)),
        (mapped, [0, 0], ("copy", "copy"))
    );
    assert_eq!(pair.front.ctrl().and_then(|ctrl| ctrl.statuses(513)), None, "no list is so long");
    pair.close();
}

/// A page mapped for reading is not written to.
#[test]
fn rx_takes_pages_that_are_mapped_for_writing() {
    let mut pair = Pair::new(by_hand(), entries(768));
    let [tx, rx] = pair.front.queue(0).unwrap().page_refs().map(<[_]>::to_vec);
    let entry = |gref: &GrantRef, flags| GrefEntry { gref: gref.0, flags, status: 0 };
    let reading: Vec<_> = tx.iter().chain(&rx).map(|gref| entry(gref, GREF_READONLY)).collect();
    assert_eq!(pair.asked(ADD, 0, &reading), (SUCCESS, reading.len() as u32));
    assert_eq!(pair.back.path_names(0), ("gref-mapping", "copy"));
    let took = pair.exchange(0, 300, 900);
    assert_eq!(took.copies, 300, "RX by grant copy");
    let (tx, rx) = pair.back.stats(0);
    assert_eq!((tx.gref_mapping, rx.gref_mapping, rx.granted), (300, 0, 300));
    pair.close();
}

/// With 64 pages in a turn a long list takes several turns, and others are served meanwhile.
#[test]
fn a_long_list_takes_turns() {
    let mut pair = Pair::new(by_hand(), entries(768));
    let all = pair.pages(0, 256);
    for (msg_type, data) in [(ADD, 512), (DEL, 512), (ADD, 512)] {
        pair.ask(msg_type, 0, &all);
        let before = pair.xen.counts();
        let mut turns = 0;
        loop {
            assert_eq!(pair.back.poll_ctrl(&pair.h), Ok(Polled::More));
            turns += 1;
            if let Some(answer) = pair.answer() {
                assert_eq!(answer, (SUCCESS, data));
                break;
            }
            pair.exchange(0, 1, 500);
        }
        assert!(turns >= 512 / MAPS_PER_TURN, "{turns} turns");
        let after = pair.xen.counts();
        assert!(after.maps - before.maps <= 512 + 2 && after.unmaps - before.unmaps <= 512 + 2);
    }
    pair.close();
}

/// A worker has the queue and does not check: that is its queue's business alone.
#[test]
fn a_page_in_use_holds_up_nothing_but_its_own_answer() {
    let mut pair = Pair::new(FrontConfig { queues: 2, ..by_hand() }, entries(768));
    let lists = [0, 1].map(|q| pair.pages(q, 20));
    for q in [0, 1] {
        assert_eq!(pair.asked(ADD, q, &lists[q as usize]), (SUCCESS, lists[q as usize].len() as u32));
    }
    let mut queues: Vec<BackQueue<LocalDomain>> = pair.back.hand_out_queues();
    // More than one request at a time: a front that asks for more than ours does is played by hand.
    let mut raw = RawRing::of(&mut pair);
    let mapped = pair.mapped();
    raw.ask(&pair, 1, DEL, 0, &lists[0]);
    raw.ask(&pair, 2, CtrlType::SetHashAlgorithm, 1, &[]);
    raw.ask(&pair, 3, DEL, 1, &lists[1][..5]);
    raw.ask(&pair, 4, SIZE, 0, &[]);
    raw.ask(&pair, 5, ADD, 0, &lists[0]);
    pair.turns();
    assert_eq!(raw.answers(), [(2, SUCCESS, 0), (4, SUCCESS, 768)]);
    let port = &mut TestPort::default();
    queues[1].poll_rx(&pair.h, port).expect("good slots");
    assert!(queues[1].turn(&pair.h, port).expect("good slots"), "the control side is notified");
    pair.turns();
    assert_eq!(raw.answers(), [(3, SUCCESS, 5)]);
    assert_eq!(pair.mapped(), mapped - 5);
    assert_eq!(pair.turns(), 0, "nothing to do until the other polls too");
    queues[0].poll_tx(&pair.h, port, &mut Arena::new()).expect("good frames");
    pair.turns();
    assert_eq!(
        raw.answers(),
        [(1, SUCCESS, 40), (5, SUCCESS, 40)],
        "what came behind it for the same queue waited"
    );
    assert_eq!(raw.statuses(0, 40), [0; 40]);
    assert_eq!(pair.mapped(), mapped - 5);
    pair.back.take_back(queues);
    raw.end(&pair);
    pair.close();
}

/// Requests without end for a queue that does not run: only a limited number is taken.
#[test]
fn what_is_unanswered_is_bounded() {
    let mut pair = Pair::new(by_hand(), entries(768));
    let list = pair.pages(0, 10);
    assert_eq!(pair.asked(ADD, 0, &list), (SUCCESS, list.len() as u32));
    let mut queues = pair.back.hand_out_queues();
    let mut raw = RawRing::of(&mut pair);
    for id in 0..60 {
        raw.ask(&pair, id, DEL, 0, &list[..1]);
    }
    for id in 60..100 {
        raw.ask(&pair, id, CtrlType::SetHashAlgorithm, 1, &[]);
    }
    pair.turns();
    assert_eq!(raw.answers(), [], "requests behind {UNANSWERED_MAX} of them are not read");
    assert_eq!(pair.back.final_check_ctrl(&pair.h), Ok(false), "it may sleep");
    let port = &mut TestPort::default();
    let mut ids = Vec::new();
    while ids.len() < 100 {
        let moved = queues[0].turn(&pair.h, port).expect("good slots");
        assert!(moved || pair.turns() > 0, "it stands");
        pair.turns();
        ids.extend(raw.answers().iter().map(|(id, ..)| *id));
    }
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..100), "each is answered, and once");
    pair.back.take_back(queues);
    raw.end(&pair);
    pair.close();
}

/// XSA-300: added pages count as mapped, and other devices of the guest take precedence over pages
/// that may still be added.
#[test]
fn added_pages_are_the_guests_own() {
    let rings = 3;
    let mut pair = Pair::within(by_hand(), entries(768), rings + 100);
    assert_eq!((pair.back.pages().needed, pair.back.pages().allowed), (rings, 100));
    assert_eq!(pair.asked(SIZE, 0, &[]), (SUCCESS, 100));
    assert_eq!(pair.asked(ADD, 0, &pair.pages(0, 51)), (INVALID, 0));
    assert_eq!(pair.asked(ADD, 0, &pair.pages(0, 40)), (SUCCESS, 80));
    assert_eq!((pair.back.pages().needed, pair.back.pages().allowed), (rings + 80, 20));
    // Another device came: what is there stays.
    pair.back.allow_pages(&pair.h, PageShare { pages: 5, lasting: usize::MAX });
    assert_eq!((pair.back.pages().needed, pair.back.pages().allowed), (rings + 80, 5));
    assert_eq!(pair.asked(SIZE, 0, &[]), (SUCCESS, 85));
    let more = pair.pages(0, 50);
    assert_eq!(pair.asked(ADD, 0, &more[40..46]), (INVALID, 0));
    assert_eq!(pair.asked(ADD, 0, &more[40..45]), (SUCCESS, 5));
    assert_eq!(pair.asked(DEL, 0, &more), (SUCCESS, 85));
    assert_eq!((pair.back.pages().needed, pair.back.pages().allowed), (rings, 85));
    pair.close();
}

/// The back dies after some of its turns; the next one has the same pages, and answers the requests
/// that were not answered.
#[test]
fn tables_outlive_their_back() {
    for turns in 0..24 {
        let mut pair = Pair::new(FrontConfig { queues: 2, ..by_hand() }, entries(768));
        let (first, second) = (pair.pages(0, 256), pair.pages(1, 40));
        assert_eq!(pair.asked(ADD, 1, &second), (SUCCESS, second.len() as u32));
        let steps = [(ADD, 0, &first[..], 512), (DEL, 1, &second[10..30], 20), (DEL, 0, &first[..256], 256)];
        let mut turn = 0;
        for (msg_type, queue, list, data) in steps {
            pair.ask(msg_type, queue, list);
            let mut answers = Vec::new();
            loop {
                if turn == turns {
                    pair.restart();
                }
                turn += 1;
                let moved = pair.back.poll_ctrl(&pair.h).expect("an honest front");
                answers.extend(pair.answer());
                if moved == Polled::Idle {
                    break;
                }
            }
            assert_eq!(answers, [(SUCCESS, data)], "dead at turn {turns}: one answer");
        }
        for _ in 0..2 {
            assert_eq!(pair.mapped(), 256 + 60 + 2 * 2 + 1, "dead at turn {turns}");
            assert_eq!(pair.back.gref_pages(0), [256, 256]);
            assert_eq!(pair.back.gref_pages(1), [60, 40]);
            let took = pair.exchange(0, 256, 100);
            assert_eq!((took.copies, took.maps), (256, 0), "TX by grant copy, RX not");
            assert_eq!(pair.answer(), None, "nothing is answered twice");
            pair.restart();
        }
        assert_eq!(pair.asked(DEL, 1, &second), (SUCCESS, 60));
        pair.close();
    }
}

/// A request that waits for a worker when its back dies is answered once, by the next back; later
/// requests are not answered twice either.
#[test]
fn what_waits_outlives_its_back() {
    for gref_pages in [768, 0] {
        let mut pair = Pair::new(by_hand(), entries(768));
        let list = pair.pages(0, 30);
        assert_eq!(pair.asked(ADD, 0, &list), (SUCCESS, list.len() as u32));
        drop(pair.back.hand_out_queues());
        let mut raw = RawRing::of(&mut pair);
        raw.ask(&pair, 1, DEL, 0, &list[..7]);
        raw.ask(&pair, 2, CtrlType::SetHashAlgorithm, 1, &[]);
        raw.ask(&pair, 3, DEL, 0, &list[5..9]);
        raw.ask(&pair, 4, CtrlType::GetHashFlags, 0, &[]);
        pair.turns();
        assert_eq!(raw.answers(), [(2, SUCCESS, 0), (4, SUCCESS, 15)]);
        // The successor may know nothing of tables: then the guest gets that.
        pair.config = entries(gref_pages);
        pair.restart();
        pair.turns();
        if gref_pages == 0 {
            assert_eq!(raw.answers(), [(1, NOT_SUPPORTED, 0), (3, NOT_SUPPORTED, 0)]);
        } else {
            assert_eq!(raw.answers(), [(1, SUCCESS, 7), (3, SUCCESS, 2)]);
            assert_eq!((raw.statuses(0, 7), raw.statuses(1, 4)), (vec![0; 7], vec![2, 2, 0, 0]));
            assert_eq!(pair.back.gref_pages(0), [51, 30]);
        }
        pair.restart();
        pair.turns();
        assert_eq!(raw.answers(), [], "nothing is answered twice");
        raw.end(&pair);
        pair.close();
    }
}

/// A front that ended grants while there was no back: what cannot be mapped again is not in the
/// table, and nothing else is lost.
#[test]
fn what_cannot_be_mapped_again_is_forgotten() {
    let mut pair = Pair::new(by_hand(), entries(768));
    let list = pair.pages(0, 30);
    assert_eq!(pair.asked(ADD, 0, &list), (SUCCESS, list.len() as u32));
    pair.page_limit = 3 + 25;
    pair.restart();
    assert_eq!(pair.back.pages().needed, 28);
    pair.page_limit = usize::MAX;
    pair.exchange(0, 300, 600);
    assert_eq!(pair.asked(DEL, 0, &list), (SUCCESS, 25));
    pair.close();
}

/// Whatever is answered, the front sends and receives the same frames, and gives its pages to no
/// one else.
#[test]
fn a_back_that_misreports_its_table() {
    let answer = |status, data| (status, data, 0u16, 0u16);
    // The sizes and statuses that are answered in turn (with what is added to id and type); pages
    // that the front believes are kept.
    for (answers, reported, fault) in [
        // The values that it scribbled over the entries are statuses of entries that failed.
        (&[answer(SUCCESS, u32::MAX), answer(SUCCESS, 7)][..], 0, false),
        (&[answer(SUCCESS, 3), answer(77, 0)], 0, false),
        (&[answer(u32::MAX, 512)], 0, false),
        (&[answer(SUCCESS, 0)], 0, false),
        (&[], 0, false),
        (&[answer(SUCCESS, 512), (SUCCESS, 0, 1, 0)], 0, true),
        (&[(SUCCESS, 512, 0, 1)], 0, true),
    ] {
        let mut pair = Pair::connected(announcing(), entries(0), usize::MAX);
        let raw = RawRing::of(&mut pair);
        let mut faulted = false;
        for (k, &(status, data, id, msg_type)) in (0..).zip(answers) {
            let asked = raw.request(k);
            if asked.msg_type == ADD.raw() {
                raw.scribble(&pair, asked.data[1]);
            }
            raw.answer(k, (asked.id + id, asked.msg_type + msg_type, status, data));
            faulted |= pair.front.turn(&pair.g).is_err();
        }
        assert_eq!((faulted, pair.front.gref_pages(0)), (fault, reported), "{answers:?}");
        assert_eq!(pair.front.ctrl().is_some(), !answers.is_empty() && !fault, "{answers:?}");
        let took = pair.exchange(0, 300, 800);
        assert_eq!(took.copies, 600, "{answers:?}");
        raw.end(&pair);
        pair.close();
    }
}
