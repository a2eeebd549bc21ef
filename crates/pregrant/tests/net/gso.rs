//! Large segments from a guest or a back, with invalid fields: a checksum that is not blank,
//! segments of almost no bytes. The crate etherparse checks the checksums.
#![cfg(not(miri))]

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::batch::tx::BATCH_SEGMENTS;
use pregrant::net::front::Granting;
use pregrant::net::gso::{HEADERS_MAX, MIN_GSO_SIZE, Segments};
use pregrant::net::headers::HeaderFault;
use pregrant::port::{Arena, Offload};
use pregrant_testkit::two_domains::{Frame, GUEST, OWN_WAYS, TestPort, TwoDomains, TxEnds, WAYS, Way};

const SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DST: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A TCP packet over IPv4 (1) or IPv6 (2), its checksum finished.
fn tcp(gso_type: u8, payload: usize) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(SRC, DST);
    let ip = match gso_type {
        1 => link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
        _ => link.ipv6([1; 16], [2; 16], 64),
    };
    let payload: Vec<u8> = (0..payload).map(|k| (k ^ k >> 8) as u8).collect();
    let mut frame = Vec::new();
    ip.tcp(1, 2, 1000, 500).ack(7).write(&mut frame, &payload).unwrap();
    frame
}

/// A large segment that claims to be finished.
fn finished(gso_type: u8, gso_size: u16) -> Offload {
    Offload { csum_blank: false, csum_ok: true, gso_type, gso_size }
}

fn blank(gso_type: u8, gso_size: u16) -> Offload {
    Offload { csum_blank: true, csum_ok: true, gso_type, gso_size }
}

/// Sends frames and has the back hand them on, a batch a poll. Gives how many each poll handed on.
fn carry(domains: &TwoDomains, ends: &mut TxEnds, port: &mut TestPort, frames: &[Frame]) -> Vec<usize> {
    let (mut arena, mut scratch, control) = (Arena::new(), Arena::new(), SharedControl::default());
    for (bytes, offload) in frames {
        assert!(arena.push(bytes, *offload));
    }
    let sent = ends.front.send(&domains.guest, &ends.front_chan, &arena.burst());
    assert_eq!(sent, Ok(frames.len()));
    let mut batches = Vec::new();
    loop {
        let before = port.took.len();
        let polled = ends.back.poll(&domains.host, GUEST, &ends.back_chan, port, &mut scratch, &control);
        if polled == Ok(Polled::Idle) {
            break;
        }
        assert_eq!(polled, Ok(Polled::More));
        batches.push(port.took.len() - before);
    }
    batches
}

/// The segments of a frame as a port cuts it; etherparse finds each one's checksum right.
fn assert_cuts_right((frame, offload): &Frame, count: usize) {
    let plan = Segments::plan(frame, *offload).unwrap();
    assert_eq!(plan.count(), count);
    for i in 0..count {
        let mut out = vec![0; plan.len_of(i)];
        plan.write(i, &mut out);
        let packet = SlicedPacket::from_ethernet(&out).unwrap();
        let Some(TransportSlice::Tcp(slice)) = packet.transport else { panic!("no TCP") };
        let tcp = slice.to_header();
        let sum = match packet.net {
            Some(etherparse::NetSlice::Ipv4(ip)) => {
                tcp.calc_checksum_ipv4(&ip.header().to_header(), slice.payload()).unwrap()
            }
            Some(etherparse::NetSlice::Ipv6(ip)) => {
                tcp.calc_checksum_ipv6(&ip.header().to_header(), slice.payload()).unwrap()
            }
            _ => panic!("no IP"),
        };
        assert_eq!(tcp.checksum, sum, "segment {i}");
    }
}

/// The content of a blank checksum field: the sum of the pseudo-header, by etherparse's own sum of
/// the whole.
fn assert_blank(frame: &[u8], offload: Offload) {
    assert!(offload.csum_blank && offload.csum_ok);
    let mut whole = frame.to_vec();
    pregrant::net::checksum::finish_blank(&mut whole).unwrap();
    assert_eq!(whole, tcp(offload.gso_type, payload_of(frame, offload.gso_type)));
}

fn payload_of(frame: &[u8], gso_type: u8) -> usize {
    frame.len() - if gso_type == 1 { 54 } else { 74 }
}

#[test]
fn a_guest_s_large_segments_are_handed_on_with_blank_checksums() {
    for way in WAYS.into_iter().chain(OWN_WAYS) {
        let domains = TwoDomains::new();
        let mut ends = domains.tx(way, Granting::PerFrame, 0);
        let mut port = TestPort::default();
        let frames: Vec<Frame> = [(1, 5000), (2, 5000), (1, 100), (2, 40_001)]
            .map(|(kind, len)| (tcp(kind, len), finished(kind, 1000)))
            .into();
        // One that is said to be TCP and is none is dropped, as with Linux; a good one behind it is
        // not.
        let none: Frame = (vec![7; 3000], finished(1, 1000));
        let good: Frame = (tcp(1, 3000), blank(1, 1000));
        let sent = [&frames[..], &[none, good.clone()]].concat();
        carry(&domains, &mut ends, &mut port, &sent);
        assert_eq!(port.took.len(), 5, "{way:?}");
        for ((frame, offload), (was, _)) in port.took.iter().zip(&frames) {
            assert_eq!(frame.len(), was.len());
            assert_blank(frame, *offload);
            assert_cuts_right(&(frame.clone(), *offload), payload_of(frame, offload.gso_type).div_ceil(1000));
        }
        assert_eq!(port.took[4], good, "a frame by the rules is as it was sent");
        let stats = ends.back.stats();
        assert_eq!((stats.frames, stats.gso_checksum_fixups, stats.dropped, stats.errors), (5, 5, 1, 0));
        assert_eq!(ends.front.reclaim(&domains.guest, 1).map(|_| ends.front.stats().errors), Ok(0));
        ends.close(&domains);
        domains.assert_empty();
    }
}

#[test]
fn a_back_s_large_segments_come_with_blank_checksums() {
    for way in WAYS.into_iter().chain(OWN_WAYS) {
        let domains = TwoDomains::new();
        let mut ends = domains.rx(way, Granting::PerFrame, 0, false);
        let (mut port, mut out) = (TestPort::default(), Arena::new());
        port.gives.extend([
            (tcp(1, 5000), finished(1, 1000)),
            (vec![7; 3000], finished(1, 1000)),
            (tcp(2, 9001), finished(2, 1000)),
        ]);
        ends.front.post(&domains.guest, &ends.front_chan).unwrap();
        let control = SharedControl::default();
        while ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &control) == Ok(Polled::More) {
        }
        ends.front.recv(&mut out, 1).unwrap();
        let got: Vec<Frame> = out.burst().iter().map(|(f, o)| (f.to_vec(), o)).collect();
        assert_eq!(got.iter().map(|(f, _)| f.len()).collect::<Vec<_>>(), [5054, 9075], "{way:?}");
        got.iter().for_each(|(frame, offload)| assert_blank(frame, *offload));
        let stats = ends.front.stats();
        assert_eq!((stats.gso_checksum_fixups, stats.dropped), (3, 1));
        ends.close(&domains);
    }
}

#[test]
fn segments_of_next_to_nothing_are_refused() {
    for way in [Way::Copy, Way::Staging(65535)] {
        let domains = TwoDomains::new();
        let mut ends = domains.tx(way, Granting::PerFrame, 0);
        let mut port = TestPort::default();
        let sizes = [1, 8, MIN_GSO_SIZE - 1, MIN_GSO_SIZE];
        carry(&domains, &mut ends, &mut port, &sizes.map(|size| (tcp(1, 9000), blank(1, size))));
        assert_eq!(port.took.iter().map(|(_, o)| o.gso_size).collect::<Vec<_>>(), [MIN_GSO_SIZE]);
        assert_eq!((ends.back.stats().errors, ends.back.stats().frames), (3, 1));
        ends.front.reclaim(&domains.guest, 1).unwrap();
        ends.close(&domains);
    }
}

#[test]
fn a_batch_has_a_bound_of_segments() {
    let domains = TwoDomains::new();
    let mut ends = domains.tx(Way::Staging(65535), Granting::PerFrame, 0);
    let mut port = TestPort::default();
    // 600 segments in few bytes: room for many such frames in an arena.
    let frames = vec![(tcp(1, 200 * 48), blank(1, 48)); 12];
    let batches = carry(&domains, &mut ends, &mut port, &frames);
    assert_eq!(batches, [3; 4], "{BATCH_SEGMENTS} segments, and the frame with which there are as many");
    ends.front.reclaim(&domains.guest, 1).unwrap();
    // At an MSS that is in use four of the longest frames are a batch, as without a bound.
    port.took.clear();
    let frames = vec![(tcp(1, 65_535 - 54), blank(1, 536)); 3];
    assert_eq!(carry(&domains, &mut ends, &mut port, &frames), [3]);
    ends.front.reclaim(&domains.guest, 1).unwrap();
    ends.close(&domains);
}

/// Extension headers would be copied into each of a thousand segments.
#[test]
fn headers_that_are_long_are_not_copied_into_each_segment() {
    let plan = |options: usize| {
        let mut frame = tcp(2, 20_000);
        // Destination options of 8 * options bytes between IPv6 and TCP.
        let mut ext = vec![0; 8 * options];
        (ext[0], ext[1]) = (6, options as u8 - 1);
        frame.splice(54..54, ext);
        frame[20] = 60;
        let len = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        Segments::plan(&frame, blank(2, 48)).map(|plan| plan.total_len())
    };
    assert!(plan(1).is_ok());
    let most = (HEADERS_MAX - 74) / 8;
    assert!(plan(most).is_ok_and(|len| len <= 20_000 + 417 * HEADERS_MAX));
    assert_eq!(plan(most + 1), Err(HeaderFault::Unsupported));
}
