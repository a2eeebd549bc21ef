//! Memory that outlives a back of a real Xen: files below one directory, which processes map and
//! lock.
//!
//! ```text
//!   /run/pregrant-back/vif5.0/lock      flock: one owner, until it dies (R6); beside it a lock of fcntl, which says who asks
//!   /run/pregrant-back/vif5.0/0/tx      the redo page of queue 0's TX ring (R3), and so on
//!   /run/pregrant-back/vif5.0/control   the control page (R4)
//! ```
//! The directory is to be on memory (`/run` is): it must not survive a boot, because the domains'
//! numbers do not.
//!
//! Invariants: a lock that is held is on the file that stands at the path, so two processes never
//! own one vif; a page's file has a place for each of its bytes before it is mapped ([`Backing`]),
//! so a full file system is an error and no signal; no one makes it smaller.
//!
//! What a peer may do: nothing, it has no part of it. Who is root in this domain may truncate a
//! file and so end the process by SIGBUS.

use super::{KeptBytes, Recovery, device_name, device_of};
use crate::backing::Backing;
use crate::byte_lock;
use crate::mapping::Mapping;
use pregrant::DomId;
use pregrant::xenbus::{Class, DeviceId};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::any::Any;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Keeps the locks of devices, and the memory that outlives this process, in files below a
/// directory, such as `/run/pregrant-back`.
#[derive(Clone, Debug)]
pub struct FileRecovery {
    dir: PathBuf,
}

/// Name of a device's lock file in its directory.
const LOCK: &str = "lock";
/// The bytes of a lock for a whole file.
const ALL: std::ops::Range<i64> = 0..i64::MAX;

/// A file that this process has locked. Dropping this, or the end of the process, unlocks it.
///
/// The flock alone excludes other processes. A process that asked for the flock's owner by locking
/// would exclude an owner that starts at that moment. So the owner holds a second lock of the same
/// file, which can be queried (`F_OFD_GETLK`). A process of an earlier version has no second lock.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File); // the lock is the open file's

/// The reason why a file could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has the lock.
    #[error("process {owner} has locked {path}; stop that process first")]
    Held {
        /// The path of the lock file.
        path: PathBuf,
        /// The owner's description of itself, as it is in the file.
        owner: String,
    },
    /// The file cannot be created or locked.
    #[error("{path}: {source}; is the directory writable for this user?")]
    Failed {
        /// Path of the lock file.
        path: PathBuf,
        source: std::io::Error,
    },
}

impl Lock {
    /// Returns the owner of the lock at `path`, as it described itself in the file; None: the lock
    /// is free. The check itself locks out no process.
    #[must_use]
    pub fn owner(path: &Path) -> Option<String> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
        byte_lock::other(&file, ALL)?;
        Some(owner_in(&mut file))
    }

    /// Locks the file `path`, which is created if it does not exist, and writes this process's
    /// number into it.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let failed = |source: std::io::Error| LockError::Failed { path: path.into(), source };
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(failed)?;
        }
        loop {
            let mut file = open(path).map_err(|e| failed(e.into()))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(LockError::Held { path: path.into(), owner: owner_in(&mut file) });
                }
                Err(e) => return Err(failed(e.into())),
            }
            // The last owner may have removed the file between our two steps. Then another file is
            // the lock, or will be.
            let ours = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
            if rustix::fs::stat(path).is_ok_and(|s| (s.st_dev, s.st_ino) == (ours.st_dev, ours.st_ino)) {
                // This cannot fail, since flock succeeded.
                let _ = byte_lock::take(&file, ALL, byte_lock::Kind::Exclusive);
                // Only for the error message of the next process; on a full file system the text is
                // missing.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(Self(file));
            }
        }
    }
}

/// Reads the owner's description in a lock file.
fn owner_in(file: &mut File) -> String {
    let mut owner = String::new();
    let _ = file.take(16).read_to_string(&mut owner);
    match owner.trim() {
        "" => "of an unknown number".into(),
        number => number.into(),
    }
}

/// Opens or makes a file that only this user reads; no link is followed.
fn open(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

impl FileRecovery {
    /// Creates a recovery that keeps its files below `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Returns the path of a device's lock file.
    pub fn lock_of(&self, id: &DeviceId) -> PathBuf {
        self.dir.join(device_name(id)).join(LOCK)
    }

    fn file(&self, page: &str, bytes: usize) -> Result<Mapping, String> {
        let path = self.dir.join(page);
        let made = || -> std::io::Result<Mapping> {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            Ok(Mapping::new(&Backing::allocated(open(&path)?, bytes)?, bytes)?)
        };
        made().map_err(|e| {
            format!(
                "{path}: {e}; guests will lose their connections when this process crashes",
                path = path.display()
            )
        })
    }
}

impl<P> Recovery<P> for FileRecovery {
    fn own(&mut self, _: &P, id: &DeviceId) -> Result<Box<dyn Any>, String> {
        match Lock::take(&self.lock_of(id)) {
            Ok(lock) => Ok(Box::new(lock)),
            Err(e) => Err(e.to_string()),
        }
    }

    fn page(&mut self, _: &P, id: &DeviceId, page: &str, bytes: usize) -> Result<Option<KeptBytes>, String> {
        Ok(Some(Box::new(self.file(&format!("{}/{page}", device_name(id)), bytes)?)))
    }

    fn forget(&mut self, _: &P, id: &DeviceId) {
        let own = self.dir.join(device_name(id));
        let Ok(entries) = fs::read_dir(&own) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_name() != LOCK) {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let _ = if is_dir { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        }
        // The lock file is removed last: a process that gets it from now on finds nothing.
        let _ = fs::remove_file(own.join(LOCK));
        let _ = fs::remove_dir(own);
    }

    fn kept(&mut self, _: &P, class: Class, own: DomId) -> Vec<DeviceId> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let device =
            |entry: fs::DirEntry| device_of(&format!("{}/", entry.file_name().to_str()?), class, own);
        entries.flatten().filter_map(device).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::ring::REDO_BYTES;
    use pregrant::shm::SharedBytes;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("pregrant-recovery-{}-{test}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Self(dir)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn vif(front: u16) -> DeviceId {
        DeviceId { class: Class::VIF, front: DomId(front), back: DomId(0), handle: 1 }
    }

    /// Asking for the owner of a lock does not take the lock, and writes nothing.
    #[test]
    fn a_lock_is_asked_and_not_taken() {
        let scratch = Scratch::new("asked");
        let path = scratch.0.join("lock");
        assert_eq!(Lock::owner(&path), None);
        assert!(!path.exists());
        let lock = Lock::take(&path).unwrap();
        let me = std::process::id().to_string();
        assert_eq!((Lock::owner(&path), Lock::owner(&path)), (Some(me.clone()), Some(me)));
        drop(lock);
        assert_eq!(Lock::owner(&path), None);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = Lock::owner(&path);
                }
            });
            let refused = (0..2000).filter(|_| Lock::take(&path).is_err()).count();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, 0, "somebody who asks keeps the owner out");
        });
    }

    #[test]
    fn a_vif_has_one_owner_who_may_go() {
        let scratch = Scratch::new("owner");
        let mut files = FileRecovery::new(&scratch.0);
        let first = Recovery::<()>::own(&mut files, &(), &vif(5)).unwrap();
        let error = Recovery::<()>::own(&mut files, &(), &vif(5)).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(error.contains("vif5.1/lock") && error.contains(&format!("process {pid}")), "{error}");
        Recovery::<()>::own(&mut files, &(), &vif(6)).unwrap();
        drop(first);
        Recovery::<()>::own(&mut files, &(), &vif(5)).unwrap();
    }

    #[test]
    fn a_lock_that_was_removed_is_free() {
        let scratch = Scratch::new("removed");
        let mut files = FileRecovery::new(&scratch.0);
        let first = Recovery::<()>::own(&mut files, &(), &vif(5)).unwrap();
        Recovery::<()>::forget(&mut files, &(), &vif(5));
        let second = Recovery::<()>::own(&mut files, &(), &vif(5)).unwrap();
        drop(first);
        assert!(Recovery::<()>::own(&mut files, &(), &vif(5)).is_err());
        drop(second);
    }

    #[test]
    fn pages_are_found_again_and_forgotten() {
        let scratch = Scratch::new("pages");
        let mut files = FileRecovery::new(&scratch.0);
        let page = files.file("vif5.1/0/tx", REDO_BYTES).unwrap();
        page.u32(8).store(7, std::sync::atomic::Ordering::Relaxed);
        let again = files.file("vif5.1/0/tx", REDO_BYTES).unwrap();
        assert_eq!((again.u32(8).load(std::sync::atomic::Ordering::Relaxed), again.len()), (7, REDO_BYTES));
        assert!(Recovery::<()>::page(&mut files, &(), &vif(6), "control", 4096).unwrap().is_some());
        let mut kept = Recovery::<()>::kept(&mut files, &(), Class::VIF, DomId(0));
        kept.sort_by_key(|id| id.front);
        assert_eq!(kept, [vif(5), vif(6)]);
        Recovery::<()>::forget(&mut files, &(), &vif(5));
        assert_eq!(Recovery::<()>::kept(&mut files, &(), Class::VIF, DomId(0)), [vif(6)]);
        let fresh = files.file("vif5.1/0/tx", REDO_BYTES).unwrap();
        assert_eq!(fresh.u32(8).load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
