//! Errors in a peer's bytes, as text that names the field and the value.

use core::fmt;

/// Why bytes of a peer were refused. The peer lied or is broken: nothing here is the platform's
/// fault.
///
/// It names the field and the value that was found; who reports it adds the domain, the device and
/// the remedy.
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
        /// The least and the most allowed.
        allowed: [u32; 2],
    },
    /// A data ring's indices are further apart than the ring is long.
    DataRingIndex {
        /// The producer's index as read.
        prod: u32,
        /// The consumer's index as read.
        cons: u32,
    },
    /// A xenstore header announces more payload than a message may have.
    XsTooLong {
        /// Bytes announced.
        len_bytes: u32,
        /// The most allowed.
        max_bytes: usize,
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
            Self::DataRingOrder { found, allowed: [min, max] } => {
                write!(f, "data ring of order {found}, allowed are {min} to {max}")
            }
            Self::DataRingIndex { prod, cons } => {
                write!(f, "data ring with prod {prod} and cons {cons}, further apart than it is long")
            }
            Self::XsTooLong { len_bytes, max_bytes } => {
                write!(f, "xenstore message of {len_bytes} bytes, at most {max_bytes} are allowed")
            }
        }
    }
}

impl core::error::Error for WireError {}
