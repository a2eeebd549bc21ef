//! Frames with checksums to finish and segments to cut: headers that say anything, a guest's, and a
//! kernel's that names a place (`csum_start`) behind tags, in tunnels, or nowhere.
//!
//! A frame that is taken for netif is one of which netif can say what is left, or its checksum was
//! finished where its place was and nothing else of it changed. A segment is cut as planned, loses
//! no byte of payload, and each piece has a right checksum; what was finished verifies; what is
//! refused is left as it was.

use crate::tape::Tape;
use pregrant::net::checksum;
use pregrant::net::features::RxAccepts;
use pregrant::net::gso::Segments;
use pregrant::net::headers::{IpHeaders, addresses};
use pregrant::net::placed_offload::{PlacedOffload, Taken};
use pregrant::port::{Arena, Offload};

/// Segments of one frame that are written out and checked.
const SEGMENTS: usize = 64;

/// Parses, finishes and cuts the tape.
pub fn offload(data: &[u8]) {
    let mut tape = Tape::new(data);
    let offload = Offload { gso_type: tape.u8(), gso_size: tape.u16(), csum_blank: true, csum_ok: true };
    let padding = usize::from(tape.u16());
    let (csum_start, csum_offset) = (tape.u16(), tape.u16());
    let mut frame = tape.rest().to_vec();
    // Long payloads need not be in the input.
    frame.resize((frame.len() + padding).min(65535), 0x5A);

    assert_eq!(addresses(&frame).is_some(), frame.len() >= 14);
    let headers = IpHeaders::parse(&frame);
    if let Ok(h) = headers {
        assert!(h.l2_len < h.l4_at && h.l4_at <= h.end && h.end <= frame.len(), "{h:?}");
        assert_eq!(h.l4_len(), h.end - h.l4_at);
        assert!(h.checksum_at().is_ok_and(|at| at + 2 <= h.end) || h.checksum_at().is_err());
        assert!(
            h.tcp_header_len(&frame).is_ok_and(|n| h.l4_at + n <= h.end) || h.tcp_header_len(&frame).is_err()
        );
    }
    finish(&frame);
    cut(&frame, offload);
    for gso_type in [0, offload.gso_type % 3] {
        take(&frame, PlacedOffload { offload: Offload { gso_type, ..offload }, csum_start, csum_offset });
    }
}

/// Processes a frame as the reader of a tap does, and checks what a guest gets.
fn take(frame: &[u8], placed: PlacedOffload) {
    let mut taken = frame.to_vec();
    let left = match placed.take(&mut taken) {
        Err(_) => return assert!(taken == frame, "a frame that is refused is unchanged"),
        Ok(Taken::Uncut(offload)) => {
            assert!(taken == frame && offload == placed.offload && offload.gso_type != 0);
            return;
        }
        Ok(Taken::Frame(left)) => left,
    };
    let (start, offset) = (usize::from(placed.csum_start), usize::from(placed.csum_offset));
    if left.csum_blank {
        let headers = IpHeaders::parse(frame).expect("netif can say it");
        assert!(headers.is_plain() && taken == frame && left == placed.offload);
        assert_eq!((headers.l4_at, headers.checksum_at()), (start, Ok(start + offset)));
    } else {
        assert_eq!((left.gso_type, left.gso_size), (0, 0));
        let field = start + offset;
        assert!(taken[..field] == frame[..field] && taken[field + 2..] == frame[field + 2..]);
        // The field's old value is part of the sum, as the pseudo-header's is (RFC 1071, 3).
        let held = u32::from(u16::from_be_bytes([frame[field], frame[field + 1]]));
        if offset % 2 == 0 {
            assert_eq!(checksum::fold(checksum::sum(&taken[start..]) + held), 0xFFFF);
        }
    }
    let mut arena = Arena::new();
    assert!(arena.push(&taken, left));
    assert!(taken.is_empty() || !RxAccepts::ALL.leaves_work(&arena.burst()));
    assert_eq!(RxAccepts::ALL.finish(&mut arena), 0);
    assert!(taken.is_empty() || arena.burst().iter().eq([(&taken[..], left)]), "nothing is left to do");
}

fn finish(frame: &[u8]) {
    let mut filled = frame.to_vec();
    match checksum::fill(&mut filled) {
        Ok(()) => assert_eq!(checksum::verify(&filled), Ok(true)),
        Err(_) => assert!(filled == frame, "a frame that is refused is unchanged"),
    }
    let mut blank = frame.to_vec();
    if checksum::make_blank(&mut blank).is_ok() {
        assert_eq!(checksum::finish_blank(&mut blank), Ok(()));
        assert!(blank == filled, "blank and then finished is the same as filled");
    }
}

fn cut(frame: &[u8], offload: Offload) {
    let Ok(plan) = Segments::plan(frame, offload) else { return };
    let headers = IpHeaders::parse(frame).expect("it was planned");
    let head = headers.l4_at + headers.tcp_header_len(frame).expect("it was planned");
    let payload = &frame[head..headers.end];
    assert_eq!(plan.count(), payload.len().div_ceil(offload.gso_size.into()).max(1));
    let lens: usize = (0..plan.count()).map(|i| plan.len_of(i)).sum();
    assert_eq!(lens, plan.total_len());
    let mut rest = payload;
    for i in 0..plan.count().min(SEGMENTS) {
        let mut out = vec![0xEE; plan.len_of(i)];
        plan.write(i, &mut out);
        let (piece, after) = rest.split_at(out.len() - head);
        assert!(piece.len() <= offload.gso_size.into() && out[head..] == *piece, "segment {i}'s payload");
        let its = IpHeaders::parse(&out).expect("a segment is a frame");
        assert_eq!((its.l4_at, its.end), (headers.l4_at, out.len()));
        if !headers.routed {
            assert_eq!(checksum::verify(&out), Ok(true), "segment {i}");
        }
        rest = after;
    }
    assert!(plan.count() > SEGMENTS || rest.is_empty(), "payload is left");
}
