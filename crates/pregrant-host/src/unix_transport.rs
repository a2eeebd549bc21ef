//! A client's connection to xenstore on Linux: a unix socket, or `/dev/xen/xenbus`.

use pregrant::xenstore::Transport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable that names the socket, as for Xen's own tools.
pub const PATH_VARIABLE: &str = "XENSTORED_PATH";
/// Paths at which xenstore's socket is searched for if the variable is not set.
pub const PATHS: [&str; 3] = ["/var/run/xenstored/socket", "/dev/xen/xenbus", "/proc/xen/xenbus"];

/// The reason why xenstore cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The server closed the connection.
    #[error("xenstore closed the connection")]
    Closed,
    /// A send or a receive failed.
    #[error("the connection to xenstore failed: {0}")]
    Failed(Errno),
    /// The connection could not be established.
    #[error("{path}: cannot connect to xenstore: {errno}; {}", remedy(*errno))]
    Connect { path: PathBuf, errno: Errno },
    /// None of the paths at which xenstore's socket normally is exists.
    #[error("no xenstore found at {}; set {PATH_VARIABLE} to the socket of one", PATHS.join(", "))]
    NotFound,
}

impl TransportError {
    /// Returns true if there is a xenstore that this user may not use.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Connect { errno: Errno::ACCESS | Errno::PERM, .. })
    }
}

fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => "run this as root, or as a user of the group that the socket is for",
        _ => "is xenstored running? (`pregrant-lab store serve --socket PATH`)",
    }
}

/// A connection to xenstore. Its descriptor may be in an epoll set: if it is readable, call
/// [`next_event`](pregrant::xenstore::Client::next_event) with a wait of zero.
#[derive(Debug)]
pub struct UnixTransport {
    fd: OwnedFd,
    is_socket: bool,
}

impl UnixTransport {
    /// Uses a connected stream socket or an open `/dev/xen/xenbus`.
    pub fn new(fd: OwnedFd) -> Result<Self, TransportError> {
        let mode = rustix::fs::fstat(&fd).map_err(TransportError::Failed)?.st_mode;
        // Only one request is in flight, so the socket has room for it; waits use poll.
        rustix::io::ioctl_fionbio(&fd, false).map_err(TransportError::Failed)?;
        Ok(Self { fd, is_socket: FileType::from_raw_mode(mode) == FileType::Socket })
    }

    /// Connects to a socket, or opens a device, by its path.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, TransportError> {
        let path = path.as_ref();
        let refused = |errno| TransportError::Connect { path: path.into(), errno };
        let mode = rustix::fs::stat(path).map_err(refused)?.st_mode;
        let fd = if FileType::from_raw_mode(mode) == FileType::Socket {
            let flags = SocketFlags::CLOEXEC;
            let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .map_err(refused)?;
            let address = SocketAddrUnix::new(path).map_err(refused)?;
            rustix::net::connect(&fd, &address).map_err(refused)?;
            fd
        } else {
            rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(refused)?
        };
        Self::new(fd)
    }

    /// Connects to this machine's xenstore: the path in `XENSTORED_PATH`, or else the first of the
    /// usual paths that exists.
    pub fn find() -> Result<Self, TransportError> {
        if let Some(path) = std::env::var_os(PATH_VARIABLE) {
            return Self::connect(Path::new(&path));
        }
        // A path in a directory that may not be entered counts as existing.
        let is_there = |path: &&&str| Path::new(path).try_exists().unwrap_or(true);
        let path = PATHS.iter().find(is_there).ok_or(TransportError::NotFound)?;
        Self::connect(path)
    }
}

impl AsFd for UnixTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Transport for UnixTransport {
    type Error = TransportError;

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), TransportError> {
        while !bytes.is_empty() {
            let sent = if self.is_socket {
                rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL)
            } else {
                rustix::io::write(&self.fd, bytes)
            };
            match sent {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(TransportError::Closed),
                Err(errno) => return Err(TransportError::Failed(errno)),
            }
        }
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, TransportError> {
        if let Some(wait) = wait {
            // A wait that the kernel's type cannot hold means no timeout.
            let wait = Timespec::try_from(wait).ok();
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, wait.as_ref()) {
                Ok(0) | Err(Errno::INTR) => return Ok(0),
                Ok(_) => {}
                Err(errno) => return Err(TransportError::Failed(errno)),
            }
        }
        loop {
            match rustix::io::read(&self.fd, &mut *buf) {
                Ok(0) | Err(Errno::CONNRESET) => return Err(TransportError::Closed),
                Ok(n) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(TransportError::Failed(errno)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_somebody_else_is_no_missing_xenstored() {
        let of = |errno| TransportError::Connect { path: PATHS[0].into(), errno };
        let denied = of(Errno::ACCESS);
        let said = denied.to_string();
        assert!(denied.is_denied() && said.contains(PATHS[0]) && said.contains("run this as root"), "{said}");
        assert!(!said.contains("is xenstored running"), "{said}");
        assert!(!of(Errno::CONNREFUSED).is_denied());
        assert!(of(Errno::CONNREFUSED).to_string().contains("is xenstored running"));
    }
}
