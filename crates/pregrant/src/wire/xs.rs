//! The header, the types and the error names of xenstore messages (docs/protocol 8.4).
//!
//! ```text
//!   +------------------+---------------------------------------+
//!   | header, 16 bytes| payload, header.len bytes (<= 4096)  |   the same on a socket and in a guest's ring
//!   +------------------+---------------------------------------+
//! ```
//! A reply has the type and the `req_id` of its request, or the type [`MsgType::Error`] and an
//! error's name as payload. [`MsgType::WatchEvent`] comes unasked, with `req_id` 0.
//! [`crate::xenstore`] has the meaning of the payloads.
//!
//! What the peer may do: announce any length (check [`Header::payload_len`] before reserving
//! memory), use a type that does not exist (answer `ENOSYS`, see [`Errno`]), invent transactions.

use super::WireError;
use core::fmt;

/// Largest number of bytes of payload in one message. C: `XENSTORE_PAYLOAD_MAX`,
/// xen/include/public/io/xs_wire.h.
pub const PAYLOAD_MAX: usize = 4096;
/// Largest number of bytes of an absolute path, without the NUL. C: `XENSTORE_ABS_PATH_MAX`.
pub const ABS_PATH_MAX: usize = 3072;
/// Largest number of bytes of a path relative to the domain's home, without the NUL. C:
/// `XENSTORE_REL_PATH_MAX`.
pub const REL_PATH_MAX: usize = 2048;
/// The `tx_id` of a request outside any transaction. C: `XBT_NULL`, xen/tools/include/xenstore.h.
pub const TX_NONE: u32 = 0;
/// The `req_id` of every watch event.
pub const WATCH_EVENT_REQ_ID: u32 = 0;

/// The bit of `GET_FEATURE` for an optional third string of `WATCH`, the depth. C:
/// `XENSTORE_SERVER_FEATURE_WATCHDEPTH`.
///
/// The other bits (1, 2 and 8) are about ring pages and `DOMID_ANY`, which this server does not
/// offer.
pub const SERVER_FEATURE_WATCHDEPTH: u32 = 4;

/// The header of each xenstore message.
///
/// C: `struct xsd_sockmsg`, xen/include/public/io/xs_wire.h. Little-endian. 16 bytes.
///
/// ```text
/// |  0  1  2  3 |  4  5  6  7 |  8  9 10 11 | 12 13 14 15 |
/// |     type    |    req_id   |    tx_id    |     len     |
/// ```
/// Client and server write all of it, each in its own messages.
///
/// * `msg_type`: a [`MsgType`] as a number; kept raw, since a server must answer unknown ones.
/// * `req_id`: chosen by the client, comes back in the reply.
/// * `tx_id`: a transaction's number, or [`TX_NONE`].
/// * `len_bytes`: bytes of payload that follow.
///
/// # Trust
/// Every field is peer data. Call [`Header::payload_len`] before reading on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The type, see [`MsgType::from_raw`].
    pub msg_type: u32,
    /// The request that this belongs to.
    pub req_id: u32,
    /// The transaction that this belongs to.
    pub tx_id: u32,
    /// `len`: bytes of payload after the header.
    pub len_bytes: u32,
}

impl Header {
    /// Bytes of a header on the wire.
    pub const SIZE: usize = 16;

    /// Decodes the message's first 16 bytes.
    pub const fn from_bytes(b: [u8; Self::SIZE]) -> Self {
        Self {
            msg_type: u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            req_id: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
            tx_id: u32::from_le_bytes([b[8], b[9], b[10], b[11]]),
            len_bytes: u32::from_le_bytes([b[12], b[13], b[14], b[15]]),
        }
    }

    /// Encodes the message's first 16 bytes.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        let (t, r, x, l) = (
            self.msg_type.to_le_bytes(),
            self.req_id.to_le_bytes(),
            self.tx_id.to_le_bytes(),
            self.len_bytes.to_le_bytes(),
        );
        [t[0], t[1], t[2], t[3], r[0], r[1], r[2], r[3], x[0], x[1], x[2], x[3], l[0], l[1], l[2], l[3]]
    }

    /// Number of payload bytes that follow.
    ///
    /// # Errors
    ///
    /// [`WireError::XsTooLong`] above [`PAYLOAD_MAX`]: the rest of the stream cannot be parsed, so
    /// close it.
    pub const fn payload_len(self) -> Result<usize, WireError> {
        if self.len_bytes as usize > PAYLOAD_MAX {
            return Err(WireError::XsTooLong { len_bytes: self.len_bytes, max_bytes: PAYLOAD_MAX });
        }
        Ok(self.len_bytes as usize)
    }
}

const _: () = assert!(size_of::<Header>() == Header::SIZE);

/// Defines numbers and C names in one table, so that they cannot differ.
macro_rules! xen_numbers {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal, $c:literal;)* }) => {
        crate::numbered! {
            $(#[$outer])*
            $name: u32 { $(#[doc = concat!("`", $c, "`. ")] $(#[$doc])* $variant = $number,)* }
        }

        impl $name {
            /// Xen's own name of the number.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $c,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.name()) }
        }
    };
}

xen_numbers! {
    /// The type of a message. C: `enum xsd_sockmsg_type`, xen/include/public/io/xs_wire.h.
    ///
    /// Each variant shows its payload, in which `|` is a NUL byte. 20 was removed from the protocol
    /// and counts as unknown.
    MsgType {
        /// A command to the server itself.
        Control = 0, "XS_CONTROL";
        /// Lists a node's children: `path|`, answered by their names, each with a NUL.
        Directory = 1, "XS_DIRECTORY";
        /// Reads a node's value: `path|`, answered by the value, without a NUL.
        Read = 2, "XS_READ";
        /// Reads a node's permissions: `path|`, answered by the entries, each with a NUL.
        GetPerms = 3, "XS_GET_PERMS";
        /// Sets a watch: `path|token|`.
        Watch = 4, "XS_WATCH";
        /// Removes a watch: `path|token|`.
        Unwatch = 5, "XS_UNWATCH";
        /// Starts a transaction: `|`, answered by `id|`.
        TransactionStart = 6, "XS_TRANSACTION_START";
        /// Ends a transaction: `T|` commits, `F|` discards.
        TransactionEnd = 7, "XS_TRANSACTION_END";
        /// Introduces a domain, with its ring page and event channel.
        Introduce = 8, "XS_INTRODUCE";
        /// Releases a domain: `domid|`.
        Release = 9, "XS_RELEASE";
        /// Asks for a domain's home: `domid|`, answered by `path|`.
        GetDomainPath = 10, "XS_GET_DOMAIN_PATH";
        /// Sets a node's value: `path|value`; the value has no NUL.
        Write = 11, "XS_WRITE";
        /// Creates a node: `path|`.
        Mkdir = 12, "XS_MKDIR";
        /// Removes a node and all below it: `path|`.
        Rm = 13, "XS_RM";
        /// Sets permissions: `path|perm|+`.
        SetPerms = 14, "XS_SET_PERMS";
        /// Reports a change: `path|token|`, which only the server sends.
        WatchEvent = 15, "XS_WATCH_EVENT";
        /// Answers a request that failed: an error's name and a NUL, which only the server sends;
        /// see [`Errno`].
        Error = 16, "XS_ERROR";
        /// Asks whether a domain is introduced: `domid|`, answered by `T|` or `F|`.
        IsDomainIntroduced = 17, "XS_IS_DOMAIN_INTRODUCED";
        /// Reports that a domain runs again after a suspend: `domid|`.
        Resume = 18, "XS_RESUME";
        /// Lets one domain act for another: `domid|target|`.
        SetTarget = 19, "XS_SET_TARGET";
        /// Drops all watches and transactions of the connection: `|`.
        ResetWatches = 21, "XS_RESET_WATCHES";
        /// Lists a part of a node's children: `path|offset|`, answered by a generation and some of
        /// their names.
        DirectoryPart = 22, "XS_DIRECTORY_PART";
        /// Asks for the server's features.
        GetFeature = 23, "XS_GET_FEATURE";
        /// Sets the features that a domain may use.
        SetFeature = 24, "XS_SET_FEATURE";
        /// Asks for the value of a quota.
        GetQuota = 25, "XS_GET_QUOTA";
        /// Changes a quota.
        SetQuota = 26, "XS_SET_QUOTA";
    }
}

crate::named! {
    /// An error as xenstore names it on the wire. C: `xsd_errors`, xen/include/public/io/xs_wire.h.
    ///
    /// The payload of an [`MsgType::Error`] reply is the name and a NUL; numbers differ between
    /// systems and never travel.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    Errno {
        /// The request, a path or the end of a transaction is malformed.
        Einval = "EINVAL",
        /// The domain lacks the permission.
        Eacces = "EACCES",
        /// The watch exists already.
        Eexist = "EEXIST",
        /// The node is a directory. This server never sends it.
        Eisdir = "EISDIR",
        /// There is no such node.
        Enoent = "ENOENT",
        /// The server is out of memory.
        Enomem = "ENOMEM",
        /// A quota is exceeded.
        Enospc = "ENOSPC",
        /// The server failed.
        Eio = "EIO",
        /// The node has children.
        Enotempty = "ENOTEMPTY",
        /// The server does not know the request.
        Enosys = "ENOSYS",
        /// The tree is read-only.
        Erofs = "EROFS",
        /// The node is in use.
        Ebusy = "EBUSY",
        /// The transaction conflicts with another change: repeat all of it.
        Eagain = "EAGAIN",
        /// The domain is connected already.
        Eisconn = "EISCONN",
        /// The reply would be too long for one message; for a directory use
        /// [`MsgType::DirectoryPart`].
        E2big = "E2BIG",
        /// The operation is not allowed for this domain.
        Eperm = "EPERM",
    }
}

impl Errno {
    /// Parses the payload of an [`MsgType::Error`] reply, with or without its NUL. `None`: it is no
    /// error name.
    pub fn from_payload(payload: &[u8]) -> Option<Self> {
        let name = payload.strip_suffix(b"\0").unwrap_or(payload);
        Self::ALL.into_iter().find(|e| e.name().as_bytes() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_numbered_as_in_the_protocol() {
        assert_eq!(MsgType::from_raw(0), Some(MsgType::Control));
        assert_eq!(MsgType::from_raw(11), Some(MsgType::Write));
        assert_eq!(MsgType::from_raw(16), Some(MsgType::Error));
        assert_eq!(MsgType::from_raw(20), None);
        assert_eq!(MsgType::from_raw(26), Some(MsgType::SetQuota));
        assert_eq!(MsgType::from_raw(27), None);
        assert_eq!(MsgType::from_raw(u32::MAX), None);
        assert_eq!(MsgType::ALL.len(), 26);
        for t in MsgType::ALL {
            assert_eq!(MsgType::from_raw(t.raw()), Some(t));
        }
    }

    #[test]
    fn payload_of_4096_is_the_longest() {
        let h = Header { len_bytes: 4096, ..Header::default() };
        assert_eq!(h.payload_len(), Ok(4096));
        let h = Header { len_bytes: 4097, ..Header::default() };
        assert_eq!(h.payload_len(), Err(WireError::XsTooLong { len_bytes: 4097, max_bytes: PAYLOAD_MAX }));
        let h = Header { len_bytes: u32::MAX, ..Header::default() };
        assert_eq!(
            h.payload_len(),
            Err(WireError::XsTooLong { len_bytes: u32::MAX, max_bytes: PAYLOAD_MAX })
        );
    }

    #[test]
    fn errors_are_known_by_name_with_and_without_nul() {
        for e in Errno::ALL {
            assert_eq!(Errno::from_payload(e.name().as_bytes()), Some(e));
        }
        assert_eq!(Errno::from_payload(b"EAGAIN\0"), Some(Errno::Eagain));
        assert_eq!(Errno::from_payload(b"EAGAIN\0\0"), None);
        assert_eq!(Errno::from_payload(b"EAGAI"), None);
        assert_eq!(Errno::from_payload(b""), None);
    }
}
