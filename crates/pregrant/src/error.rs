//! The two kinds of errors, which are never mixed: the peer violated the protocol ([`PeerFault`]:
//! close that device and count it), or the platform failed ([`PlatformError`]: an operation with
//! its errno).

use core::fmt;

/// A violation of the protocol by a peer. It closes the device (docs/protocol 2.6) and never
/// panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeerFault {
    /// `req_prod - req_cons > N`: more requests than the ring has slots, or `req_prod` went
    /// backwards.
    ReqProdOverrun {
        /// The peer's index, as read from the ring.
        req_prod: u32,
        /// Index up to which this back has consumed requests.
        req_cons: u32,
        /// Number of slots in the ring.
        size: u32,
    },
    /// More responses than requests in flight, or `rsp_prod` went backwards.
    RspProdOverrun {
        /// The peer's index, as read from the ring.
        rsp_prod: u32,
        /// Index up to which this front has consumed responses.
        rsp_cons: u32,
        /// Number of requests in flight.
        in_flight: u32,
    },
    /// A live ring that was attached has indices that contradict each other.
    BadAttach {
        /// The front's index, as read from the ring.
        req_prod: u32,
        /// The back's index, as read from the ring.
        rsp_prod: u32,
    },
    /// A frame has more slots than there are requests on the ring.
    SlotsMissing,
    /// A frame has more slots than allowed: 22 data slots or 9 extra infos from a front, 33 answers
    /// from a back.
    TooManySlots,
    /// A fragment's `offset + size` exceeds its page.
    CrossesPage {
        /// The offset in bytes.
        offset: u16,
        /// The size in bytes.
        size: u16,
    },
    /// An extra info has the type 0, or a type that was not negotiated.
    BadExtra(u8),
    /// A GSO extra has the segment size 0 or an unknown type.
    BadGso {
        /// Bytes per segment.
        size: u16,
        /// The type that the peer sent.
        gso_type: u8,
    },
    /// A response has an id without a request in flight.
    UnknownId(u16),
    /// A disk's response has an id without a request in flight.
    UnknownRequest(u64),
    /// A disk's response has another operation than its request.
    WrongOperation {
        /// The operation of the request.
        asked: u8,
        /// The operation of the response.
        answered: u8,
    },
    /// A response's offset and length exceed its buffer.
    BadResponse {
        /// The offset in bytes.
        offset: u16,
        /// The length in bytes, or a negative error code.
        status: i16,
    },
}

impl fmt::Display for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ReqProdOverrun { req_prod, req_cons, size } => {
                write!(
                    f,
                    "req_prod {req_prod} went backwards, or more than the ring's {size} slots past req_cons {req_cons}"
                )
            }
            Self::RspProdOverrun { rsp_prod, rsp_cons, in_flight } => {
                write!(
                    f,
                    "rsp_prod {rsp_prod} answers more than the {in_flight} requests in flight after {rsp_cons}"
                )
            }
            Self::BadAttach { req_prod, rsp_prod } => {
                write!(
                    f,
                    "a live ring cannot be resumed: req_prod {req_prod} contradicts rsp_prod {rsp_prod}"
                )
            }
            Self::SlotsMissing => f.write_str("a frame claims more slots than are on the ring"),
            Self::TooManySlots => f.write_str("a frame has more slots or extra infos than are allowed"),
            Self::CrossesPage { offset, size } => {
                write!(f, "a fragment of {size} bytes at offset {offset} crosses its page")
            }
            Self::BadExtra(t) => write!(f, "an extra info of type {t}, which is not allowed"),
            Self::BadGso { size, gso_type } => {
                write!(
                    f,
                    "a GSO extra info has type {gso_type} and segment size {size}, which are not allowed together"
                )
            }
            Self::UnknownId(id) => write!(f, "a response is for id {id}, which has no request in flight"),
            Self::UnknownRequest(id) => {
                write!(f, "a response is for request {id:#x}, which is not in flight")
            }
            Self::WrongOperation { asked, answered } => {
                write!(f, "a response names operation {answered}, and its request is of operation {asked}")
            }
            Self::BadResponse { offset, status } => {
                write!(f, "a response with offset {offset} and status {status} passes the end of its buffer")
            }
        }
    }
}

impl core::error::Error for PeerFault {}

impl PeerFault {
    /// The fault for an extra info that was refused.
    pub fn from_extra(e: crate::wire::WireError) -> Self {
        match e {
            crate::wire::WireError::Gso { size, gso_type } => Self::BadGso { size, gso_type },
            crate::wire::WireError::ExtraType { found } => Self::BadExtra(found),
            _ => Self::BadExtra(0),
        }
    }
}

/// An operation of the platform (hypervisor, kernel, broker) failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlatformError {
    /// The operation in words, such as "map 3 grants of domain 5".
    pub op: &'static str,
    /// The errno.
    pub code: i32,
}

impl fmt::Display for PlatformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, code } = *self;
        match errno_words(code) {
            Some(words) => write!(f, "{op} failed: {words} (errno {code})"),
            None => write!(f, "{op} failed: errno {code}"),
        }
    }
}

impl core::error::Error for PlatformError {}

/// Linux's text for an errno with which a platform's operation may fail.
const fn errno_words(code: i32) -> Option<&'static str> {
    Some(match code {
        1 => "operation not permitted",
        2 => "no such file or directory",
        3 => "no such process",
        4 => "interrupted",
        5 => "input/output error",
        6 => "no such device or address",
        11 => "temporarily unavailable",
        12 => "out of memory, or of pages that can be granted or mapped",
        13 => "permission denied",
        14 => "bad address",
        16 => "busy",
        17 => "exists already",
        19 => "no such device",
        22 => "invalid argument",
        23 => "too many open files in the system",
        24 => "too many open files in this process",
        27 => "file too large",
        28 => "no space left",
        30 => "read-only file system",
        32 => "broken pipe",
        38 => "not implemented",
        71 => "protocol error",
        75 => "value too large",
        87 => "too many users",
        90 => "message too long",
        93 => "protocol not supported",
        95 => "not supported",
        104 => "connection reset by the peer",
        105 => "no buffer space available",
        110 => "timed out",
        111 => "connection refused",
        122 => "disk quota exceeded",
        125 => "canceled",
        _ => return None,
    })
}

/// The errno values `ENOENT`, `ESRCH` and `EINVAL`.
const NOENT: i32 = 2;
const SRCH: i32 = 3;
const INVAL: i32 = 22;

impl PlatformError {
    /// For a failed bind to an event channel: whether the domain does not exist (any more).
    pub fn is_of_no_domain(&self) -> bool {
        matches!(self.code, NOENT | SRCH)
    }

    /// For a failed bind to an event channel: whether the domain has no such port for us, because
    /// the domain closed it, its driver died, or no such port was offered.
    pub fn is_of_no_end(&self) -> bool {
        self.is_of_no_domain() || self.code == INVAL
    }
}

#[cfg(test)]
mod tests {
    use super::PlatformError;
    use crate::platform::local::LocalXen;
    use crate::platform::{Events, Platform};
    use crate::units::{DomId, EvtchnPort};
    use alloc::string::ToString;

    #[test]
    fn a_failed_operation_says_why_in_words() {
        let said = |code| PlatformError { op: "map pages", code }.to_string();
        assert_eq!(said(13), "map pages failed: permission denied (errno 13)");
        assert_eq!(said(999), "map pages failed: errno 999");
        // Every platform uses the numbers of Linux's user space.
        let bound = LocalXen::new().domain(5).events().bind(DomId(9), EvtchnPort(1));
        let text = bound.map(drop).unwrap_err().to_string();
        assert!(text.ends_with("is not offered to us failed: invalid argument (errno 22)"), "{text}");
    }
}
