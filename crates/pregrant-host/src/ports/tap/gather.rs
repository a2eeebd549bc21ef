//! Writes a frame to the kernel that is contiguous, or that is gathered from several vectors. All
//! but the first vector are memory that the frame's guest can still write, so the kernel copies
//! from them and no Rust reference to them exists. The same holds for a frame that the kernel
//! writes to such memory ([`read`]).

use super::header::HEADER;
use super::vhost::Buffer;
use io_uring::{opcode, squeue, types};
use pregrant::port::{Piece, PieceMut};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// A range of memory in the form of `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Vector {
    base: *const u8,
    len: usize,
}

// SAFETY: an address and a length; the caller that has the kernel read there vouches for them
// (`Vector::zero_copy`), on any thread.
unsafe impl Send for Vector {}

impl Vector {
    /// A vector of private bytes.
    ///
    /// # Safety
    /// They stay as long as a frame with this is written.
    pub unsafe fn private(bytes: &[u8]) -> Self {
        Self { base: bytes.as_ptr(), len: bytes.len() }
    }

    /// A vector of zero-copy fragments, in order; those that follow each other in memory, such as
    /// pages that were mapped together, are merged.
    ///
    /// # Safety
    /// Their memory stays mapped as long as a frame with these is written.
    pub unsafe fn zero_copy<'p>(pieces: impl Iterator<Item = Piece<'p>>) -> impl Iterator<Item = Self> {
        let mut pieces = pieces.map(|piece| piece.as_raw()).peekable();
        std::iter::from_fn(move || {
            let (base, mut len) = pieces.next()?;
            while let Some((_, more)) = pieces.next_if(|next| next.0.addr() == base.addr() + len) {
                len += more;
            }
            Some(Self { base, len })
        })
    }

    /// Returns the range of this vector as a readable virtqueue descriptor.
    pub fn buffer(&self) -> Buffer {
        Buffer { address: self.base.addr() as u64, len: self.len as u32, writable: false }
    }
}

/// A frame to be written to a tap.
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// The frame is a slice of private memory.
    One(&'a [u8]),
    /// Several vectors that are read one after another.
    Many(&'a [Vector]),
}

impl<'a> From<&'a [u8]> for Frame<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::One(bytes)
    }
}

impl Frame<'_> {
    /// Writes the frame by a system call.
    pub fn write(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        match self {
            Self::One(bytes) => rustix::io::write(fd, bytes).map(drop),
            Self::Many(vectors) => {
                // SAFETY: as many vectors as are said, in the format of iovecs, and what they name
                // is there (`Vector`); the kernel only reads.
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

    /// Returns the io_uring request that writes the frame. It contains the addresses of the frame's
    /// memory.
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

/// Reads a frame by a system call: its header, and the rest to `room`. Returns the bytes of both
/// together.
pub fn read(fd: BorrowedFd<'_>, header: &mut [u8; HEADER], room: &PieceMut<'_>) -> Result<usize, Errno> {
    let (at, len) = room.as_raw();
    let vectors = [
        libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER },
        libc::iovec { iov_base: at.cast(), iov_len: len },
    ];
    // SAFETY: two vectors; the first names bytes that are borrowed here alone, the second memory
    // that is lent and may be written, to which no reference exists.
    let n = unsafe { libc::readv(fd.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) };
    usize::try_from(n)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
