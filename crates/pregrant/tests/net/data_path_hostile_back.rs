//! A back that breaks the protocol: each violation is one exact fault or one counted error, never a
//! panic, a leak or a stall.
#![cfg(not(miri))] // Miri has data_path_race

use pregrant::net::path::{FrontChain, FrontPath};
use pregrant::platform::{Access, InUse, PeerMem};
use pregrant::port::{MAX_FRAME, Offload};
use pregrant::ring::RingMem;
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    Extra, RSP_DROPPED, RSP_ERROR, RSP_NULL, RSP_OKAY, RXF_CSUM_BLANK, RXF_EXTRA_INFO, RXF_MORE_DATA,
    RxResponse, TxResponse,
};
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::raw_back::{Rx, Tx};
use pregrant_testkit::two_domains::{GUEST, SLOTS, Way, release_front};
use proptest::prelude::*;

const GSO: Offload = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 };

const TX_WAYS: [Way; 3] = [Way::Copy, Way::Staging(256), Way::Staging(65535)];

#[test]
fn tx_an_id_that_was_never_asked_is_a_fault() {
    for way in TX_WAYS {
        for id in [1, 255, 256, 511, u16::MAX] {
            let mut t = Tx::new(way);
            assert_eq!(t.send(64, Offload::default()), 1);
            assert_ne!(t.back.tx(0).id, id);
            t.back.answer_tx(id, RSP_OKAY);
            assert_eq!(t.reclaim(), Err(PeerFault::UnknownId(id)));
            t.close();
        }
    }
}

#[test]
fn tx_an_id_answered_twice_is_a_fault() {
    for way in TX_WAYS {
        let mut t = Tx::new(way);
        assert_eq!((t.send(64, Offload::default()), t.send(64, Offload::default())), (1, 1));
        let id = t.back.tx(0).id;
        t.back.answer_tx(id, RSP_OKAY);
        assert_eq!(t.reclaim(), Ok(1));
        t.back.answer_tx(id, RSP_OKAY);
        assert_eq!(t.reclaim(), Err(PeerFault::UnknownId(id)));
        t.close();
    }
}

/// An answer that is mended afterwards, and those before it, are not read again.
#[test]
fn nothing_moves_behind_a_fault() {
    for way in TX_WAYS {
        let mut t = Tx::new(way);
        assert_eq!((t.send(64, Offload::default()), t.send(64, Offload::default())), (1, 1));
        let [first, second] = [0, 1].map(|k| t.back.tx(k).id);
        t.back.answer_tx(first, RSP_OKAY);
        t.back.answer_tx(999, RSP_OKAY);
        let fault = Err(PeerFault::UnknownId(999));
        assert_eq!(t.reclaim(), fault);
        t.back.ring.write(1, [TxResponse { id: second, status: RSP_OKAY }.to_word()]);
        assert_eq!((t.reclaim(), t.front.is_pending()), (fault, true), "{way:?}");
        t.close();
    }
    let mut r = Rx::new(Way::Staging(2048));
    r.back.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 60 });
    r.back.answer_rx(RxResponse { id: 1, offset: 4000, flags: 0, status: 2000 });
    let fault = Err(PeerFault::BadResponse { offset: 4000, status: 2000 });
    assert_eq!((r.recv(), r.frames().len()), (fault, 1));
    r.back.ring.write(1, RxResponse { id: 1, offset: 0, flags: 0, status: 60 }.to_words());
    r.arena.clear();
    assert_eq!((r.recv(), r.frames().len()), (fault, 0));
    r.close();
}

#[test]
fn tx_null_is_for_extras_only() {
    for way in TX_WAYS {
        let mut t = Tx::new(way);
        assert_eq!(t.send(64, Offload::default()), 1);
        t.back.answer_tx(0, RSP_NULL);
        assert_eq!(t.reclaim(), Err(PeerFault::BadResponse { offset: 0, status: RSP_NULL }));
        t.close();

        // With one extra in flight one NULL is right, whatever its id; a second is not.
        let mut t = Tx::new(way);
        assert_eq!((t.send(64, GSO), t.send(64, Offload::default())), (1, 1));
        t.back.answer_tx(t.back.tx(0).id, RSP_OKAY);
        t.back.answer_tx(999, RSP_NULL);
        assert_eq!(t.reclaim(), Ok(2));
        t.back.answer_tx(999, RSP_NULL);
        assert_eq!(t.reclaim(), Err(PeerFault::BadResponse { offset: 0, status: RSP_NULL }));
        t.close();
    }
}

/// Whatever is not OKAY is an error, counted; the slot is free again.
#[test]
fn tx_any_other_status_is_a_counted_error() {
    for way in TX_WAYS {
        for status in [RSP_ERROR, RSP_DROPPED, -3, i16::MIN, 2, i16::MAX] {
            let mut t = Tx::new(way);
            let room = t.front.room();
            assert_eq!(t.send(64, Offload::default()), 1);
            t.back.answer_tx(t.back.tx(0).id, status);
            assert_eq!(t.reclaim(), Ok(1));
            assert_eq!((t.front.stats().errors, t.front.room()), (1, room), "status {status}");
            t.close();
        }
    }
}

#[test]
fn xsa_39_garbage_rsp_prod_closes_tx() {
    for (sent, violation) in [(1, 2), (1, 257), (0, 1), (0, u32::MAX), (1, u32::MAX), (1, 1 << 31)] {
        let mut t = Tx::new(Way::Copy);
        for _ in 0..sent {
            assert_eq!(t.send(64, Offload::default()), 1);
        }
        t.back.publish_index(violation);
        let fault = PeerFault::RspProdOverrun { rsp_prod: violation, rsp_cons: 0, in_flight: sent };
        assert_eq!(t.reclaim(), Err(fault));
        assert_eq!(t.front.final_check(1), Err(fault));
        t.close();
    }
    // Backwards, after an answer was taken.
    let mut t = Tx::new(Way::Copy);
    assert_eq!(t.send(64, Offload::default()), 1);
    t.back.answer_tx(t.back.tx(0).id, RSP_OKAY);
    assert_eq!(t.reclaim(), Ok(1));
    t.back.publish_index(0);
    assert_eq!(t.reclaim(), Err(PeerFault::RspProdOverrun { rsp_prod: 0, rsp_cons: 1, in_flight: 0 }));
    t.close();
}

/// A back that keeps pages mapped holds their ids back, and no others; they are free as soon as it
/// lets go, also when it has nothing more to answer.
#[test]
fn xsa_396_ids_of_pages_in_use_wait_for_their_pages() {
    let mut t = Tx::new(Way::Copy);
    let mut held = Vec::new();
    for k in 0..SLOTS {
        assert_eq!(t.send(64, Offload::default()), 1);
        let req = t.back.tx(k);
        held.push(
            t.domains
                .host
                .map(GUEST, &[pregrant::GrantRef(req.gref)], Access::ReadOnly)
                .expect("a frame's page"),
        );
        t.back.answer_tx(req.id, RSP_OKAY);
    }
    assert_eq!(t.reclaim(), Ok(SLOTS));
    assert_eq!(t.front.room(), 0, "every id's page is in use");
    assert_eq!(t.send(64, Offload::default()), 0);
    held.remove(1); // neither the oldest nor the newest
    assert_eq!((t.reclaim(), t.front.room()), (Ok(0), 1));
    held.clear();
    assert_eq!((t.reclaim(), t.front.room()), (Ok(0), SLOTS));
    t.close();
}

/// A page that the back still maps at the end stays granted until it lets go (XSA-396).
#[test]
fn xsa_396_pages_in_use_stay_granted_after_the_end() {
    let mut t = Tx::new(Way::Copy);
    assert_eq!(t.send(64, Offload::default()), 1);
    let gref = pregrant::GrantRef(t.back.tx(0).gref);
    let map = t.domains.host.map(GUEST, &[gref], Access::ReadOnly).expect("a frame's page");
    let Tx { domains, front, back, chans, .. } = t;
    drop((back, chans));
    let (ring, chain) = front.into_parts();
    let (staging, pages) = chain.into_parts();
    release_front(&domains.guest, (ring, FrontChain::new(staging, None)));
    let mut pages = pages.expect("the copy way has ordinary pages").into_granted();
    for _ in 0..2 {
        match pages.release(&domains.guest) {
            Err(InUse(kept)) => pages = kept,
            Ok(()) => panic!("released while mapped"),
        }
        assert_eq!(domains.xen.counts().grants, 1);
    }
    drop(map);
    assert!(pages.release(&domains.guest).is_ok());
    domains.assert_empty();
}

/// A burst of the caller's with a frame that no slot can describe: dropped, and the others go on.
#[test]
fn tx_a_frame_longer_than_a_frame_can_be_is_dropped() {
    for way in TX_WAYS {
        let mut t = Tx::new(way);
        assert!(t.burst.push(&[1; 64], Offload::default()));
        assert!(t.burst.push(&vec![2; MAX_FRAME + 1], Offload::default()));
        assert!(t.burst.push(&[3; 64], Offload::default()));
        assert_eq!(t.front.send(&t.domains.guest, &t.chans.0, &t.burst.burst()), Ok(3));
        let stats = t.front.stats();
        assert_eq!((stats.frames, stats.dropped, t.front.in_flight()), (2, 1, 2));
        t.close();
    }
}

const RX_WAYS: [Way; 3] = TX_WAYS;

fn rsp(offset: u16, flags: u16, status: i16) -> RxResponse {
    RxResponse { id: 0, offset, flags, status }
}

/// A slot is known by its place on the ring; what the back writes as id changes nothing.
#[test]
fn rx_ids_of_the_back_are_not_believed() {
    for way in RX_WAYS {
        let mut r = Rx::new(way);
        for id in [9, 0, u16::MAX] {
            r.back.answer_rx(RxResponse { id, offset: 0, flags: 0, status: 20 });
        }
        assert_eq!(r.recv(), Ok(3));
        assert_eq!(r.frames(), [vec![1; 20], vec![2; 20], vec![3; 20]]);
        r.close();
    }
}

#[test]
fn rx_bytes_past_the_buffer_are_a_fault() {
    let page = PAGE_SIZE as i16;
    for (way, offset, status) in [
        (Way::Copy, 1, page),
        (Way::Copy, 0, page + 1),
        (Way::Copy, page as u16, 1),
        (Way::Copy, u16::MAX, 1),
        (Way::Copy, u16::MAX, i16::MAX),
        (Way::Copy, page as u16 + 1, 0),
        (Way::Staging(256), 1, 256),
        (Way::Staging(256), 200, 57),
        (Way::Staging(256), 257, 0),
        (Way::Staging(256), 1, page),
        (Way::Staging(65535), 1, page),
        (Way::Staging(65535), 0, page + 1),
        (Way::Staging(65535), u16::MAX, i16::MAX),
    ] {
        let mut r = Rx::new(way);
        r.back.answer_rx(rsp(offset, 0, status));
        assert_eq!(r.recv(), Err(PeerFault::BadResponse { offset, status }), "{way:?}");
        r.close();
    }
}

#[test]
fn rx_bytes_up_to_the_end_of_the_buffer_are_taken() {
    for (way, offset, status) in [
        (Way::Copy, 0, 4096),
        (Way::Copy, 4082, 14),
        (Way::Staging(256), 0, 256),
        (Way::Staging(256), 242, 14),
        (Way::Staging(256), 0, 4096), // longer than a buffer: in the page
        (Way::Staging(65535), 0, 4096),
    ] {
        let mut r = Rx::new(way);
        r.back.answer_rx(rsp(offset, 0, status));
        assert_eq!(r.recv(), Ok(1));
        assert_eq!(r.frames(), [vec![1; status as usize]]);
        r.close();
    }
}

/// A frame with its first slot in a buffer and the others in pages: each part is in its memory, or
/// it is a fault.
#[test]
fn rx_parts_of_a_frame_that_is_in_two_memories_are_in_theirs() {
    for (first, second, fault) in [
        ((0, 4096), (0, 4096), None),
        ((0, 4096), (3996, 100), None),
        ((96, 4000), (0, 4096), None),
        ((4095, 1), (0, 4096), None),
        ((1, 4096), (0, 100), Some((1, 4096))),
        ((4096, 1), (0, 4096), Some((4096, 1))),
        ((u16::MAX, i16::MAX), (0, 1), Some((u16::MAX, i16::MAX))),
        ((0, 4096), (4000, 97), Some((4000, 97))),
        ((0, 4096), (1, 4096), Some((1, 4096))),
    ] {
        let mut r = Rx::new(Way::FirstSlots);
        let area = r.front.chain().staging().expect("a staging area");
        assert!(area.bytes().copy_in(0, &[7; PAGE_SIZE]));
        r.back.answer_rx(rsp(first.0, RXF_MORE_DATA, first.1));
        r.back.answer_rx(rsp(second.0, 0, second.1));
        match fault {
            Some((offset, status)) => {
                assert_eq!(r.recv(), Err(PeerFault::BadResponse { offset, status }), "{first:?}, {second:?}");
            }
            None => {
                assert_eq!(r.recv(), Ok(1), "{first:?}, {second:?}");
                assert_eq!(r.frames(), [[vec![7; first.1 as usize], vec![2; second.1 as usize]].concat()]);
            }
        }
        r.close();
    }
}

#[test]
fn rx_a_chain_without_end_is_a_fault() {
    for way in RX_WAYS {
        for status in [0, 1, -1] {
            let mut r = Rx::new(way);
            for _ in 0..SLOTS {
                r.back.answer_rx(rsp(0, RXF_MORE_DATA, status));
            }
            assert_eq!(r.recv(), Err(PeerFault::TooManySlots));
            r.close();
        }
        let mut r = Rx::new(way);
        r.back.answer_rx(rsp(0, RXF_EXTRA_INFO, 20));
        for _ in 1..SLOTS {
            r.back.answer_rx_words(Extra::Gso { size: 1, gso_type: 1 }.to_words(true));
        }
        assert_eq!(r.recv(), Err(PeerFault::TooManySlots));
        r.close();
    }
}

/// Seventeen whole pages are more than a frame can have.
#[test]
fn rx_a_frame_longer_than_a_frame_can_be_is_a_fault() {
    for way in [Way::Copy, Way::Staging(65535)] {
        let mut r = Rx::new(way);
        for k in 0..17 {
            r.back.answer_rx(rsp(0, if k < 16 { RXF_MORE_DATA } else { 0 }, 4096));
        }
        assert_eq!(r.recv(), Err(PeerFault::BadResponse { offset: 0, status: 4096 }));
        r.close();
    }
}

/// A negative status anywhere in a frame costs that frame, counted, and nothing else.
#[test]
fn rx_a_negative_status_is_a_counted_error() {
    for way in RX_WAYS {
        for bad in [RSP_ERROR, RSP_DROPPED, i16::MIN] {
            for place in 0..3 {
                let mut r = Rx::new(way);
                for k in 0..3 {
                    let flags = if k < 2 { RXF_MORE_DATA } else { 0 };
                    r.back.answer_rx(rsp(0, flags, if k == place { bad } else { 4096 }));
                }
                r.back.answer_rx(rsp(0, 0, bad));
                r.back.answer_rx(rsp(0, 0, 64));
                assert_eq!(r.recv(), Ok(1));
                assert_eq!((r.frames(), r.front.stats().errors), (vec![vec![5; 64]], 2));
                r.close();
            }
        }
    }
}

#[test]
fn rx_extras_that_do_not_exist_are_faults() {
    for way in RX_WAYS {
        for found in [0u8, 6, 255] {
            let mut r = Rx::new(way);
            r.back.answer_rx(rsp(0, RXF_EXTRA_INFO, 20));
            r.back.answer_rx_words([found as u32, 0]);
            assert_eq!(r.recv(), Err(PeerFault::BadExtra(found)));
            r.close();
        }
        for (size, gso_type) in [(0u16, 1u8), (1448, 0), (1448, 3)] {
            let mut r = Rx::new(way);
            r.back.answer_rx(rsp(0, RXF_EXTRA_INFO, 20));
            r.back.answer_rx_words([1 | (size as u32) << 16, gso_type as u32]);
            assert_eq!(r.recv(), Err(PeerFault::BadGso { size, gso_type }));
            r.close();
        }
    }
}

/// A frame that the back publishes in parts is received when it is complete: until then there is no
/// work, and no stall afterwards.
#[test]
fn rx_a_frame_in_pieces_is_waited_for() {
    for way in RX_WAYS {
        let mut r = Rx::new(way);
        r.back.answer_rx(rsp(0, 0, 20));
        r.back.answer_rx(rsp(0, RXF_EXTRA_INFO | RXF_MORE_DATA | RXF_CSUM_BLANK, 4096));
        assert_eq!((r.recv(), r.frames()), (Ok(1), vec![vec![1; 20]]));
        for _ in 0..2 {
            assert_eq!(r.recv(), Ok(0));
            assert_eq!(r.front.final_check(1), Ok(false), "one may sleep");
        }
        r.back.answer_rx_words(Extra::Gso { size: 1448, gso_type: 1 }.to_words(false));
        assert_eq!(r.front.final_check(1), Ok(true), "one is woken by the next answer");
        assert_eq!(r.recv(), Ok(0));
        assert_eq!(r.front.final_check(1), Ok(false));
        r.back.answer_rx(rsp(0, 0, 9));
        r.back.answer_rx(rsp(0, 0, 21));
        assert_eq!(r.recv(), Ok(2));
        assert_eq!(r.frames(), [[vec![2; 4096], vec![4; 9]].concat(), vec![5; 21]]);
        r.close();
    }
}

#[test]
fn xsa_39_garbage_rsp_prod_closes_rx() {
    for violation in [SLOTS + 1, 1 << 31, u32::MAX] {
        let mut r = Rx::new(Way::Copy);
        r.back.publish_index(violation);
        let fault = PeerFault::RspProdOverrun { rsp_prod: violation, rsp_cons: 0, in_flight: SLOTS };
        assert_eq!(r.recv(), Err(fault));
        r.close();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Answers of any bits: a fault, or frames that end in the memory that they name; never more
    /// bytes than arrived.
    #[test]
    fn rx_any_answers_are_survived(
        way in proptest::sample::select(&RX_WAYS[..]),
        words in proptest::collection::vec((any::<u32>(), prop_oneof![any::<u32>(), 0..0x10_0000u32]), 1..256),
        steps in 1..5usize,
    ) {
        let mut r = Rx::new(way);
        let mut fault = None;
        for chunk in words.chunks(words.len().div_ceil(steps)) {
            for &(a, b) in chunk {
                r.back.answer_rx_words([a, b]);
            }
            for _ in 0..8 {
                match r.recv() {
                    Ok(_) => prop_assert!(r.frames().iter().all(|f| f.len() <= MAX_FRAME)),
                    Err(e) => fault = Some(e),
                }
            }
        }
        // A fault stays one: the device is closed, and asking again does not make it whole.
        if let Some(e) = fault {
            prop_assert_eq!(r.recv(), Err(e));
        }
        r.close();
    }

    #[test]
    fn tx_any_answers_are_survived(
        way in proptest::sample::select(&TX_WAYS[..]),
        frames in proptest::collection::vec((14..9000usize, any::<bool>()), 1..40),
        answers in proptest::collection::vec((0..300u16, prop_oneof![3 => Just(0i16), 1 => -2..=2i16, 1 => any::<i16>()]), 1..80),
    ) {
        let mut t = Tx::new(way);
        let mut sent = 0;
        for (len, gso) in frames {
            sent += t.send(len, if gso { GSO } else { Offload::default() });
        }
        prop_assert!(sent > 0);
        let in_flight = t.front.in_flight();
        let mut taken = 0;
        for (id, status) in answers {
            t.back.answer_tx(id, status);
            match t.reclaim() {
                Ok(n) => taken += n,
                Err(_) => break,
            }
        }
        prop_assert!(taken <= in_flight);
        t.close();
    }
}
