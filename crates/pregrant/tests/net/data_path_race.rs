//! A guest that rewrites what it shares while the back reads it: ring slots, staging buffers, their
//! list. Small enough for Miri, which says whether a race with a peer is one that Rust allows; the
//! other tests of the data path are not.
//!
//! Each goes on until both outcomes of the race were seen. A second read of a slot is found for
//! certain elsewhere, where reads are counted: `xsa_back::xsa_155_197_tx_slots_are_read_once`.

use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::front::Granting;
use pregrant::net::path::FrontPath;
use pregrant::net::path::staging::list::{self as staging_list, DataLen};
use pregrant::platform::local::{LocalRegion, Pages};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{NetTx, RingMem, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RSP_OKAY, TXF_MORE_DATA, TxRequest};
use pregrant::wire::staging::StagingEntry;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::mutator::{Outcomes, until_both, while_mutating};
use pregrant_testkit::two_domains::{GUEST, TestPort, TwoDomains, Way};

const WAYS: &[Way] = if cfg!(miri) {
    &[Way::Map, Way::Staging(64)] // both also copy
} else {
    &[Way::Copy, Way::Map, Way::Staging(64), Way::Staging(65535)]
};

/// XSA-155: slots rewritten while they are read. Each is read once, so what was checked is what is
/// used. Some frames come as they were played; others, or the end of the connection, are what the
/// other processor wrote.
#[test]
fn xsa_155_197_tx_requests_rewritten_while_they_are_read() {
    for &way in WAYS {
        let domains = TwoDomains::new();
        until_both(100, |seen: &mut Outcomes| {
            let mut g = domains.tx_model(way, 0, 2);
            let ring = RingPages::<NetTx, _>::new(g.ring_memory.clone());
            let refs = g.refs.clone();
            let request = |x: u32, flags, size| TxRequest {
                gref: refs[x as usize & 1].0,
                offset: (x >> 8) as u16 & 0x1FFF,
                flags,
                id: (x >> 5) as u16,
                size,
            };
            let wild = |x: u32| {
                let req = request(x, (x >> 20) as u16 & 0x7, (x >> 3) as u16 & 0x1FFF);
                ring.write::<3>(x >> 24, req.to_words());
            };
            while_mutating(wild, || {
                for k in 0..if cfg!(miri) { 4 } else { 100 } {
                    let first = TxRequest { offset: 0, ..request(k, TXF_MORE_DATA, 300) };
                    let second = TxRequest { offset: 9, ..request(k, 0, 200) };
                    g.model.play(&[Slot::Data(first), Slot::Data(second)]);
                }
                // Closed: also a right end, and what was played is no reason for it.
                seen.count(g.run().is_err());
            });
            for (bytes, _) in &g.port.took {
                assert!((14..=4 * PAGE_SIZE).contains(&bytes.len()));
                seen.count(bytes.len() != 300);
            }
            g.close();
        });
        domains.assert_empty();
    }
}

/// Staging buffers rewritten while they are copied: any mixture of what the guest wrote may arrive,
/// of the length that was checked, and nothing else happens. Some frames are of one write, and some
/// of two.
#[test]
fn buffers_rewritten_while_they_are_copied_are_survived() {
    const IDS: u16 = if cfg!(miri) { 2 } else { 60 };
    let lengths: &[(u32, u16)] =
        if cfg!(miri) { &[(256, 256)] } else { &[(256, 256), (4096, 1500), (65535, 4096)] };
    for &(content, size) in lengths {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Staging(content), 0, 1);
        let area = g.area.as_ref().expect("a staging way");
        let places: Vec<usize> = (0..IDS).map(|id| area.start(id)).collect();
        let memory: LocalRegion = area.bytes().clone();
        let written = [vec![0x11; size as usize], vec![0x22; size as usize]];
        let rewrite = |x: u32| {
            let place = places[(x >> 8) as usize % places.len()];
            assert!(memory.copy_in(place, &written[(x >> 30) as usize & 1]));
        };
        while_mutating(rewrite, || {
            until_both(40, |seen: &mut Outcomes| {
                for id in 0..IDS {
                    g.model.play(&[Slot::Data(TxRequest { gref: 0, offset: 0, flags: 0, id, size })]);
                }
                assert_eq!(g.run(), Ok(()));
                assert_eq!(g.model.answers(), Ok(vec![vec![RSP_OKAY]; IDS as usize]));
                for (bytes, _) in g.port.took.drain(..) {
                    assert_eq!(bytes.len(), size as usize);
                    assert!(bytes.iter().all(|b| [0, 0x11, 0x22].contains(b)), "bytes of the buffer only");
                    seen.count(bytes.iter().any(|b| *b != bytes[0]));
                }
            });
        });
        g.close();
        domains.assert_empty();
    }
}

/// A list rewritten while it is read: each entry is read once, and what was validated is what is
/// used. Some lists are found good, and some bad.
#[test]
fn a_list_rewritten_while_it_is_read_is_validated_as_read() {
    const ENTRIES: u32 = if cfg!(miri) { 8 } else { 256 };
    let len = DataLen::new(128).expect("a length that buffers can have");
    let pages = Pages::new(1);
    let good: Vec<StagingEntry> = (0..ENTRIES)
        .map(|k| StagingEntry { id: k as u16, gref: 8 + k / 32, offset: (k % 32 * 128) as u16 })
        .collect();
    assert!(staging_list::write(&pages, good.iter().copied()));
    let rewrite = |x: u32| {
        let entry = (x >> 24) as usize % good.len();
        let bad = StagingEntry { offset: (x >> 8) as u16, ..good[entry] };
        for e in [bad, good[entry]] {
            assert!(pages.copy_in(entry * StagingEntry::SIZE, &e.to_bytes()));
        }
    };
    while_mutating(rewrite, || {
        until_both(2000, |seen: &mut Outcomes| {
            let read = staging_list::read(&pages, 256).expect("memory");
            let validated = staging_list::validate(&read, 0, len);
            seen.count(validated.is_err());
            let Ok(got) = validated else { return };
            for (e, &place) in read.iter().zip(&got.place) {
                assert_eq!(got.refs[place as usize / PAGE_SIZE], GrantRef(e.gref));
                assert_eq!(place as usize % PAGE_SIZE, e.offset as usize);
                assert!(e.offset as usize + 128 <= PAGE_SIZE);
            }
        });
    });
}

/// A frame of one slot and one of two, both directions, both ends ours.
#[test]
fn frames_pass_between_two_honest_ends() {
    let frames =
        [(vec![7; 60], Offload::default()), (vec![9; 4200], Offload { csum_ok: true, ..Offload::default() })];
    // One is staged, the other copied. Each way takes Miri 20 s, and Map's pages are in the race
    // above.
    let ways = if cfg!(miri) { &[Way::Staging(64)] } else { WAYS };
    for &way in ways {
        let domains = TwoDomains::new();
        let mut tx = domains.tx(way, Granting::PerFrame, u32::MAX);
        let (mut arena, mut burst, mut port) = (Arena::new(), Arena::new(), TestPort::default());
        let control = SharedControl::default();
        for (bytes, offload) in &frames {
            assert!(burst.push(bytes, *offload));
        }
        assert_eq!(tx.front.send(&domains.guest, &tx.front_chan, &burst.burst()), Ok(2));
        while tx.back.poll(&domains.host, GUEST, &tx.back_chan, &mut port, &mut arena, &control)
            == Ok(Polled::More)
        {}
        let slots = 3;
        assert_eq!(tx.front.reclaim(&domains.guest, slots), Ok(slots));
        assert!(port.took == frames, "{way:?}");
        tx.close(&domains);

        let mut rx = domains.rx(way, Granting::PerFrame, u32::MAX, false);
        port.gives.extend(frames.clone());
        rx.front.post(&domains.guest, &rx.front_chan).expect("grants to be had");
        while rx.back.poll(&domains.host, GUEST, &rx.back_chan, &mut port, &control) == Ok(Polled::More) {}
        arena.clear();
        assert_eq!(rx.front.recv(&mut arena, slots), Ok(2));
        assert!(arena.burst().iter().zip(&frames).all(|(got, due)| got == (&due.0[..], due.1)), "{way:?}");
        rx.close(&domains);
        domains.assert_empty();
    }
}
