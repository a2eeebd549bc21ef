//! The rules of docs/protocol 2.6 for requests of a guest, each played by the model front by every
//! path: what is dropped, what is answered with an error, what closes the device, and what looks
//! odd and is valid.
#![cfg(not(miri))] // Miri has data_path_race

use pregrant::PeerFault;
use pregrant::net::gso::MIN_GSO_SIZE;
use pregrant::port::Offload;
use pregrant::ring::RingMem;
use pregrant::wire::netif::{
    Extra, RSP_ERROR, RSP_NULL, RSP_OKAY, TXF_CSUM_BLANK, TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_MORE_DATA,
    TxRequest,
};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{Frame, TwoDomains, TxGame, WAYS, Way};
use proptest::prelude::*;

const OKAY: i16 = RSP_OKAY;
const ERROR: i16 = RSP_ERROR;
const NULL: i16 = RSP_NULL;
/// A grant that does not exist.
const BAD_GREF: u32 = 4_000_000;
/// Pages of the model's memory; its fragments use page `slot % PAGES`.
const PAGES: usize = 24;

/// A fragment: offset and length in its page; its slot's number chooses the page.
type Piece = (u16, u16);

/// A frame to play, with what must arrive of it.
struct Played {
    slots: Vec<Slot>,
    bytes: Vec<u8>,
}

/// The slots of a frame of `pieces`, with ids from `id` on, as a front writes them.
fn frame(g: &TxGame, id: u16, pieces: &[Piece], flags: u16, extras: &[Extra]) -> Played {
    let total: usize = pieces.iter().map(|p| p.1 as usize).sum();
    let mut bytes = Vec::new();
    let mut slots = Vec::new();
    for (k, &(offset, len)) in pieces.iter().enumerate() {
        let page = (id as usize + k) % PAGES;
        bytes.extend(g.content(page, offset as usize, len as usize));
        let mut req = TxRequest { gref: g.refs[page].0, offset, flags: 0, id: id + k as u16, size: len };
        if k + 1 < pieces.len() {
            req.flags |= TXF_MORE_DATA;
        }
        if k == 0 {
            req.size = total as u16;
            req.flags |= flags | if extras.is_empty() { 0 } else { TXF_EXTRA_INFO };
        }
        slots.push(Slot::Data(req));
        if k == 0 {
            let last = extras.len().saturating_sub(1);
            slots.extend(extras.iter().enumerate().map(|(n, e)| Slot::extra(*e, n < last)));
        }
    }
    Played { slots, bytes }
}

fn edit(slots: &mut [Slot], k: usize, change: impl FnOnce(&mut TxRequest)) {
    match &mut slots[k] {
        Slot::Data(req) => change(req),
        Slot::Extra(_) => panic!("slot {k} is an extra"),
    }
}

/// Plays one frame between two good ones, on every way: the good ones arrive and are answered OKAY;
/// the middle one gets `expect`, and arrives if `arrives`.
fn between_good_ones(make: impl Fn(&TxGame) -> Played, expect: &[i16], arrives: Option<Offload>) {
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(way, u32::MAX - 9, PAGES);
        let before = frame(&g, 200, &[(0, 60)], 0, &[]);
        let after = frame(&g, 210, &[(8, 4000), (9, 700)], 0, &[]);
        let middle = make(&g);
        for played in [&before, &middle, &after] {
            g.model.play(&played.slots);
        }
        assert_eq!(g.run(), Ok(()), "{way:?}");
        let answers = g.model.answers().expect("answers by the rules");
        assert_eq!(answers, [vec![OKAY], expect.to_vec(), vec![OKAY, OKAY]], "{way:?}");
        assert_eq!(g.model.finish(), Ok(()));
        let mut due: Vec<Frame> = vec![(before.bytes, Offload::default())];
        due.extend(arrives.map(|offload| (middle.bytes, offload)));
        due.push((after.bytes, Offload::default()));
        assert!(g.port.took == due, "{way:?}: the port took {} frames, not what was due", g.port.took.len());
        let stats = g.back.stats();
        assert_eq!((stats.frames, stats.errors), (due.len() as u64, 3 - due.len() as u64), "{way:?}");
        g.close();
        domains.assert_empty();
    }
}

fn arrives(make: impl Fn(&TxGame) -> Played, expect: &[i16]) {
    between_good_ones(make, expect, Some(Offload::default()));
}

fn refused(make: impl Fn(&TxGame) -> Played, expect: &[i16]) {
    between_good_ones(make, expect, None);
}

/// Plays a frame after a good one, by every path: the exact fault, no answer, nothing passed on,
/// and the same fault when asked again.
fn fatal(make: impl Fn(&TxGame) -> Vec<Slot>, fault: PeerFault) {
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(way, 0, PAGES);
        let good = frame(&g, 200, &[(0, 60)], 0, &[]);
        g.model.play(&good.slots);
        let bad = make(&g);
        g.model.play(&bad);
        for _ in 0..2 {
            assert_eq!(g.run(), Err(fault), "{way:?}");
        }
        assert_eq!(g.model.answers(), Ok(vec![]), "{way:?}: nothing of the batch is answered");
        assert!(g.port.took.is_empty());
        for (k, slot) in good.slots.iter().chain(&bad).enumerate() {
            let words = match slot {
                Slot::Data(req) => req.to_words(),
                Slot::Extra(words) => *words,
            };
            assert_eq!(g.model.mem().read::<3>(k as u32), words, "slot {k} is as the front wrote it");
        }
        g.close();
        domains.assert_empty();
    }
}

// Frames that are right, and seem odd.

#[test]
fn checksum_flags_arrive() {
    let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
    let ok = Offload { csum_ok: true, ..Offload::default() };
    for (flags, offload) in [
        (TXF_CSUM_BLANK | TXF_DATA_VALIDATED, blank),
        (TXF_CSUM_BLANK, blank), // blank implies validated
        (TXF_DATA_VALIDATED, ok),
        (0xFFF0, Offload::default()), // bits that no one has given a meaning
    ] {
        between_good_ones(|g| frame(g, 0, &[(0, 600)], flags, &[]), &[OKAY], Some(offload));
    }
}

#[test]
fn extras_are_answered_with_null() {
    let gso = Extra::Gso { size: 1448, gso_type: 2 };
    let hash = Extra::Hash { hash_type: 1, algorithm: 1, value: 7 };
    let xdp = Extra::Xdp { headroom: 0 };
    let offload = Offload { gso_type: 2, gso_size: 1448, csum_blank: true, csum_ok: true };
    let blank = TXF_CSUM_BLANK;
    between_good_ones(|g| frame(g, 0, &[(0, 600)], blank, &[gso]), &[OKAY, NULL], Some(offload));
    let pieces = [(0, 600), (5, 100), (6, 4000)];
    let expect = [OKAY, NULL, NULL, NULL, OKAY, OKAY];
    between_good_ones(|g| frame(g, 0, &pieces, blank, &[hash, gso, xdp]), &expect, Some(offload));
    between_good_ones(
        |g| frame(g, 0, &pieces, 0, &[hash]),
        &[OKAY, NULL, OKAY, OKAY],
        Some(Offload::default()),
    );
}

#[test]
fn up_to_19_slots_are_taken() {
    for nr in [2, 17, 18, 19] {
        arrives(|g| frame(g, 0, &vec![(3, 500); nr], 0, &[]), &vec![OKAY; nr]);
    }
    // Extras are not counted.
    let gso = Extra::Gso { size: 1000, gso_type: 1 };
    let offload = Offload { gso_type: 1, gso_size: 1000, csum_blank: true, csum_ok: true };
    let expect: Vec<i16> = [OKAY, NULL].into_iter().chain([OKAY; 18]).collect();
    between_good_ones(|g| frame(g, 0, &[(3, 500); 19], TXF_CSUM_BLANK, &[gso]), &expect, Some(offload));
}

#[test]
fn the_longest_frame_is_taken() {
    let mut pieces = vec![(0u16, 4096u16); 16];
    pieces[15].1 = 4095;
    arrives(|g| frame(g, 0, &pieces, 0, &[]), &[OKAY; 16]);
    // 18 slots, unaligned ones.
    let pieces = [(4096 - 3640, 3640); 18];
    arrives(|g| frame(g, 0, &pieces, 0, &[]), &[OKAY; 18]);
}

/// XSA-448: a fragment of no bytes is legal wherever it is, and needs no page.
#[test]
fn xsa_448_fragments_of_no_bytes_are_legal() {
    arrives(|g| frame(g, 0, &[(0, 60), (0, 0), (7, 40)], 0, &[]), &[OKAY; 3]);
    arrives(|g| frame(g, 0, &[(0, 60), (4096, 0)], 0, &[]), &[OKAY; 2]);
    arrives(|g| frame(g, 0, &[(0, 0), (0, 60)], 0, &[]), &[OKAY; 2]);
    arrives(|g| frame(g, 0, &[(4096, 0), (0, 300)], 0, &[]), &[OKAY; 2]);
    for gref in [0, BAD_GREF] {
        for empty in 0..3 {
            let mut pieces = [(0, 200); 3];
            pieces[empty].1 = 0;
            let make = |g: &TxGame| {
                let mut played = frame(g, 0, &pieces, 0, &[]);
                edit(&mut played.slots, empty, |req| req.gref = gref);
                played
            };
            arrives(make, &[OKAY; 3]);
        }
    }
}

/// XSA-432: as many slots as are allowed, each of one byte.
#[test]
fn xsa_432_slots_of_one_byte_are_legal() {
    arrives(|g| frame(g, 0, &[(100, 1); 18], 0, &[]), &[OKAY; 18]);
    let gso = Extra::Gso { size: MIN_GSO_SIZE, gso_type: 1 };
    let offload = Offload { gso_type: 1, gso_size: MIN_GSO_SIZE, csum_blank: true, csum_ok: true };
    let expect: Vec<i16> = [OKAY, NULL].into_iter().chain([OKAY; 17]).collect();
    between_good_ones(|g| frame(g, 0, &[(100, 1); 18], TXF_CSUM_BLANK, &[gso]), &expect, Some(offload));
}

/// XSA-423: the headers in slots of one byte, the rest in one.
#[test]
fn xsa_423_headers_split_over_slots_arrive_in_one_piece() {
    for split in [1, 5, 13, 14, 17] {
        let mut pieces = vec![(9, 1); split];
        pieces.push((0, 1400));
        arrives(|g| frame(g, 0, &pieces, 0, &[]), &vec![OKAY; split + 1]);
    }
}

#[test]
fn fragments_may_end_with_their_page() {
    for len in [14u16, 60, 128, 129, 4095, 4096] {
        arrives(|g| frame(g, 0, &[(4096 - len, len)], 0, &[]), &[OKAY]);
        arrives(|g| frame(g, 0, &[(0, 60), (4096 - len, len)], 0, &[]), &[OKAY; 2]);
    }
}

/// Fills the ring with frames of one shape, for several shapes, and checks that each slot is
/// answered.
#[test]
fn xsa_432_full_rings_of_every_shape_are_answered() {
    for way in WAYS {
        for pieces in [vec![(0, 60)], vec![(0, 4096); 15], vec![(0, 1); 18], vec![(10, 300); 21]] {
            let domains = TwoDomains::new();
            let mut g = domains.tx_model(way, 77, PAGES);
            for _ in 0..3 {
                while g.model.free() as usize >= pieces.len() {
                    let played = frame(&g, (g.model.next_index() % 200) as u16, &pieces, 0, &[]);
                    g.model.play(&played.slots);
                }
                assert_eq!(g.run(), Ok(()));
                let expect = vec![if pieces.len() < 20 { OKAY } else { ERROR }; pieces.len()];
                assert!(g.model.answers().expect("answers by the rules").iter().all(|a| *a == expect));
                assert_eq!(g.model.finish(), Ok(()));
            }
            g.close();
            domains.assert_empty();
        }
    }
}

// Frames that are dropped: ERROR on every slot, and the device goes on.

#[test]
fn frames_of_20_or_21_slots_are_dropped() {
    for nr in [20, 21] {
        refused(|g| frame(g, 0, &vec![(3, 500); nr], 0, &[]), &vec![ERROR; nr]);
        let gso = Extra::Gso { size: 1000, gso_type: 1 };
        let expect: Vec<i16> = [ERROR, NULL].into_iter().chain(vec![ERROR; nr - 1]).collect();
        refused(|g| frame(g, 0, &vec![(3, 500); nr], 0, &[gso]), &expect);
    }
}

#[test]
fn fragments_longer_than_what_is_left_are_dropped() {
    for (total, pieces) in [
        (99u16, vec![(0, 0), (0, 100)]),
        (100, vec![(0, 0), (0, 50), (0, 51)]),
        (0, vec![(0, 0), (0, 1)]),
        // The bytes of the fragments pass 65535: known fronts do that, so it is not fatal.
        (65535, [vec![(0, 0)], vec![(0, 4096); 16]].concat()),
        (65535, [vec![(0, 0)], vec![(0, 4096); 18]].concat()),
        (10, [vec![(0, 0)], vec![(0, 4096); 16], vec![(0, 10)]].concat()), // wraps to 10 in 16 bits
    ] {
        let make = |g: &TxGame| {
            let mut played = frame(g, 0, &pieces, 0, &[]);
            edit(&mut played.slots, 0, |req| req.size = total);
            played
        };
        refused(make, &vec![ERROR; pieces.len()]);
    }
}

#[test]
fn frames_shorter_than_an_ethernet_header_are_dropped() {
    for len in [0, 1, 13] {
        refused(|g| frame(g, 0, &[(0, len)], 0, &[]), &[ERROR]);
        // the length is checked first, as Linux does
        refused(|g| frame(g, 0, &[(4096, len)], 0, &[]), &[ERROR]);
    }
    refused(|g| frame(g, 0, &[(0, 1); 13], 0, &[]), &[ERROR; 13]);
    let hash = Extra::Hash { hash_type: 0, algorithm: 1, value: 0 };
    refused(|g| frame(g, 0, &[(0, 13)], 0, &[hash]), &[ERROR, NULL]);
    arrives(|g| frame(g, 0, &[(0, 14)], 0, &[]), &[OKAY]);
}

/// Multicast requests were not announced, so the request is refused; it is no frame, whatever its
/// slot says.
#[test]
fn multicast_requests_are_refused_when_not_announced() {
    for extra in [Extra::McastAdd([1, 0, 0x5e, 0, 0, 1]), Extra::McastDel([1, 0, 0x5e, 0, 0, 1])] {
        refused(|g| frame(g, 0, &[(0, 60)], 0, &[extra]), &[ERROR, NULL]);
        refused(|g| frame(g, 0, &[(0, 0)], 0, &[extra]), &[ERROR, NULL]);
    }
}

// A failed grant operation: ERROR on its slot, OKAY on the frame's others.

#[test]
fn xsa_361_362_365_367_a_bad_grant_fails_its_slot_alone() {
    for gref in [BAD_GREF, 0, u32::MAX] {
        for len in [60u16, 700, 3000] {
            for bad in 0..3 {
                let make = |g: &TxGame| {
                    let mut played = frame(g, 0, &[(0, len); 3], 0, &[]);
                    edit(&mut played.slots, bad, |req| req.gref = gref);
                    played
                };
                let mut expect = [OKAY; 3];
                expect[bad] = ERROR;
                // In staging reference 0 is no grant but "in my buffer", so there it is not a grant
                // operation that fails.
                if gref == 0 {
                    only_on(&[Way::Copy, Way::Map], make, &expect);
                } else {
                    refused(make, &expect);
                }
            }
        }
    }
}

#[test]
fn each_failing_grant_fails_its_own_slot() {
    for (one, other) in [(BAD_GREF, BAD_GREF), (0, 0), (0, BAD_GREF)] {
        let make = |g: &TxGame| {
            let mut played = frame(g, 0, &[(0, 30); 4], 0, &[]);
            edit(&mut played.slots, 1, |req| req.gref = one);
            edit(&mut played.slots, 2, |req| req.gref = other);
            played
        };
        only_on(&[Way::Copy, Way::Map], make, &[OKAY, ERROR, ERROR, OKAY]);
    }
}

/// Extras in between do not shift the error to another slot.
#[test]
fn a_failing_grant_behind_extras_fails_its_own_slot() {
    let hash = Extra::Hash { hash_type: 0, algorithm: 1, value: 0 };
    for (bad, expect) in [
        (0, [ERROR, NULL, NULL, OKAY, OKAY]),
        (3, [OKAY, NULL, NULL, ERROR, OKAY]),
        (4, [OKAY, NULL, NULL, OKAY, ERROR]),
    ] {
        let make = |g: &TxGame| {
            let mut played = frame(g, 0, &[(0, 200); 3], 0, &[hash, hash]);
            edit(&mut played.slots, bad, |req| req.gref = BAD_GREF);
            played
        };
        refused(make, &expect);
    }
}

fn only_on(ways: &[Way], make: impl Fn(&TxGame) -> Played, expect: &[i16]) {
    for &way in ways {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(way, 0, PAGES);
        let played = make(&g);
        g.model.play(&played.slots);
        assert_eq!(g.run(), Ok(()));
        assert_eq!(g.model.answers(), Ok(vec![expect.to_vec()]), "{way:?}");
        assert!(g.port.took.is_empty());
        g.close();
        domains.assert_empty();
    }
}

// What closes the device.

#[test]
fn more_slots_than_are_on_the_ring_are_fatal() {
    fatal(
        |g| {
            let mut slots = frame(g, 0, &[(0, 100); 3], 0, &[]).slots;
            slots.pop();
            slots
        },
        PeerFault::SlotsMissing,
    );
    let hash = Extra::Hash { hash_type: 0, algorithm: 1, value: 0 };
    for left in 1..3 {
        fatal(
            |g| {
                let mut slots = frame(g, 0, &[(0, 100)], 0, &[hash, hash]).slots;
                slots.truncate(left);
                slots
            },
            PeerFault::SlotsMissing,
        );
    }
}

#[test]
fn frames_of_22_slots_are_fatal() {
    for nr in [22, 23, 40] {
        fatal(|g| frame(g, 0, &vec![(0, 100); nr], 0, &[]).slots, PeerFault::TooManySlots);
    }
}

#[test]
fn fragments_that_cross_their_page_are_fatal() {
    for (offset, size) in
        [(0u16, 4097u16), (1, 4096), (4096, 14), (4083, 14), (u16::MAX, 14), (u16::MAX, u16::MAX)]
    {
        fatal(
            |g| {
                frame(g, 0, &[(0, 60)], 0, &[])
                    .slots
                    .into_iter()
                    .map(|slot| cross(slot, offset, size))
                    .collect()
            },
            PeerFault::CrossesPage { offset, size },
        );
    }
    for (offset, size) in [(1u16, 4096u16), (4097, 0), (u16::MAX, 0), (u16::MAX, u16::MAX), (4096, 1)] {
        let second = |g: &TxGame| {
            let mut slots = frame(g, 0, &[(0, 60), (0, 10)], 0, &[]).slots;
            edit(&mut slots, 1, |req| (req.offset, req.size) = (offset, size));
            slots
        };
        fatal(second, PeerFault::CrossesPage { offset, size });
        // The first fragment of two: its length is what the other leaves.
        let first = |g: &TxGame| {
            let mut slots = frame(g, 0, &[(0, 60), (0, 100)], 0, &[]).slots;
            edit(&mut slots, 0, |req| (req.offset, req.size) = (offset, size.saturating_add(100)));
            slots
        };
        fatal(first, PeerFault::CrossesPage { offset, size: size.saturating_add(100) - 100 });
    }
}

fn cross(slot: Slot, offset: u16, size: u16) -> Slot {
    match slot {
        Slot::Data(req) => Slot::Data(TxRequest { offset, size, ..req }),
        extra => extra,
    }
}

#[test]
fn extras_that_do_not_exist_are_fatal() {
    let with = |words: [u32; 3]| {
        move |g: &TxGame| {
            let mut slots = frame(g, 0, &[(0, 60)], TXF_EXTRA_INFO, &[]).slots;
            slots.push(Slot::Extra(words));
            slots
        }
    };
    for found in [0u8, 6, 7, 255] {
        fatal(with([found as u32, 0, 0]), PeerFault::BadExtra(found));
    }
    for (size, gso_type) in [(0u16, 1u8), (1448, 0), (1448, 3), (0, 0)] {
        fatal(with([1 | (size as u32) << 16, gso_type as u32, 0]), PeerFault::BadGso { size, gso_type });
    }
    // The second of two.
    let second = |g: &TxGame| {
        let mut slots = frame(g, 0, &[(0, 60)], TXF_EXTRA_INFO, &[]).slots;
        slots.push(Slot::extra(Extra::Xdp { headroom: 0 }, true));
        slots.push(Slot::Extra([9, 0, 0]));
        slots
    };
    fatal(second, PeerFault::BadExtra(9));
}

/// More extras than there are types, and extras without end.
#[test]
fn a_chain_of_extras_is_bounded() {
    let xdp = Extra::Xdp { headroom: 0 };
    let expect: Vec<i16> = [OKAY].into_iter().chain([NULL; 8]).collect();
    arrives(|g| frame(g, 0, &[(0, 60)], 0, &[xdp; 8]), &expect);
    for nr in [9, 100] {
        fatal(|g| frame(g, 0, &[(0, 60)], 0, &vec![xdp; nr]).slots, PeerFault::TooManySlots);
    }
}

/// XSA-39: an index that jumps further than the ring is long.
#[test]
fn xsa_39_garbage_req_prod_closes_tx() {
    for way in WAYS {
        for violation in [257, 300, 1 << 31, u32::MAX] {
            let domains = TwoDomains::new();
            let mut g = domains.tx_model(way, 0, PAGES);
            g.model.publish_index(violation);
            let fault = PeerFault::ReqProdOverrun { req_prod: violation, req_cons: 0, size: 256 };
            assert_eq!(g.run(), Err(fault));
            assert_eq!(g.back.final_check(), Err(fault));
            assert_eq!((g.model.rsp_prod(), g.port.took.len()), (0, 0));
            g.close();
            domains.assert_empty();
        }
    }
}

// Any frames at all.

/// A frame of the model: fragments, extras, and which of its slots names a grant that does not
/// exist.
type Any = (Vec<Piece>, u8, Option<usize>);

fn anys() -> impl Strategy<Value = Vec<Any>> {
    let piece = (0..=4096u16).prop_flat_map(|offset| (Just(offset), 0..=(4096 - offset)));
    let small = (0..200u16, 0..100u16);
    let pieces = prop_oneof![
        3 => proptest::collection::vec(small.clone(), 1..3),
        2 => proptest::collection::vec(piece, 1..6),
        1 => proptest::collection::vec(small, 1..=21),
    ];
    proptest::collection::vec((pieces, 0..3u8, proptest::option::weighted(0.2, 0..21usize)), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// By every path, also with late answers, answers come in request order and end at frame ends
    /// only; otherwise the model fails.
    #[test]
    fn any_frames_are_answered_in_order(
        way in proptest::sample::select(&WAYS[..]), start: u32, frames in anys(), polls in proptest::collection::vec(1..40usize, 1..8),
    ) {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(way, start, PAGES);
        let mut due: Vec<Vec<u8>> = Vec::new();
        let mut answered = Vec::new();
        let mut expected = Vec::new();
        let mut batches = polls.iter().cycle();
        let mut rest = &frames[..];
        let mut id = 0u16;
        while !rest.is_empty() {
            let n = (*batches.next().expect("repeats")).min(rest.len());
            for (pieces, nr_extras, bad) in &rest[..n] {
                if (g.model.free() as usize) < pieces.len() + *nr_extras as usize {
                    prop_assert_eq!(g.run(), Ok(()));
                    answered.extend(g.model.answers().map_err(|e| TestCaseError::fail(e.to_string()))?);
                }
                let extras = vec![Extra::Xdp { headroom: 0 }; *nr_extras as usize];
                let mut played = frame(&g, id, pieces, 0, &extras);
                id = (id + pieces.len() as u16) % 200;
                let total: usize = pieces.iter().map(|p| p.1 as usize).sum();
                let bad = bad.filter(|k| *k < pieces.len() && pieces[*k].1 > 0);
                if let Some(k) = bad {
                    edit(&mut played.slots, if k == 0 { 0 } else { k + extras.len() }, |req| req.gref = BAD_GREF);
                }
                let dropped = total < 14 || pieces.len() >= 20;
                let mut statuses = vec![if dropped { ERROR } else { OKAY }; pieces.len()];
                if let (Some(k), false) = (bad, dropped) {
                    statuses[k] = ERROR;
                }
                statuses.splice(1..1, vec![NULL; extras.len()]);
                expected.push(statuses);
                if !dropped && bad.is_none() {
                    due.push(played.bytes.clone());
                }
                g.model.play(&played.slots);
            }
            rest = &rest[n..];
            prop_assert_eq!(g.run(), Ok(()));
            answered.extend(g.model.answers().map_err(|e| TestCaseError::fail(e.to_string()))?);
        }
        prop_assert_eq!(g.model.finish(), Ok(()));
        prop_assert_eq!(answered, expected);
        let took: Vec<Vec<u8>> = g.port.took.drain(..).map(|f| f.0).collect();
        prop_assert!(took == due, "what was handed on is not what was sent");
        g.close();
        domains.assert_empty();
    }

    /// Slots with any bits: a fault, or answers by the rules; nothing is left over.
    #[test]
    fn any_slots_are_survived(
        way in proptest::sample::select(&WAYS[..]),
        words in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>()), 1..256),
    ) {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(way, 0, PAGES);
        for (a, b, c, tame) in words {
            // Half of them with a length and an offset that fit, so that chains grow long.
            let (b, c) = if tame { (b & 0x000F_03FF, c & 0x03FF_00FF) } else { (b, c) };
            let gref = if tame { g.refs[a as usize % PAGES].0 } else { a };
            g.model.write(&[Slot::Data(TxRequest::from_words([gref, b, c]))]);
        }
        g.model.publish();
        let done = g.run();
        prop_assert!(g.port.took.iter().all(|f| (14..=65535).contains(&f.0.len())));
        if done.is_ok() {
            prop_assert_eq!(g.model.rsp_prod(), g.model.next_index(), "all is answered");
        }
        g.close();
        domains.assert_empty();
    }
}

/// A batch is as large as a burst: one index, one notification and one call of the port for all
/// frames.
#[test]
fn what_fits_a_burst_is_one_batch() {
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(way, 0, 1);
        let gref = if way == Way::Staging(65535) { 0 } else { g.refs[0].0 };
        for id in 0..64 {
            g.model.play(&[Slot::Data(TxRequest { gref, offset: 0, flags: 0, id, size: 60 })]);
        }
        assert_eq!(g.run(), Ok(()));
        assert_eq!(g.model.answers(), Ok(vec![vec![RSP_OKAY]; 64]), "{way:?}");
        assert_eq!((g.back.stats().batches, g.port.took.len()), (1, 64), "{way:?}");
        g.close();
    }
}
