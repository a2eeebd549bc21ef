//! Requests, responses and extra infos of netif (PROTOCOL.md 2; xen/include/public/io/netif.h).

/// One TX request slot: the front asks the back to send one fragment of a frame. 12 octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxRequest {
    /// Granted page.
    pub gref: u32,
    /// Start of the fragment in the page, octets.
    pub offset: u16,
    /// `NETTXF_*`.
    pub flags: u16,
    /// Chosen by the front, comes back in the response.
    pub id: u16,
    /// First slot: octets of the whole frame. Later slots: octets of this fragment.
    pub size: u16,
}

impl TxRequest {
    /// From the slot's three little-endian words.
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
    /// To the slot's three little-endian words.
    #[inline(always)]
    pub const fn to_words(self) -> [u32; 3] {
        [self.gref, self.offset as u32 | (self.flags as u32) << 16, self.id as u32 | (self.size as u32) << 16]
    }
}

/// One TX response: 4 octets over the start of the request's slot; the other 8 stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxResponse {
    /// The request's id (meaningless when `status` is [`RSP_NULL`]).
    pub id: u16,
    /// `NETIF_RSP_*`.
    pub status: i16,
}

impl TxResponse {
    /// From the slot's first word.
    #[inline(always)]
    pub const fn from_word(w: u32) -> Self {
        Self { id: w as u16, status: (w >> 16) as i16 }
    }
    /// To the slot's first word.
    #[inline(always)]
    pub const fn to_word(self) -> u32 {
        self.id as u32 | (self.status as u16 as u32) << 16
    }
}

/// One RX request: the front gives the back a page to put received bytes into. 8 octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxRequest {
    /// Chosen by the front.
    pub id: u16,
    /// Granted page, writable.
    pub gref: u32,
}

impl RxRequest {
    /// From the slot's two little-endian words.
    #[inline(always)]
    pub const fn from_words(w: [u32; 2]) -> Self {
        Self { id: w[0] as u16, gref: w[1] }
    }
    /// To the slot's two little-endian words; the pad is zero.
    #[inline(always)]
    pub const fn to_words(self) -> [u32; 2] {
        [self.id as u32, self.gref]
    }
}

/// One RX response. 8 octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxResponse {
    /// The request's id.
    pub id: u16,
    /// Start of the bytes in the page, octets.
    pub offset: u16,
    /// `NETRXF_*`.
    pub flags: u16,
    /// Octets in this slot when >= 0, else `NETIF_RSP_*`.
    pub status: i16,
}

impl RxResponse {
    /// From the slot's two little-endian words.
    #[inline(always)]
    pub const fn from_words(w: [u32; 2]) -> Self {
        Self { id: w[0] as u16, offset: (w[0] >> 16) as u16, flags: w[1] as u16, status: (w[1] >> 16) as i16 }
    }
    /// To the slot's two little-endian words.
    #[inline(always)]
    pub const fn to_words(self) -> [u32; 2] {
        [self.id as u32 | (self.offset as u32) << 16, self.flags as u32 | (self.status as u16 as u32) << 16]
    }
}

/// `NETIF_RSP_OKAY`.
pub const RSP_OKAY: i16 = 0;
/// `NETIF_RSP_ERROR`.
pub const RSP_ERROR: i16 = -1;
/// `NETIF_RSP_DROPPED`.
pub const RSP_DROPPED: i16 = -2;
/// `NETIF_RSP_NULL`: the slot carried an extra info.
pub const RSP_NULL: i16 = 1;

/// `NETTXF_csum_blank`.
pub const TXF_CSUM_BLANK: u16 = 0x1;
/// `NETTXF_data_validated`.
pub const TXF_DATA_VALIDATED: u16 = 0x2;
/// `NETTXF_more_data`.
pub const TXF_MORE_DATA: u16 = 0x4;
/// `NETTXF_extra_info`.
pub const TXF_EXTRA_INFO: u16 = 0x8;
/// `NETRXF_data_validated` (bits 0 and 1 are swapped against TX).
pub const RXF_DATA_VALIDATED: u16 = 0x1;
/// `NETRXF_csum_blank`.
pub const RXF_CSUM_BLANK: u16 = 0x2;
/// `NETRXF_more_data`.
pub const RXF_MORE_DATA: u16 = 0x4;
/// `NETRXF_extra_info`.
pub const RXF_EXTRA_INFO: u16 = 0x8;

/// One extra info, 8 octets; in a TX ring 4 octets of padding follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extra {
    /// `XEN_NETIF_EXTRA_TYPE_GSO`.
    Gso {
        /// Octets of payload in each segment (MSS).
        size: u16,
        /// 0 none, 1 TCPv4, 2 TCPv6.
        gso_type: u8,
    },
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_ADD`.
    McastAdd([u8; 6]),
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_DEL`.
    McastDel([u8; 6]),
    /// `XEN_NETIF_EXTRA_TYPE_HASH`.
    Hash {
        /// Index 0..3 of the hash type, not a mask.
        hash_type: u8,
        /// 1 Toeplitz.
        algorithm: u8,
        /// The value.
        value: u32,
    },
    /// Linux's `XEN_NETIF_EXTRA_TYPE_XDP`.
    Xdp {
        /// Octets before the data in each slot.
        headroom: u16,
    },
}
