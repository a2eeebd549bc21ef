//! Errors between a client and its xenstore, each with the operation and the path.

use super::path::PathError;
use crate::wire::xs::Errno;
use alloc::string::String;
use core::fmt;

crate::named! {
    /// An operation of the client.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    Operation {
        /// The client read a value.
        Read = "read",
        /// The client wrote a value.
        Write = "write",
        /// The client created a node without a value.
        Mkdir = "mkdir",
        /// The client removed a node and all below it.
        Rm = "rm",
        /// The client listed the children of a node.
        Directory = "directory",
        /// The client read permissions.
        GetPerms = "get permissions",
        /// The client changed permissions.
        SetPerms = "set permissions",
        /// The client set a watch.
        Watch = "watch",
        /// The client ended a watch.
        Unwatch = "unwatch",
        /// The client ended all watches.
        ResetWatches = "reset watches",
        /// The client waited for an event of a watch.
        NextEvent = "next watch event",
        /// The client started a transaction.
        TransactionStart = "transaction start",
        /// The client ended a transaction.
        TransactionEnd = "transaction end",
        /// The client asked for a domain's home.
        GetDomainPath = "get domain path",
        /// The client introduced a domain.
        Introduce = "introduce",
        /// The client released a domain.
        Release = "release",
        /// The client asked whether a domain is introduced.
        IsDomainIntroduced = "is domain introduced",
    }
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// xenstore refused the operation.
    Refused(Errno),
    /// The path is invalid; nothing was sent.
    BadPath(PathError),
    /// The message would be longer than xenstore accepts; nothing was sent.
    TooLong {
        /// Bytes of payload.
        len_bytes: usize,
    },
    /// A token contains a NUL byte; nothing was sent.
    NulInToken,
    /// The connection broke; the transport's error text.
    Connection(String),
    /// xenstore's answer violates the protocol. The connection cannot be used any more.
    BadReply(&'static str),
}

/// An operation on xenstore that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XsError {
    /// The operation.
    pub operation: Operation,
    /// The path, as the caller passed it; empty if the operation has none.
    pub path: String,
    /// The cause.
    pub cause: Cause,
}

impl XsError {
    /// The error that xenstore returned, if xenstore refused the operation.
    pub fn errno(&self) -> Option<Errno> {
        match self.cause {
            Cause::Refused(errno) => Some(errno),
            _ => None,
        }
    }

    /// Whether the node does not exist.
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
            Cause::BadReply(what) => {
                write!(f, ": xenstore's answer breaks its protocol ({what}); restart this program")
            }
        }
    }
}

impl core::error::Error for XsError {}

/// The meaning of an error for a user, with a remedy if there is one.
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
