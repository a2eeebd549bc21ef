//! A listening unix socket that only its user may connect to, and that is removed with its server.

use rustix::fs::{FileType, Mode, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The number of connections that may wait for accept().
const BACKLOG: i32 = 64;

/// The reason why a server cannot listen at a path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another server listens at the path.
    #[error("{path}: another process serves this socket; stop it, or give another path")]
    InUse { path: PathBuf },
    /// The path exists and is not a socket.
    #[error("{path}: exists and is not a socket; remove it, or give another path")]
    NotASocket { path: PathBuf },
    /// The path is longer than a unix socket's may be.
    #[error("{path}: a socket's path has at most 107 bytes; give a shorter one")]
    PathTooLong { path: PathBuf },
    /// The kernel refused a call for the socket.
    #[error("{path}: cannot {what}: {errno}{remedy}")]
    Socket {
        path: PathBuf,
        what: &'static str,
        errno: Errno,
        /// The remedy, if one is known; otherwise empty.
        remedy: &'static str,
    },
}

#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket, so that drop removes the path only if it is still this
    /// socket.
    identity: (u64, u64),
}

impl Listener {
    /// Creates the socket and replaces one that a dead server left.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let refused = |what: &'static str| {
            let path = path.to_path_buf();
            move |errno| ListenError::Socket { path, what, errno, remedy: remedy(errno) }
        };
        let address =
            SocketAddrUnix::new(path).map_err(|_| ListenError::PathTooLong { path: path.into() })?;
        let fd = socket().map_err(refused("make a socket"))?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_if_dead(path, &address)?;
                rustix::net::bind(&fd, &address).map_err(refused("bind to it"))?;
            }
            other => other.map_err(refused("bind to it"))?,
        }
        // No one can connect before listen, so no one gets in before the mode is set.
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(refused("set its mode"))?;
        let identity = rustix::fs::lstat(path).map(|s| identity(&s)).map_err(refused("check it"))?;
        rustix::net::listen(&fd, BACKLOG).map_err(refused("listen on it"))?;
        Ok(Self { fd, path: path.into(), identity })
    }

    /// Accepts the next connection, which will be non-blocking. EAGAIN: none is waiting.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if rustix::fs::lstat(&self.path).is_ok_and(|s| identity(&s) == self.identity)
            && let Err(errno) = rustix::fs::unlink(&self.path)
        {
            log::warn!("{path}: cannot remove the socket: {errno}", path = self.path.display());
        }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Removes a socket on which no process listens any more.
fn remove_if_dead(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let refused =
        |what| move |errno| ListenError::Socket { path: path.into(), what, errno, remedy: remedy(errno) };
    let stat = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(refused("check it"))?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket { path: path.into() });
    }
    let probe = socket().map_err(refused("make a socket"))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            log::info!("{}: replacing the socket that a dead server left", path.display());
            rustix::fs::unlink(path).map_err(refused("remove what a dead server left"))
        }
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => Err(refused("see whether its server lives")(Errno::ACCESS)),
        // The connection succeeded or the backlog is full: a server is there.
        _ => Err(ListenError::InUse { path: path.into() }),
    }
}

fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "; make the directory first",
        Errno::ACCESS | Errno::PERM => "; choose a directory that you may write to",
        Errno::ROFS => "; the file system is read-only, choose another",
        _ => "",
    }
}
