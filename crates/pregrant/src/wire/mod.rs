//! Wire structs: bytes or ring words to plain structs, and back. No I/O, no `unsafe`, no allocation.
//!
//! ```text
//!   shared memory --copied once--> [u32; N] or [u8; N] --from_words/parse--> plain struct --checked--> used
//! ```
//! Ring slots travel as little-endian words, because that is how they are read from memory that the peer
//! writes (one relaxed load per word); list entries and the xenstore header travel as bytes.
//!
//! Invariants: any bit pattern decodes without a panic; what is written has every pad byte zero; a field keeps
//! its Xen name. Numbers stay raw (`gref: u32`, `domid: u16`): they become a `GrantRef` or a `DomId` where they are
//! used. Bytes are numbered from 0, all integers are little-endian, `(f)` marks what the frontend
//! writes and `(b)` what the backend writes.
//!
//! What the peer may do: everything. `from_words` and `from_bytes` never fail and say nothing about the values;
//! `parse` and the methods that return [`WireError`] refuse what no correct peer writes. Limits that depend on
//! state (ids in flight, granted pages, sizes negotiated) belong to the driver.
//!
//! | file | what it describes |
//! |---|---|
//! | [`ring`] | the header of every shared ring, and how many slots fit |
//! | [`netif`], [`netif_ctrl`] | network requests, responses, extra infos, the control ring |
//! | [`staging`] | the list of buffers granted before the data comes |
//! | [`blkif`] | block requests and responses, both ABIs |
//! | [`data_ring`] | the index page of a pair of byte rings |
//! | [`grant`] | grant table entries, both versions, and the status of grant operations |
//! | [`xs`] | the header, types and error names of xenstore messages |

pub mod blkif;
pub mod data_ring;
pub mod grant;
pub mod netif;
pub mod netif_ctrl;
pub mod ring;
pub mod staging;
pub mod xs;

use core::fmt;

/// Why bytes of a peer were refused. The peer lied or is broken: nothing here is the platform's fault.
///
/// It names the field and the value that was found; who reports it adds the domain, the device and the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WireError {
    /// An extra info of type 0 or of an unknown type.
    ExtraType {
        /// The type as sent.
        found: u8,
    },
    /// A GSO extra info with segments of 0 bytes, or of a type other than TCPv4 and TCPv6.
    Gso {
        /// Bytes in a segment, as sent.
        size: u16,
        /// The type as sent.
        gso_type: u8,
    },
    /// A block request with no segments where it needs some, or with more than are allowed.
    BlkSegments {
        /// The number as sent.
        found: u16,
        /// The most allowed.
        max: u16,
    },
    /// A block segment that ends before it starts, or passes the end of its page.
    BlkSectors {
        /// The first sector as sent.
        first: u8,
        /// The last sector as sent.
        last: u8,
    },
    /// A data ring of a size that the index page cannot describe.
    DataRingOrder {
        /// log2 of the pages, as read.
        found: u32,
    },
    /// A data ring's indices are further apart than the ring is long.
    DataRingIndex {
        /// The producer's index as read.
        prod: u32,
        /// The consumer's index as read.
        cons: u32,
    },
    /// A xenstore header announces more payload than [`xs::PAYLOAD_MAX`].
    XsTooLong {
        /// Bytes announced.
        len_bytes: u32,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ExtraType { found } => write!(f, "extra info of unknown type {found}"),
            Self::Gso { size, gso_type } => {
                write!(
                    f,
                    "GSO of type {gso_type} with segments of {size} bytes; allowed are types 1 and 2, from 1 byte"
                )
            }
            Self::BlkSegments { found, max } => {
                write!(f, "block request of {found} segments, at most {max} are allowed")
            }
            Self::BlkSectors { first, last } => {
                write!(
                    f,
                    "block segment from sector {first} to {last}, which is not within its page (0 to 7)"
                )
            }
            Self::DataRingOrder { found } => {
                write!(
                    f,
                    "data ring of order {found}, allowed are {} to {}",
                    data_ring::ORDER_MIN,
                    data_ring::ORDER_MAX
                )
            }
            Self::DataRingIndex { prod, cons } => {
                write!(f, "data ring with prod {prod} and cons {cons}, further apart than it is long")
            }
            Self::XsTooLong { len_bytes } => {
                write!(f, "xenstore message of {len_bytes} bytes, at most {} are allowed", xs::PAYLOAD_MAX)
            }
        }
    }
}

impl core::error::Error for WireError {}
