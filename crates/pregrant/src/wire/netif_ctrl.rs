//! The control ring of netif: hashing, and the grants that a backend keeps mapped
//! (docs/protocol 2.11).
//!
//! ```text
//!   front                                                back
//!     GET_GREF_MAPPING_SIZE(queue)          ->           SUCCESS, data = most entries
//!     ADD_GREF_MAPPING(queue, list, n)      ->           maps all or none
//!     ... requests with these grefs cost no grant operation ...
//!     DEL_GREF_MAPPING(queue, list, n)      ->           SUCCESS, data = unmapped; a status in each entry
//! ```
//! One request, one response, matched by id, in any order. C: xen/include/public/io/netif.h.
//!
//! Invariants: message types and statuses stay raw numbers in the structs, since an unknown type
//! must be answered (with [`CtrlStatus::NotSupported`]) and not refused.
//!
//! What the peer may do: ask anything, at any rate; name lists that are not granted; change a list
//! while it is read. The list is copied once, then the copy is checked.

use core::fmt;
use core::mem::offset_of;

/// Bytes of a control slot.
pub const SLOT_BYTES: usize = 16;

/// The frontend asks the backend for a change of its configuration.
///
/// C: `struct xen_netif_ctrl_request`, xen/include/public/io/netif.h. Little-endian. 16 bytes.
///
/// ```text
/// |  0     1  |  2     3  |  4    5    6    7  |  8    9   10   11  | 12   13   14   15  |
/// |   id (f)  |  type (f) |     data[0] (f)    |     data[1] (f)    |     data[2] (f)    |
/// ```
/// * `id`: chosen by the front, comes back in the response.
/// * `msg_type`: see [`CtrlType`].
/// * `data`: the meaning depends on the type; unused ones are zero.
///
/// # Trust
/// Every field is peer data, read once into this copy. Nothing is checked here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CtrlRequest {
    /// An identifier that the front chose.
    pub id: u16,
    /// The type, see [`CtrlType::from_raw`].
    pub msg_type: u16,
    /// The arguments, by type.
    pub data: [u32; 3],
}

const _: () = assert!(size_of::<CtrlRequest>() == SLOT_BYTES);
const _: () = assert!(offset_of!(CtrlRequest, msg_type) == 2 && offset_of!(CtrlRequest, data) == 4);

impl CtrlRequest {
    /// Decodes the slot's four little-endian words.
    pub const fn from_words(w: [u32; 4]) -> Self {
        Self { id: w[0] as u16, msg_type: (w[0] >> 16) as u16, data: [w[1], w[2], w[3]] }
    }
    /// Encodes the slot's four little-endian words.
    pub const fn to_words(self) -> [u32; 4] {
        [self.id as u32 | (self.msg_type as u32) << 16, self.data[0], self.data[1], self.data[2]]
    }
}

/// The backend answers one control request.
///
/// C: `struct xen_netif_ctrl_response`, xen/include/public/io/netif.h. Little-endian. 12 bytes.
///
/// ```text
/// |  0     1  |  2     3  |  4    5    6    7  |  8    9   10   11  | 12 ... 15             |
/// |   id (b)  |  type (b) |     status (b)     |      data (b)      | stays as it was       |
/// ```
/// * `id`, `msg_type`: the request's.
/// * `status`: see [`CtrlStatus`].
/// * `data`: the answer of the GET messages; for DEL how many entries were unmapped.
///
/// # Trust
/// A hostile back answers ids that were never asked, and sizes of any number: the front bounds what
/// it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CtrlResponse {
    /// The id of the request.
    pub id: u16,
    /// The type of the request.
    pub msg_type: u16,
    /// The result, see [`CtrlStatus::from_raw`].
    pub status: u32,
    /// The result, by type.
    pub data: u32,
}

const _: () = assert!(size_of::<CtrlResponse>() == 12);
const _: () = assert!(offset_of!(CtrlResponse, status) == 4 && offset_of!(CtrlResponse, data) == 8);

impl CtrlResponse {
    /// Decodes the slot's first three little-endian words.
    pub const fn from_words(w: [u32; 3]) -> Self {
        Self { id: w[0] as u16, msg_type: (w[0] >> 16) as u16, status: w[1], data: w[2] }
    }
    /// Encodes the slot's first three little-endian words.
    pub const fn to_words(self) -> [u32; 3] {
        [self.id as u32 | (self.msg_type as u32) << 16, self.status, self.data]
    }
    /// Builds the response to `request`.
    pub const fn to(request: &CtrlRequest, status: CtrlStatus, data: u32) -> Self {
        Self { id: request.id, msg_type: request.msg_type, status: status.raw(), data }
    }
}

crate::numbered! {
    /// The type of a control request. C: `XEN_NETIF_CTRL_TYPE_*`, xen/include/public/io/netif.h.
    ///
    /// Each variant lists its arguments `data[0]`, `data[1]` and `data[2]`.
    CtrlType: u16 {
        /// `XEN_NETIF_CTRL_TYPE_INVALID`. Always answered with [`CtrlStatus::NotSupported`].
        Invalid = 0,
        /// Asks which of `HASH_TYPE_*` the back can compute. Arguments: none.
        GetHashFlags = 1,
        /// Sets the hash types. Arguments: mask of `HASH_TYPE_*`; 0 turns hashing off.
        SetHashFlags = 2,
        /// Sets the key. Arguments: grant reference, length in bytes; a length of 0 clears it.
        SetHashKey = 3,
        /// Asks how many entries a mapping may have. Arguments: none.
        GetHashMappingSize = 4,
        /// Sets the size of the mapping. Arguments: number of entries; 0: hash modulo queues.
        SetHashMappingSize = 5,
        /// Writes entries of the mapping. Arguments: grant reference of a list of `u32` queue
        /// numbers, their count, index of the first.
        SetHashMapping = 6,
        /// Sets the algorithm. Arguments: 0 is none, 1 is Toeplitz.
        SetHashAlgorithm = 7,
        /// Asks how many grants the back would keep mapped for a queue. Arguments: queue.
        GetGrefMappingSize = 8,
        /// Adds grants to be kept mapped, all of them or none. Arguments: queue, grant reference of
        /// the list, count.
        AddGrefMapping = 9,
        /// Unmaps those of the grants that were added and are not in use. Arguments: queue, grant
        /// reference of the list, count.
        DelGrefMapping = 10,
    }
}

crate::numbered! {
    /// The result of a control request. C: `XEN_NETIF_CTRL_STATUS_*`,
    /// xen/include/public/io/netif.h.
    CtrlStatus: u32 {
        /// The request was carried out.
        Success = 0,
        /// The back does not know the type.
        NotSupported = 1,
        /// An argument is out of range, or a list cannot be read.
        InvalidParameter = 2,
        /// The key or the mapping is longer than the back supports.
        BufferOverflow = 3,
    }
}

impl fmt::Display for CtrlStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "done",
            Self::NotSupported => "the backend does not know this control message",
            Self::InvalidParameter => "an argument is out of range or the list cannot be read",
            Self::BufferOverflow => "longer than the backend keeps",
        })
    }
}

/// `XEN_NETIF_CTRL_HASH_TYPE_IPV4`: source and destination address.
pub const HASH_TYPE_IPV4: u32 = 0x1;
/// `XEN_NETIF_CTRL_HASH_TYPE_IPV4_TCP`: addresses and ports.
pub const HASH_TYPE_IPV4_TCP: u32 = 0x2;
/// `XEN_NETIF_CTRL_HASH_TYPE_IPV6`: source and destination address.
pub const HASH_TYPE_IPV6: u32 = 0x4;
/// `XEN_NETIF_CTRL_HASH_TYPE_IPV6_TCP`: addresses and ports.
pub const HASH_TYPE_IPV6_TCP: u32 = 0x8;
/// All of `HASH_TYPE_*`.
pub const HASH_TYPE_ALL: u32 = 0xF;
/// `XEN_NETIF_CTRL_HASH_ALGORITHM_NONE`: frames get no hash.
pub const HASH_ALGORITHM_NONE: u32 = 0;
/// `XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ`: frames get a Toeplitz hash.
pub const HASH_ALGORITHM_TOEPLITZ: u32 = 1;

/// One entry of the list page that [`CtrlType::AddGrefMapping`] and [`CtrlType::DelGrefMapping`]
/// name.
///
/// C: `struct xen_netif_gref`, xen/include/public/io/netif.h. Little-endian. 8 bytes.
///
/// ```text
/// |  0    1    2    3  |  4     5  |  6     7  |
/// |       ref (f)      | flags (f) | status (b)|
/// ```
/// * `gref`: the grant to keep mapped, or to unmap.
/// * `flags`: [`GREF_READONLY`] or 0.
/// * `status`: written by the back on DEL alone: a [`CtrlStatus`] as a number.
///
/// # Trust
/// The page is writable by both ends all the time: copy it once. Duplicates and unknown flags are
/// refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct GrefEntry {
    /// `ref`: the grant reference.
    pub gref: u32,
    /// [`GREF_READONLY`] or 0.
    pub flags: u16,
    /// The result, see [`CtrlStatus`].
    pub status: u16,
}

const _: () = assert!(size_of::<GrefEntry>() == GrefEntry::SIZE);
const _: () = assert!(offset_of!(GrefEntry, flags) == 4);
const _: () = assert!(offset_of!(GrefEntry, status) == GrefEntry::STATUS_OFFSET);

/// `XEN_NETIF_CTRLF_GREF_readonly`: map for reading (TX); without it, for writing too (RX).
pub const GREF_READONLY: u16 = 0x1;
/// Largest number of entries that a request may name: those of one list page.
pub const GREF_LIST_MAX: usize = crate::PAGE_SIZE / GrefEntry::SIZE;

impl GrefEntry {
    /// Bytes of an entry.
    pub const SIZE: usize = 8;
    /// Offset of `status`, which the back writes, in an entry.
    pub const STATUS_OFFSET: usize = 6;

    /// Decodes an entry's bytes.
    pub const fn from_bytes(b: [u8; Self::SIZE]) -> Self {
        Self {
            gref: u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            flags: u16::from_le_bytes([b[4], b[5]]),
            status: u16::from_le_bytes([b[6], b[7]]),
        }
    }
    /// Encodes an entry's bytes.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        let (g, f, s) = (self.gref.to_le_bytes(), self.flags.to_le_bytes(), self.status.to_le_bytes());
        [g[0], g[1], g[2], g[3], f[0], f[1], s[0], s[1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_statuses_are_numbered_as_in_the_protocol() {
        for raw in 0..=u16::MAX {
            assert_eq!(CtrlType::from_raw(raw).map(CtrlType::raw), (raw <= 10).then_some(raw));
        }
        assert_eq!(CtrlType::from_raw(9), Some(CtrlType::AddGrefMapping));
        for raw in [0, 1, 2, 3, 4, u32::MAX] {
            assert_eq!(CtrlStatus::from_raw(raw).map(CtrlStatus::raw), (raw <= 3).then_some(raw));
        }
    }

    #[test]
    fn a_list_page_has_512_entries() {
        assert_eq!(GREF_LIST_MAX, 512);
    }
}
