//! The header in front of each frame of a tap, `struct virtio_net_hdr_mrg_rxbuf`: what is still to
//! be done to the frame.
//!
//! Both ends leave checksums blank and segments uncut as long as no one needs them; the kernel
//! checks what a guest said once more.

use pregrant::net::headers::IpHeaders;
use pregrant::port::Offload;
use pregrant::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};

/// `struct virtio_net_hdr_mrg_rxbuf`, host byte order: flags u8, gso_type u8, hdr_len, gso_size,
/// csum_start, csum_offset u16; num_buffers u16, which vhost-net alone writes.
pub const HEADER: usize = 12;
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const VIRTIO_TCPV4: u8 = 1;
const VIRTIO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`: congestion was signalled; segmentation is the same.
const VIRTIO_ECN: u8 = 0x80;

/// The header of a frame of `len` bytes that a guest sent; `frame` has the first of them, with all
/// headers. None: its claims do not fit its headers.
pub fn header_of(frame: &[u8], len: usize, offload: Offload) -> Option<[u8; HEADER]> {
    let mut header = [0; HEADER];
    // Segmentation starts from a blank checksum, the kernel's too.
    if offload.gso_type != 0 && !offload.csum_blank {
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

/// The work still to be done on a frame of the kernel's. None: such a frame is invalid.
pub fn offload_of(header: &[u8; HEADER]) -> Option<Offload> {
    let gso_type = match header[1] & !VIRTIO_ECN {
        0 => 0,
        VIRTIO_TCPV4 => GSO_TYPE_TCPV4,
        VIRTIO_TCPV6 => GSO_TYPE_TCPV6,
        _ => return None,
    };
    let csum_blank = header[0] & NEEDS_CSUM != 0;
    Some(Offload {
        csum_blank,
        csum_ok: csum_blank || header[0] & DATA_VALID != 0,
        gso_type,
        gso_size: if gso_type == 0 { 0 } else { u16::from_ne_bytes([header[4], header[5]]) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet, IPv4 and TCP header, and `payload` bytes; the checksum field is to be filled.
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

    #[test]
    fn a_blank_checksum_and_segments_travel_in_the_header() {
        let blank = Offload { csum_blank: true, csum_ok: true, gso_type: 0, gso_size: 0 };
        let header = header_of(&tcp(100), blank).unwrap();
        assert_eq!((header[0], header[1]), (NEEDS_CSUM, 0));
        assert_eq!([header[6], header[8]], [34, 16]);
        assert_eq!(offload_of(&header), Some(blank));

        let uncut = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, ..blank };
        let header = header_of(&tcp(9000), uncut).unwrap();
        assert_eq!([header[1], header[2]], [VIRTIO_TCPV4, 54]);
        assert_eq!(offload_of(&header), Some(uncut));

        let ok = Offload { csum_ok: true, ..Offload::default() };
        assert_eq!(offload_of(&header_of(&tcp(0), ok).unwrap()), Some(ok));
        assert_eq!(header_of(&[0; 60], Offload::default()), Some([0; HEADER]));
    }

    #[test]
    fn what_headers_do_not_bear_out_is_no_frame() {
        let blank = Offload { csum_blank: true, ..Offload::default() };
        assert_eq!(header_of(&[0; 60], blank), None);
        assert_eq!(header_of(&tcp(9)[..40], blank), None);
        let finished = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, ..Offload::default() };
        assert_eq!(header_of(&tcp(9000), finished), None);
        let unknown = Offload { gso_type: 9, gso_size: 100, ..blank };
        assert_eq!(header_of(&tcp(9), unknown), None);
        // UDP segmentation was not asked for.
        assert_eq!(offload_of(&[1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
