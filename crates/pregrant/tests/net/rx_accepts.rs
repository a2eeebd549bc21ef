//! Offloads that a guest accepts, as its frames are completed for it and as ports see them: each of
//! the 32 sets of keys, with each kind of frame.
#![cfg(not(miri))]

use etherparse::{PacketBuilder, VlanId};
use pregrant::net::checksum;
use pregrant::net::features::RxAccepts;
use pregrant::port::{Arena, Offload, Offloads};
use pregrant::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};

fn sets() -> impl Iterator<Item = RxAccepts> {
    (0..32).map(|bits| {
        let bit = |k: u32| bits >> k & 1 == 1;
        RxAccepts { sg: bit(0), gso_tcpv4: bit(1), gso_tcpv6: bit(2), csum: bit(3), ipv6_csum: bit(4) }
    })
}

/// A segment of TCP, with its checksum or a blank one.
fn segment(v6: bool, blank: bool) -> Vec<u8> {
    tagged(0, v6, blank)
}

/// Like `frame`, with this many VLAN tags.
fn tagged(tags: u8, v6: bool, blank: bool) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (from, to) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let id = |n: u16| VlanId::try_new(n).expect("a VLAN's number");
    let ip = match (tags, v6) {
        (0, false) => link.ipv4(from, to, 64),
        (0, true) => link.ipv6([1; 16], [2; 16], 64),
        (1, false) => link.single_vlan(id(5)).ipv4(from, to, 64),
        (1, true) => link.single_vlan(id(5)).ipv6([1; 16], [2; 16], 64),
        (_, false) => link.double_vlan(id(5), id(6)).ipv4(from, to, 64),
        (_, true) => link.double_vlan(id(5), id(6)).ipv6([1; 16], [2; 16], 64),
    };
    let mut frame = Vec::new();
    ip.tcp(80, 5000, 1, 1000).write(&mut frame, &[7; 99]).expect("a packet");
    if blank {
        checksum::make_blank(&mut frame).expect("a packet with a checksum");
    }
    frame
}

/// The fate of one frame: None, it is dropped.
fn finished(accepts: RxAccepts, frame: &[u8], offload: Offload) -> Option<(Vec<u8>, Offload)> {
    let mut arena = Arena::new();
    assert!(arena.push(frame, offload));
    let dropped = accepts.finish(&mut arena);
    let left: Vec<_> = arena.burst().iter().map(|(bytes, offload)| (bytes.to_vec(), offload)).collect();
    assert_eq!(left.len() + dropped, 1, "dropped and counted, or left");
    left.into_iter().next()
}

#[test]
fn a_frame_is_as_the_guest_takes_it_or_is_finished_or_dropped() {
    for accepts in sets() {
        for (v6, blank, large) in (0..8).map(|k| (k & 1 == 1, k & 2 == 2, k & 4 == 4)) {
            let gso_type = match (large, v6) {
                (false, _) => 0,
                (true, false) => GSO_TYPE_TCPV4,
                (true, true) => GSO_TYPE_TCPV6,
            };
            let gso_size = if large { 1448 } else { 0 };
            let offload = Offload { csum_blank: blank, csum_ok: true, gso_type, gso_size };
            let frame = segment(v6, blank);
            let got = finished(accepts, &frame, offload);
            let takes_large = if v6 { accepts.gso_tcpv6 } else { accepts.gso_tcpv4 };
            let takes_blank = if v6 { accepts.ipv6_csum } else { accepts.csum };
            let due = if large && !takes_large {
                None
            } else if blank && !takes_blank {
                Some((segment(v6, false), Offload { csum_blank: false, ..offload }))
            } else {
                Some((frame, offload))
            };
            assert!(got == due, "{accepts:?}, v6 {v6}, blank {blank}, large {large}: {got:?}");
        }
        let unknown = Offload { gso_type: 9, gso_size: 1448, ..Offload::default() };
        assert_eq!(finished(accepts, &segment(false, false), unknown), None, "a type that there is not");
        // Blank, it says, and has no checksum that could be.
        let noise = finished(accepts, &[0; 60], Offload { csum_blank: true, ..Offload::default() });
        assert_eq!(noise.is_some(), accepts.csum && accepts.ipv6_csum, "left to a guest that takes either");
    }
}

/// A checksum after a tag is completed for every guest: Linux's netfront handles a blank checksum
/// in IPv4 and IPv6 only, and drops frames with a tag.
#[test]
fn a_tagged_frame_is_finished_for_everyone() {
    let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
    for accepts in sets() {
        for (tags, v6) in [(1, false), (1, true), (2, false), (2, true)] {
            let frame = tagged(tags, v6, true);
            let due = (tagged(tags, v6, false), Offload { csum_blank: false, ..blank });
            assert_eq!(finished(accepts, &frame, blank), Some(due), "{accepts:?}, {tags} tag(s), v6 {v6}");
            // And no guest gets it to cut.
            let gso_type = if v6 { GSO_TYPE_TCPV6 } else { GSO_TYPE_TCPV4 };
            let large = Offload { gso_type, gso_size: 1448, ..blank };
            assert_eq!(finished(accepts, &frame, large), None, "{accepts:?}, {tags} tag(s), v6 {v6}");
        }
    }
}

/// A blank checksum of a fragment, or of a protocol that netif does not know, is nowhere: Linux
/// drops these too.
#[test]
fn what_has_no_place_for_a_checksum_is_dropped() {
    let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
    let mut fragment = segment(false, true);
    fragment[20] |= 0x20; // more fragments
    let mut icmp = segment(false, true);
    icmp[23] = 1;
    for frame in [fragment, icmp] {
        assert!(finished(RxAccepts::ALL, &frame, Offload::default()).is_some());
        for accepts in sets() {
            assert_eq!(finished(accepts, &frame, blank), None, "{accepts:?}");
        }
    }
}

/// The check of a burst reports whether anything must be done: nothing for a guest that accepts
/// everything, except for a tag.
#[test]
fn a_burst_is_looked_through_where_something_is_left_to_do() {
    let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
    let leaves_work = |accepts: RxAccepts, frame: &[u8], offload| {
        let mut arena = Arena::new();
        assert!(arena.push(&segment(false, false), Offload::default()) && arena.push(frame, offload));
        accepts.leaves_work(&arena.burst())
    };
    for v6 in [false, true] {
        assert!(!leaves_work(RxAccepts::ALL, &segment(v6, true), blank));
        assert!(leaves_work(RxAccepts::ALL, &tagged(1, v6, true), blank));
        assert!(!leaves_work(RxAccepts::ALL, &tagged(1, v6, false), Offload::default()));
        assert!(leaves_work(RxAccepts { csum: false, ..RxAccepts::ALL }, &segment(v6, true), blank));
    }
}

/// A port that sees an offload may use it for every frame, and sees each that
/// it may.
#[test]
fn ports_learn_what_is_left_as_it_is() {
    for accepts in sets() {
        let as_it_is = |frame: Vec<u8>, offload| finished(accepts, &frame, offload) == Some((frame, offload));
        let blank = Offload { csum_blank: true, ..Offload::default() };
        let large = |gso_type| Offload { gso_type, gso_size: 1448, csum_ok: true, ..Offload::default() };
        let csum = [false, true].into_iter().all(|v6| as_it_is(segment(v6, true), blank));
        let gso = [(false, GSO_TYPE_TCPV4), (true, GSO_TYPE_TCPV6)]
            .into_iter()
            .all(|(v6, gso_type)| as_it_is(segment(v6, false), large(gso_type)));
        // One that is larger than a page needs several slots.
        assert_eq!(accepts.offloads(), Offloads { csum, gso: gso && accepts.sg }, "{accepts:?}");
    }
}
