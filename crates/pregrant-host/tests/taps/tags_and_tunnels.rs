//! What the kernel leaves undone of frames behind VLAN tags, in tunnels and in fragments: netif has
//! no word for it (docs/protocol 2.7), so the port does it. Needs what [`tap`](crate::tap) needs.
//!
//! ```text
//!   packet socket --| virtio_net_hdr: csum_start, gso | frame |--> interface --> TapPort --> this test
//! ```
//! A packet socket says of its frames what a bridge passes on of a nested guest's, or of a VLAN's.

use crate::tap::{Packets, each_way};
use etherparse::PacketBuilder;
use pregrant::net::checksum;
use pregrant::net::headers::IpHeaders;
use pregrant::port::{Arena, FramePort, Offload, PieceMut};
use pregrant_host::ports::tap::TapPort;
use pregrant_test_machine::netns::GUEST_MAC;
use std::time::{Duration, Instant};

/// `ETH_P_ALL`.
const ALL: u16 = 3;
const OWN_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x77];

/// A packet, TCP or UDP, over IPv4 or IPv6, its checksum finished, behind `tags` tags.
fn packet(tags: usize, v6: bool, is_tcp: bool, payload: usize) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(OWN_MAC, GUEST_MAC);
    let ip = match v6 {
        false => link.ipv4([10, 77, 0, 1], [10, 77, 0, 2], 64),
        true => link.ipv6([1; 16], [2; 16], 64),
    };
    let payload: Vec<u8> = (0..payload).map(|k| (k * 7 + k / 251) as u8).collect();
    let mut frame = Vec::new();
    match is_tcp {
        true => ip.tcp(80, 5000, 1, 1000).write(&mut frame, &payload),
        false => ip.udp(80, 5000).write(&mut frame, &payload),
    }
    .expect("a packet");
    let tag = [[0x88, 0xA8, 0, 5], [0x81, 0x00, 0, 6]];
    let tags: Vec<u8> = tag[2 - tags..].concat();
    frame.splice(12..12, tags);
    frame
}

/// The same with a blank checksum, and its offsets: of the TCP or UDP header, and of the field
/// within that.
fn blank(whole: &[u8]) -> (Vec<u8>, usize, usize) {
    let mut frame = whole.to_vec();
    checksum::make_blank(&mut frame).expect("a packet");
    let ip = IpHeaders::parse(&frame).expect("a packet");
    let field = ip.checksum_at().expect("TCP or UDP");
    (frame, ip.l4_at, field - ip.l4_at)
}

/// A tunnel's headers around `inner` bytes: VXLAN, or GRE with an Ethernet frame in it.
fn tunnel(vxlan: bool, inner: usize) -> Vec<u8> {
    let own: &[u8] = match vxlan {
        true => &[0x12, 0x34, 0x12, 0xB5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 42, 0],
        false => &[0, 0, 0x65, 0x58],
    };
    let mut frame = [&GUEST_MAC[..], &OWN_MAC, &[8, 0]].concat();
    let len = (20 + own.len() + inner) as u16;
    let protocol = if vxlan { 17 } else { 47 };
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = checksum::checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    frame.extend(ip);
    frame.extend(own);
    if vxlan {
        frame[38..40].copy_from_slice(&(len - 20).to_be_bytes());
    }
    frame
}

/// `struct virtio_net_hdr`: a blank checksum `offset` bytes behind `start`; with `gso`, its type,
/// the headers' length and the segments' size.
fn header(start: usize, offset: usize, gso: Option<(u8, usize, u16)>) -> Vec<u8> {
    let (kind, headers, size) = gso.unwrap_or_default();
    let mut header = vec![1, kind];
    for field in [headers as u16, size, start as u16, offset as u16] {
        header.extend(field.to_ne_bytes());
    }
    header
}

/// The next frames of the port that are ours.
fn next(port: &mut TapPort, shared: bool, n: usize) -> Vec<(Vec<u8>, Offload)> {
    let until = Instant::now() + Duration::from_secs(20);
    let (mut arena, mut memory, mut came) = (Arena::new(), vec![0; 1 << 16], Vec::new());
    while came.len() < n && Instant::now() < until {
        if shared {
            let read = port.read_to(&PieceMut::from(&mut memory[..]));
            came.extend(read.map(|(len, offload)| (memory[..len].to_vec(), offload)));
        } else {
            arena.clear();
            port.rx_burst(&mut arena);
            came.extend(arena.burst().iter().map(|(frame, offload)| (frame.to_vec(), offload)));
        }
        // The stack's own multicast is passed over.
        came.retain(|(frame, _)| frame[..6] == GUEST_MAC);
    }
    came
}

/// Each way to read a port: bursts, and to memory that others read.
fn each_reader(test: impl Fn(&Packets, &mut TapPort, bool) + Send + 'static) {
    each_way(move |tap, mut port, way| {
        let packets = Packets::on(tap, ALL, true);
        test(&packets, &mut port, false);
        if way == pregrant_host::ports::tap::TransportKind::Frame {
            test(&packets, &mut port, true);
        }
        let drops = port.drops();
        assert!(drops.iter().all(|drop| drop.frames == 0), "{drops:?}");
    });
}

#[test]
fn blank_checksums_behind_tags_are_finished() {
    each_reader(|packets, port, shared| {
        for (tags, v6, is_tcp) in (0..12).map(|k| (k % 3, k & 4 != 0, k >= 6)) {
            let whole = packet(tags, v6, is_tcp, 333);
            let (frame, start, offset) = blank(&whole);
            packets.send(&[header(start, offset, None), frame.clone()].concat());
            let came = next(port, shared, 1);
            let due = match tags {
                0 => (frame, Offload { csum_blank: true, csum_ok: true, ..Offload::default() }),
                _ => (whole, Offload { csum_ok: true, ..Offload::default() }),
            };
            assert!(came == [due], "{tags} tag(s), v6 {v6}, tcp {is_tcp}: {came:02x?}");
        }
    });
}

#[test]
fn blank_checksums_in_tunnels_are_finished_there() {
    each_reader(|packets, port, shared| {
        for (vxlan, tags, v6, is_tcp) in (0..24).map(|k| (k % 2 == 0, k / 2 % 3, k >= 12, k % 12 >= 6)) {
            let inner = packet(tags, v6, is_tcp, 333);
            let outer = tunnel(vxlan, inner.len());
            let (frame, start, offset) = blank(&inner);
            let header = header(outer.len() + start, offset, None);
            packets.send(&[&header[..], &outer, &frame].concat());
            let came = next(port, shared, 1);
            let due = ([outer, inner].concat(), Offload::default());
            assert!(came == [due], "vxlan {vxlan}, {tags} tag(s), v6 {v6}, tcp {is_tcp}: {came:02x?}");
        }
    });
}

#[test]
fn a_blank_checksum_of_a_fragment_is_finished() {
    each_reader(|packets, port, shared| {
        let (mut frame, start, offset) = blank(&packet(0, false, false, 333));
        frame[20] |= 0x20; // more fragments
        let sum = checksum::checksum(&[&frame[14..24], &[0, 0], &frame[26..34]].concat());
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        packets.send(&[header(start, offset, None), frame.clone()].concat());
        let came = next(port, shared, 1);
        checksum::finish_at(&mut frame, start, offset).unwrap();
        assert!(came == [(frame, Offload::default())], "{came:02x?}");
    });
}

/// Those without a tag travel uncut.
#[test]
fn large_segments_behind_tags_are_cut() {
    each_reader(|packets, port, shared| {
        for (tags, v6) in [(0, false), (0, true), (1, false), (2, true), (1, true), (2, false)] {
            // So long that frames wait for room: 40 of 64 that an arena has, each burst.
            for round in 0..4 {
                let (payload, size) = if round % 2 == 0 { (9000, 1000) } else { (40_000, 1000) };
                let whole = packet(tags, v6, true, payload);
                let (frame, start, offset) = blank(&whole);
                let head = start + 20;
                let gso = Some((if v6 { 4 } else { 1 }, head, size));
                packets.send(&[header(start, offset, gso), frame.clone()].concat());
                let n = if tags == 0 { 1 } else { payload / usize::from(size) };
                let came = next(port, shared, n);
                if tags == 0 {
                    let gso_type = if v6 { 2 } else { 1 };
                    let offload = Offload { csum_blank: true, csum_ok: true, gso_type, gso_size: size };
                    assert!(came == [(frame, offload)], "{came:02x?}");
                    continue;
                }
                assert_eq!(came.len(), n, "{tags} tag(s), v6 {v6}");
                let mut bytes: Vec<u8> = Vec::new();
                for (segment, offload) in &came {
                    assert_eq!(*offload, Offload { csum_ok: true, ..Offload::default() });
                    assert!(
                        checksum::verify(segment) == Ok(true)
                            && segment[..14 + 4 * tags] == whole[..14 + 4 * tags]
                    );
                    bytes.extend(&segment[head..]);
                }
                assert!(bytes == whole[head..]);
            }
        }
    });
}
