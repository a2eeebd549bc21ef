//! The back's answers to a guest's RX requests, played by the model front by every path: answers in
//! the places of their requests, frames that wait for slots, and requests that name pages that do
//! not exist.
#![cfg(not(miri))] // Miri has data_path_race

use pregrant::PeerFault;
use pregrant::net::features::RxAccepts;
use pregrant::net::path::FrontPath;
use pregrant::port::Offload;
use pregrant::ring::{NetRx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    Extra, RXF_CSUM_BLANK, RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest,
};
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::model_front::RxFrame;
use pregrant_testkit::two_domains::{Frame, RxGame, SLOTS, TwoDomains, WAYS, Way};

const BAD_GREF: u32 = 4_000_000;
const SG: RxAccepts = RxAccepts::ALL;

fn frame(len: usize, seed: u8) -> Frame {
    ((0..len).map(|k| (k as u8).wrapping_mul(31) ^ (k >> 8) as u8 ^ seed).collect(), Offload::default())
}

fn post(g: &mut RxGame, n: u32) {
    for _ in 0..n {
        let id = g.model.next_index() % SLOTS;
        let gref = g.refs[id as usize].0;
        g.model.post(RxRequest { id: id as u16, gref });
    }
}

/// The bytes of a delivered frame, at the place that the protocol defines.
fn content(g: &RxGame, way: Way, frame: &RxFrame) -> Vec<u8> {
    let total = frame.bytes();
    let mut bytes = Vec::new();
    for slot in &frame.slots {
        let mut piece = vec![0; slot.status as usize];
        let staged = g.area.as_ref().filter(|area| total <= area.slot_bytes() || way.copy_only());
        let copied = match staged {
            Some(area) => {
                assert!(slot.offset % 64 == 0 && slot.offset as usize + piece.len() <= area.slot_bytes());
                area.bytes().copy_out(area.start(slot.id) + slot.offset as usize, &mut piece)
            }
            None => {
                assert_eq!(slot.offset, 0);
                g.memory.copy_out(slot.id as usize * PAGE_SIZE, &mut piece)
            }
        };
        assert!(copied);
        bytes.extend(piece);
    }
    bytes
}

fn on_all_ways(start: u32, accepts: RxAccepts, test: impl Fn(&mut RxGame, Way)) {
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.rx_model(way, start, accepts);
        test(&mut g, way);
        g.close();
        domains.assert_empty();
    }
}

#[test]
fn frames_arrive_in_the_slots_of_their_requests() {
    on_all_ways(0, SG, |g, way| {
        let lens = [14, 64, 65, 256, 257, 4096, 4097, 9000, 65535, 60];
        post(g, SLOTS);
        g.port.gives.extend(lens.iter().map(|&len| frame(len, len as u8)));
        assert_eq!(g.run(), Ok(()));
        let frames = g.model.frames().expect("answers by the rules");
        assert_eq!(frames.len(), lens.len());
        for (got, &len) in frames.iter().zip(&lens) {
            assert_eq!(got.slots.len(), len.div_ceil(PAGE_SIZE));
            assert!(content(g, way, got) == frame(len, len as u8).0, "{way:?}, {len} bytes");
            let (last, first) = got.slots.split_last().expect("a slot");
            assert!(first.iter().all(|s| s.flags == RXF_MORE_DATA && s.status == 4096));
            assert_eq!(last.flags, 0);
        }
    });
}

#[test]
fn what_is_known_of_a_frame_is_in_its_first_slot() {
    on_all_ways(u32::MAX - 2, SG, |g, _| {
        post(g, 8);
        let blank = Offload { csum_blank: true, csum_ok: true, gso_type: 2, gso_size: 1440 };
        let ok = Offload { csum_ok: true, ..Offload::default() };
        g.port.gives.extend([(frame(5000, 1).0, blank), (frame(60, 2).0, ok), (frame(60, 3).0, blank)]);
        assert_eq!(g.run(), Ok(()));
        let frames = g.model.frames().expect("answers by the rules");
        let flags: Vec<Vec<u16>> = frames.iter().map(|f| f.slots.iter().map(|s| s.flags).collect()).collect();
        let first = RXF_CSUM_BLANK | RXF_DATA_VALIDATED | RXF_EXTRA_INFO;
        assert_eq!(flags, [vec![first | RXF_MORE_DATA, 0], vec![RXF_DATA_VALIDATED], vec![first]]);
        let gso = vec![Extra::Gso { size: 1440, gso_type: 2 }];
        assert_eq!(frames.iter().map(|f| f.extras.clone()).collect::<Vec<_>>(), [gso.clone(), vec![], gso]);
        assert_eq!(g.model.in_flight(), 8 - 3 - 1 - 2);
    });
}

/// XSA-392: one slot, then one more and so on. The frame waits, nothing is answered half, and the
/// back asks for the event at which enough slots are there.
#[test]
fn xsa_392_a_frame_waits_for_all_of_its_slots() {
    on_all_ways(0, SG, |g, way| {
        let ring = RingPages::<NetRx, _>::new(g.ring_memory.clone());
        g.port.gives.extend([frame(3 * PAGE_SIZE, 1), frame(60, 2)]);
        for posted in 0..3 {
            assert_eq!(g.run(), Ok(()));
            assert_eq!(g.model.frames(), Ok(vec![]));
            assert_eq!(g.back.final_check(), Ok(false), "{way:?} with {posted} of 3 slots");
            assert_eq!(ring.load(Word::ReqEvent), 3);
            post(g, 1);
        }
        assert_eq!(g.back.final_check(), Ok(true));
        assert_eq!(g.run(), Ok(()));
        assert_eq!(g.model.frames().expect("answers by the rules").len(), 1);
        assert_eq!((g.back.final_check(), ring.load(Word::ReqEvent)), (Ok(false), 4));
        post(g, 1);
        assert_eq!((g.back.final_check(), g.run()), (Ok(true), Ok(())));
        assert_eq!(g.model.frames().expect("answers by the rules").len(), 1);
        assert_eq!((g.back.final_check(), g.model.finish()), (Ok(false), Ok(())), "nothing waits");
    });
}

/// A guest without scatter-gather gets no frame over several slots, nor one longer than such a
/// guest can receive; it does get the others.
#[test]
fn frames_over_several_slots_are_for_guests_with_sg() {
    on_all_ways(0, RxAccepts { sg: false, ..SG }, |g, _| {
        post(g, 16);
        let all = [4097, 4096, 65535, 60, 1514, 1515, 2048, 2049];
        g.port.gives.extend(all.iter().map(|len| frame(*len, 1)));
        assert_eq!(g.run(), Ok(()));
        // As many as an MTU of 1500 allows, or as the front's buffers have.
        let buffers = g.back.chain().buffers().map_or(0, |buffers| buffers.data_len as usize);
        let due: Vec<_> = all.into_iter().filter(|len| *len <= buffers.clamp(1514, PAGE_SIZE)).collect();
        let lens: Vec<usize> = g.model.frames().expect("by the rules").iter().map(RxFrame::bytes).collect();
        assert_eq!(lens, due);
        let stats = g.back.stats();
        assert_eq!((stats.too_long as usize, stats.dropped), (all.len() - due.len(), 0));
        assert_eq!(stats.bytes, due.iter().sum::<usize>() as u64, "of the frames handed on");
    });
}

/// A page that does not exist, or that may not be written, costs its frame: ERROR on every slot of
/// the frame.
#[test]
fn pages_that_cannot_be_written_cost_their_frame() {
    for way in WAYS.into_iter().filter(|way| !way.copy_only()) {
        for place in 0..3 {
            let domains = TwoDomains::new();
            let read_only = domains.tx_model(Way::Copy, 0, 1);
            for gref in [BAD_GREF, 0, read_only.refs[0].0] {
                let mut g = domains.rx_model(way, 0, SG);
                for id in 0..4u16 {
                    let gref = if id == place { GrantRef(gref) } else { g.refs[id as usize] };
                    g.model.post(RxRequest { id, gref: gref.0 });
                }
                g.port.gives.extend([frame(3 * PAGE_SIZE, 1), frame(4096, 2)]);
                assert_eq!(g.run(), Ok(()));
                let frames = g.model.frames().expect("answers by the rules");
                assert_eq!(frames[0].slots.iter().map(|s| s.status).collect::<Vec<_>>(), [-1; 3], "{way:?}");
                assert!(!frames[1].failed() && content(&g, way, &frames[1]) == frame(4096, 2).0);
                assert_eq!((g.back.stats().frames, g.back.stats().errors), (1, 1));
                assert_eq!(g.back.stats().bytes, 4096, "of the frame handed on");
                g.close();
            }
            read_only.close();
            domains.assert_empty();
        }
    }
}

/// With staging buffers the page is not checked for a frame that fits in a buffer.
#[test]
fn staged_frames_need_no_page() {
    for len in [64, 256, 4096, 65535] {
        let domains = TwoDomains::new();
        let way = Way::Staging(len);
        let mut g = domains.rx_model(way, 0, SG);
        for id in [7, 3] {
            g.model.post(RxRequest { id, gref: 0 });
        }
        g.port.gives.extend([frame(60, 1), frame(64, 2)]);
        assert_eq!(g.run(), Ok(()));
        let frames = g.model.frames().expect("answers by the rules");
        assert!(
            content(&g, way, &frames[0]) == frame(60, 1).0 && content(&g, way, &frames[1]) == frame(64, 2).0
        );
        assert_eq!((g.back.stats().staging, domains.xen.counts().copies), (2, 0));
        g.close();
        domains.assert_empty();
    }
}

#[test]
fn staged_ids_that_are_not_in_the_list_cost_their_frame() {
    for len in [256, 65535] {
        for id in [SLOTS as u16, 300, 511, 512, u16::MAX] {
            let domains = TwoDomains::new();
            let way = Way::Staging(len);
            let mut g = domains.rx_model(way, 0, SG);
            let gref = g.refs[0].0;
            g.model.post(RxRequest { id, gref });
            g.model.post(RxRequest { id: 4, gref });
            g.port.gives.extend([frame(60, 1), frame(64, 2)]);
            assert_eq!(g.run(), Ok(()));
            let frames = g.model.frames().expect("answers by the rules");
            assert_eq!((frames[0].failed(), frames[1].failed()), (true, false), "id {id}");
            assert!(content(&g, way, &frames[1]) == frame(64, 2).0);
            g.close();
            domains.assert_empty();
        }
    }
}

#[test]
fn xsa_39_garbage_req_prod_closes_rx() {
    on_all_ways(0, SG, |g, _| {
        for violation in [SLOTS + 1, 1 << 31, u32::MAX] {
            g.model.publish_index(violation);
            g.port.gives.push_back(frame(60, 1));
            let fault = PeerFault::ReqProdOverrun { req_prod: violation, req_cons: 0, size: SLOTS };
            assert_eq!(g.run(), Err(fault));
            g.model.publish_index(0);
            assert_eq!(g.model.frames(), Ok(vec![]));
        }
    });
}

/// Room in the ring depends on requests that were taken and not answered; here there are none, so a
/// full ring is used to its last slot.
#[test]
fn full_rings_are_used_to_the_last_slot() {
    on_all_ways(100, SG, |g, _| {
        for _ in 0..3 {
            post(g, SLOTS);
            g.port.gives.extend((0..SLOTS).map(|k| frame(60 + k as usize, k as u8)));
            assert_eq!(g.run(), Ok(()));
            assert_eq!(g.model.frames().expect("answers by the rules").len(), SLOTS as usize);
            assert_eq!(g.model.finish(), Ok(()));
        }
    });
}

#[test]
fn what_a_front_did_not_offer_to_take_is_finished_or_dropped() {
    let tcp = |ipv6: bool| {
        // Ethernet, IPv4 or IPv6, TCP without options and payload; the sums are zero, so blank.
        let mut frame = vec![0u8; if ipv6 { 14 + 40 + 20 } else { 14 + 20 + 20 }];
        if ipv6 {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[14] = 0x60;
            frame[18..20].copy_from_slice(&20u16.to_be_bytes());
            frame[20] = 6;
            frame[14 + 40 + 12] = 0x50;
        } else {
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] = 0x45;
            frame[16..18].copy_from_slice(&40u16.to_be_bytes());
            frame[23] = 6;
            frame[14 + 20 + 12] = 0x50;
        }
        pregrant::net::checksum::make_blank(&mut frame).expect("a TCP frame");
        frame
    };
    let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
    let gso = Offload { gso_type: 1, gso_size: 1000, ..blank };
    let accepts = RxAccepts { gso_tcpv4: false, csum: false, ipv6_csum: false, ..SG };
    on_all_ways(0, accepts, |g, way| {
        for ipv6 in [false, true] {
            g.port.gives.push_back((tcp(ipv6), blank));
        }
        g.port.gives.push_back((tcp(false), gso));
        // blank, and no TCP or UDP: no one can finish it
        g.port.gives.push_back((vec![0; 60], blank));
        post(g, 8);
        assert_eq!(g.run(), Ok(()));
        let frames = g.model.frames().expect("answers by the rules");
        assert_eq!(frames.len(), 2, "{way:?}");
        for (got, ipv6) in frames.iter().zip([false, true]) {
            assert!(got.extras.is_empty() && got.slots[0].flags == RXF_DATA_VALIDATED, "{way:?}");
            let mut whole = tcp(ipv6);
            pregrant::net::checksum::finish_blank(&mut whole).expect("a TCP frame");
            assert_eq!(content(g, way, got), whole, "{way:?}");
        }
        assert_eq!(g.back.stats().dropped, 2);
    });
}
