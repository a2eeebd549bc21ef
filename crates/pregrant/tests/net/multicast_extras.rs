//! A guest's requests beside its frames, by every path: multicast addresses in extra infos on TX
//! (docs/protocol 2.8), and on RX only frames to addresses that it named, with the hashes that it
//! asked for (2.5, 2.11).
#![cfg(not(miri))] // Miri has data_path_race

use pregrant::PeerFault;
use pregrant::net::back::multicast::MulticastList;
use pregrant::net::back::{Credit, Polled, Rate};
use pregrant::net::batch::tx::MulticastAsk;
use pregrant::net::features::RxAccepts;
use pregrant::net::headers::MacAddr;
use pregrant::port::Offload;
use pregrant::wire::netif::{
    Extra, MCAST_LIST_MAX, RSP_ERROR, RSP_NULL, RSP_OKAY, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest,
    TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest,
};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{RxGame, SLOTS, TwoDomains, TxGame, WAYS};

const OKAY: i16 = RSP_OKAY;
const ERROR: i16 = RSP_ERROR;
const NULL: i16 = RSP_NULL;

fn mac(n: u8) -> [u8; 6] {
    [1, 0, 0x5E, 0, 0, n]
}

/// A request with these extra infos; its own slot means nothing.
fn extra_request(id: u16, flags: u16, extras: &[Extra]) -> Vec<Slot> {
    let first = TxRequest { gref: 4_000_000, offset: 4000, flags: flags | TXF_EXTRA_INFO, id, size: 4000 };
    let last = extras.len() - 1;
    let extras = extras.iter().enumerate().map(|(k, e)| Slot::extra(*e, k < last));
    [Slot::Data(first)].into_iter().chain(extras).collect()
}

/// A frame of 60 bytes.
fn frame(g: &TxGame, id: u16) -> Vec<Slot> {
    vec![Slot::Data(TxRequest { gref: g.refs[id as usize].0, offset: 0, flags: 0, id, size: 60 })]
}

fn on_all_ways(test: impl Fn(&mut TxGame)) {
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(way, u32::MAX - 9, 8);
        g.control.lock().offer_multicast(true);
        test(&mut g);
        assert_eq!(g.model.finish(), Ok(()));
        g.close();
        domains.assert_empty();
    }
}

fn play(g: &mut TxGame, requests: &[Vec<Slot>]) -> Vec<Vec<i16>> {
    requests.iter().for_each(|slots| g.model.play(slots));
    assert_eq!(g.run(), Ok(()));
    g.model.answers().expect("answers by the rules")
}

fn named(g: &TxGame) -> Vec<MacAddr> {
    g.control.lock().multicast.addresses().to_vec()
}

#[test]
fn requests_are_answered_among_frames_and_are_none() {
    on_all_ways(|g| {
        let (add, del) = (Extra::McastAdd, Extra::McastDel);
        let requests = [
            frame(g, 0),
            extra_request(1, 0, &[add(mac(1))]),
            extra_request(2, 0, &[add(mac(2))]),
            frame(g, 3),
            extra_request(4, 0, &[del(mac(1))]),
            extra_request(5, 0, &[del(mac(9))]),
        ];
        let (sent, good) = (vec![OKAY], vec![OKAY, NULL]);
        let due = [sent.clone(), good.clone(), good.clone(), sent, good.clone(), good];
        assert_eq!(play(g, &requests), due);
        assert_eq!(named(g), [MacAddr(mac(2))]);
        let stats = g.back.stats();
        assert_eq!((g.port.took.len(), stats.frames, stats.errors), (2, 2, 0), "no frame but the frames");
    });
}

/// Someone else has the state's lock: the batch goes back to its ring, frames too, and is taken
/// again.
#[test]
fn a_batch_does_not_wait_for_the_lock_of_the_state() {
    on_all_ways(|g| {
        g.model.play(&frame(g, 0));
        g.model.play(&extra_request(1, 0, &[Extra::McastAdd(mac(1))]));
        let taken = g.back.requests();
        for _ in 0..3 {
            assert_eq!(g.poll_locked(), Ok(Polled::More));
            assert_eq!((g.back.requests(), g.port.took.len()), (taken, 0));
            assert_eq!(g.model.answers().expect("answers by the rules"), [[0i16; 0]; 0]);
        }
        assert_eq!(g.back.final_check(), Ok(true), "there is work");
        assert_eq!(play(g, &[frame(g, 3)]), [vec![OKAY], vec![OKAY, NULL], vec![OKAY]]);
        assert_eq!((named(g), g.port.took.len()), (vec![MacAddr(mac(1))], 2));
    });
}

/// With a `rate` a batch takes its credit under that lock: nothing is taken without it, and no
/// credit is gone.
#[test]
fn a_batch_of_a_vif_with_a_rate_does_not_wait_for_the_lock_either() {
    on_all_ways(|g| {
        let rate = Rate { bytes: 200_000, usec: 1000 };
        g.control.lock().credit = Some(Credit::new(rate, 0));
        let credit = |g: &TxGame| format!("{:?}", g.control.lock().credit);
        let full = credit(g);
        g.model.play(&frame(g, 0));
        g.model.play(&extra_request(1, 0, &[Extra::McastAdd(mac(1))]));
        let taken = g.back.requests();
        for _ in 0..3 {
            assert_eq!(g.poll_locked(), Ok(Polled::More));
            assert_eq!((g.back.requests(), g.port.took.len(), credit(g)), (taken, 0, full.clone()));
            assert_eq!(g.model.answers().expect("answers by the rules"), [[0i16; 0]; 0]);
        }
        assert_eq!(g.back.final_check(), Ok(true), "there is work");
        let changes = g.control.changes();
        assert_eq!(g.run(), Ok(()));
        assert_ne!(g.control.changes(), changes, "queues copy the list");
        assert_eq!(g.model.answers().expect("answers by the rules"), [vec![OKAY], vec![OKAY, NULL]]);
        assert_eq!((named(g), g.port.took.len()), (vec![MacAddr(mac(1))], 1));
        assert_ne!(credit(g), full, "frames cost credit");
    });
}

/// Malformed requests are answered with ERROR and change nothing; what no extra info may be closes
/// the device.
#[test]
fn requests_that_make_no_sense_are_errors_or_faults() {
    on_all_ways(|g| {
        let add = |n| Extra::McastAdd(mac(n));
        let mut with_data = extra_request(1, TXF_MORE_DATA, &[add(1)]);
        with_data.push(Slot::Data(TxRequest { gref: g.refs[2].0, offset: 0, flags: 0, id: 2, size: 60 }));
        let requests = [
            with_data,
            extra_request(3, 0, &[add(1), add(2)]),
            extra_request(4, 0, &[add(1), Extra::McastDel(mac(1))]),
            extra_request(5, 0, &[Extra::McastAdd([2, 0, 0, 0, 0, 1])]), // no group
            extra_request(6, 0, &[Extra::Hash { hash_type: 0, algorithm: 1, value: 1 }, add(3)]),
        ];
        let two = vec![ERROR, NULL, NULL];
        let due = [vec![ERROR, NULL, ERROR], two.clone(), two, vec![ERROR, NULL], vec![OKAY, NULL, NULL]];
        assert_eq!(play(g, &requests), due);
        assert_eq!((named(g), g.port.took.len()), (vec![MacAddr(mac(3))], 0));
    });
    let domains = TwoDomains::new();
    let unknown = |found: u8| Slot::Extra([u32::from(found), 0, 0]);
    for found in [0, 6, 255] {
        let mut g = domains.tx_model(WAYS[0], 0, 8);
        let [first, _] = extra_request(1, 0, &[Extra::McastAdd(mac(1))])[..] else { unreachable!() };
        g.model.play(&[first, unknown(found)]);
        assert_eq!(g.run(), Err(PeerFault::BadExtra(found)));
        g.close();
    }
    let mut g = domains.tx_model(WAYS[0], 0, 8);
    g.model.play(&[extra_request(1, 0, &[Extra::McastAdd(mac(1))])[0]]);
    assert_eq!(g.run(), Err(PeerFault::SlotsMissing));
    g.close();
}

/// The list has room for 64 addresses; the next request gets an ERROR, and the device goes on. 10^5
/// more change nothing.
#[test]
fn the_list_is_bounded() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(WAYS[0], 0, 8);
    g.control.lock().offer_multicast(true);
    let requests: Vec<_> = (0..66).map(|n| extra_request(n, 0, &[Extra::McastAdd(mac(n as u8))])).collect();
    let answers = play(&mut g, &requests);
    assert!(
        answers[..64].iter().all(|a| *a == [OKAY, NULL]) && answers[64..].iter().all(|a| *a == [ERROR, NULL])
    );
    for round in 0..1000u32 {
        let other = |k: u16| [3, 1, round as u8, (round >> 8) as u8, 0, k as u8];
        let requests: Vec<_> = (0..100).map(|k| extra_request(k, 0, &[Extra::McastAdd(other(k))])).collect();
        assert!(play(&mut g, &requests).iter().all(|a| *a == [ERROR, NULL]));
    }
    assert_eq!((named(&g).len(), g.back.stats().errors), (MCAST_LIST_MAX, 100_002));
    g.close();
    domains.assert_empty();
}

fn post(g: &mut RxGame, n: u32) {
    for _ in 0..n {
        let id = g.model.next_index() % SLOTS;
        g.model.post(RxRequest { id: id as u16, gref: g.refs[id as usize].0 });
    }
}

/// A TCP segment over IPv4, `len` bytes in all, to this address.
fn tcp(dst: [u8; 6], len: usize) -> Vec<u8> {
    let mut f = dst.to_vec();
    f.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]);
    f.extend((len as u16 - 14).to_be_bytes());
    f.extend([0, 1, 0, 0, 64, 6, 0, 0, 66, 9, 149, 187, 161, 142, 100, 80]);
    f.extend(2794u16.to_be_bytes());
    f.extend(1766u16.to_be_bytes());
    f.resize(len, 0);
    f
}

fn rx_on_all_ways(test: impl Fn(&mut RxGame)) {
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.rx_model(way, u32::MAX - 3, RxAccepts::ALL);
        test(&mut g);
        g.close();
        domains.assert_empty();
    }
}

#[test]
fn frames_to_groups_that_were_not_named_are_left_out() {
    rx_on_all_ways(|g| {
        post(g, SLOTS);
        let unicast = [2, 0, 0, 0, 0, 9];
        let all = [mac(1), mac(2), [0xFF; 6], unicast, mac(3)];
        let give = |g: &mut RxGame| {
            g.port.gives.extend((60..).zip(all).map(|(len, dst)| (tcp(dst, len), Offload::default())))
        };
        let lens = |g: &mut RxGame| -> Vec<usize> {
            assert_eq!(g.run(), Ok(()));
            g.model.frames().expect("by the rules").iter().map(|f| f.bytes()).collect()
        };
        give(g);
        assert_eq!(lens(g), [60, 61, 62, 63, 64], "nothing was requested");
        g.control.lock().multicast.request(true);
        give(g);
        assert_eq!(lens(g), [62, 63]);
        assert!(g.control.lock().multicast.apply(MulticastAsk::Add(MacAddr(mac(2)))));
        give(g);
        assert_eq!(lens(g), [61, 62, 63]);
        let stats = g.back.stats();
        assert_eq!((stats.frames, stats.filtered, stats.dropped, stats.errors), (10, 5, 0, 0));
        // A successor that does not know the list leaves nothing out.
        g.control.lock().multicast = MulticastList::lost();
        g.control.lock().multicast.request(true);
        give(g);
        assert_eq!(lens(g), [60, 61, 62, 63, 64]);
    });
}

const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The hash of docs/protocol 2.11's TCP vector.
const HASH: Extra = Extra::Hash { hash_type: 1, algorithm: 1, value: 0x51cc_c178 };

fn hashing(g: &mut RxGame) {
    let mut control = g.control.lock();
    let hash = control.hash_mut();
    let _ = (hash.set_algorithm(1), hash.set_flags(0xF), hash.set_key(&KEY));
    assert!(hash.is_on());
}

#[test]
fn frames_carry_the_hash_that_was_asked_for() {
    rx_on_all_ways(|g| {
        post(g, 20);
        hashing(g);
        let gso = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 };
        let to = [2, 0, 0, 0, 0, 9];
        let other = vec![0xFF; 60];
        g.port.gives.extend([
            (tcp(to, 60), Offload::default()),
            (tcp(to, 9000), gso),
            (other, Offload::default()),
            (tcp(to, 5000), Offload::default()),
        ]);
        assert_eq!(g.run(), Ok(()));
        let frames = g.model.frames().expect("by the rules");
        let extras: Vec<_> = frames.iter().map(|f| f.extras.clone()).collect();
        let gso = Extra::Gso { size: 1448, gso_type: 1 };
        assert_eq!(extras, [vec![HASH], vec![gso, HASH], vec![], vec![HASH]]);
        let slots: Vec<_> = frames.iter().map(|f| (f.slots.len(), f.bytes())).collect();
        assert_eq!(slots, [(1, 60), (3, 9000), (1, 60), (2, 5000)]);
        assert_eq!(frames[3].slots[0].flags, RXF_EXTRA_INFO | RXF_MORE_DATA);
        assert_eq!(g.model.in_flight(), 20 - (1 + 1) - (3 + 2) - 1 - (2 + 1), "a slot for each extra info");
        // Turned off: no more.
        let _ = g.control.lock().hash_mut().set_flags(0);
        g.port.gives.push_back((tcp(to, 60), Offload::default()));
        assert_eq!(g.run(), Ok(()));
        assert_eq!(g.model.frames().expect("by the rules")[0].extras, []);
    });
}

/// XSA-392: the slot of the extra info is among those that a frame waits for.
#[test]
fn a_hashed_frame_waits_for_all_of_its_slots() {
    rx_on_all_ways(|g| {
        hashing(g);
        let offload = Offload { gso_type: 1, gso_size: 1000, ..Offload::default() };
        g.port.gives.extend([(tcp([2; 6], 4100), offload), (tcp([2; 6], 60), Offload::default())]);
        for _ in 0..4 {
            assert_eq!((g.run(), g.back.final_check()), (Ok(()), Ok(false)));
            assert_eq!(g.model.frames(), Ok(vec![]));
            post(g, 1);
        }
        assert_eq!((g.back.final_check(), g.run()), (Ok(true), Ok(())));
        assert_eq!(g.model.frames().expect("by the rules").len(), 1);
        // Frames that wait were hashed when they came from the port.
        post(g, 2);
        assert_eq!(g.run(), Ok(()));
        assert_eq!(g.model.frames().expect("by the rules")[0].extras, [HASH]);
        assert_eq!(g.model.finish(), Ok(()));
    });
}
