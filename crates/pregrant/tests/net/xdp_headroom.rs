//! XDP headroom (docs/protocol 2.9): how a front asks for it while it is connected, and where
//! frames are then.
#![cfg(not(miri))]

use pregrant::net::back::{BackStep, BackVif, Polled, PreviousState, SharedControl, VifConfig};
use pregrant::net::features::RxAccepts;
use pregrant::net::front::{FrontConfig, FrontVif, Granting};
use pregrant::net::path::FrontPath;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::LocalXen;
use pregrant::port::{Arena, Offload};
use pregrant::ring::{NetRx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{Extra, GSO_TYPE_TCPV4, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse};
use pregrant::xenbus::XenbusState;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::bus::{connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST, RxGame, TestPort, TwoDomains, Way};

fn post(g: &mut RxGame, n: usize) {
    for _ in 0..n {
        let id = g.model.next_index() % 256;
        g.model.post(RxRequest { id: id as u16, gref: g.refs[id as usize].0 });
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|k| (k as u8).wrapping_mul(31) ^ (k >> 8) as u8).collect()
}

fn gso() -> Offload {
    Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, csum_blank: true, csum_ok: true }
}

/// Each fragment is after the headroom, in exactly as many slots as that needs; the extra info says
/// so.
#[test]
fn frames_are_behind_the_headroom_and_need_the_slots_that_takes() {
    for headroom in [1u16, 256, 2048] {
        let room = PAGE_SIZE - usize::from(headroom);
        for len in [60, room, room + 1, PAGE_SIZE, 2 * room, 65_535] {
            for offload in [Offload::default(), gso()] {
                let domains = TwoDomains::new();
                let mut g = domains.rx_model(Way::Copy, u32::MAX - 3, RxAccepts::ALL);
                g.back.set_headroom(headroom);
                let extras = 1 + usize::from(offload.gso_type != 0);
                let needed = len.div_ceil(room) + extras;
                g.port.gives.push_back((bytes(len), offload));
                post(&mut g, needed - 1);
                assert_eq!(g.run(), Ok(()));
                assert_eq!(g.model.frames(), Ok(vec![]), "{len} bytes need {needed} slots");
                post(&mut g, 1);
                assert_eq!(g.run(), Ok(()));
                let frame = g.model.frames().expect("answers by the rules").remove(0);
                assert_eq!(g.model.in_flight(), 0, "and no more");
                let mut reported = vec![Extra::Xdp { headroom }];
                if offload.gso_type != 0 {
                    reported.insert(0, Extra::Gso { size: 1448, gso_type: GSO_TYPE_TCPV4 });
                }
                assert_eq!(frame.extras, reported);
                assert!(frame.slots[0].flags & RXF_EXTRA_INFO != 0);
                let mut got = Vec::new();
                for (k, slot) in frame.slots.iter().enumerate() {
                    assert_eq!(slot.offset, headroom);
                    assert_eq!(slot.flags & RXF_MORE_DATA != 0, k + 1 < frame.slots.len());
                    let mut piece = vec![0; slot.status as usize];
                    let mut ahead = vec![1; usize::from(headroom)];
                    let page = usize::from(slot.id) * PAGE_SIZE;
                    assert!(g.memory.copy_out(page, &mut ahead));
                    assert!(g.memory.copy_out(page + usize::from(headroom), &mut piece));
                    assert!(ahead.iter().all(|b| *b == 0), "the headroom is the guest's");
                    got.extend(piece);
                }
                assert!(got == bytes(len), "{len} bytes behind {headroom}");
                g.close();
                domains.assert_empty();
            }
        }
    }
}

#[test]
fn without_sg_a_frame_has_one_page_less_its_headroom() {
    let domains = TwoDomains::new();
    let mut g = domains.rx_model(Way::Staging(4096), 0, RxAccepts { sg: false, ..RxAccepts::ALL });
    g.back.set_headroom(256);
    post(&mut g, 8);
    g.port.gives.extend([(bytes(3841), Offload::default()), (bytes(3840), Offload::default())]);
    assert_eq!(g.run(), Ok(()));
    let frames = g.model.frames().expect("answers by the rules");
    assert_eq!((frames.len(), frames[0].bytes(), g.back.stats().dropped), (1, 3840, 1));
    g.close();
}

/// A buffer has room for what its headroom leaves; both ends count it.
#[test]
fn staged_frames_have_it_in_their_buffers() {
    for (way, len, staged) in [
        (Way::Staging(2048), 60, true),
        (Way::Staging(2048), 1792, true),
        (Way::Staging(2048), 1793, false),
        (Way::Staging(256), 60, false),
        (Way::Staging(65535), 60, true),
        (Way::Staging(65535), 3841, true),
        (Way::Staging(65535), 65535, true),
        (Way::Staging(4096), 3840, true),
        (Way::Staging(4096), 3841, false),
        (Way::FirstSlots, 3841, false),
        (Way::FirstSlots, 9000, false),
        (Way::Heads(2048), 1792, true),
        (Way::Heads(2048), 1793, false),
        (Way::Heads(2048), 9000, false),
        (Way::Heads(256), 60, false),
        (Way::Heads(128), 9000, false),
    ] {
        let domains = TwoDomains::new();
        let mut ends = domains.rx(way, Granting::Standing, 0, false);
        ends.back.set_headroom(256);
        let mut port = TestPort::default();
        for offload in [Offload::default(), gso()] {
            port.gives.push_back((bytes(len), offload));
        }
        ends.front.post(&domains.guest, &ends.front_chan).expect("grants stand");
        while ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &SharedControl::default())
            == Ok(Polled::More)
        {}
        let mut got = Arena::new();
        assert_eq!(ends.front.recv(&mut got, 1), Ok(2), "{len} by {way:?}");
        assert!((0..2).all(|i| got.burst().frame(i) == bytes(len)), "{len} by {way:?}");
        let (front, back) = (ends.front.stats(), ends.back.stats());
        assert_eq!((front.staging, back.staging), (2 * u64::from(staged), 2 * u64::from(staged)), "{way:?}");
        if staged {
            let area = ends.front.chain().staging().expect("a staging area");
            let mut buffer = vec![0; area.slot_bytes()];
            assert!(area.bytes().copy_out(area.start(0), &mut buffer));
            assert_eq!(buffer[..256], [0; 256], "the headroom is the guest's");
            let piece = len.min(PAGE_SIZE - 256);
            assert_eq!(buffer[256..256 + piece], bytes(len)[..piece]);
        }
        ends.close(&domains);
        domains.assert_empty();
    }
}

/// 7 with a key, 8, 4; the queues live on all the while, and each frame is as the front last asked.
#[test]
fn a_front_asks_while_it_is_connected() {
    use XenbusState as S;
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let config = FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() };
    let mut front = FrontVif::new(HOST, config, false);
    let mut back = BackVif::new(GUEST, 0, VifConfig::default());
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    assert_eq!(bb.own.borrow()["feature-xdp-headroom"], "1");
    let gref: u32 = fb.own.borrow()["rx-ring-ref"].parse().expect("a number");
    let check = RingPages::<NetRx, _>::new(
        pregrant::platform::PeerMem::map(&h, GUEST, &[GrantRef(gref)], pregrant::platform::Access::ReadWrite)
            .expect("the front's ring"),
    );
    // Its pages stay the front's; the answers are checked as they stand on the ring.
    let mut at = 0;
    let mut deliver = |back: &mut BackVif<_>| {
        let mut port = TestPort::default();
        port.gives.push_back((bytes(60), Offload::default()));
        while back.poll_rx(&h, 0, &mut port) == Ok(Polled::More) {}
        let first = RxResponse::from_words(pregrant::ring::RingMem::read::<2>(&check, at));
        at += 1 + u32::from(first.flags & RXF_EXTRA_INFO != 0);
        first.offset
    };
    assert_eq!(deliver(&mut back), 0);
    for (key, offset) in [
        (Some("256"), 256),
        (Some("0"), 0),
        (Some("99999"), 2048),
        (Some("many"), 0),
        (Some("64"), 64),
        (None, 0),
    ] {
        {
            let mut own = fb.own.borrow_mut();
            match key {
                Some(key) => drop(own.insert("xdp-headroom".into(), key.into())),
                None => drop(own.remove("xdp-headroom")),
            }
            own.insert("state".into(), "7".into());
        }
        assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
        assert_eq!((back.state(), bb.own.borrow()["state"].as_str()), (S::Reconfigured, "8"));
        assert_eq!(deliver(&mut back), offset, "{key:?}");
        fb.own.borrow_mut().insert("state".into(), "4".into());
        assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
        assert_eq!((back.state(), back.nr_queues()), (S::Connected, 1));
        assert_eq!(deliver(&mut back), offset, "{key:?}");
    }
    // Linux's front says 7, and writes the key after that: a back that is fast reads the one
    // before.
    for key in ["256", "0"] {
        fb.own.borrow_mut().insert("state".into(), "7".into());
        assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
        assert_eq!(back.state(), S::Reconfigured);
        fb.own.borrow_mut().extend([("xdp-headroom".into(), key.into()), ("state".into(), "4".into())]);
        assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
        assert_eq!(back.state(), S::Connected);
        assert_eq!(deliver(&mut back).to_string(), key);
    }
    // A back that dies at 8, its front still at 7, or at 4 again.
    for front_state in ["7", "4"] {
        fb.own.borrow_mut().extend([("state".into(), "7".into()), ("xdp-headroom".into(), "128".into())]);
        assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
        fb.own.borrow_mut().insert("state".into(), front_state.into());
        drop(back);
        back = BackVif::new(GUEST, 0, VifConfig::default());
        assert_eq!(back.inherit(&mut bb), Ok(PreviousState::Connected));
        assert_eq!(back.reattach(&h, &mut bb, &mut |_, _| None).ok(), Some(true));
        assert_eq!(deliver(&mut back), 128);
        fb.own.borrow_mut().insert("state".into(), "4".into());
        assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
        assert_eq!(back.state(), S::Connected);
    }
    // A fault closes it at 8 too, and saying 7 brings no one back.
    back.close(&h, &mut bb, Some("a fault")).expect("plain maps");
    for state in ["7", "4", "7"] {
        fb.own.borrow_mut().insert("state".into(), state.into());
        assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
        assert_eq!((back.state(), back.nr_queues()), (S::Closed, 0));
    }
}
