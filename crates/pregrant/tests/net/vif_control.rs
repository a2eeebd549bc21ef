//! The control path of a vif, both ends over plain maps: what is left when a step fails, what a
//! second connection finds of the first, and how a peer's features change the data path.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, Drained, Polled, PreviousState, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontStep, FrontVif};
use pregrant::net::path::staging::keys::Offer;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalRegion, LocalXen};
use pregrant::platform::{Access, GrantPool, GrantTable, InUse, PeerMem};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{BackRing, NetRx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RSP_ERROR, RxResponse};
use pregrant::xenbus::XenbusState;
use pregrant::{DomId, GrantRef, PlatformError};
use pregrant_testkit::bus::{connect, device};
use pregrant_testkit::own_grants::OwnGrants;
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};
use std::cell::Cell;

fn back(features: BackFeatures) -> BackVif<LocalDomain> {
    BackVif::new(GUEST, 0, VifConfig { features, ..VifConfig::default() })
}

/// A guest with this many pages, whose n-th allocation fails.
struct Failing {
    domain: LocalDomain,
    left: Cell<u32>,
    pages: Cell<usize>,
}

// SAFETY: everything is the domain's.
#[allow(unsafe_code)]
unsafe impl GrantPool for Failing {
    type Region = LocalRegion;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<LocalRegion, PlatformError> {
        if self.left.get() == 0 {
            return Err(PlatformError { op: "allocate, which this test forbids", code: 12 });
        }
        let left = self.pages.get().checked_sub(refs.len());
        let left = left.ok_or(PlatformError { op: "grant more pages than there are", code: 28 })?;
        self.left.set(self.left.get() - 1);
        self.pages.set(left);
        self.domain.alloc(to, acc, refs)
    }
    fn release(&self, region: LocalRegion) -> Result<(), InUse<LocalRegion>> {
        let pages = region.len() / pregrant::PAGE_SIZE;
        self.domain.release(region)?;
        self.pages.set(self.pages.get() + pages);
        Ok(())
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = LocalRegion>> {
        None
    }
}

impl Failing {
    fn of(domain: LocalDomain, allocations: u32, pages: usize) -> OwnGrants<Self> {
        OwnGrants::new(domain, |domain| Self {
            domain,
            left: Cell::new(allocations),
            pages: Cell::new(pages),
        })
    }
}

#[test]
fn a_set_up_that_fails_half_way_leaves_nothing() {
    let mut failed = 0;
    for queues in [1, 2] {
        for allocations in 0..17 {
            let xen = LocalXen::new();
            let p = Failing::of(xen.domain(GUEST.0), allocations, usize::MAX >> 1);
            let (mut fb, bb) = device();
            bb.own.borrow_mut().extend(BackFeatures::default().pairs());
            bb.own.borrow_mut().insert("state".into(), "2".into());
            let mut front = FrontVif::new(HOST, FrontConfig { queues, ..FrontConfig::default() }, false);
            failed += front.step(&p, &mut fb).is_err() as u32;
            front.close(&mut fb, None).expect("a map");
            bb.own.borrow_mut().insert("state".into(), "6".into());
            front.step(&p, &mut fb).expect("a map");
            assert!(front.is_closed(), "{queues} queues, {allocations} allocations");
            let counts = xen.counts();
            assert_eq!(
                (counts.grants, counts.channels),
                (0, 0),
                "{queues} queues, {allocations} allocations"
            );
        }
    }
    assert!(failed > 8, "the first queue's allocations failed in turn");
}

/// A queue uses 2 ring pages, and in each direction a page for each id, or buffers of all lengths
/// and their list, or both.
#[test]
fn where_pages_are_short_a_vif_has_fewer_queues_ids_or_buffers() {
    let (whole, some) = (Some(65535), Some(256));
    for (pages, requested, queues, len, ids) in [
        (1032, whole, 2, whole, 256),
        // Linux's limit.
        (1024, whole, 2, whole, 128),
        (775, whole, 1, whole, 256),
        (515, whole, 1, whole, 128),
        (1096, some, 2, some, 256),
        (1095, some, 2, some, 128),
        (822, some, 2, Some(128), 128),
        (387, whole, 1, None, 128),
    ] {
        let xen = LocalXen::new();
        let p = Failing::of(xen.domain(GUEST.0), u32::MAX, pages);
        let h = xen.domain(HOST.0);
        let (mut fb, mut bb) = device();
        let len_of = |n: Option<u32>| n.and_then(DataLen::new);
        let staging = Buffers::of(len_of(requested), len_of(requested));
        let config = FrontConfig { queues: 2, staging, ..FrontConfig::default() };
        let mut front = FrontVif::new(HOST, config, false);
        let mut back = back(BackFeatures::default());
        for _ in 0..2 {
            let _ = back.step(&h, &mut bb, &mut |_, _| None).expect("keys");
            let _ = front.step(&p, &mut fb).unwrap_or_else(|_| panic!("{pages} pages"));
        }
        let had = (
            front.nr_queues(),
            front.queue(0).unwrap().staging_lens(),
            front.queue(0).unwrap().tx().chain().ids(),
        );
        assert_eq!(had, (queues, (len_of(len), len_of(len)), ids), "{pages} pages");
        assert_eq!(front.shortage().is_some(), queues < 2 || len != requested || ids < 256, "{pages} pages");
        // More frames than there are ids, in as many turns as it takes.
        let (mut burst, mut port, mut sent) = (Arena::new(), TestPort::default(), 0);
        assert!(burst.push(&[7; 200], Offload::default()));
        while sent < 600 {
            while front.queue_mut(0).unwrap().send(&p, &burst.burst()).expect("grants stand") == 1 {
                sent += 1;
            }
            assert!(front.in_flight(0) <= ids, "{pages} pages");
            while back.poll_tx(&h, 0, &mut port, &mut Arena::new()).expect("good frames") != Polled::Idle {}
            assert!(front.queue_mut(0).unwrap().reclaim(&p, 1).expect("good answers") > 0);
        }
        assert_eq!(port.took.len(), sent);
        front.close(&mut fb, None).expect("a map");
        let _ = back.step(&h, &mut bb, &mut |_, _| None).expect("keys");
        back.close(&h, &mut bb, None).expect("a map");
        let _ = front.step(&p, &mut fb);
        assert_eq!(p.pages.get(), pages);
    }
}

/// A data ring gives way to queues and to staging, in smaller and smaller sizes.
#[test]
fn where_pages_are_short_a_data_ring_costs_no_queue() {
    for pages in [2000, 1400, 1096, 1024, 822, 560] {
        let had = [None, Some(8)].map(|data_ring| {
            let xen = LocalXen::new();
            let p = Failing::of(xen.domain(GUEST.0), u32::MAX, pages);
            let h = xen.domain(HOST.0);
            let (mut fb, mut bb) = device();
            let len = DataLen::new(256);
            let config = FrontConfig {
                queues: 2,
                data_ring,
                staging: Buffers::of(len, len),
                ..FrontConfig::default()
            };
            let mut front = FrontVif::new(HOST, config, false);
            let mut back = back(BackFeatures::default());
            for _ in 0..2 {
                let _ = back.step(&h, &mut bb, &mut |_, _| None).expect("keys");
                let _ = front.step(&p, &mut fb).unwrap_or_else(|_| panic!("{pages} pages"));
            }
            let had = (front.nr_queues(), front.queue(0).unwrap().staging_lens().0.is_some());
            front.close(&mut fb, None).expect("a map");
            let _ = back.step(&h, &mut bb, &mut |_, _| None).expect("keys");
            back.close(&h, &mut bb, None).expect("a map");
            let _ = front.step(&p, &mut fb);
            assert_eq!(p.pages.get(), pages, "a data ring {data_ring:?} keeps some");
            had
        });
        assert_eq!(had[0], had[1], "{pages} pages, without a data ring and with one");
    }
}

#[test]
fn a_second_connection_finds_nothing_of_the_first() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let mut front = FrontVif::new(HOST, FrontConfig { queues: 2, ..FrontConfig::default() }, true);
    let mut first = back(BackFeatures::default());
    connect((&g, &mut front, &mut fb), (&h, &mut first, &mut bb));
    assert!(front.is_live() && front.staging_accepted(1) && first.nr_queues() == 2);
    first.close(&h, &mut bb, None).expect("a map");
    front.step(&g, &mut fb).expect("a map");
    assert!(!front.is_live());
    // Another back takes the device: one queue, one channel, no staging.
    let small = BackFeatures {
        max_queues: 1,
        split_channels: false,
        staging: Offer::NONE,
        ..BackFeatures::default()
    };
    let mut second = back(small);
    bb.own.borrow_mut().retain(|k, _| k == "state");
    connect((&g, &mut front, &mut fb), (&h, &mut second, &mut bb));
    assert!(front.is_live() && !front.staging_accepted(0) && second.nr_queues() == 1);
    assert_eq!(second.path_names(0), ("copy", "copy"));
}

/// Frames of 60 bytes, each way on queue 0; how many were staged there, as both ends count, and
/// none is damaged.
fn staged_each_way(
    (g, front): (&LocalDomain, &mut FrontVif<LocalDomain>),
    (h, back): (&LocalDomain, &mut BackVif<LocalDomain>),
) -> (u64, u64) {
    let before = back.stats(0);
    let (mut burst, mut port, mut got) = (Arena::new(), TestPort::default(), Arena::new());
    for k in 0..5 {
        assert!(burst.push(&[k; 60], Offload::default()));
    }
    assert_eq!(front.queue_mut(0).unwrap().send(g, &burst.burst()), Ok(5));
    assert_eq!(back.poll_tx(h, 0, &mut port, &mut Arena::new()), Ok(Polled::More));
    assert_eq!(front.queue_mut(0).unwrap().reclaim(g, 1), Ok(5));
    port.gives = port.took.drain(..).collect();
    assert_eq!(back.poll_rx(h, 0, &mut port), Ok(Polled::More));
    assert_eq!(front.queue_mut(0).unwrap().recv(g, &mut got, 1), Ok(5));
    assert!((0..5).all(|k| got.burst().frame(k) == [k as u8; 60]));
    let (tx, rx) = back.stats(0);
    assert_eq!((tx.errors, rx.errors), (0, 0));
    (tx.staging - before.0.staging, rx.staging - before.1.staging)
}

/// A front that understands it, one that does not, and each of a back's successors.
#[test]
fn one_direction_s_bad_list_leaves_the_other_alone() {
    for (bad, said, queues) in
        [("tx", "rx", 1), ("rx", "tx", 1), ("tx", "rx", 2), ("rx", "tx", 2), ("neither", "1", 2)]
    {
        for (revision, end) in [(3, "front"), (2, "front"), (2, "back"), (1, "front"), (1, "back")] {
            let xen = LocalXen::new();
            let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
            let (mut fb, mut bb) = device();
            let mut front = FrontVif::new(HOST, FrontConfig { queues, ..FrontConfig::default() }, false);
            let offered = if end == "back" { revision } else { 3 };
            let staging = Offer { revision: offered, ..Offer::all() };
            let features = BackFeatures { staging, ..BackFeatures::default() };
            let mut vif = back(features);
            let _ = vif.step(&h, &mut bb, &mut |_, _| None).expect("keys");
            front.step(&g, &mut fb).expect("an honest back");
            let at = if queues == 1 { "" } else { "queue-0/" };
            let bad_key = format!("{at}{bad}-data-ref0");
            let list = fb.own.borrow().get(&bad_key).cloned();
            if let Some(list) = &list {
                fb.own.borrow_mut().insert(bad_key.clone(), "4000000".into());
                assert_ne!(list, "4000000");
            }
            if end == "front" {
                fb.own.borrow_mut().insert("staging-grants-revision".into(), revision.to_string());
            }
            for _ in 0..4 {
                let _ = vif.step(&h, &mut bb, &mut |_, _| None).expect("an honest front");
                front.step(&g, &mut fb).expect("an honest back");
            }
            let said = if revision >= 2 || said == "1" { said } else { "0" };
            assert_eq!(bb.own.borrow()[&format!("{at}staging-grants-active")], said, "{bad} by {revision}");
            let len = DataLen::new(256);
            let tx = len.filter(|_| ["1", "tx"].contains(&said));
            let rx = len.filter(|_| ["1", "rx"].contains(&said));
            assert_eq!(
                (front.queue(0).unwrap().staging_lens(), front.staging_accepted(0)),
                ((tx, rx), said == "1")
            );
            assert!(queues == 1 || front.staging_accepted(1), "the other queue has both");
            let staged = (5 * u64::from(tx.is_some()), 5 * u64::from(rx.is_some()));
            assert_eq!(staged_each_way((&g, &mut front), (&h, &mut vif)), staged);

            // A predecessor's refusal holds, though the list could be taken now.
            if let Some(list) = list {
                fb.own.borrow_mut().insert(bad_key, list);
            }
            drop(vif);
            let mut next = back(BackFeatures::default());
            assert_eq!(next.inherit(&mut bb), Ok(PreviousState::Connected));
            assert_eq!(next.reattach(&h, &mut bb, &mut |_, _| None).ok(), Some(true), "{bad} by {revision}");
            assert_eq!(staged_each_way((&g, &mut front), (&h, &mut next)), staged);
            next.close(&h, &mut bb, None).expect("a map");
            let _ = front.step(&g, &mut fb);
            drop(front);
            assert_eq!(xen.counts().mapped, 0);
        }
    }
}

/// Rings of 1 to 16 pages with staging in both directions: as many frames at once as there are
/// slots, in each direction, and as many list pages. A back that allows less says so, and a
/// successor finds the same.
#[test]
fn rings_have_as_many_pages_as_both_ends_like() {
    let len = DataLen::new(64);
    for (requested, tx_most, rx_most) in [(0, 4, 4), (1, 4, 4), (2, 4, 1), (4, 4, 4), (4, 0, 3)] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let config =
            FrontConfig { ring_order: requested, staging: Buffers::of(len, len), ..FrontConfig::default() };
        let mut front = FrontVif::new(HOST, config, false);
        let features = BackFeatures {
            max_tx_ring_order: tx_most,
            max_rx_ring_order: rx_most,
            ..BackFeatures::default()
        };
        let mut vif = back(features.clone());
        connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
        let what = format!("order {requested} of {tx_most}, {rx_most}");
        assert!(front.is_live() && front.staging_accepted(0), "{what}");
        for (dir, order) in [("tx", requested.min(tx_most)), ("rx", requested.min(rx_most))] {
            let own = fb.own.borrow();
            let named =
                |kind: &str| own.keys().filter(|key| key.starts_with(&format!("{dir}-{kind}-ref"))).count();
            assert_eq!(
                (named("ring"), named("data")),
                (1 << order, (256usize << order).div_ceil(512)),
                "{what}"
            );
            let key = format!("{dir}-ring-page-order");
            assert_eq!(own.get(&key).cloned(), (order > 0).then(|| order.to_string()), "{what}");
            assert_eq!(own.contains_key(&format!("{dir}-ring-ref")), order == 0, "{what}");
        }
        let tx_slots = 256usize << requested.min(tx_most);
        assert_eq!(front.queue(0).unwrap().tx().chain().ids() as usize, tx_slots);
        for turn in 0..2 {
            let (mut burst, mut port, mut sent) = (Arena::new(), TestPort::default(), 0);
            while front.room(0) > 0 {
                burst.clear();
                let n = 64.min(front.room(0) as usize);
                (0..n).for_each(|k| assert!(burst.push(&[(sent + k) as u8; 60], Offload::default())));
                assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(n), "{what}");
                sent += n;
            }
            assert_eq!(sent, tx_slots, "{what}");
            while vif.poll_tx(&h, 0, &mut port, &mut Arena::new()) == Ok(Polled::More) {}
            assert_eq!(front.queue_mut(0).unwrap().reclaim(&g, 1), Ok(tx_slots as u32), "{what}");
            assert!(port.took.iter().enumerate().all(|(k, frame)| frame.0 == [k as u8; 60]));
            port.gives = port.took.drain(..).collect();
            while vif.poll_rx(&h, 0, &mut port) == Ok(Polled::More) {}
            let (mut came, mut got) = (0, Arena::new());
            while came < sent {
                got.clear();
                let n = front.queue_mut(0).unwrap().recv(&g, &mut got, 1).expect("an honest back");
                assert!((0..n).all(|k| got.burst().frame(k) == [(came + k) as u8; 60]), "{what}");
                came += n;
                if n == 0 {
                    assert_eq!(
                        vif.poll_rx(&h, 0, &mut port),
                        Ok(Polled::More),
                        "{what}: {came} of {sent} frames"
                    );
                }
            }
            let (tx, rx) = vif.stats(0);
            assert_eq!((tx.staging, rx.staging), (sent as u64, sent as u64), "{what}, turn {turn}");
            // A successor takes up the rings and the lists, whatever it offers itself.
            drop(vif);
            vif = back(BackFeatures { max_tx_ring_order: 0, ..BackFeatures::default() });
            assert_eq!(vif.inherit(&mut bb), Ok(PreviousState::Connected));
            assert_eq!(vif.reattach(&h, &mut bb, &mut |_, _| None).ok(), Some(true), "{what}");
        }
        front.close(&mut fb, None).expect("a map");
        connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
        assert!(front.is_closed());
        let counts = xen.counts();
        assert_eq!((counts.grants, counts.mapped, counts.channels), (0, 0, 0), "{what}");
    }
}

#[test]
fn where_pages_are_short_rings_have_one() {
    let xen = LocalXen::new();
    let p = Failing::of(xen.domain(GUEST.0), u32::MAX, 1024);
    let h = xen.domain(HOST.0);
    let (mut fb, mut bb) = device();
    let mut front = FrontVif::new(HOST, FrontConfig { ring_order: 4, ..FrontConfig::default() }, false);
    let mut back = back(BackFeatures::default());
    for _ in 0..2 {
        let _ = back.step(&h, &mut bb, &mut |_, _| None).expect("keys");
        let _ = front.step(&p, &mut fb).expect("pages enough for small rings");
    }
    assert!(front.staging_accepted(0) && front.shortage().is_some());
    assert_eq!((front.nr_queues(), front.queue(0).unwrap().tx().chain().ids()), (1, 256));
    assert!(fb.own.borrow().contains_key("rx-ring-ref"));
}

#[test]
fn rx_goes_on_after_a_ringful_of_errors() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, bb) = device();
    bb.own.borrow_mut().extend(BackFeatures::default().pairs());
    bb.own.borrow_mut().insert("state".into(), "2".into());
    let plain = FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() };
    let mut front = FrontVif::new(HOST, plain, false);
    front.step(&g, &mut fb).expect("an honest back");
    bb.own.borrow_mut().insert("state".into(), "4".into());
    assert_eq!(front.step(&g, &mut fb).expect("an honest back"), FrontStep::Live);
    let rx_ring = fb.own.borrow()["rx-ring-ref"].parse().expect("a number");
    let map = h.map(GUEST, &[GrantRef(rx_ring)], Access::ReadWrite).expect("the front's ring");
    let (mut ring, _) = BackRing::<NetRx, _>::attach(RingPages::new(map), None).expect("a fresh ring");
    assert_eq!(ring.available(256), Ok(256));
    let error = |i| RxResponse { id: ring.read(i).id, offset: 0, flags: 0, status: RSP_ERROR };
    let errors: Vec<_> = (0..256).map(error).collect();
    ring.consume(256);
    let _ = ring.answer(&errors);
    assert_eq!(front.queue_mut(0).unwrap().recv(&g, &mut Arena::new(), 1), Ok(0));
    assert_eq!(ring.available(256), Ok(256), "the slots are posted again");
    assert_eq!(front.queue(0).unwrap().stats().1.errors, 256);
}

#[test]
fn a_back_is_closed_though_no_one_can_learn_why() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let mut front = FrontVif::new(HOST, FrontConfig::default(), false);
    let mut vif = back(BackFeatures::default());
    connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
    bb.report_fails = true;
    assert!(vif.close(&h, &mut bb, Some("a fault")).is_err());
    assert_eq!((bb.own.borrow()["state"].as_str(), vif.nr_queues()), ("6", 0));
    assert_eq!(xen.counts().mapped, 0);
}

#[test]
fn a_front_sends_only_what_its_back_offered_to_take() {
    let frame = |len: usize, gso_type| {
        let gso_size = if gso_type == 0 { 0 } else { 1000 };
        (vec![7u8; len], Offload { gso_type, gso_size, ..Offload::default() })
    };
    let offers =
        |sg, gso_tcpv4, gso_tcpv6| BackFeatures { sg, gso_tcpv4, gso_tcpv6, ..BackFeatures::default() };
    for (features, taken) in [
        (offers(true, true, true), 5),
        (offers(true, true, false), 4),
        (offers(true, false, false), 3),
        (offers(false, true, true), 2), // GSO needs sg
    ] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::new(HOST, FrontConfig::default(), false);
        let mut vif = back(features);
        connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
        let mut burst = Arena::new();
        for (bytes, offload) in [frame(60, 0), frame(4096, 0), frame(4097, 0), frame(2000, 1), frame(2000, 2)]
        {
            assert!(burst.push(&bytes, offload));
        }
        assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(5), "all are dealt with");
        let stats = front.queue(0).unwrap().stats().0;
        assert_eq!((stats.frames, stats.dropped), (taken, 5 - taken));
    }
}

/// A front that reconnects starts again: frames on the old rings are gone, and none of them arrives
/// in the next connection.
#[test]
fn a_front_that_reconnects_begins_again() {
    let len = DataLen::new(65535);
    for config in [
        FrontConfig::default(),
        FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() },
        FrontConfig { staging: Buffers::NONE, persistent: true, ..FrontConfig::default() },
        FrontConfig { staging: Buffers::of(len, len), ..FrontConfig::default() },
    ] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::new(HOST, FrontConfig { queues: 2, ..config }, true);
        let mut first = back(BackFeatures::default());
        connect((&g, &mut front, &mut fb), (&h, &mut first, &mut bb));
        let standing = xen.counts().grants;

        let (mut port, mut scratch) = (TestPort::default(), Arena::new());
        let frame = |n: u8| (vec![n; [60, 256, 1500, 9000][n as usize % 4]], Offload::default());
        let send = |front: &mut FrontVif<LocalDomain>, n: u8| {
            let mut burst = Arena::new();
            let (bytes, offload) = frame(n);
            assert!(burst.push(&bytes, offload));
            assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(1));
        };
        // Taken and answered, though no one has checked the answers; then such as are not taken.
        (0..8).for_each(|n| send(&mut front, n));
        while first.poll_tx(&h, 0, &mut port, &mut scratch) == Ok(Polled::More) {}
        assert_eq!(port.took.len(), 8);
        (8..16).for_each(|n| send(&mut front, n));
        // Delivered, though no one has checked.
        port.gives.extend((0..8).map(frame));
        while first.poll_rx(&h, 0, &mut port) == Ok(Polled::More) {}

        let drained = first.end(&h, &mut bb, &mut []).expect("a map");
        assert_eq!((drained, first.state()), (Drained::default(), XenbusState::Closing));
        assert_eq!(front.step(&g, &mut fb).expect("a map"), FrontStep::Closed);
        assert!(front.queue_mut(0).is_none(), "nothing is taken while there is no back");
        first.step(&h, &mut bb, &mut |_, _| None).expect("a map");
        assert_eq!(first.state(), XenbusState::Closed);
        assert_eq!(xen.counts().mapped, 0);
        assert!(xen.counts().grants <= standing);

        let mut second = back(BackFeatures { max_queues: 1, ..BackFeatures::default() });
        second.inherit(&mut bb).expect("a map");
        connect((&g, &mut front, &mut fb), (&h, &mut second, &mut bb));
        assert!(front.is_live());
        let (mut port, mut came) = (TestPort::default(), Arena::new());
        (20..28).for_each(|n| send(&mut front, n));
        while second.poll_tx(&h, 0, &mut port, &mut scratch) == Ok(Polled::More) {}
        assert!(port.took == (20..28).map(frame).collect::<Vec<_>>(), "{:?}", port.took.len());
        port.gives.extend((40..44).map(frame));
        while second.poll_rx(&h, 0, &mut port) == Ok(Polled::More) {}
        assert_eq!(front.queue_mut(0).unwrap().recv(&g, &mut came, 1), Ok(4));
        for (n, (bytes, _)) in (40..).zip(came.burst().iter()) {
            assert!(bytes == frame(n).0, "{n}");
        }
        while front.in_flight(0) > 0 {
            front.queue_mut(0).unwrap().reclaim(&g, 1).expect("an honest back");
        }
    }
}

/// Whatever a back leaves in the slots of a ring that it closes, the next connection does not see
/// it.
#[test]
fn a_ring_that_is_garbled_at_its_end_costs_the_next_nothing() {
    let mut dice = 1u64;
    let mut roll = move || {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (dice >> 33) as u32
    };
    for round in 0..200 {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::new(HOST, FrontConfig::default(), true);
        let mut first = back(BackFeatures::default());
        connect((&g, &mut front, &mut fb), (&h, &mut first, &mut bb));
        let mut burst = Arena::new();
        for n in 0..40 {
            assert!(burst.push(&vec![0x5a; 60 + 100 * n], Offload::default()));
        }
        assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(40));
        let ring = fb.own.borrow()["tx-ring-ref"].parse().expect("a number");
        let map = h.map(GUEST, &[GrantRef(ring)], Access::ReadWrite).expect("the front's ring");
        for _ in 0..round % 20 {
            let at = roll() as usize % (16 + 40 * 3) * 4;
            // Any word, or one like a request.
            let word = if roll() % 2 == 0 { roll() } else { (roll() % 300) | (60 << 16) };
            assert!(map.store_u32(at, word));
        }
        drop(map);
        first.end(&h, &mut bb, &mut []).expect("a map");
        assert_eq!(front.step(&g, &mut fb).expect("a map"), FrontStep::Closed);
        assert_eq!(xen.counts().mapped, 0);
        first.step(&h, &mut bb, &mut |_, _| None).expect("a map");

        let mut second = back(BackFeatures::default());
        connect((&g, &mut front, &mut fb), (&h, &mut second, &mut bb));
        assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(40));
        let (mut port, mut scratch) = (TestPort::default(), Arena::new());
        while second.poll_tx(&h, 0, &mut port, &mut scratch) == Ok(Polled::More) {}
        assert_eq!(port.took.len(), 40, "round {round}");
        assert!(port.took.iter().all(|(frame, _)| frame.iter().all(|b| *b == 0x5a)));
    }
}

/// Whether or not the toolstack trusts the back, it is shown the same: zeroed pages, and in them
/// the frames that were sent.
#[test]
fn xsa_376_403_trusted_or_not_the_back_is_shown_nothing_but_frames() {
    let mut shown = Vec::new();
    for trusted in [None, Some("0"), Some("1"), Some(""), Some("yes")] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        if let Some(trusted) = trusted {
            fb.own.borrow_mut().insert("trusted".into(), trusted.into());
        }
        let granting = pregrant::net::front::Granting::Standing;
        let config = FrontConfig { staging: Buffers::NONE, granting, ..FrontConfig::default() };
        let mut front = FrontVif::new(HOST, config, false);
        let mut back = back(BackFeatures::default());
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        let mut burst = Arena::new();
        assert!(burst.push(&[0xa5; 900], Offload::default()));
        assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(1));
        let own = fb.own.borrow();
        let rings: Vec<u32> = own
            .iter()
            .filter(|(key, _)| key.ends_with("ring-ref"))
            .map(|(_, gref)| gref.parse().expect("a number"))
            .collect();
        let (mut pages, mut filled) = (0, 0);
        for gref in (1..2000).filter(|gref| !rings.contains(gref)) {
            let Ok(map) = h.map(GUEST, &[GrantRef(gref)], Access::ReadOnly) else { continue };
            let mut page = vec![0; map.len()];
            assert!(map.copy_out(0, &mut page));
            pages += 1;
            filled += page.iter().filter(|b| **b == 0xa5).count();
            assert!(
                page.iter().all(|b| [0, 0xa5].contains(b)),
                "grant {gref} shows bytes that were not sent"
            );
        }
        assert_eq!(filled, 900);
        let keys: Vec<_> =
            own.iter().filter(|(k, _)| *k != "trusted").map(|(k, v)| format!("{k}={v}")).collect();
        shown.push((pages, keys));
    }
    assert!(shown[0].0 > 500, "{} pages", shown[0].0);
    assert!(shown.iter().all(|s| *s == shown[0]));
}
