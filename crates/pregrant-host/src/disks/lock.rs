//! The lock of an image, on the open file that its I/O goes through (R6 of docs/protocol 1.1, for
//! the storage of a disk).
//!
//! ```text
//!   a back:       open --flock--> io_uring requests, threads ... killed
//!                                   each request holds the open file, and so the lock, until it is over
//!   its successor:         flock? no .............................. no ... yes: nothing of the predecessor's lands any more
//! ```
//! It is `flock` because that belongs to the open file and not to the process: while the kernel
//! still works for a dead process, the lock is held. (`fcntl` locks without `OFD` end with the
//! process.) A writer holds the lock exclusively; readers share it.

use rustix::fd::AsFd;
use rustix::fs::{FlockOperation, fstat, major, minor};
use rustix::io::Errno;
use std::path::Path;

/// The reason why an image cannot be locked.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another process has the lock; the text describes that process.
    Held(String),
    /// The file does not support locks.
    Failed(Errno),
}

/// Locks an open file, exclusively or shared, without blocking.
pub(super) fn lock(file: impl AsFd, alone: bool) -> Result<(), LockError> {
    let how = match alone {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match rustix::fs::flock(&file, how) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(LockError::Held(holder(&file))),
        Err(e) => Err(LockError::Failed(e)),
    }
}

/// Describes who holds this file's lock.
fn holder(file: impl AsFd) -> String {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid = fstat(file).ok().and_then(|stat| {
        let inode = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
        owner(&locks, &inode)
    });
    match pid {
        Some(pid) if pid == i64::from(std::process::id()) => {
            "this process, for another disk or its last requests".into()
        }
        Some(pid) if Path::new(&format!("/proc/{pid}")).exists() => format!("process {pid}"),
        Some(pid) => format!("process {pid} (it has ended, and its last requests have not)"),
        None => "another process".into(),
    }
}

/// Returns the process that holds the lock of an inode, according to `/proc/locks`.
fn owner(locks: &str, inode: &str) -> Option<i64> {
    // 1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF
    let mut fields = locks.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let line = fields.find(|f| f.get(1) == Some(&"FLOCK") && f.get(5) == Some(&inode))?;
    line[4].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn one_writes_or_many_read() {
        let path = std::env::temp_dir().join(format!("pregrant-lock-{}", std::process::id()));
        std::fs::write(&path, "x").unwrap();
        let open = || File::open(&path).unwrap();
        let first = open();
        lock(&first, true).unwrap();
        let second = open();
        for alone in [true, false] {
            let Err(LockError::Held(who)) = lock(&second, alone) else { panic!("two have it") };
            assert!(who.contains("this process"), "{who}");
        }
        drop(first);
        lock(&second, false).unwrap();
        let third = open();
        lock(&third, false).unwrap();
        assert!(matches!(lock(open(), true), Err(LockError::Held(_))));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_kernels_list_is_read() {
        let list =
            "1: POSIX  ADVISORY  WRITE 7 fd:00:55 0 EOF\n2: FLOCK  ADVISORY  READ 812 fd:00:55 0 EOF\n";
        assert_eq!((owner(list, "fd:00:55"), owner(list, "fd:00:5"), owner("", "")), (Some(812), None, None));
    }
}
