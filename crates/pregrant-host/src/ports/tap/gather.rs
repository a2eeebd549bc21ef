//! A frame on its way to the kernel: in one piece, or in several that it gathers. Of these all but the first are memory that
//! the frame's guest can still write: the kernel copies them in our place, and no reference to them exists.

use super::vhost::Buffer;
use io_uring::{opcode, squeue, types};
use pregrant::port::Piece;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// A piece as the kernel takes it: `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Vector {
    base: *const u8,
    len: usize,
}

// SAFETY: an address and a length; whoever has the kernel read there vouches for them (`Vector::lent`), on any thread.
unsafe impl Send for Vector {}

impl Vector {
    /// Of private bytes.
    ///
    /// # Safety
    /// They stay as long as a frame with this is written.
    pub unsafe fn private(bytes: &[u8]) -> Self {
        Self { base: bytes.as_ptr(), len: bytes.len() }
    }

    /// Of lent ones.
    ///
    /// # Safety
    /// Their memory stays mapped as long as a frame with this is written.
    pub unsafe fn lent(piece: Piece<'_>) -> Self {
        let (base, len) = piece.as_raw();
        Self { base, len }
    }

    /// Has these lent bytes too, where they begin at its end: pages that were mapped together lie so.
    ///
    /// # Safety
    /// As for [`lent`](Self::lent).
    pub unsafe fn append(&mut self, piece: Piece<'_>) -> bool {
        let (base, len) = piece.as_raw();
        let follows = self.base.addr() + self.len == base.addr();
        self.len += if follows { len } else { 0 };
        follows
    }

    /// The same, as a virtqueue's descriptor has it, to be read.
    pub fn buffer(&self) -> Buffer {
        Buffer { address: self.base.addr() as u64, len: self.len as u32, writable: false }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// Private bytes.
    One(&'a [u8]),
    /// These, one behind another.
    Many(&'a [Vector]),
}

impl<'a> From<&'a [u8]> for Frame<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::One(bytes)
    }
}

impl Frame<'_> {
    /// Writes it: a system call.
    pub fn write(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        match self {
            Self::One(bytes) => rustix::io::write(fd, bytes).map(drop),
            Self::Many(vectors) => {
                // SAFETY: as many vectors as are said, laid out as iovecs, and what they name is there (`Vector`); the kernel
                // only reads.
                let n = unsafe {
                    libc::writev(fd.as_raw_fd(), vectors.as_ptr().cast::<libc::iovec>(), vectors.len() as i32)
                };
                if n >= 0 {
                    return Ok(());
                }
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
            }
        }
    }

    /// The request to write it, for a ring; it names the frame's memory.
    pub fn request(&self, fd: types::Fd, flags: i32) -> squeue::Entry {
        match self {
            Self::One(bytes) => {
                opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).rw_flags(flags).build()
            }
            Self::Many(vectors) => {
                let first = vectors.as_ptr().cast::<libc::iovec>();
                opcode::Writev::new(fd, first, vectors.len() as u32).rw_flags(flags).build()
            }
        }
    }
}
