//! Requests, responses and extra infos of netif (docs/protocol 2).
//!
//! TX is what the guest sends, RX what it receives, on both ends. One frame takes one or more
//! slots:
//!
//! ```text
//!   first slot (extra_info set) -> extra -> extra while MORE -> data slot -> data slot
//!       |                                                          ^            ^
//!       +--- more_data ---------------------------------------------+--more_data-+   (extras do not carry it)
//! ```
//! C: xen/include/public/io/netif.h. Little-endian. A response overwrites the start of its
//! request's slot.
//!
//! Invariants: `from_words` keeps every bit but the pads; `to_words` writes pads as zero. The
//! checksum flags have **other bits on TX than on RX**.
//!
//! What the peer may do: put any bits into any slot. Nothing here fails but [`Extra::parse`], for
//! what both ends of Linux treat as fatal. The limits at the end of this file need the whole frame
//! and are applied where it is assembled.

use super::WireError;
use core::mem::offset_of;

/// A request by which the frontend asks the backend to send one fragment of a frame.
///
/// C: `struct netif_tx_request`, xen/include/public/io/netif.h. Little-endian. 12 bytes.
///
/// ```text
/// |  0    1    2    3  |  4     5  |  6     7  |  8     9  | 10    11  |
/// |      gref (f)      | offset (f)| flags (f) |   id (f)  |  size (f) |
/// ```
/// * `gref`: granted page, chosen by the peer: map or copy may fail. 0 means staged
///   (docs/protocol 3.3).
/// * `offset`: bytes, start of this fragment in the page. `offset` + fragment length <= 4096 can be
///   checked only when the first fragment's length is known.
/// * `flags`: `TXF_*`.
/// * `id`: chosen by the front, comes back in the response; also the staging buffer's number.
/// * `size`: bytes, of the **whole frame** in the first slot, of the fragment in the others. The
///   first fragment has what the others leave of the total.
///
/// # Trust
/// Every field is peer data, read once into this copy. Nothing is checked here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TxRequest {
    /// Grant reference of the page.
    pub gref: u32,
    /// Offset of the fragment in the page, in bytes.
    pub offset: u16,
    /// The flags `NETTXF_*`.
    pub flags: u16,
    /// An identifier that the front chose; the response repeats it.
    pub id: u16,
    /// In the first slot the bytes of the whole frame, in later slots the bytes of this fragment.
    pub size: u16,
}

const _: () = assert!(size_of::<TxRequest>() == TX_SLOT_BYTES);
const _: () = assert!(offset_of!(TxRequest, offset) == 4 && offset_of!(TxRequest, flags) == 6);
const _: () = assert!(offset_of!(TxRequest, id) == 8 && offset_of!(TxRequest, size) == 10);

impl TxRequest {
    /// Decodes the slot's three little-endian words.
    #[inline(always)]
    pub const fn from_words(w: [u32; 3]) -> Self {
        Self {
            gref: w[0],
            offset: w[1] as u16,
            flags: (w[1] >> 16) as u16,
            id: w[2] as u16,
            size: (w[2] >> 16) as u16,
        }
    }
    /// Encodes the slot's three little-endian words.
    #[inline(always)]
    pub const fn to_words(self) -> [u32; 3] {
        [self.gref, self.offset as u32 | (self.flags as u32) << 16, self.id as u32 | (self.size as u32) << 16]
    }
}

/// A response by which the backend returns one TX slot; each slot consumed has one, also for
/// extras.
///
/// C: `struct netif_tx_response`, xen/include/public/io/netif.h. Little-endian. 4 bytes.
///
/// ```text
/// |  0     1  |  2     3  |  4 ... 11                        |
/// |   id (b)  | status (b)| stays as the front's request was |
/// ```
/// * `id`: the request's; meaningless when `status` is [`RSP_NULL`].
/// * `status`: [`RSP_OKAY`], [`RSP_ERROR`], [`RSP_DROPPED`], or [`RSP_NULL`] for a slot that held
///   an extra.
///
/// # Trust
/// A hostile back answers ids that were never asked, or twice: the front keeps a map of what is in
/// flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct TxResponse {
    /// The request's id (meaningless if `status` is [`RSP_NULL`]).
    pub id: u16,
    /// The result, one of `NETIF_RSP_*`.
    pub status: i16,
}

const _: () = assert!(size_of::<TxResponse>() == 4 && offset_of!(TxResponse, status) == 2);

impl TxResponse {
    /// Decodes the slot's first word.
    #[inline(always)]
    pub const fn from_word(w: u32) -> Self {
        Self { id: w as u16, status: (w >> 16) as i16 }
    }
    /// Encodes the slot's first word.
    #[inline(always)]
    pub const fn to_word(self) -> u32 {
        self.id as u32 | (self.status as u16 as u32) << 16
    }
}

/// A request by which the frontend gives the backend one page for received bytes.
///
/// C: `struct netif_rx_request`, xen/include/public/io/netif.h. Little-endian. 8 bytes.
///
/// ```text
/// |  0     1  |  2     3  |  4    5    6    7  |
/// |   id (f)  |   pad 0   |      gref (f)      |
/// ```
/// * `id`: chosen by the front; with staging also the number of its buffer in the RX list.
/// * `gref`: granted page, writable, used in whole.
///
/// # Trust
/// The grant may not exist or may be read-only: only the copy's own status tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct RxRequest {
    /// An identifier that the front chose.
    pub id: u16,
    /// Grant reference of the page, which must be writable.
    pub gref: u32,
}

const _: () = assert!(size_of::<RxRequest>() == RX_SLOT_BYTES && offset_of!(RxRequest, gref) == 4);

impl RxRequest {
    /// Decodes the slot's two little-endian words.
    #[inline(always)]
    pub const fn from_words(w: [u32; 2]) -> Self {
        Self { id: w[0] as u16, gref: w[1] }
    }
    /// Encodes the slot's two little-endian words; the pad is zero.
    #[inline(always)]
    pub const fn to_words(self) -> [u32; 2] {
        [self.id as u32, self.gref]
    }
}

/// A response that says what the backend put into one page of the front.
///
/// C: `struct netif_rx_response`, xen/include/public/io/netif.h. Little-endian. 8 bytes.
///
/// ```text
/// |  0     1  |  2     3  |  4     5  |  6     7  |
/// |   id (b)  | offset (b)| flags (b) | status (b)|
/// ```
/// * `id`: of the request at the **same ring index**; the front goes by the index.
/// * `offset`: bytes, start of the data in the page.
/// * `flags`: `RXF_*`.
/// * `status`: >= 0 bytes in this slot, < 0 an error. A frame's length is the sum over its slots.
///
/// # Trust
/// `offset + status` may point past the page, and the page stays writable: copy first, parse
/// afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct RxResponse {
    /// The request's id.
    pub id: u16,
    /// Offset of the data in the page, in bytes.
    pub offset: u16,
    /// The flags `NETRXF_*`.
    pub flags: u16,
    /// Bytes in this slot if not negative, else one of `NETIF_RSP_*`.
    pub status: i16,
}

const _: () = assert!(size_of::<RxResponse>() == RX_SLOT_BYTES && offset_of!(RxResponse, offset) == 2);
const _: () = assert!(offset_of!(RxResponse, flags) == 4 && offset_of!(RxResponse, status) == 6);

impl RxResponse {
    /// Decodes the slot's two little-endian words.
    #[inline(always)]
    pub const fn from_words(w: [u32; 2]) -> Self {
        Self { id: w[0] as u16, offset: (w[0] >> 16) as u16, flags: w[1] as u16, status: (w[1] >> 16) as i16 }
    }
    /// Encodes the slot's two little-endian words.
    #[inline(always)]
    pub const fn to_words(self) -> [u32; 2] {
        [self.id as u32 | (self.offset as u32) << 16, self.flags as u32 | (self.status as u16 as u32) << 16]
    }
}

/// `NETIF_RSP_OKAY`: the frame was sent, or received, without an error.
pub const RSP_OKAY: i16 = 0;
/// `NETIF_RSP_ERROR`: the frame could not be handled.
pub const RSP_ERROR: i16 = -1;
/// `NETIF_RSP_DROPPED`: the frame was dropped.
pub const RSP_DROPPED: i16 = -2;
/// `NETIF_RSP_NULL`: the slot carried an extra info.
pub const RSP_NULL: i16 = 1;

/// `NETTXF_csum_blank`: the checksum field holds only the pseudo header's sum; the end that sends
/// the frame on must complete it.
pub const TXF_CSUM_BLANK: u16 = 0x1;
/// `NETTXF_data_validated`: the data was verified, or comes straight from this host.
pub const TXF_DATA_VALIDATED: u16 = 0x2;
/// `NETTXF_more_data`: the frame goes on in a further data slot.
pub const TXF_MORE_DATA: u16 = 0x4;
/// `NETTXF_extra_info`: an [`Extra`] is in the next slot.
pub const TXF_EXTRA_INFO: u16 = 0x8;
/// `NETTXF_staging_buffer`, not in Xen's header (docs/protocol 3.5): `gref` is a staging buffer's
/// global id. It has no meaning unless negotiated.
pub const TXF_STAGING_BUFFER: u16 = 0x10;
/// `NETTXF_data_ring`, ours (docs/protocol 4.5): `gref` is a position in the queue's data ring. It
/// has no meaning unless negotiated.
pub const TXF_DATA_RING: u16 = 0x20;
/// `NETTXF_foreign`, ours (docs/protocol 4.6): `gref` is a frame number of the guest. It has no
/// meaning unless negotiated.
pub const TXF_FOREIGN: u16 = 0x40;
/// A bit of an RX request's `gref`, ours (docs/protocol 4.6): the other bits are a frame number of
/// the guest. No grant reference is that large.
pub const RX_FOREIGN: u32 = 0x8000_0000;
/// `NETRXF_data_validated`: the data was verified. (On RX this flag and `csum_blank` have swapped
/// bits.)
pub const RXF_DATA_VALIDATED: u16 = 0x1;
/// `NETRXF_csum_blank`: the checksum field holds only the pseudo header's sum.
pub const RXF_CSUM_BLANK: u16 = 0x2;
/// `NETRXF_more_data`: the frame goes on in a further data slot.
pub const RXF_MORE_DATA: u16 = 0x4;
/// `NETRXF_extra_info`: an [`Extra`] is in the next slot.
pub const RXF_EXTRA_INFO: u16 = 0x8;
/// `NETRXF_gso_prefix`: an old form of GSO, with a slot without data before the frame. It is never
/// written.
pub const RXF_GSO_PREFIX: u16 = 0x10;

/// `NETRXF_data_ring`, ours (docs/protocol 4.5): the bytes are in the queue's data ring, at 64
/// times `offset`.
pub const RXF_DATA_RING: u16 = 0x20;

/// `XEN_NETIF_EXTRA_TYPE_GSO`: the extra info has the size of a large frame's segments.
pub const EXTRA_TYPE_GSO: u8 = 1;
/// `XEN_NETIF_EXTRA_TYPE_MCAST_ADD`: the extra info adds a multicast address to the guest's list.
pub const EXTRA_TYPE_MCAST_ADD: u8 = 2;
/// `XEN_NETIF_EXTRA_TYPE_MCAST_DEL`: the extra info deletes a multicast address from the guest's
/// list.
pub const EXTRA_TYPE_MCAST_DEL: u8 = 3;
/// `XEN_NETIF_EXTRA_TYPE_HASH`: the extra info has the frame's hash.
pub const EXTRA_TYPE_HASH: u8 = 4;
/// `XEN_NETIF_EXTRA_TYPE_XDP`, in Linux's header only: the extra info has the headroom before the
/// data.
pub const EXTRA_TYPE_XDP: u8 = 5;
/// `XEN_NETIF_EXTRA_FLAG_MORE`: the next slot is an extra info too.
pub const EXTRA_FLAG_MORE: u8 = 0x1;

/// `XEN_NETIF_GSO_TYPE_NONE`. Never valid in a slot: a frame without GSO has no such extra.
pub const GSO_TYPE_NONE: u8 = 0;
/// `XEN_NETIF_GSO_TYPE_TCPV4`: the frame is cut into TCP segments over IPv4.
pub const GSO_TYPE_TCPV4: u8 = 1;
/// `XEN_NETIF_GSO_TYPE_TCPV6`: the frame is cut into TCP segments over IPv6.
pub const GSO_TYPE_TCPV6: u8 = 2;

/// `XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ`, as in a hash extra's `algorithm`.
pub const HASH_ALGORITHM_TOEPLITZ: u8 = 1;

/// Information about a frame that its slots have no room for, sent by either end.
///
/// C: `struct netif_extra_info`, xen/include/public/io/netif.h. Little-endian. 8 bytes; on a TX
/// ring 4 bytes of padding follow.
///
/// ```text
/// |   0   |   1   |   2      3   |   4    |   5    |  6    7  | 8 ... 11  |
/// |  type | flags |           body                            | pad 0, TX |
/// |   1   |       |  size (MSS)  |gso_type|  pad   | features |  GSO                     (f) TX, (b) RX
/// |  2, 3 |       |          MAC address              |       |  MCAST_ADD, MCAST_DEL    (f)
/// |   4   |       | type |algor. |      value, LSB first      |  HASH                    (f) TX, (b) RX
/// |   5   |       |   headroom   |  pad            |  pad     |  XDP, Linux only         (b)
/// ```
/// * `flags`: [`EXTRA_FLAG_MORE`] says that one more extra follows; [`Extra::parse`] returns it
///   apart.
/// * `size`: bytes of payload in each segment, headers not counted.
/// * `headroom`: bytes before the data in each of the frame's slots.
///
/// # Trust
/// Only [`Extra::parse`] makes one from peer data. It refuses types and GSO values that both ends
/// of Linux take as fatal; a `size` larger than the frame, a hash type out of 0..=3 and any
/// headroom pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extra {
    /// `XEN_NETIF_EXTRA_TYPE_GSO`: the frame must be segmented.
    Gso {
        /// Bytes of payload per segment (MSS), never 0.
        size: u16,
        /// [`GSO_TYPE_TCPV4`] or [`GSO_TYPE_TCPV6`].
        gso_type: u8,
    },
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_ADD`: the front wants frames to this group address.
    McastAdd([u8; 6]),
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_DEL`: the front does not want frames to this group address any
    /// more.
    McastDel([u8; 6]),
    /// `XEN_NETIF_EXTRA_TYPE_HASH`: the frame's hash.
    Hash {
        /// Index 0..=3 of the hash type, not a mask.
        hash_type: u8,
        /// The algorithm, [`HASH_ALGORITHM_TOEPLITZ`].
        algorithm: u8,
        /// The hash value.
        value: u32,
    },
    /// Linux's `XEN_NETIF_EXTRA_TYPE_XDP`: the front asks for headroom.
    Xdp {
        /// Bytes of headroom before the data in each slot.
        headroom: u16,
    },
}

impl Extra {
    /// Bytes of an extra info, without the padding of a TX slot.
    pub const SIZE: usize = 8;

    /// Decodes a slot's first two words. The `bool` is MORE: another extra info follows.
    ///
    /// # Errors
    ///
    /// [`WireError::ExtraType`] for type 0 or an unknown one, [`WireError::Gso`] for segments of 0
    /// bytes or a type other than TCPv4 and TCPv6. Both close the device.
    pub const fn parse(words: [u32; 2]) -> Result<(Extra, bool), WireError> {
        let [w0, w1] = words;
        let (a, b) = (w0.to_le_bytes(), w1.to_le_bytes());
        let extra = match a[0] {
            EXTRA_TYPE_GSO => {
                let (size, gso_type) = ((w0 >> 16) as u16, b[0]);
                if size == 0 || (gso_type != GSO_TYPE_TCPV4 && gso_type != GSO_TYPE_TCPV6) {
                    return Err(WireError::Gso { size, gso_type });
                }
                Extra::Gso { size, gso_type }
            }
            EXTRA_TYPE_MCAST_ADD => Extra::McastAdd([a[2], a[3], b[0], b[1], b[2], b[3]]),
            EXTRA_TYPE_MCAST_DEL => Extra::McastDel([a[2], a[3], b[0], b[1], b[2], b[3]]),
            EXTRA_TYPE_HASH => Extra::Hash { hash_type: a[2], algorithm: a[3], value: w1 },
            EXTRA_TYPE_XDP => Extra::Xdp { headroom: (w0 >> 16) as u16 },
            found => return Err(WireError::ExtraType { found }),
        };
        Ok((extra, a[1] & EXTRA_FLAG_MORE != 0))
    }

    /// Encodes a slot's first two words; `more` says that another extra info follows.
    pub const fn to_words(self, more: bool) -> [u32; 2] {
        let flags = if more { EXTRA_FLAG_MORE } else { 0 };
        match self {
            Extra::Gso { size, gso_type } => {
                let s = size.to_le_bytes();
                [u32::from_le_bytes([EXTRA_TYPE_GSO, flags, s[0], s[1]]), gso_type as u32]
            }
            Extra::McastAdd(mac) => mac_words(EXTRA_TYPE_MCAST_ADD, flags, mac),
            Extra::McastDel(mac) => mac_words(EXTRA_TYPE_MCAST_DEL, flags, mac),
            Extra::Hash { hash_type, algorithm, value } => {
                [u32::from_le_bytes([EXTRA_TYPE_HASH, flags, hash_type, algorithm]), value]
            }
            Extra::Xdp { headroom } => {
                let h = headroom.to_le_bytes();
                [u32::from_le_bytes([EXTRA_TYPE_XDP, flags, h[0], h[1]]), 0]
            }
        }
    }

    /// Decodes the three words of a TX slot; the last one is padding and is ignored.
    ///
    /// # Errors
    ///
    /// As [`Extra::parse`].
    pub const fn parse_tx(words: [u32; 3]) -> Result<(Extra, bool), WireError> {
        Self::parse([words[0], words[1]])
    }

    /// Encodes the three words of a TX slot; the padding is zero.
    pub const fn to_tx_words(self, more: bool) -> [u32; 3] {
        let [w0, w1] = self.to_words(more);
        [w0, w1, 0]
    }
}

const fn mac_words(extra_type: u8, flags: u8, mac: [u8; 6]) -> [u32; 2] {
    [
        u32::from_le_bytes([extra_type, flags, mac[0], mac[1]]),
        u32::from_le_bytes([mac[2], mac[3], mac[4], mac[5]]),
    ]
}

/// Bytes of a TX slot.
pub const TX_SLOT_BYTES: usize = 12;
/// Bytes of an RX slot.
pub const RX_SLOT_BYTES: usize = 8;

/// `XEN_NETIF_NR_SLOTS_MIN`: data slots per frame that every back accepts, extra infos not counted.
pub const NR_SLOTS_MIN: usize = 18;
/// Least number of data slots with which a TX frame is dropped: 19 are tolerated, 20 and 21
/// answered with [`RSP_ERROR`].
pub const DROP_SLOTS: usize = 20;
/// Least number of data slots with which a TX frame closes the device (Linux's `fatal_skb_slots`,
/// which is 20, is counted differently).
pub const FATAL_SLOTS: usize = 22;
/// Largest number of bytes of a frame, including the Ethernet header and without FCS.
pub const MAX_FRAME: usize = 65535;
/// Least bytes of a frame: an Ethernet header. A front must also put at least this into the first
/// slot.
pub const MIN_FRAME: usize = 14;
/// Most multicast addresses that Linux's back stores for a front.
pub const MCAST_LIST_MAX: usize = 64;

const _: () = assert!(NR_SLOTS_MIN < DROP_SLOTS && DROP_SLOTS < FATAL_SLOTS);
const _: () = assert!(MAX_FRAME <= NR_SLOTS_MIN * crate::PAGE_SIZE && MAX_FRAME == u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_of_type_0_or_unknown_is_refused() {
        assert_eq!(Extra::parse([0, 0]), Err(WireError::ExtraType { found: 0 }));
        for found in 6..=255u8 {
            assert_eq!(Extra::parse([found as u32, 0]), Err(WireError::ExtraType { found }));
        }
    }

    #[test]
    fn gso_of_no_bytes_or_unknown_type_is_refused() {
        let gso = |size: u32, t: u32| Extra::parse([EXTRA_TYPE_GSO as u32 | size << 16, t]);
        assert_eq!(gso(0, 1), Err(WireError::Gso { size: 0, gso_type: 1 }));
        assert_eq!(gso(1448, 0), Err(WireError::Gso { size: 1448, gso_type: 0 }));
        assert_eq!(gso(1448, 3), Err(WireError::Gso { size: 1448, gso_type: 3 }));
        assert_eq!(gso(1448, 2), Ok((Extra::Gso { size: 1448, gso_type: GSO_TYPE_TCPV6 }, false)));
        // The bytes beside the type are pads.
        assert_eq!(gso(1, 0xFFFF_FF01), Ok((Extra::Gso { size: 1, gso_type: GSO_TYPE_TCPV4 }, false)));
    }

    #[test]
    fn only_bit_0_of_the_flags_means_more() {
        let xdp = |flags: u32| Extra::parse([EXTRA_TYPE_XDP as u32 | flags << 8, 0]);
        assert_eq!(xdp(0xFE), Ok((Extra::Xdp { headroom: 0 }, false)));
        assert_eq!(xdp(0xFF), Ok((Extra::Xdp { headroom: 0 }, true)));
    }

    #[test]
    fn checksum_flags_are_swapped_between_tx_and_rx() {
        assert_eq!((TXF_CSUM_BLANK, TXF_DATA_VALIDATED), (RXF_DATA_VALIDATED, RXF_CSUM_BLANK));
    }
}
