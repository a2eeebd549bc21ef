//! Staging lists that are longer than their rings: what both ends agree on, and that each frame is
//! in the buffer that its id names, whatever else uses pages.
#![cfg(not(miri))]

use crate::pair::Pair;
use pregrant::PeerFault;
use pregrant::net::back::{BackVif, Polled, PreviousState, VifConfig};
use pregrant::net::features::{BackFeatures, RxAccepts};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::keys::Offer;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{AnyPath, FrontPath, StagingPath};
use pregrant::platform::Access;
use pregrant::port::{Arena, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RSP_ERROR, RSP_OKAY, RxRequest, TxRequest};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::raw_back::Tx;
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, TwoDomains, Way};
use proptest::prelude::*;

/// A back that offers this many pages for longer lists.
fn offers(max_pages: u32) -> VifConfig {
    let staging = Offer { max_pages, ..Offer::all() };
    VifConfig { features: BackFeatures { staging, ..BackFeatures::default() }, ..VifConfig::default() }
}

/// A front that wants this many buffers of `len` bytes per direction.
fn wants(len: u32, buffers: u32) -> FrontConfig {
    let len = DataLen::new(len);
    FrontConfig { staging: Buffers { buffers, ..Buffers::of(len, len) }, ..FrontConfig::default() }
}

pub fn connected(requested: FrontConfig, served: VifConfig) -> Pair {
    let mut pair = Pair::new(requested, served);
    pair.connect();
    assert!(pair.front.is_live());
    pair
}

fn buffers(pair: &Pair) -> (u32, u32) {
    pair.front.queue(0).expect("a queue").staging_buffers()
}

/// Frame `number` of `len` bytes: none is like another.
fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|k| (k as u64 * 7 + number * 13) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Sends a burst in each direction, of frames of these lengths.
pub fn burst(pair: &mut Pair, first: u64, lens: &[usize]) {
    let Pair { g, h, front, back, .. } = pair;
    let (mut port, mut private) = (TestPort::default(), Arena::new());
    let frames: Vec<_> = (first..).zip(lens).map(|(number, &len)| frame(number, len)).collect();
    let mut arena = Arena::new();
    frames.iter().for_each(|frame| assert!(arena.push(frame, Offload::default())));
    let queue = front.queue_mut(0).expect("a queue");
    assert_eq!(queue.send(g, &arena.burst()), Ok(frames.len()));
    while back.poll_tx(h, 0, &mut port, &mut private).expect("an honest front") != Polled::Idle {}
    queue.reclaim(g, 1).expect("an honest back");
    assert_eq!(queue.tx().in_flight(), 0);
    assert!(port.took.drain(..).map(|took| took.0).eq(frames.iter().cloned()), "from the guest");
    port.gives.extend(frames.iter().map(|frame| (frame.clone(), Offload::default())));
    let mut came = Vec::new();
    while came.len() < frames.len() {
        while back.poll_rx(h, 0, &mut port).expect("an honest front") != Polled::Idle {}
        arena.clear();
        let n = front.queue_mut(0).expect("a queue").recv(g, &mut arena, 1).expect("an honest back");
        came.extend((0..n).map(|i| arena.burst().frame(i).to_vec()));
    }
    assert!(came == frames, "for the guest");
}

#[test]
fn a_back_that_offers_none_sees_what_it_saw_before() {
    for (len, offered) in [(256, 0), (65535, 0), (2048, 100), (4096, 2)] {
        let keys = |requested| {
            let pair = connected(requested, offers(offered));
            assert_eq!(buffers(&pair), (256, 256));
            let (front, back) = (pair.fb.own.borrow().clone(), pair.bb.own.borrow().clone());
            pair.close();
            (front, back)
        };
        let (few, many) = (keys(wants(len, 0)), keys(wants(len, 1024)));
        assert_eq!(few, many, "{len}");
        let offer = few.1.get("staging-grants-max-pages").cloned();
        assert_eq!(offer, (offered > 0).then(|| offered.to_string()));
    }
}

#[test]
fn a_list_is_as_long_as_is_wanted_within_what_the_back_offers() {
    for (len, wanted, offered, got, pages) in [
        (2048, 1024, 8192, 1024, 2),
        (2048, 1000, 8192, 1000, 2),
        (2048, 100, 8192, 256, 1),
        (2048, 1024, 896, 896, 2),
        (256, 5000, 8192, 5000, 10),
        (64, 200_000, 8192, 32767, 64),
        (65535, 1024, 8192, 1024, 2),
        (256, 1024, 50, 400, 1),
    ] {
        let pair = connected(wants(len, wanted), offers(offered));
        assert_eq!(buffers(&pair), (got, got), "{wanted} of {len} bytes");
        for dir in ["tx", "rx"] {
            let key = |k: u32| pair.key(false, &format!("{dir}-data-ref{k}")).is_some();
            assert!(key(pages - 1) && !key(pages), "{wanted} of {len} bytes");
        }
        assert_eq!(pair.key(true, "staging-grants-active").as_deref(), Some("1"));
        pair.close();
    }
    // Queues, and directions, share what is offered.
    let two = FrontConfig { queues: 2, ..wants(256, 5000) };
    let mut pair = Pair::new(two, offers(100));
    pair.connect();
    assert_eq!(buffers(&pair), (400, 400));
    pair.close();
    let one_way = Buffers { buffers: 5000, ..Buffers::of(DataLen::new(256), None) };
    let pair = connected(FrontConfig { staging: one_way, ..FrontConfig::default() }, offers(100));
    assert_eq!(buffers(&pair), (1600, 0));
    pair.close();
}

/// Lengths that have a buffer, a head in one, or none; and every buffer in its turn.
#[test]
fn each_frame_is_in_its_buffer() {
    let lens = [60, 64, 255, 256, 257, 1500, 2048, 2049, 4096, 4097, 9000, 65535];
    for (len, wanted, sent_on) in
        [(256, 300, false), (2048, 777, false), (4096, 512, false), (65535, 600, false), (2048, 700, true)]
    {
        let mut requested = wants(len, wanted);
        requested.staging.sent_on = sent_on;
        let mut pair = connected(requested, offers(8192));
        let (tx, rx) = buffers(&pair);
        assert_eq!((tx, rx), (wanted, if sent_on { wanted.max(512) } else { wanted }));
        let mut next = 0;
        for round in 0..120 {
            let of_round: Vec<_> = (0..4).map(|k| lens[(round * 5 + k * round + k) % lens.len()]).collect();
            burst(&mut pair, next, &of_round);
            next += 4;
            burst(&mut pair, next, &[60 + round % 197; 40]);
            next += 40;
        }
        let (tx, rx) = pair.back.stats(0);
        assert_eq!((tx.errors, rx.errors), (0, 0));
        assert!(tx.staging >= 120 * 40 && rx.staging >= 120 * 40);
        pair.close();
    }
}

/// If the back refuses a list, the front has what it would have without it.
#[test]
fn a_longer_list_that_is_refused_leaves_a_ring_s_worth_of_pages() {
    for (len, bad) in
        [(256, "tx-data-len"), (65535, "tx-data-len"), (65535, "rx-data-len"), (256, "rx-data-ref1")]
    {
        let mut pair = Pair::new(wants(len, 1024), offers(8192));
        for _ in 0..4 {
            let (g, fb) = (&pair.g, &mut pair.fb);
            let _ = pair.front.step(g, fb);
            if pair.fb.own.borrow().contains_key(bad) {
                break;
            }
            let _ = pair.back.step(&pair.h, &mut pair.bb, &mut |_, _| None);
        }
        assert!(pair.fb.own.borrow_mut().insert(bad.into(), "77".into()).is_some(), "{bad}");
        pair.connect();
        assert!(pair.front.is_live());
        let (tx, rx) = buffers(&pair);
        assert_eq!((tx == 0, rx == 0), (bad.starts_with("tx"), bad.starts_with("rx")), "{bad}");
        for k in 0..60 {
            burst(&mut pair, k * 20, &[60, 1500, 4097, 65535, 256, 257, 300, 60, 61, 62]);
        }
        pair.close();
    }
}

/// A back that may not map as much as it offered: the front begins again, with a buffer for each
/// slot, and next time it asks for more again.
#[test]
fn a_front_that_got_none_begins_again_with_fewer() {
    let mut pair = Pair::new(wants(2048, 1024), offers(8192));
    pair.front = FrontVif::new(HOST, wants(2048, 1024), true);
    pair.back.limit_pages(600);
    pair.connect();
    pair.connect();
    assert!(pair.front.is_live());
    assert_eq!(buffers(&pair), (256, 256));
    assert_eq!(pair.key(true, "staging-grants-active").as_deref(), Some("1"));
    burst(&mut pair, 0, &[64, 2048, 2049, 9000]);
    pair.front.restart(&mut pair.fb).expect("a map");
    pair.back.limit_pages(usize::MAX);
    pair.connect();
    pair.connect();
    assert!(pair.front.is_live());
    assert_eq!(buffers(&pair), (1024, 1024));
    burst(&mut pair, 0, &[64, 2048, 2049, 9000]);
}

/// A restarted back finds requests with any id, and maps the same lists again.
#[test]
fn a_list_is_taken_again() {
    let mut pair = connected(wants(256, 1024), offers(512));
    for k in 0..30 {
        burst(&mut pair, k * 40, &[64; 40]);
    }
    let mut arena = Arena::new();
    let frames: Vec<_> = (0..20).map(|k| frame(9000 + k, 100)).collect();
    frames.iter().for_each(|frame| assert!(arena.push(frame, Offload::default())));
    let Pair { g, h, front, back, bb, .. } = &mut pair;
    assert_eq!(front.queue_mut(0).expect("a queue").send(g, &arena.burst()), Ok(20));
    // The next one offers no more than rings have slots: what was offered holds.
    *back = BackVif::new(GUEST, 0, offers(0));
    assert_eq!(back.inherit(bb), Ok(PreviousState::Connected));
    assert_eq!(back.reattach(h, bb, &mut |_, _| None).ok(), Some(true));
    let mut port = TestPort::default();
    while back.poll_tx(h, 0, &mut port, &mut Arena::new()).expect("an honest front") != Polled::Idle {}
    assert!(port.took.drain(..).map(|took| took.0).eq(frames));
    front.queue_mut(0).expect("a queue").reclaim(g, 1).expect("an honest back");
    for k in 0..30 {
        burst(&mut pair, k * 40, &[64; 40]);
    }
    pair.close();
}

/// A front names only the first page of a longer list: the list ends there. Later ids get an ERROR
/// each, in both directions, and other frames of the queue go on.
#[test]
fn a_list_that_is_cut_at_a_page_ends_there() {
    for (dir, cut) in [("tx", 1), ("rx", 1), ("rx", 2)] {
        let mut pair = Pair::new(wants(256, 1500), offers(8192));
        let next = format!("{dir}-data-ref{cut}");
        for _ in 0..4 {
            let _ = pair.front.step(&pair.g, &mut pair.fb);
            if pair.fb.own.borrow_mut().remove(&next).is_some() {
                break;
            }
            let _ = pair.back.step(&pair.h, &mut pair.bb, &mut |_, _| None);
        }
        pair.connect();
        assert!(pair.front.is_live());
        let [tx, rx] = pair.back.buffers(0).map(|buffers| buffers.map(|buffers| buffers.count));
        // Ids of the RX list go on from the last of TX, which is another than the front has.
        let taken = if dir == "tx" { (Some(512), None) } else { (Some(1500), Some(512 * cut)) };
        assert_eq!((tx, rx), taken, "{dir}");
        let Pair { g, h, front, back, .. } = &mut pair;
        let (mut port, mut arena) = (TestPort::default(), Arena::new());
        let (mut came, mut got) = (0, 0);
        for number in 0..3000 {
            arena.clear();
            assert!(arena.push(&frame(number, 60), Offload::default()));
            let queue = front.queue_mut(0).expect("a queue");
            assert_eq!(queue.send(g, &arena.burst()), Ok(1));
            while back.poll_tx(h, 0, &mut port, &mut Arena::new()).expect("no fault") != Polled::Idle {}
            assert_eq!(queue.reclaim(g, 1), Ok(1));
            came += port.took.drain(..).filter(|took| took.0 == frame(number, 60)).count();
            port.gives.push_back((frame(number, 60), Offload::default()));
            while back.poll_rx(h, 0, &mut port).expect("no fault") != Polled::Idle {}
            arena.clear();
            let n = queue.recv(g, &mut arena, 1).expect("an honest back");
            assert!((0..n).all(|i| *arena.burst().frame(i) == frame(number, 60)), "{number}");
            got += n;
        }
        // 512 of 1500 in turn, twice around; the RX ring is posted ahead.
        let (tx, rx) = pair.back.stats(0);
        assert_eq!((came as u64 + tx.errors, got as u64 + rx.errors), (3000, 3000), "{dir}");
        let cut_off = |all, is_cut| if is_cut { 3000 - 2 * u64::from(512 * cut) } else { all };
        assert_eq!(tx.errors, cut_off(0, dir == "tx"));
        assert_eq!(rx.errors, cut_off(0, dir == "rx"));
        pair.close();
    }
}

/// Ids that the ring has no slot for, twice in a batch: the first has the buffer.
#[test]
fn ids_beyond_the_ring_are_one_frame_s_at_a_time() {
    let domains = TwoDomains::new();
    let way = Way::Staging(256);
    let (area, buffers) = domains.stage_some(way, Access::ReadOnly, 0, 5000).expect("staging");
    let path = AnyPath::Staging(StagingPath::new(buffers).expect("memory"));
    let mut g = domains.tx_model_by(path.into(), Some(area), 0, 1);
    let area = g.area.as_ref().expect("staging");
    for id in [256u16, 4999] {
        assert!(area.bytes().copy_in(area.start(id), &[id as u8; 60]));
    }
    let staged = |id| [Slot::Data(TxRequest { gref: 0, offset: 0, flags: 0, id, size: 60 })];
    for id in [256, 4999, 256, 5000, 4999, 32768] {
        g.model.write(&staged(id));
    }
    g.model.publish();
    assert_eq!(g.run(), Ok(()));
    let [okay, error] = [RSP_OKAY, RSP_ERROR].map(|status| vec![status]);
    let expected = [&okay, &okay, &error, &error, &error, &error].map(Clone::clone);
    assert_eq!(g.model.answers(), Ok(expected.to_vec()));
    let took: Vec<_> = g.port.took.drain(..).map(|took| took.0).collect();
    assert_eq!(took, [vec![0; 60], vec![4999u16 as u8; 60]]);
    g.close();

    let (area, buffers) = domains.stage_some(way, Access::ReadWrite, 5000, 5000).expect("staging");
    let path = AnyPath::Staging(StagingPath::new(buffers).expect("memory"));
    let mut g = domains.rx_model_by(path.into(), Some(area), 0, RxAccepts::ALL);
    for (k, id) in [256, 4999, 256, 5000, 4999, 32768, 257].into_iter().enumerate() {
        g.model.post(RxRequest { id, gref: g.refs[k].0 });
    }
    g.port.gives.extend((1..8).map(|n| (vec![n; 60], Offload::default())));
    assert_eq!(g.run(), Ok(()));
    let frames = g.model.frames().expect("answers by the rules");
    let failed: Vec<_> = frames.iter().map(|frame| frame.failed()).collect();
    assert_eq!(failed, [false, false, true, true, true, true, false]);
    let area = g.area.as_ref().expect("staging");
    for (k, id) in [(0, 256), (1, 4999), (6, 257)] {
        let mut bytes = [0; 60];
        let at = area.start(id) + usize::from(frames[k].slots[0].offset);
        assert!(area.bytes().copy_out(at, &mut bytes));
        assert_eq!(bytes, [k as u8 + 1; 60], "id {id}");
    }
    g.close();
    domains.assert_empty();
}

/// A back answers ids that the ring has no slot for: those in flight, once each.
#[test]
fn answers_are_for_ids_in_flight_whatever_the_ring_s_size() {
    for way in [Way::Staging(256), Way::Staging(65535)] {
        for id in [256, 999, 1000, 4095, u16::MAX] {
            let mut t = Tx::with(way, 1000);
            assert_eq!(t.send(64, Offload::default()), 1);
            t.back.answer_tx(id, RSP_OKAY);
            assert_eq!(t.reclaim(), Err(PeerFault::UnknownId(id)), "{way:?}");
            t.close();
        }
        let mut t = Tx::with(way, 1000);
        for k in 0..2500u32 {
            assert_eq!(t.send(64, Offload::default()), 1);
            let id = t.back.tx(k & 255).id;
            assert_eq!(u32::from(id), k % 1000, "each in its turn");
            t.back.answer_tx(id, RSP_OKAY);
            assert_eq!(t.reclaim(), Ok(1));
        }
        assert_eq!(t.front.room(), 256, "as many as the ring has slots");
        assert_eq!(t.send(64, Offload::default()), 1);
        t.back.answer_tx(499, RSP_OKAY);
        assert_eq!(t.reclaim(), Err(PeerFault::UnknownId(499)), "it was answered");
        t.close();
    }
}

proptest! {
    /// Any numbers, at both ends: each list is as long as its ring at least, within what is offered
    /// beyond that, and works.
    #[test]
    fn any_numbers(
        len in prop_oneof![Just(64u32), Just(256), Just(2048), Just(4096), Just(65535)],
        wanted in 0..3000u32,
        offered in 0..3000u32,
        queues in 1..3u32,
    ) {
        let mut pair = Pair::new(FrontConfig { queues, ..wants(len, wanted) }, offers(offered));
        pair.connect();
        let (tx, rx) = buffers(&pair);
        let in_page = 4096 / len.min(4096);
        let most = offered / (2 * queues) * in_page;
        prop_assert_eq!((tx, rx), (wanted.min(most).max(256), wanted.min(most).max(256)));
        for k in 0..4 {
            burst(&mut pair, k * 64, &[64; 64]);
        }
        pair.close();
    }
}
