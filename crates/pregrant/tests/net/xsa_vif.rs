//! Xen's security advisories on the control path of a vif, both directions, over plain maps: what
//! is mapped and granted when a peer makes a connection fail, toggles its state, goes away, or
//! keeps pages. docs/threat-model.md has the table.
#![cfg(not(miri))]

use pregrant::net::back::{BackStep, BackVif, Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::Granting;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::list::{self as staging_list, DataLen};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalMap, LocalXen};
use pregrant::platform::{Access, GrantPool, MapError, PeerMem};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{NetTx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::wire::netif::TxRequest;
use pregrant::wire::staging::StagingEntry;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::bus::DeviceBus;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::key_source::{KeySource, Pairs};
use pregrant::{GrantRef, PlatformError};
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::ruled_domain::{RuledDomain, Rules};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};
use std::cell::Cell;

/// A guest and its driver domain with one vif.
struct Pair {
    xen: LocalXen,
    g: LocalDomain,
    h: LocalDomain,
    fb: MapBus,
    bb: MapBus,
}

impl Pair {
    fn new() -> Self {
        let xen = LocalXen::new();
        let (fb, bb) = device();
        Self { g: xen.domain(GUEST.0), h: xen.domain(HOST.0), xen, fb, bb }
    }

    fn connect(&mut self, front: &mut FrontVif<LocalDomain>, back: &mut BackVif<LocalDomain>) {
        connect((&self.g, front, &mut self.fb), (&self.h, back, &mut self.bb));
    }

    fn back_step(&mut self, back: &mut BackVif<LocalDomain>) -> Result<BackStep, ConnectError<String>> {
        back.step(&self.h, &mut self.bb, &mut |_, _| None)
    }

    /// Checks that nothing is granted, mapped or bound.
    fn assert_empty(&self, what: &str) {
        let c = self.xen.counts();
        assert_eq!(
            (c.grants, c.mapped, c.channels),
            (0, 0, 0),
            "grants, mappings, channel ends left: {what}"
        );
    }

    /// Moves one frame in each direction on queue 0.
    fn frames_pass(&self, front: &mut FrontVif<LocalDomain>, back: &mut BackVif<LocalDomain>) {
        let mut burst = Arena::new();
        assert!(burst.push(&[7; 900], Offload::default()));
        let mut port = TestPort::default();
        assert_eq!(front.queue_mut(0).unwrap().send(&self.g, &burst.burst()), Ok(1));
        assert_eq!(back.poll_tx(&self.h, 0, &mut port, &mut Arena::new()), Ok(Polled::More));
        assert_eq!(front.queue_mut(0).unwrap().reclaim(&self.g, 1), Ok(1));
        port.gives = port.took.drain(..).collect();
        assert_eq!(back.poll_rx(&self.h, 0, &mut port), Ok(Polled::More));
        let mut got = Arena::new();
        assert_eq!(front.queue_mut(0).unwrap().recv(&self.g, &mut got, 1), Ok(1));
        assert_eq!(got.burst().frame(0), [7; 900]);
    }

    /// The back's view of the guest's TX ring of queue 0 of one.
    fn tx_ring(&self) -> RingPages<NetTx, LocalMap> {
        let gref = self.fb.own.borrow()["tx-ring-ref"].parse().expect("a number");
        let map = self.h.map(GUEST, &[GrantRef(gref)], Access::ReadWrite).expect("the front's ring");
        RingPages::<NetTx, _>::new(map)
    }
}

fn back() -> BackVif<LocalDomain> {
    BackVif::new(GUEST, 0, VifConfig::default())
}

fn staged(queues: u32) -> FrontConfig {
    let len = DataLen::new(256);
    FrontConfig { queues, staging: Buffers::of(len, len), ..FrontConfig::default() }
}

fn ordinary() -> FrontConfig {
    FrontConfig { staging: Buffers::NONE, split_channels: false, ..FrontConfig::default() }
}

/// Two queues with 2 ring pages and 16 buffer pages for each direction. Pages beyond the limit are
/// never mapped: a queue continues with ordinary grants; a vif whose rings alone exceed the limit
/// is closed.
#[test]
fn xsa_300_pages_beyond_the_limit_are_not_mapped() {
    let (none, tx, both) = ((false, false), (true, false), (true, true));
    for (limit, mapped, staging) in [
        (4, 4, [none, none]),
        (19, 4, [none, none]),
        (20, 20, [tx, none]), // TX fits and RX does not
        (36, 36, [both, none]),
        (67, 52, [both, tx]),
        (68, 68, [both, both]),
    ] {
        let mut pair = Pair::new();
        let (mut front, mut back) = (FrontVif::new(HOST, staged(2), false), back());
        back.limit_pages(limit);
        pair.connect(&mut front, &mut back);
        assert_eq!((back.mapped_pages(), pair.xen.counts().mapped), (mapped, mapped), "limit {limit}");
        let lens = [0, 1].map(|i| front.queue(i).unwrap().staging_lens());
        assert_eq!(lens.map(|(tx, rx)| (tx.is_some(), rx.is_some())), staging, "limit {limit}");
        assert_eq!([0, 1].map(|i| front.staging_accepted(i)), staging.map(|lists| lists == both));
        for (_, _, why) in back.refused_lists() {
            assert!(why.to_string().contains("it needs 16 mapped page(s)"), "{why}");
        }
        pair.frames_pass(&mut front, &mut back);
        back.close(&pair.h, &mut pair.bb, None).expect("a map");
        assert_eq!((back.mapped_pages(), pair.xen.counts().mapped), (0, 0));
    }
    let mut pair = Pair::new();
    let (mut front, mut back) = (FrontVif::new(HOST, staged(2), false), back());
    back.limit_pages(3);
    assert_eq!(pair.back_step(&mut back).expect("keys"), BackStep::Waiting);
    front.step(&pair.g, &mut pair.fb).expect("an honest back");
    let refused = pair.back_step(&mut back).expect_err("rings beyond the limit");
    assert!(matches!(refused, ConnectError::TooManyPages(_)), "{refused}");
    assert_eq!(pair.xen.counts().mapped, 0);
}

/// A driver domain in which one mapping or one binding fails.
struct FailsOnce {
    maps_till_failure: Cell<u32>,
    binds_till_failure: Cell<u32>,
}

/// Counts down; returns true for the call that fails.
fn fails(till: &Cell<u32>) -> bool {
    let n = till.get();
    till.set(n.wrapping_sub(1));
    n == 0
}

impl Rules for FailsOnce {
    fn may_map(&self, refs: &[GrantRef]) -> Result<(), MapError> {
        match fails(&self.maps_till_failure) {
            true => Err(MapError { index: Some(refs.len() - 1), status: GrantStatus::NO_SPACE }),
            false => Ok(()),
        }
    }
    fn may_bind(&self) -> Result<(), PlatformError> {
        match fails(&self.binds_till_failure) {
            true => Err(PlatformError { op: "bind, which this test forbids", code: 28 }),
            false => Ok(()),
        }
    }
}

/// Every mapping and every binding of a connect with two staged queues fails in turn.
#[test]
fn xsa_371_a_connect_that_fails_half_way_leaves_nothing_mapped() {
    let mut failures = 0;
    let mut refusals = 0;
    // Per queue: a list page and its buffers each way, two rings; two channels.
    for (maps, binds) in (0..14).map(|n| (n, u32::MAX)).chain((0..6).map(|n| (u32::MAX, n))) {
        let mut pair = Pair::new();
        let rules = FailsOnce { maps_till_failure: Cell::new(maps), binds_till_failure: Cell::new(binds) };
        let p = RuledDomain { domain: pair.h.clone(), rules };
        let mut front = FrontVif::new(HOST, staged(2), false);
        let mut back: BackVif<RuledDomain<FailsOnce>> = BackVif::new(GUEST, 0, VifConfig::default());
        back.step(&p, &mut pair.bb, &mut |_, _| None).expect("keys");
        front.step(&pair.g, &mut pair.fb).expect("an honest back");
        let of_the_front = pair.xen.counts().channels;
        match back.step(&p, &mut pair.bb, &mut |_, _| None) {
            Ok(step) => {
                assert_eq!(step, BackStep::Connected);
                refusals += back.refused_lists().len();
                assert_eq!(back.mapped_pages(), pair.xen.counts().mapped);
            }
            Err(_) => {
                failures += 1;
                let counts = pair.xen.counts();
                assert_eq!((counts.mapped, counts.channels), (0, of_the_front), "maps {maps}, binds {binds}");
            }
        }
        back.close(&p, &mut pair.bb, Some("the end")).expect("a map");
        let counts = pair.xen.counts();
        assert_eq!((counts.mapped, counts.channels), (0, of_the_front), "maps {maps}, binds {binds}");
        front.step(&pair.g, &mut pair.fb).expect("a map");
        front.step(&pair.g, &mut pair.fb).expect("a map");
        pair.assert_empty("the front's");
    }
    // Two rings and two channels of each queue are needed; a list or its buffers are not, and there
    // are two of each.
    assert_eq!((failures, refusals), (8, 8), "each place was hit once");
}

/// A fault, then the front's disconnect, then the same again; each step is made twice.
#[test]
fn xsa_374_a_fault_and_a_disconnect_twice_over() {
    let mut pair = Pair::new();
    let (mut front, mut back) = (FrontVif::new(HOST, ordinary(), true), back());
    for round in 0..2 {
        pair.connect(&mut front, &mut back);
        assert!(front.is_live(), "round {round}");
        pair.frames_pass(&mut front, &mut back);
        let ring = pair.tx_ring();
        ring.store(Word::ReqProd, 1 << 20);
        drop(ring);
        for _ in 0..2 {
            let fault = back.poll_tx(&pair.h, 0, &mut TestPort::default(), &mut Arena::new());
            assert!(fault.is_err());
        }
        for _ in 0..2 {
            back.close(&pair.h, &mut pair.bb, Some("a fault")).expect("a map");
            assert_eq!((back.nr_queues(), pair.xen.counts().mapped), (0, 0));
        }
        // It stays closed as long as the front says 4.
        assert_eq!(pair.back_step(&mut back).expect("a map"), BackStep::Waiting);
        assert_eq!(back.state(), XenbusState::Closed);
    }
    front.close(&mut pair.fb, None).expect("a map");
    for _ in 0..4 {
        front.step(&pair.g, &mut pair.fb).expect("a map");
        pair.back_step(&mut back).expect("a map");
    }
    drop(back);
    pair.assert_empty("after two faults");
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    FrontCloses,
    BackCloses,
    BackDies,
    FrontDirGoes,
    BackDirGoes,
    Offline,
}

/// The vif is removed in every state between creation and end, in every way; either end learns of
/// it first.
#[test]
fn xsa_465_removal_at_every_state_leaves_nothing() {
    use End::*;
    for end in [FrontCloses, BackCloses, BackDies, FrontDirGoes, BackDirGoes, Offline] {
        for steps in 0..14 {
            for front_first in [false, true] {
                let mut pair = Pair::new();
                let (mut front, mut back) = (FrontVif::new(HOST, staged(1), false), Some(back()));
                // From step 8 on the front is on its way down by itself.
                for k in 0..steps {
                    if k == 8 {
                        front.close(&mut pair.fb, None).expect("a map");
                    }
                    if k % 2 == front_first as usize {
                        pair.back_step(back.as_mut().expect("still there")).expect("an honest front");
                    } else {
                        front.step(&pair.g, &mut pair.fb).expect("an honest back");
                    }
                }
                let what = format!("{end:?} after {steps} steps");
                match end {
                    FrontCloses => front.close(&mut pair.fb, None).expect("a map"),
                    BackCloses => {
                        let back = back.as_mut().expect("still there");
                        back.close(&pair.h, &mut pair.bb, None).expect("a map");
                    }
                    BackDies => {
                        // As the toolstack clears up behind it.
                        drop(back.take());
                        pair.bb.own.borrow_mut().insert("state".into(), "6".into());
                    }
                    FrontDirGoes => pair.fb.own.borrow_mut().clear(),
                    BackDirGoes => {
                        drop(back.take());
                        pair.bb.own.borrow_mut().clear();
                    }
                    Offline => {
                        pair.bb.own.borrow_mut().insert("online".into(), "0".into());
                    }
                }
                // A front whose device is gone closes; so does one that is asked to.
                if matches!(end, FrontDirGoes | Offline) {
                    front.close(&mut pair.fb, None).expect("a map");
                }
                for _ in 0..10 {
                    if let Some(back) = &mut back {
                        pair.back_step(back).expect("a map");
                    }
                    front.step(&pair.g, &mut pair.fb).expect("a map");
                }
                if let Some(back) = &mut back {
                    back.close(&pair.h, &mut pair.bb, None).expect("a map");
                }
                // Linux's netback closes once the front has; a front that never began waits for a
                // back for ever.
                front.close(&mut pair.fb, None).expect("a map");
                pair.bb.own.borrow_mut().insert("state".into(), "6".into());
                for _ in 0..2 {
                    front.step(&pair.g, &mut pair.fb).expect("a map");
                }
                assert!(front.is_closed(), "{what}");
                pair.assert_empty(&what);
            }
        }
    }
}

#[test]
fn xsa_350_connecting_and_disconnecting_in_a_loop_leaves_what_one_round_leaves() {
    let mut pair = Pair::new();
    let (mut front, mut back) = (FrontVif::new(HOST, staged(2), true), back());
    pair.connect(&mut front, &mut back);
    let once = pair.xen.counts();
    for round in 0..200 {
        pair.xen.stop_clock(round * 1_000_000_000);
        // Frames on their way when the end comes.
        let mut burst = Arena::new();
        for _ in 0..8 {
            assert!(burst.push(&[1; 300], Offload::default()));
        }
        assert_eq!(front.queue_mut(1).unwrap().send(&pair.g, &burst.burst()), Ok(8));
        match round % 3 {
            0 => {
                back.close(&pair.h, &mut pair.bb, None).expect("a map");
                front.step(&pair.g, &mut pair.fb).expect("a map");
            }
            // A front that toggles without waiting for anybody.
            1 => {
                for state in ["5", "6", "1", "5", "4"] {
                    pair.fb.own.borrow_mut().insert("state".into(), state.into());
                    let _ = pair.back_step(&mut back);
                }
                back.close(&pair.h, &mut pair.bb, None).expect("a map");
                front.step(&pair.g, &mut pair.fb).expect("a map");
            }
            _ => {
                pair.fb.own.borrow_mut().insert("state".into(), "6".into());
                pair.back_step(&mut back).expect("a map");
            }
        }
        pair.connect(&mut front, &mut back);
        assert!(front.is_live() && back.nr_queues() == 2, "round {round}");
        let mut port = TestPort::default();
        while back.poll_tx(&pair.h, 1, &mut port, &mut Arena::new()) == Ok(Polled::More) {}
        front.queue_mut(1).unwrap().reclaim(&pair.g, 1).expect("an honest back");
        let now = pair.xen.counts();
        assert_eq!((now.grants, now.mapped, now.channels), (once.grants, once.mapped, once.channels));
    }
}

/// A bus on which the peer's state is different at each read.
struct Restless {
    bus: MapBus,
    checks: Cell<u32>,
}

impl KeySource for Restless {
    type Error = String;
    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        self.bus.text(key)
    }
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> String {
        self.bus.bad(key, value, expected)
    }
    fn refused(&self, why: PlatformError) -> String {
        self.bus.refused(why)
    }
}

impl DeviceBus for Restless {
    fn peer_state(&mut self) -> Result<XenbusState, String> {
        let check = self.checks.get();
        self.checks.set(check + 1);
        assert!(check < 1000, "one step reads the peer's state without end");
        const FRONT: [XenbusState; 3] =
            [XenbusState::Initialising, XenbusState::Closing, XenbusState::Closed];
        const BACK: [XenbusState; 2] = [XenbusState::InitWait, XenbusState::Closed];
        let front = self.bus.peer.borrow().contains_key("tx-ring-ref");
        Ok(if front { FRONT[check as usize % 3] } else { BACK[check as usize % 2] })
    }
    fn set_state(&mut self, state: XenbusState) -> Result<(), String> {
        self.bus.set_state(state)
    }
    fn publish(&mut self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), String> {
        self.bus.publish(pairs, stale)
    }
    fn own_state(&mut self) -> Result<XenbusState, String> {
        self.bus.own_state()
    }
    fn own_text(&mut self, key: &str) -> Result<Option<String>, String> {
        self.bus.own_text(key)
    }
    fn online(&mut self) -> Result<bool, String> {
        self.bus.online()
    }
    fn report(&mut self, text: &str) -> Result<(), String> {
        self.bus.report(text)
    }
    fn reported(&mut self) -> Result<Option<String>, String> {
        self.bus.reported()
    }
    fn recant(&mut self) -> Result<(), String> {
        self.bus.recant()
    }
}

/// A peer that changes its state between any two checks holds up neither end: a step ends, and
/// leaves nothing over.
#[test]
fn xsa_349_a_state_that_changes_at_each_look_ends_the_step() {
    let pair = Pair::new();
    pair.bb.own.borrow_mut().extend(BackFeatures::default().pairs());
    let mut front = FrontVif::new(HOST, staged(1), true);
    let mut restless = Restless { bus: pair.fb, checks: Cell::new(0) };
    for _ in 0..50 {
        front.step(&pair.g, &mut restless).expect("a map");
        restless.checks.set(restless.checks.get() % 2);
    }
    let grants = pair.xen.counts().grants;
    assert!(grants < 1000, "{grants} grants: of one connection at most");

    let mut pair = Pair::new();
    let mut honest = FrontVif::new(HOST, staged(1), false);
    pair.bb.own.borrow_mut().extend(BackFeatures::default().pairs());
    pair.bb.own.borrow_mut().insert("state".into(), "2".into());
    honest.step(&pair.g, &mut pair.fb).expect("an honest back");
    pair.bb.own.borrow_mut().insert("state".into(), "1".into());
    let mut back = back();
    let mut restless = Restless { bus: pair.bb, checks: Cell::new(0) };
    for _ in 0..50 {
        back.step(&pair.h, &mut restless, &mut |_, _| None).expect("a map");
        restless.checks.set(restless.checks.get() % 3);
    }
    drop(back);
    assert_eq!(pair.xen.counts().mapped, 0);
}

/// A back that closes and keeps a page mapped gets the same pages again, zeroed, and the front does
/// not wait for it: at most one connection's pages are kept. At the end of the vif the front waits.
#[test]
fn xsa_396_a_back_that_keeps_pages_gets_the_same_ones_again() {
    let mut pair = Pair::new();
    let (mut front, mut back) = (FrontVif::new(HOST, staged(1), true), back());
    pair.connect(&mut front, &mut back);
    pair.frames_pass(&mut front, &mut back);
    // a second mapping of the ring, which stays
    let (ring, grants) = (pair.tx_ring(), pair.xen.counts().grants);
    assert_ne!(ring.load(Word::ReqProd), 0);
    back.close(&pair.h, &mut pair.bb, None).expect("a map");
    front.step(&pair.g, &mut pair.fb).expect("a map");
    assert!(!front.is_live() && front.kept_pages() > 0);
    pair.connect(&mut front, &mut back);
    assert!(front.is_live() && pair.xen.counts().grants == grants);
    pair.frames_pass(&mut front, &mut back);
    front.close(&mut pair.fb, None).expect("a map");
    for _ in 0..10 {
        front.step(&pair.g, &mut pair.fb).expect("a map");
        pair.back_step(&mut back).expect("a map");
    }
    assert!(!front.is_closed() && front.kept_pages() == 1, "the page that is mapped, and no others");
    assert_eq!(pair.xen.counts().grants, 1);
    drop(ring);
    front.step(&pair.g, &mut pair.fb).expect("a map");
    assert!(front.is_closed());
    drop(back);
    pair.assert_empty("after the end");
}

/// With little memory a front releases the pages that it kept for the next connection, except those
/// that the back still has mapped, which no later connection gets.
#[test]
fn xsa_396_idle_pages_are_given_up_but_for_those_that_a_back_keeps() {
    let mut pair = Pair::new();
    let (mut front, mut back) = (FrontVif::new(HOST, staged(1), true), back());
    pair.connect(&mut front, &mut back);
    pair.frames_pass(&mut front, &mut back);
    let (ring, grants) = (pair.tx_ring(), pair.xen.counts().grants);
    front.release_idle(&pair.g);
    assert_eq!(pair.xen.counts().grants, grants, "all are in use");
    back.close(&pair.h, &mut pair.bb, None).expect("a map");
    front.step(&pair.g, &mut pair.fb).expect("a map");
    let kept = front.kept_pages();
    front.release_idle(&pair.g);
    assert!(kept > 1 && front.kept_pages() == 1, "the page that is mapped, and no others");
    assert_eq!(pair.xen.counts().grants, 1);
    let of_before = ring.load(Word::ReqProd);
    pair.connect(&mut front, &mut back);
    pair.frames_pass(&mut front, &mut back);
    assert!(front.is_live() && pair.xen.counts().grants == grants + 1);
    assert_eq!(ring.load(Word::ReqProd), of_before, "another ring is used now");
    drop(ring);
    front.release_idle(&pair.g);
    assert_eq!((front.kept_pages(), pair.xen.counts().grants), (0, grants));
}

/// Rings and buffers of one queue named for another, too: the guest harms its own frames.
#[test]
fn two_queues_with_the_same_grants_harm_their_guest_alone() {
    let mut pair = Pair::new();
    let (mut front, mut back) = (FrontVif::new(HOST, staged(2), false), back());
    assert_eq!(pair.back_step(&mut back).expect("keys"), BackStep::Waiting);
    front.step(&pair.g, &mut pair.fb).expect("an honest back");
    {
        let mut keys = pair.fb.own.borrow_mut();
        for name in ["tx-ring-ref", "rx-ring-ref", "tx-data-ref0", "rx-data-ref0"] {
            let first = keys[&format!("queue-0/{name}")].clone();
            keys.insert(format!("queue-1/{name}"), first);
        }
    }
    assert_eq!(pair.back_step(&mut back).expect("each queue is in order by itself"), BackStep::Connected);
    assert_eq!((back.path_names(1), pair.xen.counts().mapped), (("staging", "staging"), 68));
    front.step(&pair.g, &mut pair.fb).expect("an honest back");
    let mut burst = Arena::new();
    for _ in 0..8 {
        assert!(burst.push(&[3; 200], Offload::default()));
    }
    let mut port = TestPort::default();
    assert_eq!(front.queue_mut(0).unwrap().send(&pair.g, &burst.burst()), Ok(8));
    // Both queues see the same requests and answer them; whichever was second wrote answers over
    // answers.
    for queue in [0, 1, 0, 1] {
        let polled = back.poll_tx(&pair.h, queue, &mut port, &mut Arena::new());
        assert!(polled.is_ok(), "{polled:?}");
    }
    assert!((8..=16).contains(&port.took.len()), "{} frames of 8", port.took.len());
    back.close(&pair.h, &mut pair.bb, None).expect("a map");
    front.step(&pair.g, &mut pair.fb).expect("a map");
    front.step(&pair.g, &mut pair.fb).expect("a map");
    drop(back);
    pair.assert_empty("two queues over one queue's memory");

    // A channel has one other end: the second queue cannot have it, too.
    let mut pair = Pair::new();
    let (mut front, mut back) = (FrontVif::new(HOST, staged(2), false), self::back());
    pair.back_step(&mut back).expect("keys");
    front.step(&pair.g, &mut pair.fb).expect("an honest back");
    {
        let mut keys = pair.fb.own.borrow_mut();
        let first = keys["queue-0/event-channel-tx"].clone();
        keys.insert("queue-1/event-channel-tx".into(), first);
    }
    let refused = pair.back_step(&mut back).expect_err("a channel with two owners");
    assert!(matches!(refused, ConnectError::Bind { .. }), "{refused}");
    assert_eq!(pair.xen.counts().mapped, 0);
}

/// A full list page has no terminator: the list continues in the next named page, and ends if there
/// is none. Later entries are not mapped, and their ids have no buffer.
#[test]
fn more_entries_than_the_named_pages_hold_are_not_taken() {
    const OCTETS: u32 = 64;
    for (named, most) in [(1, 512u16), (2, 576)] {
        let mut pair = Pair::new();
        let (mut front, mut back) = (FrontVif::new(HOST, ordinary(), false), back());
        pair.back_step(&mut back).expect("keys");
        front.step(&pair.g, &mut pair.fb).expect("an honest back");
        let mut refs = [GrantRef::NONE; 9];
        let buffers = pair.g.alloc(HOST, Access::ReadOnly, &mut refs).expect("pages");
        let mut list_refs = [GrantRef::NONE; 2];
        let lists = pair.g.alloc(HOST, Access::ReadOnly, &mut list_refs).expect("pages");
        let entry =
            |id: u16| StagingEntry { id, gref: refs[id as usize / 64].0, offset: id % 64 * OCTETS as u16 };
        assert!(staging_list::write(&lists, (0..576).map(entry)));
        assert!(buffers.copy_in(0, &[9; 4096 * 9]));
        let mut keys = pair.fb.own.borrow_mut();
        keys.extend(
            [("feature-staging-grants", 1), ("tx-data-len", OCTETS)].map(|(k, v)| (k.into(), v.to_string())),
        );
        keys.extend((0..named).map(|k| (format!("tx-data-ref{k}"), list_refs[k].0.to_string())));
        drop(keys);
        assert_eq!(pair.back_step(&mut back).expect("an honest list"), BackStep::Connected);
        let mapped = 2 + usize::from(most) / 64;
        assert_eq!((back.path_names(0).0, pair.xen.counts().mapped), ("staging", mapped));
        let ring = pair.tx_ring();
        let mut port = TestPort::default();
        for (k, id) in [511u16, 512, 575, 576].into_iter().enumerate() {
            let request = TxRequest { gref: 0, offset: 0, flags: 0, id, size: 64 };
            ring.write::<3>(k as u32, request.to_words());
        }
        ring.store(Word::ReqProd, 4);
        assert_eq!(back.poll_tx(&pair.h, 0, &mut port, &mut Arena::new()), Ok(Polled::More));
        let good = if named == 1 { 1 } else { 3 };
        assert_eq!((port.took.len(), back.stats(0).0.errors), (good, 4 - good as u64));
    }
}

/// A connection that ends leaves no single-frame grants, whatever the back did to the last frames.
#[test]
fn xsa_374_frames_in_flight_at_a_fault_are_given_back() {
    for granting in [Granting::PerFrame, Granting::Standing] {
        let mut pair = Pair::new();
        let (mut front, mut back) =
            (FrontVif::new(HOST, FrontConfig { granting, ..ordinary() }, false), back());
        pair.connect(&mut front, &mut back);
        let mut burst = Arena::new();
        for _ in 0..20 {
            assert!(burst.push(&[5; 5000], Offload::default()));
        }
        assert_eq!(front.queue_mut(0).unwrap().send(&pair.g, &burst.burst()), Ok(20));
        back.close(&pair.h, &mut pair.bb, Some("a fault")).expect("a map");
        for _ in 0..2 {
            front.step(&pair.g, &mut pair.fb).expect("a map");
        }
        assert!(front.is_closed());
        pair.assert_empty("frames in flight");
    }
}
