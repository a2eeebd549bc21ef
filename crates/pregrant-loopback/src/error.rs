//! Errors between a process and the broker, with texts for users.

use pregrant::{DomId, PlatformError};
use rustix::io::Errno;
use std::path::PathBuf;

/// An error from the set-up of an attachment or from the broker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopbackError {
    /// Nothing listens on the socket.
    #[error(
        "no loopback broker answers at {path}: {source}; start one first (`pregrant-lab demo` does), or check the path"
    )]
    NoBroker { path: PathBuf, source: Errno },
    /// The domain does not exist.
    #[error(
        "{domid} is not known to the broker at {at}: is the demo (or whatever creates this domain) running?"
    )]
    UnknownDomain { domid: DomId, at: String },
    /// Twenty processes and threads are attached to the domain already.
    #[error("{domid} has as many attached processes and threads as the broker at {at} allows (20); stop one")]
    TooMany { domid: DomId, at: String },
    /// The broker speaks another version of the protocol.
    #[error("the broker at {at} is of another version of pregrant; restart it with this version")]
    Version { at: String },
    /// This process has no descriptor left for one that the broker sent.
    #[error(
        "no descriptor is left in this process for what the broker at {at} sends; raise its limit: ulimit -n 1024"
    )]
    NoDescriptor { at: String },
    /// The broker refused the request.
    #[error("the broker at {at} refused to {what}: {source}")]
    Refused { what: String, at: String, source: Errno },
    /// Another process owns the name.
    #[error("{name:?} in {domid} belongs to another process (broker at {at}); stop that one first")]
    Held { name: String, domid: DomId, at: String },
    /// The broker has closed the connection, because it has ended.
    #[error("the broker at {at} has ended, and its domains with it; start it again, then this program")]
    Gone { at: String },
    #[error("{what} failed: {source}")]
    Os { what: &'static str, source: Errno },
}

impl LoopbackError {
    /// Returns the errno that the error stands for in a platform's error.
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

/// Adds the name of the step that failed to an error.
pub(super) trait Step<T> {
    /// Converts an errno into an error of the step `what`, for example "map the memory of the
    /// domain".
    fn step(self, what: &'static str) -> Result<T, LoopbackError>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn step(self, what: &'static str) -> Result<T, LoopbackError> {
        self.map_err(|source| LoopbackError::Os { what, source })
    }
}

/// Creates the error for a system call that failed during `op`.
pub(super) fn errno(op: &'static str, e: Errno) -> PlatformError {
    PlatformError { op, code: e.raw_os_error() }
}
