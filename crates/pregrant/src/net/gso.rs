//! Segmentation in software: cuts a large TCP frame into frames with at most `gso_size` bytes of
//! payload.
//!
//! ```text
//!   | headers | payload ...................................... |      one frame, gso_size = s
//!   | headers | s |   | headers | s |   | headers | the rest |        Segments: written one by one
//! ```
//!
//! [`Segments`] is a plan: the caller asks for each segment's length, finds room for it, and lets
//! it be written there, so that a full queue costs no copy and a frame can be continued later. Each
//! segment has its own length, IPv4 identification and header checksum, sequence number and
//! complete TCP checksum. FIN and PSH are only set in the last one, CWR only in the first.
//!
//! A peer chooses `gso_size` and every header byte. It can cause at most 1366 segments from a frame
//! of 64 KiB (sizes below [`MIN_GSO_SIZE`] are refused), each with at most [`HEADERS_MAX`] bytes of
//! headers; everything else that is invalid is a [`HeaderFault`].

use super::checksum;
use super::headers::{HeaderFault, IpHeaders, IpVersion};
use crate::port::{Arena, FrameDesc, Offload};
use crate::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};

/// Least payload of a segment. Linux accepts no MSS below 88 (TCP_MIN_MSS), of which TCP options
/// use 40 at most; it sends none below 48 (TCP_MIN_SND_MSS), since small ones were used for attacks
/// (CVE-2019-11479).
pub const MIN_GSO_SIZE: u16 = 48;
/// The longest headers that are copied to each segment; Linux parses as much to set up an IPv6
/// checksum (MAX_IPV6_HDR_LEN).
pub const HEADERS_MAX: usize = 256;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The plan by which a frame is segmented.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    frame: &'a [u8],
    headers: IpHeaders,
    /// Bytes of all headers, with which each segment starts.
    head_len: usize,
    mss: usize,
    count: usize,
    /// The pseudo-header's sum for a segment of length 0.
    pseudo: u32,
}

impl<'a> Segments<'a> {
    /// Plans the segmentation for `offload`. The frame is checked here, so that writing cannot
    /// fail.
    pub fn plan(frame: &'a [u8], offload: Offload) -> Result<Self, HeaderFault> {
        if offload.gso_size < MIN_GSO_SIZE {
            return Err(HeaderFault::BadSegmentSize);
        }
        let headers = IpHeaders::parse(frame)?;
        match (offload.gso_type, headers.version) {
            (GSO_TYPE_TCPV4, IpVersion::V4) | (GSO_TYPE_TCPV6, IpVersion::V6) => {}
            (GSO_TYPE_TCPV4 | GSO_TYPE_TCPV6, _) => return Err(HeaderFault::WrongProtocol),
            _ => return Err(HeaderFault::BadSegmentSize),
        }
        let head_len = headers.l4_at + headers.tcp_header_len(frame)?;
        if head_len > HEADERS_MAX {
            return Err(HeaderFault::Unsupported);
        }
        let mss = usize::from(offload.gso_size);
        let count = (headers.end - head_len).div_ceil(mss).max(1);
        let pseudo = checksum::pseudo(frame, &headers, 0)?;
        Ok(Self { frame, headers, head_len, mss, count, pseudo })
    }

    /// Number of segments, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    fn payload(&self, i: usize) -> core::ops::Range<usize> {
        let start = self.head_len + i * self.mss;
        start..(start + self.mss).min(self.headers.end)
    }

    /// Bytes of segment `i`, including headers. `i` must be below [`Segments::count`].
    pub fn len_of(&self, i: usize) -> usize {
        self.head_len + self.payload(i).len()
    }

    /// Bytes of all segments together.
    pub fn total_len(&self) -> usize {
        self.count * self.head_len + self.headers.end - self.head_len
    }

    /// Writes segment `i` to `out`, which must have [`Segments::len_of`] bytes. Its checksums are
    /// complete.
    pub fn write(&self, i: usize, out: &mut [u8]) {
        let h = &self.headers;
        out[..self.head_len].copy_from_slice(&self.frame[..self.head_len]);
        out[self.head_len..].copy_from_slice(&self.frame[self.payload(i)]);

        let ip = &mut out[h.l2_len..];
        match h.version {
            IpVersion::V4 => {
                // Lengths fit 16 bits, since no segment is longer than the original frame.
                let total = ip.len() as u16;
                ip[2..4].copy_from_slice(&total.to_be_bytes());
                let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(i as u16);
                ip[4..6].copy_from_slice(&id.to_be_bytes());
                ip[10..12].fill(0);
                let header = checksum::checksum(&ip[..h.l4_at - h.l2_len]);
                ip[10..12].copy_from_slice(&header.to_be_bytes());
            }
            IpVersion::V6 => {
                let payload = (ip.len() - 40) as u16;
                ip[4..6].copy_from_slice(&payload.to_be_bytes());
            }
        }

        let tcp = &mut out[h.l4_at..];
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add((i * self.mss) as u32);
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        if i + 1 != self.count {
            tcp[13] &= !(FIN | PSH);
        }
        if i != 0 {
            tcp[13] &= !CWR;
        }
        tcp[16..18].fill(0);
        let sum = self.pseudo + tcp.len() as u32 + checksum::sum(tcp);
        let value = !checksum::fold(sum);
        tcp[16..18].copy_from_slice(&value.to_be_bytes());
    }
}

/// Makes the checksum of frame `i` blank, a large segment whose sender claims that it is complete.
/// It cannot be: each segment needs its own, and segmentation starts from a blank one. Linux does
/// the same at both ends (`rx_gso_checksum_fixup`). On an error the frame must be dropped, as in
/// Linux.
#[cold]
pub fn blank_checksum(arena: &mut Arena, i: usize) -> Result<(), HeaderFault> {
    let FrameDesc { at, len, offload } = arena.desc(i);
    checksum::make_blank(arena.part_mut(at as usize, len as usize).ok_or(HeaderFault::Truncated)?)?;
    arena.set_offload(i, Offload { csum_blank: true, csum_ok: true, ..offload });
    Ok(())
}
