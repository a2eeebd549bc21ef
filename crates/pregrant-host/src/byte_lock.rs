//! Locks of a range of a file's bytes. A lock belongs to the open file and ends with it
//! (`F_OFD_SETLK`). A query finds the first byte that another open file has locked, and locks
//! nothing itself.

use nix::fcntl::{FcntlArg, fcntl};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

/// The kind of a lock, by the other locks that it excludes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A shared lock excludes exclusive locks.
    Shared,
    /// An exclusive lock excludes all others.
    Exclusive,
}

fn lock(bytes: Range<i64>, kind: Kind) -> libc::flock {
    let kind = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
    };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start,
        l_len: bytes.end - bytes.start,
        l_pid: 0,
    }
}

/// Acquires a lock without waiting.
///
/// # Errors
///
/// Another open file holds a lock that excludes it, or the file system does not support locks.
pub(crate) fn take(file: impl AsFd, bytes: Range<i64>, kind: Kind) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock(bytes, kind)))?;
    Ok(())
}

/// Returns the first byte in this range that another open file has locked. None: there is no such
/// lock, or the file system cannot tell.
pub(crate) fn other(file: impl AsFd, bytes: Range<i64>) -> Option<i64> {
    let mut found = lock(bytes, Kind::Exclusive);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found)).ok()?;
    (found.l_type != libc::F_UNLCK as libc::c_short).then_some(found.l_start)
}
