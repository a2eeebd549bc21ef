//! Errors between a client and its xenstore, each with the operation and the path.

use super::path::PathError;
use crate::wire::xs::Errno;
use alloc::string::String;
use core::fmt;

crate::named! {
    /// The operation of the client.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    Operation {
        /// Reading a value.
        Read = "read",
        /// Writing a value.
        Write = "write",
        /// Creating a node without a value.
        Mkdir = "mkdir",
        /// Removing a node and what is below it.
        Rm = "rm",
        /// Listing the children of a node.
        Directory = "directory",
        /// Reading permissions.
        GetPerms = "get permissions",
        /// Changing permissions.
        SetPerms = "set permissions",
        /// Setting a watch.
        Watch = "watch",
        /// Taking a watch back.
        Unwatch = "unwatch",
        /// Taking all watches back.
        ResetWatches = "reset watches",
        /// Waiting for a watch to fire.
        NextEvent = "next watch event",
        /// Opening a transaction.
        TransactionStart = "transaction start",
        /// Closing a transaction.
        TransactionEnd = "transaction end",
        /// Asking where a domain's home is.
        GetDomainPath = "get domain path",
        /// Making a domain known.
        Introduce = "introduce",
        /// Forgetting a domain.
        Release = "release",
        /// Asking whether a domain is known.
        IsDomainIntroduced = "is domain introduced",
    }
}

/// Why the operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// xenstore refused.
    Refused(Errno),
    /// The path is not legal; nothing was sent.
    BadPath(PathError),
    /// The message would be longer than xenstore takes; nothing was sent.
    TooLong {
        /// Bytes of payload.
        len_bytes: usize,
    },
    /// A NUL byte in a token; nothing was sent.
    NulInToken,
    /// The connection broke; the transport's own words.
    Connection(String),
    /// xenstore answered something that the protocol does not allow. The connection is of no use
    /// any more.
    BadReply(&'static str),
}

/// A failed operation on xenstore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XsError {
    /// The operation.
    pub operation: Operation,
    /// On which path, as the caller named it; empty where the operation has none.
    pub path: String,
    /// Why it failed.
    pub cause: Cause,
}

impl XsError {
    /// The error that xenstore named, if it was xenstore that refused.
    pub fn errno(&self) -> Option<Errno> {
        match self.cause {
            Cause::Refused(errno) => Some(errno),
            _ => None,
        }
    }

    /// Is it only that there is no such node?
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::Enoent)
    }
}

impl fmt::Display for XsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xenstore {}", self.operation.name())?;
        if !self.path.is_empty() {
            write!(f, " {}", self.path)?;
        }
        match &self.cause {
            Cause::Refused(errno) => write!(f, ": {errno} ({})", meaning(*errno)),
            Cause::BadPath(e) => write!(f, ": {e}"),
            Cause::TooLong { len_bytes } => {
                write!(f, ": {len_bytes} bytes do not fit one message (4096); write less, or several keys")
            }
            Cause::NulInToken => f.write_str(": a watch's token must not have a NUL byte"),
            Cause::Connection(words) => write!(f, ": {words}"),
            Cause::BadReply(what) => write!(f, ": xenstore answered out of protocol ({what}); reconnect"),
        }
    }
}

impl core::error::Error for XsError {}

/// The meaning of an error for a user, with the remedy where there is one.
fn meaning(errno: Errno) -> &'static str {
    match errno {
        Errno::Enoent => "no such node, domain or transaction",
        Errno::Eacces | Errno::Eperm => {
            "this domain lacks the permission; the node's owner or domain 0 can grant it"
        }
        Errno::Eagain => "another change came in between; do the whole transaction again",
        Errno::Enospc => "a quota of this domain is used up; remove nodes, watches or transactions",
        Errno::Eexist => "exists already",
        Errno::E2big => "too long for one message",
        Errno::Einval => "malformed request",
        Errno::Enosys => "this xenstore does not know the request",
        Errno::Ebusy => "in use",
        _ => "see xenstore's log",
    }
}
