//! Locks of a range of a file's bytes, which belong to an open file and are gone with it
//! (`F_OFD_SETLK`). Who asks where there is one learns its first byte, and keeps no one out.

use nix::fcntl::{FcntlArg, fcntl};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

/// Whom a lock keeps out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Those who want an exclusive one.
    Shared,
    /// Everybody else.
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

/// Takes one, without waiting.
///
/// # Errors
/// Another open file has one that excludes it, or the file system has none.
pub(crate) fn take(file: impl AsFd, bytes: Range<i64>, kind: Kind) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock(bytes, kind)))?;
    Ok(())
}

/// The first byte of a lock in this range that another open file has; None: none has any, or the
/// file system does not say.
pub(crate) fn other(file: impl AsFd, bytes: Range<i64>) -> Option<i64> {
    let mut found = lock(bytes, Kind::Exclusive);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found)).ok()?;
    (found.l_type != libc::F_UNLCK as libc::c_short).then_some(found.l_start)
}
