//! Headers, checksums and segmentation against another implementation (etherparse), and against
//! noise.
#![cfg(not(miri))]

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice, VlanId};
use pregrant::net::headers::{HeaderFault, IpHeaders, IpVersion, MacAddr, PROTOCOL_TCP};
use pregrant::net::{checksum, gso};
use pregrant::port::Offload;
use pregrant::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};
use proptest::collection::vec;
use proptest::prelude::*;

const SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DST: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The parts of a generated packet.
#[derive(Clone, Debug)]
struct Packet {
    v6: bool,
    udp: bool,
    vlan: bool,
    ports: (u16, u16),
    seq: u32,
    addresses: ([u8; 16], [u8; 16]),
    flags: u8,
    payload: Vec<u8>,
    padding: usize,
}

fn packets(max_payload: usize) -> impl Strategy<Value = Packet> {
    let kinds = any::<(bool, bool, bool)>();
    let fields = any::<((u16, u16), u32, ([u8; 16], [u8; 16]), u8)>();
    (kinds, fields, vec(any::<u8>(), 0..max_payload), 0..40usize).prop_map(
        |((v6, udp, vlan), (ports, seq, addresses, flags), payload, padding)| Packet {
            v6,
            udp,
            vlan,
            ports,
            seq,
            addresses,
            flags,
            payload,
            padding,
        },
    )
}

fn v4(address: &[u8; 16]) -> [u8; 4] {
    [address[0], address[1], address[2], address[3]]
}

impl Packet {
    /// The frame, with etherparse's checksum, and where its L4 header is.
    fn frame(&self) -> (Vec<u8>, usize) {
        let link = PacketBuilder::ethernet2(SRC, DST);
        let (src, dst) = &self.addresses;
        let tag = VlanId::try_new(5).unwrap();
        let ip = match (self.vlan, self.v6) {
            (false, false) => link.ipv4(v4(src), v4(dst), 64),
            (false, true) => link.ipv6(*src, *dst, 64),
            (true, false) => link.single_vlan(tag).ipv4(v4(src), v4(dst), 64),
            (true, true) => link.single_vlan(tag).ipv6(*src, *dst, 64),
        };
        let mut out = Vec::new();
        if self.udp {
            ip.udp(self.ports.0, self.ports.1).write(&mut out, &self.payload).unwrap();
        } else {
            let mut tcp = ip.tcp(self.ports.0, self.ports.1, self.seq, 1000);
            if self.flags & 1 != 0 {
                tcp = tcp.fin();
            }
            if self.flags & 2 != 0 {
                tcp = tcp.psh();
            }
            if self.flags & 4 != 0 {
                tcp = tcp.cwr();
            }
            if self.flags & 8 != 0 {
                tcp = tcp.options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
            }
            tcp.ack(77).write(&mut out, &self.payload).unwrap();
        }
        let l4_at = 14 + if self.vlan { 4 } else { 0 } + if self.v6 { 40 } else { 20 };
        out.extend(std::iter::repeat_n(0xA5, self.padding));
        (out, l4_at)
    }
}

/// A plain, slow sum to compare with.
fn slow_sum(bytes: &[u8]) -> u16 {
    let mut s = 0u32;
    for pair in bytes.chunks(2) {
        s += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        s = (s & 0xFFFF) + (s >> 16);
    }
    s as u16
}

/// Starts of frames that lead a parser further than noise does: EtherType and what follows.
const PLAUSIBLE: [&[u8]; 7] = [
    &[],
    &[0x08, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6],
    &[0x08, 0, 0x47, 0, 0, 70, 0, 0, 0, 0, 64, 17],
    &[0x81, 0, 0, 1, 0x08, 0, 0x45, 0, 0, 41, 0, 0, 0, 0, 64, 6],
    &[0x86, 0xDD, 0x60, 0, 0, 0, 0, 60, 0],
    &[0x86, 0xDD, 0x60, 0, 0, 0, 0, 60, 43],
    &[0x86, 0xDD, 0x60, 0, 0, 0, 0, 60, 6],
];

proptest! {
    #[test]
    fn sum_is_the_plain_sum(bytes in vec(any::<u8>(), 0..3000)) {
        prop_assert_eq!(checksum::sum(&bytes), u32::from(slow_sum(&bytes)));
    }

    #[test]
    fn parse_finds_what_etherparse_built(p in packets(200)) {
        let (frame, l4_at) = p.frame();
        let h = IpHeaders::parse(&frame).unwrap();
        prop_assert_eq!(h.l4_at, l4_at);
        prop_assert_eq!(h.end, frame.len() - p.padding);
        prop_assert_eq!(h.version == IpVersion::V6, p.v6);
        prop_assert_eq!(h.protocol == PROTOCOL_TCP, !p.udp);
        prop_assert!(!h.fragment && !h.routed);
        if !p.udp {
            prop_assert_eq!(h.tcp_header_len(&frame).unwrap(), if p.flags & 8 != 0 { 32 } else { 20 });
        }
    }

    #[test]
    fn blank_then_finished_is_what_etherparse_computes(p in packets(1600)) {
        let (frame, _) = p.frame();
        prop_assert!(checksum::verify(&frame).unwrap());
        let mut ours = frame.clone();
        checksum::make_blank(&mut ours).unwrap();
        checksum::finish_blank(&mut ours).unwrap();
        prop_assert_eq!(&ours, &frame);
        let last = frame.len() - p.padding - 1;
        ours[last] ^= 0x10;
        prop_assert!(!checksum::verify(&ours).unwrap());
    }

    #[test]
    fn noise_never_panics(
        mut bytes in vec(any::<u8>(), 0..200),
        start in 0..PLAUSIBLE.len(),
        gso_type in 0u8..4,
        gso_size in any::<u16>(),
    ) {
        for (to, b) in bytes.iter_mut().skip(12).zip(PLAUSIBLE[start]) {
            *to = *b;
        }
        if let Ok(h) = IpHeaders::parse(&bytes) {
            prop_assert!(h.l4_at <= h.end && h.end <= bytes.len());
        }
        let offload = Offload { csum_blank: true, csum_ok: true, gso_type, gso_size };
        if let Ok(plan) = gso::Segments::plan(&bytes, offload) {
            let mut out = vec![0; bytes.len()];
            let mut total = 0;
            for i in 0..plan.count() {
                plan.write(i, &mut out[..plan.len_of(i)]);
                total += plan.len_of(i);
            }
            prop_assert_eq!(total, plan.total_len());
        }
        let _ = checksum::verify(&bytes);
        let before = bytes.clone();
        if checksum::finish_blank(&mut bytes).is_err() {
            prop_assert_eq!(bytes, before);
        }
    }

    #[test]
    fn segments_are_the_stream_again(mut p in packets(9000), gso_size in gso::MIN_GSO_SIZE..3000) {
        p.udp = false;
        let (frame, l4_at) = p.frame();
        let gso_type = if p.v6 { GSO_TYPE_TCPV6 } else { GSO_TYPE_TCPV4 };
        let offload = Offload { csum_blank: true, csum_ok: true, gso_type, gso_size };
        let plan = gso::Segments::plan(&frame, offload).unwrap();
        prop_assert_eq!(plan.count(), p.payload.len().div_ceil(gso_size.into()).max(1));
        let id_of = |f: &[u8]| u16::from_be_bytes([f[l4_at - 16], f[l4_at - 15]]);
        let mut stream = Vec::new();
        for i in 0..plan.count() {
            let mut out = vec![0xEE; plan.len_of(i)];
            plan.write(i, &mut out);
            prop_assert!(checksum::verify(&out).unwrap());
            if !p.v6 {
                prop_assert_eq!(slow_sum(&out[l4_at - 20..l4_at]), 0xFFFF);
                prop_assert_eq!(id_of(&out), id_of(&frame).wrapping_add(i as u16));
            }
            let sliced = SlicedPacket::from_ethernet(&out).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("not TCP") };
            let (first, last) = (i == 0, i + 1 == plan.count());
            prop_assert_eq!(tcp.sequence_number(), p.seq.wrapping_add(stream.len() as u32));
            prop_assert_eq!(tcp.fin(), last && p.flags & 1 != 0);
            prop_assert_eq!(tcp.psh(), last && p.flags & 2 != 0);
            prop_assert_eq!(tcp.cwr(), first && p.flags & 4 != 0);
            prop_assert!(tcp.payload().len() <= gso_size.into());
            stream.extend_from_slice(tcp.payload());
        }
        prop_assert_eq!(stream, p.payload);
    }
}

fn tcp_frame(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let ip = PacketBuilder::ethernet2(SRC, DST).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    ip.tcp(1, 2, 3, 4).write(&mut out, payload).unwrap();
    out
}

fn udp_frame(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let ip = PacketBuilder::ethernet2(SRC, DST).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    ip.udp(1, 2).write(&mut out, payload).unwrap();
    out
}

#[test]
fn fragments_are_refused() {
    let mut frame = tcp_frame(&[0; 100]);
    frame[20] = 0x20; // more fragments
    assert_eq!(checksum::finish_blank(&mut frame), Err(HeaderFault::Fragment));
    let offload = Offload { csum_blank: true, csum_ok: true, gso_type: GSO_TYPE_TCPV4, gso_size: 50 };
    assert_eq!(gso::Segments::plan(&frame, offload).err(), Some(HeaderFault::Fragment));
}

#[test]
fn wrong_kind_or_size_of_segmentation_is_refused() {
    let frame = tcp_frame(&[0; 100]);
    let plan = |gso_type, gso_size| {
        gso::Segments::plan(&frame, Offload { csum_blank: true, csum_ok: true, gso_type, gso_size }).err()
    };
    assert_eq!(plan(GSO_TYPE_TCPV6, 50), Some(HeaderFault::WrongProtocol));
    assert_eq!(plan(GSO_TYPE_TCPV4, 0), Some(HeaderFault::BadSegmentSize));
    assert_eq!(plan(GSO_TYPE_TCPV4, gso::MIN_GSO_SIZE - 1), Some(HeaderFault::BadSegmentSize));
    assert_eq!(plan(3, 50), Some(HeaderFault::BadSegmentSize));
    assert_eq!(plan(GSO_TYPE_TCPV4, gso::MIN_GSO_SIZE), None);
}

#[test]
fn extension_headers_are_followed_but_not_for_ever() {
    // IPv6, n destination-option headers of 8 bytes, UDP.
    let chain = |n: usize| {
        let mut frame = vec![0u8; 12];
        frame.extend([0x86, 0xDD, 0x60, 0, 0, 0]);
        frame.extend(((n * 8 + 8) as u16).to_be_bytes());
        frame.extend([if n == 0 { 17 } else { 60 }, 64]);
        frame.extend([1; 32]);
        for i in 0..n {
            frame.extend([if i + 1 == n { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
        }
        frame.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        frame
    };
    for n in 0..=7 {
        let mut frame = chain(n);
        let h = IpHeaders::parse(&frame).unwrap();
        assert_eq!((h.protocol, h.l4_at), (17, 54 + 8 * n));
        checksum::fill(&mut frame).unwrap();
        assert!(checksum::verify(&frame).unwrap());
    }
    assert_eq!(IpHeaders::parse(&chain(9)), Err(HeaderFault::Unsupported));
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    // Two bytes of payload that bring the sum to 0xFFFF, so that its complement is 0.
    let with_zero = udp_frame(&[0, 0]);
    let mut frame = udp_frame(&with_zero[40..42]);
    checksum::fill(&mut frame).unwrap();
    assert_eq!(frame[40..42], [0xFF, 0xFF]);
    assert!(checksum::verify(&frame).unwrap());
}

#[test]
fn a_mac_address_prints_as_people_write_it() {
    assert_eq!(MacAddr([2, 0, 0xAB, 0, 0, 1]).to_string(), "02:00:ab:00:00:01");
    assert!(MacAddr::BROADCAST.is_group() && MacAddr([1, 0, 0x5E, 0, 0, 1]).is_group());
    assert!(!MacAddr([2, 0, 0, 0, 0, 1]).is_group());
}
