//! The header in front of each frame of a tap, `struct virtio_net_hdr_mrg_rxbuf`: which checksum
//! and segmentation work is left.
//!
//! ```text
//!   | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset | num_buffers | frame ...
//!                                                 '-----------'-> the field of the blank checksum
//! ```
//! Both sides leave checksums blank and segments uncut as long as no one needs them complete; the
//! kernel validates what a guest claims.
//!
//! The kernel's header gives offsets of the work left, and netif has no fields for them. Work that
//! netif cannot express is done when a frame is [taken](take) from the tap.

use pregrant::net::gso::MIN_GSO_SIZE;
use pregrant::net::headers::IpHeaders;
use pregrant::net::placed_offload::{PlacedOffload, Taken};
use pregrant::port::{Offload, PieceMut};
use pregrant::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};

/// `struct virtio_net_hdr_mrg_rxbuf`, in host byte order: flags u8, gso_type u8, hdr_len, gso_size,
/// csum_start, csum_offset u16; num_buffers u16, which only vhost-net writes.
pub const HEADER: usize = 12;
/// Bytes of a frame in shared memory that are read to parse its headers.
const HEAD: usize = 512;
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const VIRTIO_TCPV4: u8 = 1;
const VIRTIO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`: the sender signalled congestion, which does not change the
/// segmentation.
const VIRTIO_ECN: u8 = 0x80;

/// Builds the header of a frame of `len` bytes that a guest sent; `frame` has its first bytes, with
/// all headers. None: the offload that the guest claims contradicts the frame's headers.
pub fn header_of(frame: &[u8], len: usize, offload: Offload) -> Option<[u8; HEADER]> {
    let mut header = [0; HEADER];
    // Segmentation requires a blank checksum, in the kernel too. And with next to no payload per
    // segment, one frame would become 65 000, wherever the kernel segments it.
    if offload.gso_type != 0 && (!offload.csum_blank || offload.gso_size < MIN_GSO_SIZE) {
        return None;
    }
    if offload.csum_blank {
        let ip = IpHeaders::parse_head(frame, len).ok()?;
        let field = ip.checksum_at().ok()?.checked_sub(ip.l4_at)?;
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&u16::try_from(ip.l4_at).ok()?.to_ne_bytes());
        header[8..10].copy_from_slice(&u16::try_from(field).ok()?.to_ne_bytes());
        if offload.gso_type != 0 {
            header[1] = match offload.gso_type {
                GSO_TYPE_TCPV4 => VIRTIO_TCPV4,
                GSO_TYPE_TCPV6 => VIRTIO_TCPV6,
                _ => return None,
            };
            let headers = ip.l4_at + ip.tcp_header_len(frame).ok()?;
            header[2..4].copy_from_slice(&u16::try_from(headers).ok()?.to_ne_bytes());
            header[4..6].copy_from_slice(&offload.gso_size.to_ne_bytes());
        }
    } else if offload.csum_ok {
        header[0] = DATA_VALID;
    }
    Some(header)
}

/// Returns the work that the kernel left on the frame with this header. None: it is a kind of
/// segment that was not asked for.
#[inline]
pub fn offload_of(header: &[u8; HEADER]) -> Option<PlacedOffload> {
    let gso_type = match header[1] & !VIRTIO_ECN {
        0 => 0,
        VIRTIO_TCPV4 => GSO_TYPE_TCPV4,
        VIRTIO_TCPV6 => GSO_TYPE_TCPV6,
        _ => return None,
    };
    let csum_blank = header[0] & NEEDS_CSUM != 0;
    let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let offload = Offload {
        csum_blank,
        csum_ok: csum_blank || header[0] & DATA_VALID != 0,
        gso_type,
        gso_size: if gso_type == 0 { 0 } else { field(4) },
    };
    Some(PlacedOffload { offload, csum_start: field(6), csum_offset: field(8) })
}

/// Completes the frame behind its header as far as netif requires ([`PlacedOffload::take`]), and
/// then marks a completed checksum in the header. If the frame must be taken again because there
/// was no room, the result is therefore the same. None: the header contradicts the frame.
#[inline]
pub fn take(header: &mut [u8; HEADER], frame: &mut [u8]) -> Option<Taken> {
    let placed = offload_of(header)?;
    let taken = placed.take(frame).ok()?;
    if let Taken::Frame(left) = taken
        && placed.offload.csum_blank
        && !left.csum_blank
    {
        header[0] = if left.csum_ok { DATA_VALID } else { 0 };
    }
    Some(taken)
}

/// Takes a frame of `len` bytes as [`take`] does, in memory that others can read. A frame that must
/// be completed or segmented is copied to `private`. A frame that must be segmented is left there.
pub fn take_shared(
    header: &[u8; HEADER],
    room: &PieceMut<'_>,
    len: usize,
    private: &mut Vec<u8>,
) -> Option<Taken> {
    let placed = offload_of(header)?;
    let mut head = [0; HEAD];
    let n = if placed.offload.csum_blank { room.copy_out(&mut head).min(len) } else { 0 };
    if placed.is_plain(&head[..n], len) {
        return Some(Taken::Frame(placed.offload));
    }
    private.resize(len, 0);
    if room.copy_out(private) < len {
        return None;
    }
    let taken = placed.take(private).ok()?;
    if let Taken::Frame(_) = taken {
        room.copy_in(private);
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::net::checksum;

    /// An Ethernet, IPv4 and TCP header with `payload` bytes; the checksum field is not filled.
    fn tcp(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 54 + payload];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
        frame[22] = 64;
        frame[23] = 6;
        frame[46] = 0x50;
        frame
    }

    fn header_of(frame: &[u8], offload: Offload) -> Option<[u8; HEADER]> {
        let whole = super::header_of(frame, frame.len(), offload);
        let head = super::header_of(&frame[..frame.len().min(128)], frame.len(), offload);
        assert_eq!(whole, head, "only headers are read");
        whole
    }

    /// The result of taking a frame behind `header` from private memory and from shared memory,
    /// which must agree.
    fn taken(header: &[u8; HEADER], frame: &[u8]) -> (Option<Taken>, Vec<u8>) {
        let (mut of, mut private) = (*header, frame.to_vec());
        let taken = take(&mut of, &mut private);
        // Taking it again, as is done when there was no room, changes nothing.
        if let Some(Taken::Frame(_)) = taken {
            let before = private.clone();
            assert_eq!(take(&mut of, &mut private), taken);
            assert_eq!(private, before);
        }
        let (mut room, mut scratch) = (frame.to_vec(), Vec::new());
        room.resize(1 << 16, 0xEE);
        assert_eq!(take_shared(header, &PieceMut::from(&mut room[..]), frame.len(), &mut scratch), taken);
        if let Some(Taken::Frame(_)) = taken {
            assert!(room[..frame.len()] == private && room[frame.len()..].iter().all(|b| *b == 0xEE));
        }
        (taken, private)
    }

    /// Takes a frame as `taken` does, but leaves the frame unchanged.
    fn untouched(header: &[u8; HEADER], frame: &[u8]) -> Option<Taken> {
        let (taken, bytes) = taken(header, frame);
        assert!(bytes == frame);
        taken
    }

    /// A header from the kernel: a blank checksum at `offset` from `start`, and segments of
    /// `gso_size`.
    fn blank_at(start: usize, offset: usize, gso: u8, gso_size: u16) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (NEEDS_CSUM, gso);
        header[4..6].copy_from_slice(&gso_size.to_ne_bytes());
        header[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
        header[8..10].copy_from_slice(&(offset as u16).to_ne_bytes());
        header
    }

    /// A TCP or UDP packet over IPv4, or over IPv6 with extension headers, behind this many tags,
    /// in a tunnel or not: with a blank checksum, and with the right one.
    fn packet(tags: usize, v6: bool, extensions: usize, is_tcp: bool, tunnel: &[u8]) -> [Vec<u8>; 2] {
        let mut link = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        (0..tags).for_each(|i| link.extend([[0x81, 0x00], [0x88, 0xA8]][i % 2].iter().chain(&[0, 7])));
        link.extend(if v6 { [0x86, 0xDD] } else { [8, 0] });
        let l4_len = if is_tcp { 20 } else { 8 } + 101;
        let protocol = if is_tcp { 6 } else { 17 };
        let mut frame = link;
        if v6 {
            let next = if extensions > 0 { 60 } else { protocol };
            let len = (extensions * 8 + l4_len) as u16;
            frame.extend([0x60, 0, 0, 0, (len >> 8) as u8, len as u8, next, 64]);
            frame.extend([1; 16].iter().chain(&[2; 16]));
            for i in 0..extensions {
                frame.extend([if i + 1 == extensions { protocol } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
            }
        } else {
            let len = (20 + l4_len) as u16;
            frame.extend([0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 64, protocol, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let l4_at = frame.len();
        frame.resize(l4_at + l4_len, 0);
        (0..l4_len).for_each(|k| frame[l4_at + k] = (k * 7) as u8);
        if is_tcp {
            frame[l4_at + 12] = 0x50;
        } else {
            frame[l4_at + 4..l4_at + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
        }
        let mut blank = frame.clone();
        checksum::make_blank(&mut blank).unwrap();
        let mut whole = blank.clone();
        checksum::finish_blank(&mut whole).unwrap();
        [blank, whole].map(|inner| [tunnel, &inner].concat())
    }

    /// The offset of a packet's TCP or UDP header, and of the checksum field within it.
    fn place(frame: &[u8], from: usize) -> (usize, usize) {
        let ip = IpHeaders::parse(&frame[from..]).unwrap();
        (from + ip.l4_at, ip.checksum_at().unwrap() - ip.l4_at)
    }

    /// VXLAN over IPv4 without an outer checksum: 50 bytes before the inner frame.
    fn vxlan(inner: usize) -> Vec<u8> {
        let mut outer = vec![4, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 2, 8, 0];
        let len = (36 + inner) as u16;
        outer.extend([
            0x45,
            0,
            (len >> 8) as u8,
            len as u8,
            0,
            0,
            0,
            0,
            64,
            17,
            0,
            0,
            9,
            9,
            9,
            1,
            9,
            9,
            9,
            2,
        ]);
        let udp = (16 + inner) as u16;
        outer.extend([0x12, 0x34, 0x12, 0xB5, (udp >> 8) as u8, udp as u8, 0, 0]);
        outer.extend([8, 0, 0, 0, 0, 0, 42, 0]);
        outer
    }

    #[test]
    fn a_blank_checksum_of_an_untagged_packet_travels_as_it_is() {
        for (v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            for extensions in 0..if v6 { 4 } else { 1 } {
                let [blank, _] = packet(0, v6, extensions, is_tcp, &[]);
                let (start, offset) = place(&blank, 0);
                let due = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
                assert_eq!(untouched(&blank_at(start, offset, 0, 0), &blank), Some(Taken::Frame(due)));
            }
        }
    }

    /// Linux only completes blank checksums of untagged IPv4 and IPv6 (docs/protocol 2.7).
    #[test]
    fn a_blank_checksum_behind_tags_is_finished() {
        for (tags, v6, is_tcp) in (0..8).map(|k| (1 + k % 2, k & 2 != 0, k & 4 != 0)) {
            let [blank, whole] = packet(tags, v6, 0, is_tcp, &[]);
            let (start, offset) = place(&blank, 0);
            let (taken, bytes) = taken(&blank_at(start, offset, 0, 0), &blank);
            assert!(bytes == whole, "{tags} tags, v6 {v6}, tcp {is_tcp}");
            assert_eq!(taken, Some(Taken::Frame(Offload { csum_ok: true, ..Offload::default() })));
        }
    }

    /// In a tunnel the outer header's checksum is finished here, since the kernel does not complete
    /// it, and nothing is known about it.
    #[test]
    fn a_blank_checksum_in_a_tunnel_is_finished_there() {
        for (tags, v6, is_tcp) in (0..12).map(|k| (k % 3, k & 4 != 0, k >= 6)) {
            let inner = packet(tags, v6, 0, is_tcp, &[])[0].len();
            let tunnel = vxlan(inner);
            let [blank, whole] = packet(tags, v6, 0, is_tcp, &tunnel);
            let (start, offset) = place(&blank, tunnel.len());
            let (taken, bytes) = taken(&blank_at(start, offset, 0, 0), &blank);
            assert!(bytes == whole, "{tags} tags, v6 {v6}, tcp {is_tcp}");
            assert_eq!(taken, Some(Taken::Frame(Offload::default())));
            // The kernel segments large ones itself.
            let large = blank_at(start, offset, if v6 { VIRTIO_TCPV6 } else { VIRTIO_TCPV4 }, 80);
            assert_eq!(untouched(&large, &blank), None);
        }
    }

    /// In a fragment, with too many extension headers, and with a protocol that netif does not
    /// know, only the kernel's header tells where the checksum is.
    #[test]
    fn a_blank_checksum_of_anything_else_is_finished_where_it_is() {
        let [mut fragment, _] = packet(0, false, 0, false, &[]);
        fragment[20] |= 0x20; // more fragments
        // With more extension headers than are parsed, only the virtio header says where the
        // checksum is.
        let mut many = packet(0, true, 7, true, &[])[0].clone();
        many[54 + 6 * 8] = 60;
        let [mut sctp, _] = packet(0, false, 0, true, &[]);
        sctp[23] = 132;
        for (blank, start, offset) in
            [(fragment, 34, 6), (many, 54 + 7 * 8, 16), (sctp, 34, 16), (vec![7; 60], 14, 2)]
        {
            let (taken, bytes) = taken(&blank_at(start, offset, 0, 0), &blank);
            assert_eq!(taken, Some(Taken::Frame(Offload::default())));
            let mut due = blank.clone();
            checksum::finish_at(&mut due, start, offset).unwrap();
            assert!(bytes == due && bytes != blank);
        }
        // The field is outside of the frame.
        for (start, offset) in [(1000, 0), (0, 1000), (59, 0), (usize::from(u16::MAX), 65_535)] {
            assert_eq!(untouched(&blank_at(start, offset, 0, 0), &[7; 60]), None);
        }
    }

    #[test]
    fn a_large_segment_behind_a_tag_is_to_be_cut() {
        for (tags, v6) in [(1, false), (2, true)] {
            let [blank, _] = packet(tags, v6, 0, true, &[]);
            let (start, offset) = place(&blank, 0);
            let (virtio, gso_type) =
                if v6 { (VIRTIO_TCPV6, GSO_TYPE_TCPV6) } else { (VIRTIO_TCPV4, GSO_TYPE_TCPV4) };
            let due = Offload { csum_blank: true, csum_ok: true, gso_type, gso_size: 50 };
            assert_eq!(untouched(&blank_at(start, offset, virtio, 50), &blank), Some(Taken::Uncut(due)));
            assert_eq!(
                untouched(&blank_at(start, offset, virtio | VIRTIO_ECN, 50), &blank),
                Some(Taken::Uncut(due))
            );
        }
    }

    #[test]
    fn a_blank_checksum_and_segments_travel_in_the_header() {
        let blank = Offload { csum_blank: true, csum_ok: true, gso_type: 0, gso_size: 0 };
        let header = header_of(&tcp(100), blank).unwrap();
        assert_eq!((header[0], header[1]), (NEEDS_CSUM, 0));
        assert_eq!([header[6], header[8]], [34, 16]);
        assert_eq!(untouched(&header, &tcp(100)), Some(Taken::Frame(blank)));

        let uncut = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, ..blank };
        let header = header_of(&tcp(9000), uncut).unwrap();
        assert_eq!([header[1], header[2]], [VIRTIO_TCPV4, 54]);
        assert_eq!(untouched(&header, &tcp(9000)), Some(Taken::Frame(uncut)));

        let ok = Offload { csum_ok: true, ..Offload::default() };
        assert_eq!(untouched(&header_of(&tcp(0), ok).unwrap(), &tcp(0)), Some(Taken::Frame(ok)));
        assert_eq!(header_of(&[0; 60], Offload::default()), Some([0; HEADER]));
    }

    #[test]
    fn what_headers_do_not_bear_out_is_no_frame() {
        let blank = Offload { csum_blank: true, ..Offload::default() };
        assert_eq!(header_of(&[0; 60], blank), None);
        assert_eq!(header_of(&tcp(9)[..40], blank), None);
        let finished = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, ..Offload::default() };
        assert_eq!(header_of(&tcp(9000), finished), None);
        let tiny = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: MIN_GSO_SIZE - 1, ..blank };
        assert_eq!(header_of(&tcp(9000), tiny), None);
        let unknown = Offload { gso_type: 9, gso_size: 100, ..blank };
        assert_eq!(header_of(&tcp(9), unknown), None);
        // UDP segmentation was not enabled.
        assert_eq!(untouched(&[1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &tcp(9)), None);
    }
}
