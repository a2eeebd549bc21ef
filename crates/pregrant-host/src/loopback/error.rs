//! Failures between a process and the broker, in words for users.

use pregrant::{DomId, PlatformError};
use rustix::io::Errno;
use std::path::PathBuf;

/// Setting up or asking the broker failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopbackError {
    /// Nothing listens on the socket.
    #[error(
        "no loopback broker answers at {path}: {source}; start one first (`pregrant-lab demo` does), or check the path"
    )]
    NoBroker {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// The domain does not exist.
    #[error(
        "{domid} is not known to the broker at {at}: is the demo (or whatever creates this domain) running?"
    )]
    UnknownDomain {
        /// The requested domain.
        domid: DomId,
        /// The broker.
        at: String,
    },
    /// Twenty processes and threads are attached already.
    #[error("{domid} has as many attached processes and threads as the broker at {at} allows (20); stop one")]
    TooMany {
        /// The requested domain.
        domid: DomId,
        /// The broker.
        at: String,
    },
    /// The other end speaks another version.
    #[error("the broker at {at} is of another version of pregrant; restart it with this one")]
    Version {
        /// The broker.
        at: String,
    },
    /// This process has none left for what the broker sends.
    #[error(
        "no descriptor is left in this process for what the broker at {at} sends; raise its limit: ulimit -n 1024"
    )]
    NoDescriptor {
        /// The broker.
        at: String,
    },
    /// The broker said no.
    #[error("the broker at {at} refused to {what}: {source}")]
    Refused {
        /// The request.
        what: String,
        /// The broker.
        at: String,
        /// Its answer.
        source: Errno,
    },
    /// Another process owns the name.
    #[error("{name:?} in {domid} belongs to another process (broker at {at}); stop that one first")]
    Held {
        /// The name.
        name: String,
        /// In which domain.
        domid: DomId,
        /// The broker.
        at: String,
    },
    /// The broker's end of the connection is closed.
    #[error("the broker at {at} went away; nothing of its domains is left: start it again, then this")]
    Gone {
        /// The broker.
        at: String,
    },
    /// A system call failed.
    #[error("{what} failed: {source}")]
    Os {
        /// Which, and for what.
        what: &'static str,
        /// The errno.
        source: Errno,
    },
}

impl LoopbackError {
    /// Its number, for a platform's error.
    pub(super) fn errno(&self) -> Errno {
        match self {
            Self::NoBroker { source, .. } | Self::Refused { source, .. } | Self::Os { source, .. } => *source,
            Self::UnknownDomain { .. } => Errno::NOENT,
            Self::TooMany { .. } => Errno::USERS,
            Self::Version { .. } => Errno::PROTONOSUPPORT,
            Self::NoDescriptor { .. } => Errno::MFILE,
            Self::Held { .. } => Errno::BUSY,
            Self::Gone { .. } => Errno::PIPE,
        }
    }
}

/// Names the step that failed.
pub(super) trait Step<T> {
    /// `what` in plain words, as "map the memory of the domain".
    fn step(self, what: &'static str) -> Result<T, LoopbackError>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn step(self, what: &'static str) -> Result<T, LoopbackError> {
        self.map_err(|source| LoopbackError::Os { what, source })
    }
}

/// A system call failed on behalf of `op`.
pub(super) fn errno(op: &'static str, e: Errno) -> PlatformError {
    PlatformError { op, code: e.raw_os_error() }
}
