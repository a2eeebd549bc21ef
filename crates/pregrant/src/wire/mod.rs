//! Wire structs: bytes or ring words to plain structs, and back. No I/O, no `unsafe`, no allocation.
//!
//! ```text
//!   shared memory --copied once--> [u32; N] or [u8; N] --from_words/parse--> plain struct --checked--> used
//! ```
//! Ring slots travel as little-endian words, because that is how they are read from memory that the peer
//! writes (one relaxed load per word); list entries and the xenstore header travel as bytes.
//!
//! Invariants: any bit pattern decodes without a panic; what is written has every pad octet zero; a field keeps
//! its Xen name. Octets are numbered from 0, all integers are little-endian, `(f)` marks what the frontend
//! writes and `(b)` what the backend writes.
//!
//! What the peer may do: everything. `from_words` and `from_bytes` never fail and say nothing about the values;
//! `parse` and the methods that return [`WireError`] refuse what no correct peer writes. Limits that depend on
//! state (ids in flight, granted pages, sizes negotiated) belong to the driver.
//!
//! | file | what it describes |
//! |---|---|
//! | [`netif`], [`netif_ctrl`] | network requests, responses, extra infos, the control ring |
//! | [`staging`] | the list of buffers granted before the data comes |
//! | [`grant`] | grant table entries, both versions, and the status of grant operations |
//! | [`xs`] | the header, types and error names of xenstore messages |

pub mod grant;
pub mod netif;
pub mod netif_ctrl;
pub mod staging;
pub mod xs;

use core::fmt;

/// Why bytes of a peer were refused. The peer lied or is broken: nothing here is the platform's fault.
///
/// It names the field and the value that was found; who reports it adds the domain, the device and the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WireError {
    /// A xenstore header announces more payload than [`xs::PAYLOAD_MAX`].
    XsTooLong {
        /// Octets announced.
        len_bytes: u32,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::XsTooLong { len_bytes } => {
                write!(f, "xenstore message of {len_bytes} octets, at most {} are allowed", xs::PAYLOAD_MAX)
            }
        }
    }
}

impl core::error::Error for WireError {}
