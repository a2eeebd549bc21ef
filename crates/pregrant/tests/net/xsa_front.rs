//! Xen's security advisories on the data path, a hostile back against our front: those that
//! `data_path_hostile_back` does not show. docs/threat-model.md has the table.
#![cfg(not(miri))]

use pregrant::net::front::Granting;
use pregrant::net::front::TxFront;
use pregrant::net::front::regions::Regions;
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::{FrontChain, FrontPath};
use pregrant::platform::local::{LocalMap, LocalRegion};
use pregrant::platform::{Access, Events, PeerMem, ReadySet};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{FrontRing, NetTx, RingMem, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    RSP_DROPPED, RSP_ERROR, RSP_OKAY, RXF_MORE_DATA, RxResponse, TXF_EXTRA_INFO, TxResponse,
};
use pregrant::{GrantRef, PAGE_SIZE, PeerFault, PlatformError};
use pregrant_testkit::mutator::{Outcomes, Stop, until_both, while_mutating};
use pregrant_testkit::own_grants::{FrameRules, OwnGrants, PerFrame};
use pregrant_testkit::raw_back::{RawBack, Rx, Tx};
use pregrant_testkit::two_domains::{GUEST, HOST, SLOTS, TwoDomains, Way, release_front};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WAYS: [Way; 3] = [Way::Copy, Way::Staging(256), Way::Staging(65535)];

fn rsp(flags: u16, status: i16) -> RxResponse {
    RxResponse { id: 0, offset: 0, flags, status }
}

/// Answers are rewritten while they are read: accepted, or a fault, each according to the one read.
#[test]
fn xsa_155_197_answers_rewritten_while_they_are_read() {
    for way in WAYS {
        for seed in 0..60u32 {
            let mut t = Tx::new(way);
            for _ in 0..64 {
                assert_eq!(t.send(64, Offload::default()), 1);
            }
            let Tx { domains, front, back, .. } = &mut t;
            let ring = &back.ring;
            let rewrite = |x: u32| ring.write::<1>(x >> 26, [x >> 8 & 0x0000_FFFF]);
            let mut fault = None;
            while_mutating(rewrite, || {
                for k in 0..64u32 {
                    // Once for sure, whenever the other thread runs.
                    let id = if k == seed { 999 } else { (k ^ seed & 1) as u16 };
                    ring.write::<1>(k, [TxResponse { id, status: RSP_OKAY }.to_word()]);
                    ring.store(Word::RspProd, k + 1);
                    fault = front.reclaim(&domains.guest, 1).err();
                    if fault.is_some() {
                        break;
                    }
                }
            });
            assert!(matches!(fault, Some(PeerFault::UnknownId(_))), "{fault:?}");
            assert!(front.room() <= SLOTS);
            t.close();
        }
    }
    for way in WAYS {
        for _ in 0..60 {
            let mut r = Rx::new(way);
            let Rx { front, back, arena, .. } = &mut r;
            let ring = &back.ring;
            let rewrite = |x: u32| {
                let flags = if x & 3 == 0 { RXF_MORE_DATA } else { 0 };
                let offset = (x >> 20) as u16 & 0xFF;
                let answer = RxResponse { id: 0, offset, flags, status: (x >> 4) as i16 & 0x1FFF };
                ring.write::<2>(x >> 24, answer.to_words());
            };
            while_mutating(rewrite, || {
                for k in 0..SLOTS {
                    ring.write::<2>(k, rsp(0, 60).to_words());
                    ring.store(Word::RspProd, k + 1);
                    arena.clear();
                    if front.recv(arena, 1).is_err() {
                        break;
                    }
                    // Page and buffer k are full of k + 1: no byte of anything else arrives.
                    for (bytes, _) in arena.burst().iter() {
                        assert!(bytes.iter().all(|b| (1..=k + 1).contains(&(*b as u32)) || k == 255));
                    }
                }
            });
            r.close();
        }
    }
}

/// RX buffers and pages rewritten while they are copied: any mixture arrives, of the length that
/// was checked. Some frames are of one write, and some of two.
#[test]
fn staged_pages_changed_during_the_copy_are_survived() {
    for (way, len) in [(Way::Copy, 4096usize), (Way::Staging(256), 256), (Way::Staging(65535), 4096)] {
        let mut r = Rx::new(way);
        let Rx { domains, front, back, arena, chans } = &mut r;
        let (memory, stride): (LocalRegion, usize) = match front.chain().staging() {
            Some(area) => (area.bytes().clone(), area.slot_bytes()),
            None => {
                let pages = front.chain().pages().expect("one of the two");
                (pages.bytes().clone(), PAGE_SIZE)
            }
        };
        let written = [vec![0x11; len], vec![0x22; len]];
        assert!(memory.copy_in(0, &vec![0x11; memory.len()]), "what stood there before");
        let rewrite = |x: u32| {
            let id = (x >> 8) as usize % SLOTS as usize;
            assert!(memory.copy_in(id * stride, &written[(x >> 30) as usize & 1]));
        };
        while_mutating(rewrite, || {
            until_both(20, |seen: &mut Outcomes| {
                for _ in 0..SLOTS {
                    back.answer_rx(rsp(0, len as i16));
                }
                let mut got = 0;
                while got < SLOTS as usize {
                    arena.clear();
                    got += front.recv(arena, 1).expect("honest answers");
                    for (bytes, _) in arena.burst().iter() {
                        assert_eq!(bytes.len(), len);
                        assert!(bytes.iter().all(|b| [0x11, 0x22].contains(b)), "{way:?} {bytes:x?}");
                        seen.count(bytes.iter().any(|b| *b != bytes[0]));
                    }
                }
                front.post(&domains.guest, &chans.0).expect("standing grants");
            });
        });
        r.close();
    }
}

/// A back has filled slots with poison: the front's requests contain nothing of it, and nothing of
/// the front's own memory.
#[test]
fn xsa_216_pads_of_requests_are_zero() {
    const POISON: u32 = 0xA5A5_A5A5;
    for way in WAYS {
        let mut t = Tx::new(way);
        for idx in 0..SLOTS {
            t.back.ring.write::<3>(idx, [POISON; 3]);
        }
        let gso = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 };
        assert_eq!(t.send(3000, gso), 1);
        assert_ne!(t.back.tx(0).flags & TXF_EXTRA_INFO, 0);
        assert_eq!(t.back.ring.read::<3>(1), [1 | 1448 << 16, 1, 0], "an extra and its pads");
        assert_eq!(t.back.ring.read::<3>(2), [POISON; 3], "not used, not written");
        t.close();

        let mut r = Rx::new(way);
        for idx in 0..SLOTS {
            r.back.ring.write::<2>(idx, [POISON; 2]);
            r.back.answer_rx(rsp(0, 20));
        }
        while r.recv().expect("honest answers") > 0 {}
        r.front.post(&r.domains.guest, &r.chans.0).expect("standing grants");
        for idx in 0..SLOTS {
            assert_eq!(r.back.ring.read::<2>(idx)[0], idx, "id and pad");
        }
        r.close();
    }
}

/// A back sees in the front's memory only the frames that were sent, and zeroes. This front treats
/// every back as one that is not to be trusted: application memory is never granted, so `trusted` =
/// 0 changes nothing.
#[test]
fn xsa_376_403_shared_pages_show_frames_and_nothing_else() {
    const SECRET: u8 = 0x5E;
    for way in WAYS {
        for len in [14usize, 60, 100, 256, 257, 1500, 4096, 5000, 65535] {
            let mut t = Tx::new(way);
            // The neighbourhood in private memory.
            for _ in 0..3 {
                assert!(t.burst.push(&[SECRET; 65535], Offload::default()));
            }
            t.burst.clear();
            let frame: Vec<u8> = (0..len).map(|k| 1 + (k % 50) as u8).collect();
            assert!(t.burst.push(&frame, Offload::default()));
            assert_eq!(t.front.send(&t.domains.guest, &t.chans.0, &t.burst.burst()), Ok(1));
            let buffers = t.front.chain();
            let mut shown = Vec::new();
            for region in
                buffers.staging().map(|a| a.bytes()).into_iter().chain(buffers.pages().map(|p| p.bytes()))
            {
                let mut bytes = vec![SECRET; region.len()];
                assert!(region.copy_out(0, &mut bytes));
                shown.extend(bytes);
            }
            assert!(!shown.contains(&SECRET), "{way:?}, {len} bytes: private memory is shown");
            // The frame once, and its first bytes once more in a buffer where it went by grants.
            let in_use = shown.iter().filter(|b| **b != 0).count();
            let header = match way {
                Way::Staging(n) | Way::Heads(n) if len > n as usize => n as usize,
                _ => 0,
            };
            assert_eq!(in_use, len + header, "{way:?}, {len} bytes");
            t.close();
        }
    }
}

/// A back that notifies without end and without reason: each event is taken once until the front
/// asks for more, nothing is sent because of it, and frames go on.
#[test]
fn xsa_391_an_event_storm_wakes_the_front_as_often_as_it_asks() {
    for way in WAYS {
        let mut t = Tx::new(way);
        let Tx { domains, front, back, chans, burst } = &mut t;
        let (near, remote) = (&chans.0, &chans.1);
        let (host, guest) = (&domains.host, &domains.guest);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let _stop = Stop(&stop);
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    host.notify(remote);
                }
            });
            let mut ready = ReadySet::default();
            // No work: it may sleep again each time, and is woken again only because it unmasks.
            for _ in 0..500 {
                guest.wait(&mut ready, None);
                assert_eq!(ready.ports, [guest.local(near)], "once, however often it was sent");
                host.notify(remote); // for sure, whenever the other thread runs
                guest.wait(&mut ready, Some(Duration::ZERO));
                assert!(ready.ports.is_empty(), "not again before it was asked for");
                assert_eq!((front.reclaim(guest, 1), front.final_check(1)), (Ok(0), Ok(false)));
                guest.unmask(near);
            }
            assert_eq!(front.stats().notifications, 0, "an event is not answered with an event");
            // Work: frames in between.
            for k in 0..300u32 {
                burst.clear();
                assert!(burst.push(&[1; 64], Offload::default()));
                assert_eq!(front.send(guest, near, &burst.burst()), Ok(1));
                back.answer_tx(back.tx(k).id, RSP_OKAY);
                assert_eq!(front.reclaim(guest, 1), Ok(1));
            }
        });
        assert_eq!((front.stats().frames, front.room()), (300, SLOTS));
        t.close();
    }
}

/// A guest whose single-frame grants fail now and then.
struct Flaky {
    dice: Cell<u32>,
}

impl Flaky {
    fn roll(&self) -> u32 {
        self.dice.set(self.dice.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        self.dice.get() >> 8
    }
}

impl FrameRules for Flaky {
    fn may_grant(&self) -> Result<(), PlatformError> {
        let fails = self.roll().is_multiple_of(5);
        let e = PlatformError { op: "grant, which this test forbids now and then", code: 28 };
        if fails { Err(e) } else { Ok(()) }
    }
}

/// Steady TX traffic with grants that fail in the middle of a frame, ERROR answers, and a back that
/// keeps pages for a while: in the end every id is free, and as many pages are granted as before.
#[test]
fn xsa_457_tx_with_failures_leaks_neither_pages_nor_ids() {
    let domains = TwoDomains::new();
    let p = PerFrame::on(domains.guest.clone(), Flaky { dice: Cell::new(7) });
    let (front_ring, ring) = domains.ring::<NetTx>();
    let (near, remote) = domains.channel();
    let pages = OrdinaryPages::new(&p, &mut Regions::new(HOST), Access::ReadOnly, SLOTS, Granting::PerFrame)
        .expect("pages");
    let mut front: TxFront<OwnGrants<PerFrame<Flaky>>> =
        TxFront::new(&p, FrontRing::new(front_ring), FrontChain::new(None, Some(pages))).unwrap();
    let mut back = RawBack { ring, rsp_prod: 0 };
    let before = domains.xen.counts().grants;
    let (mut seen, mut refused, mut held) = (0u32, 0, Vec::<LocalMap>::new());
    for round in 0..3000 {
        let mut burst = Arena::new();
        for _ in 0..p.roll() % 4 {
            assert!(burst.push(&vec![3; 14 + (p.roll() % 20_000) as usize], Offload::default()));
        }
        if front.send(&p, &near, &burst.burst()).is_err() {
            refused += 1;
        }
        let asked = back.ring.load(Word::ReqProd);
        while seen != asked {
            let request = back.tx(seen);
            if p.roll().is_multiple_of(8) {
                held.push(
                    domains.host.map(GUEST, &[GrantRef(request.gref)], Access::ReadOnly).expect("granted"),
                );
            }
            back.answer_tx(request.id, [RSP_OKAY, RSP_OKAY, RSP_ERROR, RSP_DROPPED][p.roll() as usize % 4]);
            seen = seen.wrapping_add(1);
        }
        front.reclaim(&p, 1).expect("honest answers");
        assert_eq!(
            domains.xen.counts().grants,
            before + held.len(),
            "round {round}: what is held, and no more"
        );
        if p.roll().is_multiple_of(3) {
            held.clear();
        }
    }
    held.clear();
    front.reclaim(&p, 1).expect("honest answers");
    assert!(refused > 100, "grants did fail: {refused} times");
    assert_eq!((domains.xen.counts().grants, front.room()), (before, SLOTS));
    drop((back, near, remote));
    let (ring, chain) = front.into_parts();
    let (_, pages) = chain.into_parts();
    assert!(pages.expect("they are").into_granted().release(&p).is_ok());
    release_front(&domains.guest, (ring, FrontChain::new(None, None)));
    domains.assert_empty();
}

/// Steady RX traffic with failures: every slot is posted again, and as many pages are granted as
/// before.
#[test]
fn xsa_457_rx_with_failures_leaks_neither_pages_nor_slots() {
    for way in WAYS {
        let mut r = Rx::new(way);
        let before = r.domains.xen.counts().grants;
        let mut errors = 0;
        for round in 0..500u32 {
            for k in 0..SLOTS {
                let bad = (k ^ round) % 7 == 0;
                errors += bad as u64;
                r.back.answer_rx(if bad { rsp(0, RSP_ERROR) } else { rsp(0, 200) });
            }
            while r.recv().expect("honest answers") > 0 {}
            r.front.post(&r.domains.guest, &r.chans.0).expect("standing grants");
            let posted = r.back.ring.load(Word::ReqProd).wrapping_sub(r.back.rsp_prod);
            assert_eq!((posted, r.domains.xen.counts().grants), (SLOTS, before), "{way:?}, round {round}");
        }
        assert_eq!(r.front.stats().errors, errors);
        r.close();
    }
}

/// An index that is ahead of the answers: the slots still hold the front's own requests, which are
/// read as answers. The first may be valid as one; then an id appears twice.
#[test]
fn an_index_ahead_of_the_answers_is_a_fault() {
    let mut t = Tx::new(Way::Staging(256));
    for _ in 0..3 {
        assert_eq!(t.send(64, Offload::default()), 1);
    }
    t.back.publish_index(3);
    assert_eq!(t.reclaim(), Err(PeerFault::UnknownId(0)));
    t.close();
    // Backwards after it was believed, or ahead; a truth afterwards does not mend it.
    for violation in [0, 4, 300, u32::MAX, 1 << 31] {
        let mut t = Tx::new(Way::Staging(256));
        for _ in 0..3 {
            assert_eq!(t.send(64, Offload::default()), 1);
        }
        t.back.answer_tx(0, RSP_OKAY);
        assert_eq!(t.reclaim(), Ok(1));
        t.back.publish_index(violation);
        let fault = Err(PeerFault::RspProdOverrun { rsp_prod: violation, rsp_cons: 1, in_flight: 2 });
        assert_eq!(t.reclaim(), fault);
        t.back.publish_index(1);
        assert_eq!(t.reclaim(), fault);
        t.close();
    }
}
