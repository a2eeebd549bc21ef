//! Errors in a peer's data. Their text names the field and the value.

use core::fmt;

/// Why a peer's data was refused. The peer is broken or hostile; the platform is not at fault.
///
/// The text names the field and the value that was found; the caller that reports it adds the
/// domain, the device and the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WireError {
    /// An extra info of type 0 or of an unknown type.
    ExtraType {
        /// The type that the peer sent.
        found: u8,
    },
    /// A GSO extra info with segments of 0 bytes, or of a type other than TCPv4 and TCPv6.
    Gso {
        /// Bytes per segment that the peer sent.
        size: u16,
        /// The GSO type that the peer sent.
        gso_type: u8,
    },
    /// A block request with no segments where it needs some, or with more than are allowed.
    BlkSegments {
        /// The number of segments that the peer sent.
        found: u16,
        /// The largest number allowed.
        max: u16,
    },
    /// A block segment that ends before it starts, or passes the end of its page.
    BlkSectors {
        /// The first sector that the peer sent.
        first: u8,
        /// The last sector that the peer sent.
        last: u8,
    },
    /// A data ring of a size that the index page cannot describe.
    DataRingOrder {
        /// The order that was read: log2 of the number of pages.
        found: u32,
        /// The smallest and the largest order allowed.
        allowed: [u32; 2],
    },
    /// A data ring's indices are further apart than the ring is long.
    DataRingIndex {
        /// The producer's index that was read.
        prod: u32,
        /// The consumer's index that was read.
        cons: u32,
    },
    /// A xenstore header announces more payload than a message may have.
    XsTooLong {
        /// Payload bytes that the header announces.
        len_bytes: u32,
        /// The largest number of payload bytes allowed.
        max_bytes: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ExtraType { found } => write!(f, "an extra info has the unknown type {found}"),
            Self::Gso { size, gso_type } => {
                write!(
                    f,
                    "a GSO extra info has type {gso_type} and segments of {size} bytes; allowed are types 1 and 2, with 1 byte or more"
                )
            }
            Self::BlkSegments { found, max } => {
                write!(f, "a block request has {found} segments, and at most {max} are allowed")
            }
            Self::BlkSectors { first, last } => {
                write!(
                    f,
                    "a segment of a block request goes from sector {first} to {last} of its page, which has sectors 0 to 7"
                )
            }
            Self::DataRingOrder { found, allowed: [min, max] } => {
                write!(f, "a data ring has order {found}, and orders {min} to {max} are allowed")
            }
            Self::DataRingIndex { prod, cons } => {
                write!(
                    f,
                    "a data ring has prod {prod} and cons {cons}, which are further apart than the ring is long"
                )
            }
            Self::XsTooLong { len_bytes, max_bytes } => {
                write!(f, "a xenstore message has {len_bytes} bytes, and at most {max_bytes} are allowed")
            }
        }
    }
}

impl core::error::Error for WireError {}
