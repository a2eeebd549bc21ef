//! Finds the headers of a frame: Ethernet, VLAN tags, IPv4, IPv6 with its extension headers, TCP,
//! UDP.
//!
//! ```text
//!   0         l2_len            l4_at          l4_at + tcp_len      end       frame.len()
//!   | Ethernet | IPv4 or IPv6 .. | TCP or UDP .. | payload ..........| padding |
//!   | VLAN x2  | + ext headers   |               |                   |         |
//! ```
//!
//! It only finds what checksums, segmentation and the switch need. The frame is a private copy, but
//! a peer chose its bytes: every length is checked, the chains of extension headers and of tags are
//! bounded, and nothing panics. A frame that cannot be parsed is a [`HeaderFault`], which affects
//! that frame only.

use core::fmt;

/// Bytes in an Ethernet header without tags.
pub const ETHERNET_LEN: usize = 14;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86DD;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad service tag.
pub const ETHERTYPE_QINQ: u16 = 0x88A8;

/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// Largest number of VLAN tags that are parsed.
const MAX_TAGS: usize = 2;
/// Largest number of IPv6 extension headers that are parsed.
const MAX_EXTENSIONS: usize = 8;

/// Largest number of bytes of IP headers after which Linux still finds the checksum
/// (`MAX_IPV6_HDR_LEN`).
const PLAIN_MAX: usize = 256;

/// Why a frame's headers could not be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeaderFault {
    /// A header, or the packet that it announces, exceeds the frame.
    Truncated,
    /// Length or version fields contradict each other.
    Malformed,
    /// The packet is neither IPv4 nor IPv6.
    NotIp,
    /// The packet is neither TCP nor UDP, or not of the requested protocol.
    WrongProtocol,
    /// The packet is a fragment, whose L4 checksum covers more than this frame.
    Fragment,
    /// The frame has more tags or extension headers than are parsed, or a header that changes the
    /// pseudo-header.
    Unsupported,
    /// The segment size is 0 or far too small, or the kind of segmentation is unknown.
    BadSegmentSize,
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "headers pass the end of the frame",
            Self::Malformed => "a header contradicts itself",
            Self::NotIp => "not an IP packet",
            Self::WrongProtocol => "not the TCP or UDP packet it is said to be",
            Self::Fragment => "an IP fragment",
            Self::Unsupported => "too many tags or extension headers",
            Self::BadSegmentSize => "unusable segment size or segmentation type",
        })
    }
}

impl core::error::Error for HeaderFault {}

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address, all ones.
    pub const BROADCAST: MacAddr = MacAddr([0xFF; 6]);

    /// Whether the address is a group address (multicast or broadcast).
    #[inline(always)]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether the address is all zeroes, which no station may use.
    #[inline(always)]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Destination and source of a frame. None: it is shorter than an Ethernet header.
#[inline(always)]
pub fn addresses(frame: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let head = frame.first_chunk::<ETHERNET_LEN>()?;
    let mac =
        |at: usize| MacAddr([head[at], head[at + 1], head[at + 2], head[at + 3], head[at + 4], head[at + 5]]);
    Some((mac(0), mac(6)))
}

/// The IP version of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The offsets of an IP frame's headers. All are within the frame that was parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeaders {
    /// Bytes before the IP header: Ethernet and tags.
    pub l2_len: usize,
    /// The IP version.
    pub version: IpVersion,
    /// Offset of the L4 header.
    pub l4_at: usize,
    /// Offset after the IP packet's last byte. What follows in the frame is Ethernet padding.
    pub end: usize,
    /// The protocol of the L4 header.
    pub protocol: u8,
    /// Whether the packet is a fragment of a larger datagram, so that the L4 header is missing or
    /// covers more than this frame.
    pub fragment: bool,
    /// Whether there is a routing header with segments left, so that the destination in the
    /// pseudo-header is not the IP header's.
    pub routed: bool,
}

/// The big-endian 16-bit field at `at`.
#[inline(always)]
pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

impl IpHeaders {
    /// Finds the headers of `frame`.
    pub fn parse(frame: &[u8]) -> Result<Self, HeaderFault> {
        Self::parse_head(frame, frame.len())
    }

    /// Like [`parse`](Self::parse), for a frame of `len` bytes, of which `frame` has the first
    /// ones. Headers that are not complete count as truncated.
    pub fn parse_head(frame: &[u8], len: usize) -> Result<Self, HeaderFault> {
        let mut ethertype = be16(frame, 12).ok_or(HeaderFault::Truncated)?;
        let mut l2_len = ETHERNET_LEN;
        let mut tags = 0;
        while matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ) {
            if tags == MAX_TAGS {
                return Err(HeaderFault::Unsupported);
            }
            tags += 1;
            ethertype = be16(frame, l2_len + 2).ok_or(HeaderFault::Truncated)?;
            l2_len += 4;
        }
        match ethertype {
            ETHERTYPE_IPV4 => Self::parse_v4(frame, l2_len, len),
            ETHERTYPE_IPV6 => Self::parse_v6(frame, l2_len, len),
            _ => Err(HeaderFault::NotIp),
        }
    }

    /// Whether `head`, the first bytes of a frame of `len`, contains all headers that a TCP or UDP
    /// checksum or segmentation needs.
    pub fn are_in(head: &[u8], len: usize) -> bool {
        let l4_end = |headers: Self| match headers.protocol {
            PROTOCOL_TCP => headers.tcp_header_len(head).map(|tcp| headers.l4_at + tcp),
            _ => headers.checksum_at().map(|field| field + 2),
        };
        Self::parse_head(head, len).and_then(l4_end).is_ok_and(|end| end <= head.len())
    }

    fn parse_v4(frame: &[u8], l2_len: usize, len: usize) -> Result<Self, HeaderFault> {
        let ip = frame.get(l2_len..).and_then(<[u8]>::first_chunk::<20>).ok_or(HeaderFault::Truncated)?;
        let header_len = usize::from(ip[0] & 0x0F) * 4;
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        if ip[0] >> 4 != 4 || header_len < 20 || total < header_len {
            return Err(HeaderFault::Malformed);
        }
        let end = l2_len + total;
        if end > len {
            return Err(HeaderFault::Truncated);
        }
        // more-fragments, or an offset
        let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3FFF != 0;
        let l4_at = l2_len + header_len;
        Ok(Self { l2_len, version: IpVersion::V4, l4_at, end, protocol: ip[9], fragment, routed: false })
    }

    fn parse_v6(frame: &[u8], l2_len: usize, len: usize) -> Result<Self, HeaderFault> {
        const HOP_BY_HOP: u8 = 0;
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        const AUTHENTICATION: u8 = 51;
        const DESTINATION: u8 = 60;

        let ip = frame.get(l2_len..).and_then(<[u8]>::first_chunk::<40>).ok_or(HeaderFault::Truncated)?;
        if ip[0] >> 4 != 6 {
            return Err(HeaderFault::Malformed);
        }
        let end = l2_len + 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        if end > len {
            return Err(HeaderFault::Truncated);
        }
        let found = |l4_at, protocol, fragment, routed| Self {
            l2_len,
            version: IpVersion::V6,
            l4_at,
            end,
            protocol,
            fragment,
            routed,
        };
        let mut protocol = ip[6];
        let mut at = l2_len + 40;
        let (mut fragment, mut routed) = (false, false);
        for _ in 0..MAX_EXTENSIONS {
            if !matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION) {
                return Ok(found(at, protocol, fragment, routed));
            }
            let ext = frame.get(at..).and_then(<[u8]>::first_chunk::<8>).filter(|_| at + 8 <= end);
            let ext = ext.ok_or(HeaderFault::Truncated)?;
            let ext_len = match protocol {
                FRAGMENT => {
                    let word = u16::from_be_bytes([ext[2], ext[3]]);
                    // an offset, or more to come; else an "atomic fragment"
                    fragment |= word & 0xFFF9 != 0;
                    8
                }
                AUTHENTICATION => (usize::from(ext[1]) + 2) * 4,
                _ => (usize::from(ext[1]) + 1) * 8,
            };
            routed |= protocol == ROUTING && ext[3] != 0;
            protocol = ext[0];
            at += ext_len;
            if at > end {
                return Err(HeaderFault::Truncated);
            }
            // A later fragment of a datagram has no headers after this one.
            if fragment {
                return Ok(found(at, protocol, fragment, routed));
            }
        }
        Err(HeaderFault::Unsupported)
    }

    /// Whether netif can express that this packet's checksum is blank, or that it must be
    /// segmented: the flag has no offsets, so its reader expects an outermost TCP or UDP header
    /// after an Ethernet header without tags, as Linux's `skb_checksum_setup` does
    /// (docs/protocol 2.7).
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.l2_len == ETHERNET_LEN && self.l4_at <= ETHERNET_LEN + PLAIN_MAX && self.checksum_at().is_ok()
    }

    /// Bytes of the L4 header and its payload.
    pub fn l4_len(&self) -> usize {
        self.end - self.l4_at
    }

    /// Offset of the L4 checksum field of this TCP or UDP packet, which is within the packet.
    pub fn checksum_at(&self) -> Result<usize, HeaderFault> {
        if self.fragment {
            return Err(HeaderFault::Fragment);
        }
        let (header_len, field) = match self.protocol {
            PROTOCOL_TCP => (20, 16),
            PROTOCOL_UDP => (8, 6),
            _ => return Err(HeaderFault::WrongProtocol),
        };
        if self.l4_len() < header_len {
            return Err(HeaderFault::Truncated);
        }
        Ok(self.l4_at + field)
    }

    /// Bytes of the TCP header, including options.
    pub fn tcp_header_len(&self, frame: &[u8]) -> Result<usize, HeaderFault> {
        if self.fragment {
            return Err(HeaderFault::Fragment);
        }
        if self.protocol != PROTOCOL_TCP {
            return Err(HeaderFault::WrongProtocol);
        }
        if self.l4_len() < 20 {
            return Err(HeaderFault::Truncated);
        }
        let len = usize::from(frame.get(self.l4_at + 12).ok_or(HeaderFault::Truncated)? >> 4) * 4;
        if len < 20 {
            return Err(HeaderFault::Malformed);
        }
        if len > self.l4_len() {
            return Err(HeaderFault::Truncated);
        }
        Ok(len)
    }
}
