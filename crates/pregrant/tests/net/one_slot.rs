//! Staging buffers of 4096 bytes when no frame has several slots: every frame is in one buffer, so
//! no ordinary page is granted (docs/protocol 3.3). For TX that is so if the back does not offer
//! `feature-sg`, for RX if the front does not.
#![cfg(not(miri))]

use crate::pair::Pair;
use pregrant::net::back::{Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontStep, Granting, RxFront};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{DataLen, FrontChain};
use pregrant::platform::Access;
use pregrant::port::{Arena, Offload};
use pregrant::ring::{FrontRing, NetRx, RingMem};
use pregrant::wire::netif::{GSO_TYPE_TCPV4, RXF_MORE_DATA, RxRequest, RxResponse};
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::raw_back::{RawBack, Rx};
use pregrant_testkit::two_domains::{TestPort, TwoDomains, Way};

/// Number of slots of a ring.
const SLOTS: usize = 256;

/// Both ends, each of which accepts frames over several slots or not: for TX the back, for RX the
/// front. Ordinary pages are granted at set-up, so that they can be counted.
fn ends(len: u32, [tx, rx]: [bool; 2], headroom: u16) -> Pair {
    let len = DataLen::new(len);
    let requested = FrontConfig {
        staging: Buffers::of(len, len),
        granting: Granting::Standing,
        sg: rx,
        headroom,
        ..FrontConfig::default()
    };
    let features = BackFeatures { sg: tx, ..BackFeatures::default() };
    Pair::new(requested, VifConfig { features, ..VifConfig::default() })
}

/// Sends a frame of each length to the guest, and one from it. Returns how many arrived.
fn exchange(pair: &mut Pair, lens: &[usize]) -> [usize; 2] {
    let gso = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, csum_blank: true, csum_ok: true };
    let Pair { g, h, front, back, .. } = pair;
    let (mut port, mut arena) = (TestPort::default(), Arena::new());
    let frames = || lens.iter().map(|&len| (vec![len as u8; len], Offload::default()));
    let burst = || frames().chain([(vec![7; 2000], gso)]);
    burst().for_each(|(bytes, offload)| assert!(arena.push(&bytes, offload)));
    let queue = front.queue_mut(0).expect("a queue");
    assert_eq!(queue.send(g, &arena.burst()), Ok(lens.len() + 1), "sent, or dropped");
    while back.poll_tx(h, 0, &mut port, &mut Arena::new()).expect("an honest front") != Polled::Idle {}
    queue.reclaim(g, 1).expect("an honest back");
    assert_eq!(queue.tx().in_flight(), 0);
    assert!(port.took.iter().all(|took| burst().any(|sent| sent == *took)));
    port.gives.extend(frames());
    while back.poll_rx(h, 0, &mut port).expect("an honest front") != Polled::Idle {}
    arena.clear();
    let came = queue.recv(g, &mut arena, 1).expect("an honest back");
    assert!((0..came).all(|i| frames().any(|(bytes, _)| arena.burst().frame(i) == bytes)));
    [port.took.len(), came]
}

#[test]
fn frames_of_one_slot_need_no_ordinary_page() {
    let lens = [60, 4096, 1500, 4097, 9000];
    for sg in [[false; 2], [true, false], [false, true], [true; 2]] {
        for (len, alone) in [(4096, sg.map(|sg| !sg)), (2048, [false; 2]), (65535, [true; 2])] {
            let mut pair = ends(len, sg, 0);
            pair.connect();
            let pages = pair.front.queue(0).expect("a queue").pages();
            assert_eq!(pages, alone.map(|alone| if alone { 0 } else { SLOTS as u32 }), "{len}, {sg:?}");
            // A ring, a list and buffers for each direction.
            let buffers = SLOTS * len.min(PAGE_SIZE as u32) as usize / PAGE_SIZE;
            let granted = 2 * (2 + buffers) + pages.iter().sum::<u32>() as usize;
            assert_eq!(pair.xen.counts().grants, granted, "{len}, {sg:?}");
            // Frames over several slots, and those that are to be cut, are dropped without sg; and
            // on RX those that are longer than the buffers.
            let rx = match (sg[1], len) {
                (true, _) => 5,
                (false, 2048) => 2,
                (false, _) => 3,
            };
            assert_eq!(exchange(&mut pair, &lens), [if sg[0] { 6 } else { 3 }, rx]);
            if len == 4096 && sg == [false; 2] {
                let [tx, rx] =
                    [pair.front.queue(0).unwrap().stats().0, pair.front.queue(0).unwrap().stats().1];
                assert_eq!((tx.staging, tx.dropped, rx.staging), (3, 3, 3));
                assert_eq!(pair.xen.counts().copies, 0, "no grant operation");
            }
            assert_eq!(pair.xen.counts().grants, granted, "none for a frame");
            pair.close();
        }
    }
}

/// A front of plain netif without the key may have no more room than an MTU of 1500 needs, though a
/// slot has a page: longer frames do not reach it. VLAN tags come on top.
#[test]
fn a_plain_front_of_one_slot_gets_what_an_mtu_of_1500_allows() {
    let tagged = |tags: &[u8], len: usize| {
        let mut frame = vec![3; len];
        frame[12..12 + tags.len()].copy_from_slice(tags);
        frame
    };
    let (q, ad) = (&[0x81, 0, 0, 5, 8, 0][..], &[0x88, 0xA8, 0, 6, 0x81, 0, 0, 5, 8, 0][..]);
    for sg in [false, true] {
        let config = FrontConfig { sg, ..crate::pair::ordinary() };
        let mut pair = Pair::new(config, VifConfig::default());
        pair.connect();
        assert_eq!(pair.back.mtu_limit(), (!sg).then_some(1500));
        let fits = [tagged(&[8, 0], 1514), tagged(q, 1518), tagged(ad, 1522)];
        let long =
            [tagged(&[8, 0], 1515), tagged(q, 1519), tagged(ad, 1523), tagged(&[8, 0], 4096), vec![3; 9000]];
        let Pair { g, h, front, back, .. } = &mut pair;
        let mut port = TestPort::default();
        port.gives.extend(fits.iter().chain(&long).map(|frame| (frame.clone(), Offload::default())));
        while back.poll_rx(h, 0, &mut port).expect("an honest front") != Polled::Idle {}
        let mut arena = Arena::new();
        front.queue_mut(0).expect("a queue").recv(g, &mut arena, 1).expect("an honest back");
        let came: Vec<_> = arena.burst().iter().map(|(bytes, _)| bytes.to_vec()).collect();
        let due: Vec<_> = fits.iter().chain(long.iter().filter(|_| sg)).cloned().collect();
        assert!(came == due, "sg {sg}: {:?}", came.iter().map(Vec::len).collect::<Vec<_>>());
        let stats = pair.back.stats(0).1;
        assert_eq!(
            (stats.too_long, stats.dropped, pair.back.too_long()),
            if sg { (0, 0, 0) } else { (5, 0, 5) }
        );
        pair.close();
    }
}

/// A frame can have as much of a buffer as headroom leaves.
#[test]
fn headroom_is_in_the_buffer() {
    let mut pair = ends(4096, [false; 2], 256);
    pair.connect();
    assert_eq!(pair.front.queue(0).expect("a queue").pages(), [0; 2]);
    assert_eq!(exchange(&mut pair, &[60, 3840, 3841, 4096]), [4, 2]);
    pair.close();
}

/// Lists that the back refuses leave what it has without them.
#[test]
fn pages_come_where_the_back_refuses_a_list() {
    for (bad, pages) in [("tx-data-len", [256, 0]), ("rx-data-len", [0, 256])] {
        let mut pair = ends(4096, [false; 2], 0);
        for _ in 0..4 {
            pair.front.step(&pair.g, &mut pair.fb).expect("a map");
            if pair.fb.own.borrow().contains_key(bad) {
                break;
            }
            pair.back.step(&pair.h, &mut pair.bb, &mut |_, _| None).expect("a map");
        }
        assert!(pair.fb.own.borrow_mut().insert(bad.into(), "77".into()).is_some());
        pair.connect();
        assert_eq!(pair.front.queue(0).expect("a queue").pages(), pages, "{bad}");
        // Without RX buffers, it has room for an MTU of 1500.
        let rx = if bad == "rx-data-len" { 1 } else { 2 };
        assert_eq!(exchange(&mut pair, &[60, 4096, 4097]), [2, rx], "{bad}");
        pair.close();
    }
}

/// The next back accepts frames over several slots: the front has no pages for them, so it sends
/// none.
#[test]
fn another_back_changes_nothing() {
    let mut pair = ends(4096, [false; 2], 0);
    pair.connect();
    let step = |pair: &mut Pair, key: &str, value: &str| {
        pair.bb.own.borrow_mut().insert(key.into(), value.into());
        pair.front.step(&pair.g, &mut pair.fb).expect("a map")
    };
    step(&mut pair, "state", "2");
    step(&mut pair, "feature-sg", "1");
    assert_eq!(step(&mut pair, "state", "4"), FrontStep::Renewed);
    assert!(!pair.front.takes_sg() && !pair.front.takes().gso);
    assert_eq!(exchange(&mut pair, &[60, 4096, 4097]), [2, 2]);
    pair.close();
}

/// A back that answers with several slots nevertheless breaks the protocol.
#[test]
fn a_frame_over_several_slots_is_a_fault() {
    let domains = TwoDomains::new();
    let (front_ring, ring) = domains.ring::<NetRx>();
    let chans = domains.channel();
    let (mut area, _) = domains.stage(Way::Staging(4096), Access::ReadWrite, 0).expect("buffers");
    area.set_no_sg();
    let mut front =
        RxFront::new(&domains.guest, FrontRing::new(front_ring), FrontChain::new(Some(area), None), 1)
            .unwrap();
    front.post(&domains.guest, &chans.0).expect("no grants");
    let mut r = Rx { domains, front, back: RawBack { ring, rsp_prod: 0 }, chans, arena: Arena::new() };
    assert!((0..r.posted()).all(|k| RxRequest::from_words(r.back.ring.read(k)).gref == 0), "no page");
    let answer = |id, flags, status| RxResponse { id, offset: 0, flags, status };
    r.back.answer_rx(answer(0, 0, PAGE_SIZE as i16));
    assert_eq!((r.recv(), r.frames()[0].len()), (Ok(1), PAGE_SIZE));
    r.back.answer_rx(answer(1, RXF_MORE_DATA, PAGE_SIZE as i16));
    r.back.answer_rx(answer(2, 0, 60));
    assert_eq!(r.recv(), Err(PeerFault::BadResponse { offset: 0, status: PAGE_SIZE as i16 }));
    r.close();
}
