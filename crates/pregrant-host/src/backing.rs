//! Files whose pages are allocated, so that touching a mapping of one cannot kill the process by
//! SIGBUS.
//!
//! ```text
//!   sealed      a memfd, which no one makes shorter       the loopback's memory, rings, disks of memory
//!   received    the same, from the broker: checked
//!   allocated   a file on a file system, all of whose bytes have a place there      recovery pages in /run
//! ```
//! A file that was only made longer is a hole: on a full file system the first touch of it raises
//! SIGBUS, which ends the process and with it the devices of all its guests. So a [`Mapping`]
//! accepts only these files.
//!
//! Invariants: the first `len` bytes are backed by memory as long as no one makes the file smaller.
//! A peer cannot do that; root in this domain can, to a file with a name.
//!
//! [`Mapping`]: crate::mapping::Mapping

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

#[derive(Debug)]
pub struct Backing {
    fd: OwnedFd,
    len: usize,
}

impl Backing {
    /// Creates `len` bytes of zeroed memory whose size is sealed. Pages are allocated when they are
    /// touched.
    pub fn sealed(name: &str, len: usize) -> Result<Self, Errno> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self { fd, len })
    }

    /// Accepts a sealed memfd that another process sent.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is no memfd; `EPERM`: it is not sealed against shrinking.
    pub fn received(fd: OwnedFd) -> Result<Self, Errno> {
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(Errno::PERM);
        }
        let len = usize::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| Errno::OVERFLOW)?;
        Ok(Self { fd, len })
    }

    /// Makes a file `len` bytes long and allocates all of them in its file system. What the file
    /// already holds is kept.
    ///
    /// # Errors
    ///
    /// The file system is full, or refuses.
    pub(crate) fn allocated(file: File, len: usize) -> io::Result<Self> {
        // fallocate on tmpfs is interrupted by signals.
        match retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, len as u64)) {
            Ok(()) => {}
            // ramfs, which allocates nothing in advance, and network file systems: write each byte
            // instead.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => rewrite(&file, len)?,
            Err(e) => return Err(e.into()),
        }
        Ok(Self { fd: file.into(), len })
    }

    /// Number of bytes that may be mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Duplicates the descriptor, so that another process can get it.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

/// Reads and writes back the first `len` bytes; what lies beyond the old end becomes zero.
fn rewrite(file: &File, len: usize) -> io::Result<()> {
    let mut bytes = vec![0; len];
    let mut read = 0;
    while let n @ 1.. = file.read_at(&mut bytes[read..], read as u64)? {
        read += n;
    }
    file.write_all_at(&bytes, 0)
}

impl AsFd for Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn scratch(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("pregrant-backing-{}-{name}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn a_hole_gets_a_place_and_bytes_stay() {
        for by_hand in [false, true] {
            let file = scratch("hole");
            file.set_len(8192).unwrap();
            file.write_all_at(b"kept", 4096).unwrap();
            let open = file.try_clone().unwrap();
            match by_hand {
                true => rewrite(&file, 12288).unwrap(),
                false => assert_eq!(Backing::allocated(file, 12288).unwrap().len(), 12288),
            }
            let mut bytes = vec![1; 12288];
            open.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes[..4096].iter().chain(&bytes[4100..]).all(|byte| *byte == 0));
            assert_eq!(&bytes[4096..4100], b"kept");
            open.sync_all().unwrap();
            assert!(open.metadata().unwrap().blocks() >= 24, "a hole is left");
        }
    }

    #[test]
    fn what_can_be_made_shorter_is_not_received() {
        let sealed = Backing::sealed("a test", 4096).unwrap();
        assert_eq!(Backing::received(sealed.try_clone().unwrap()).unwrap().len(), 4096);
        let open = rustix::fs::memfd_create("a test", MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(Backing::received(open).unwrap_err(), Errno::PERM);
        assert_eq!(Backing::received(scratch("file").into()).unwrap_err(), Errno::INVAL);
    }
}
