//! The disk behind a back: it reads and writes sectors, and reports each result later.
//!
//! ```text
//!   queue --submit(Io)--> Disk ... --complete--> Done: the same Io, and its outcome       in any order
//!   Io:  op, sectors, token, and the memory itself
//!          Private: a buffer of our own, the whole transfer in one piece
//!          Mapped:  pieces of the guest's pages, in the transfer's order
//! ```
//! Invariants: an [`Io`] owns its memory until it completes, so the addresses that a disk passes to
//! the kernel stay valid as long as it keeps the `Io`. Every `Io` completes once. A disk that is
//! dropped waits until nothing submitted to it can reach its memory or the image any more, or
//! leaves that wait to an owner of both the memory and the image's lock.
//!
//! What a guest may do: change mapped bytes at any time. So a disk must not rely on reading the
//! same bytes twice. Sector ranges, lengths and alignment were validated before.

use crate::DomId;
use crate::error::PlatformError;
use crate::shm::{Piece, SharedBytes};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

pub use crate::wire::blkif::SECTOR_BYTES;

/// The properties of a disk, as its guest sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskFigures {
    /// Length of the disk in sectors of 512 bytes, whatever its own sector size.
    pub sectors: u64,
    /// Bytes of a logical sector, a power of 2 from 512 to 4096. Transfers must be multiples of it.
    pub sector_size: u32,
    /// Bytes of a physical sector.
    pub physical_sector_size: u32,
    /// Whether the disk is read-only.
    pub read_only: bool,
    /// Whether the disk is a CD or DVD.
    pub cdrom: bool,
    /// Whether the disk's medium can be removed.
    pub removable: bool,
    /// Whether the disk has a cache that a flush writes out.
    pub flush: bool,
    /// How the disk discards sectors. None: it cannot.
    pub discard: Option<Discard>,
}

impl DiskFigures {
    /// A writable disk of `sectors` sectors of 512 bytes, with a cache.
    pub fn of(sectors: u64) -> Self {
        Self {
            sectors,
            sector_size: SECTOR_BYTES as u32,
            physical_sector_size: SECTOR_BYTES as u32,
            read_only: false,
            cdrom: false,
            removable: false,
            flush: true,
            discard: None,
        }
    }

    /// The same figures for a disk that emulates logical sectors of 512 bytes; its own sectors
    /// become the physical ones.
    pub fn in_sectors_of_512(self) -> Self {
        let physical_sector_size = self.physical_sector_size.max(self.sector_size);
        let secure = self.units() == 1;
        let discard = self.discard.map(|discard| Discard { secure: discard.secure && secure, ..discard });
        Self { sector_size: SECTOR_BYTES as u32, physical_sector_size, discard, ..self }
    }

    /// Units of 512 bytes in a logical sector.
    pub fn units(&self) -> u64 {
        u64::from(self.sector_size / SECTOR_BYTES as u32).max(1)
    }
}

/// How a disk discards sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discard {
    /// Bytes of the unit that the disk discards.
    pub granularity: u32,
    /// Offset in bytes of the first unit.
    pub alignment: u32,
    /// Whether the disk can discard data so that it cannot be recovered.
    pub secure: bool,
    /// Whether discarded units read as zeroes for all readers until they are written again.
    pub zeroes: bool,
}

/// The operation of an [`Io`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOp {
    /// Reads sectors to memory.
    Read,
    /// Writes memory to sectors.
    Write,
    /// Makes all writes that completed before the flush was submitted survive a loss of power.
    Flush,
    /// Discards sectors.
    Discard {
        /// Whether the data must not be recoverable.
        secure: bool,
    },
}

/// One I/O of a disk.
#[derive(Debug)]
pub struct Io {
    /// A number that the submitter chose.
    pub token: u64,
    /// The operation.
    pub op: IoOp,
    /// The first sector, in units of 512 bytes.
    pub sector: u64,
    /// Number of sectors; 0 for a flush.
    pub sectors: u64,
    /// The memory, of the sectors' length; empty for a flush or a discard.
    pub memory: IoMemory,
}

/// Number of fragments that [`IoMemory::prefetch`] prefetches, and number of bytes of each.
const PREFETCHED_PIECES: usize = 2;
const PREFETCHED_BYTES: usize = 1024;

/// The memory of an I/O.
#[derive(Debug)]
pub enum IoMemory {
    /// Private memory in one buffer.
    Private(Buffer),
    /// Fragments of mapped pages, in the order of the transfer. Neighbours in the list need not be
    /// adjacent in memory.
    Mapped(Vec<MappedPiece>),
}

impl Default for IoMemory {
    fn default() -> Self {
        Self::Mapped(Vec::new())
    }
}

impl IoMemory {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Private(buffer) => buffer.len(),
            Self::Mapped(pieces) => pieces.iter().map(|piece| piece.len).sum(),
        }
    }

    /// Whether this memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all of this memory to `to`, which must have the same length. A later copy of mapped
    /// bytes may differ.
    pub fn read_into(&self, to: &mut [u8]) {
        match self {
            Self::Private(buffer) => to.copy_from_slice(buffer.bytes()),
            Self::Mapped(pieces) => {
                let mut at = 0;
                for piece in pieces {
                    at += piece.piece().map_or(0, |p| p.copy_out(&mut to[at..at + piece.len]));
                }
            }
        }
    }

    /// Prefetches the first cache lines of the mapped pages, for reading or for writing. The
    /// processor prefetches the following lines by itself.
    #[inline(always)]
    pub fn prefetch(&self, to_write: bool) {
        let Self::Mapped(pieces) = self else { return };
        for piece in pieces.iter().take(PREFETCHED_PIECES) {
            let len = piece.len.min(PREFETCHED_BYTES);
            if to_write {
                piece.page.prefetch_write(piece.at, len);
            } else {
                piece.page.prefetch_read(piece.at, len);
            }
        }
    }

    /// Copies all of this memory to the memory `to` at offset `at`, which may be shared. False: it
    /// does not fit.
    pub fn store_at(&self, to: &dyn SharedBytes, at: usize) -> bool {
        match self {
            Self::Private(buffer) => to.copy_in(at, buffer.bytes()),
            Self::Mapped(pieces) => {
                let mut at = at;
                pieces.iter().all(|piece| {
                    let begin = at;
                    at += piece.len;
                    piece.piece().is_some_and(|bytes| to.copy_piece_in(begin, bytes))
                })
            }
        }
    }

    /// Fills all of this memory from the memory `from` at offset `at`, which may be shared. False:
    /// `from` is too short.
    pub fn load_at(&mut self, from: &dyn SharedBytes, at: usize) -> bool {
        match self {
            Self::Private(buffer) => from.copy_out(at, buffer.bytes_mut()),
            Self::Mapped(pieces) => {
                let mut at = at;
                pieces.iter().all(|piece| {
                    let begin = at;
                    at += piece.len;
                    let bytes = from.piece(begin, piece.len);
                    bytes.is_some_and(|bytes| piece.page.copy_piece_in(piece.at, bytes))
                })
            }
        }
    }

    /// Fills all of this memory from `from`, which must have the same length.
    pub fn fill_from(&mut self, from: &[u8]) {
        match self {
            Self::Private(buffer) => buffer.bytes_mut().copy_from_slice(from),
            Self::Mapped(pieces) => {
                let mut at = 0;
                for piece in pieces {
                    let copied = piece.page.copy_in(piece.at, &from[at..at + piece.len]);
                    debug_assert!(copied, "a piece ends with its page");
                    at += piece.len;
                }
            }
        }
    }
}

/// A fragment of a guest's page, which stays mapped while this exists.
#[derive(Clone)]
pub struct MappedPiece {
    page: Arc<dyn SharedBytes + Send + Sync>,
    at: usize,
    len: usize,
}

impl MappedPiece {
    /// The `len` bytes of `page` from `at` on. None: they exceed the page.
    pub fn new(page: Arc<dyn SharedBytes + Send + Sync>, at: usize, len: usize) -> Option<Self> {
        page.piece(at, len)?;
        Some(Self { page, at, len })
    }

    /// The fragment for a request to the kernel. Never None, since the range was checked before.
    pub fn piece(&self) -> Option<Piece<'_>> {
        self.page.piece(self.at, self.len)
    }
}

impl fmt::Debug for MappedPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.len, self.at)
    }
}

/// Private memory that is aligned to a page, as direct I/O requires.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Alignment in bytes.
    pub const ALIGNMENT: usize = 4096;

    /// Allocates `capacity` zeroed bytes, of which none is in use.
    pub fn new(capacity: usize) -> Self {
        let bytes = vec![0; capacity + Self::ALIGNMENT - 1];
        let start = bytes.as_ptr().align_offset(Self::ALIGNMENT).min(Self::ALIGNMENT - 1);
        Self { bytes, start, len: 0 }
    }

    /// Number of bytes allocated.
    pub fn capacity(&self) -> usize {
        self.bytes.len() - (Self::ALIGNMENT - 1)
    }

    /// Sets the number of bytes in use, at most the [capacity](Self::capacity). Their content
    /// stays.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Number of bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in use.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes in use, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} bytes", self.len)
    }
}

/// Why an I/O failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// The disk failed.
    Failed,
    /// The disk does not support the operation.
    NotSupported,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "the disk could not carry out the operation",
            Self::NotSupported => "the disk does not support the operation",
        })
    }
}

impl core::error::Error for IoError {}

/// A completed I/O.
#[derive(Debug)]
pub struct Done {
    /// The I/O as it was submitted, with all of its memory.
    pub io: Io,
    /// The result.
    pub outcome: Result<(), IoError>,
}

/// One queue's handle of a disk. One thread owns it, and it may move to another.
pub trait Disk: Send {
    /// Submits an I/O. It may begin at once, or at the next [`start`](Self::start).
    fn submit(&mut self, io: Io);
    /// Starts whatever was submitted and has not started. It is called after the
    /// [`submit`](Self::submit)s of a batch, before the next [`wait`](Self::wait).
    fn start(&mut self) {}
    /// Appends the I/O that has completed to `done`, in any order. Never sleeps.
    fn complete(&mut self, done: &mut Vec<Done>);
    /// Sleeps until an I/O has completed; for an orderly end, when there is nothing else to do.
    /// False on timeout.
    fn wait(&mut self) -> bool {
        true
    }
}

/// How an image must be opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opening {
    /// The domain that the disk belongs to.
    pub guest: DomId,
    /// The image's name from the toolstack (`params`), or the device that a script made of it.
    /// None: there is none.
    pub params: Option<String>,
    /// Whether the guest may write.
    pub writable: bool,
    /// Whether a predecessor's guest is connected, which must find the disk that it knows.
    pub is_live: bool,
    /// Whether the guest may see the image's own logical sectors. Otherwise the disk has sectors
    /// [of 512 bytes](DiskFigures::in_sectors_of_512).
    pub native_sectors: bool,
    /// Whether the image is only tried: it will be closed at once, since no guest connects yet.
    pub is_trial: bool,
}

/// Why an image could not be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// Another user has the image and may release it soon, such as a dead process whose last writes
    /// are in flight. The text says who.
    Busy(String),
    /// The image cannot be opened; the text says why, and what to do.
    Failed(String),
    /// The image existed and its guest is connected to it, but it is lost for good; the text says
    /// why.
    Lost(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Busy(why) | Self::Failed(why) | Self::Lost(why)) = self;
        f.write_str(why)
    }
}

impl core::error::Error for OpenError {}

/// An image, which provides the handles for a disk's queues. It is opened before its guest
/// connects.
pub trait Image: Send {
    /// Opens the image and returns its properties. Called for each connection, before
    /// [`queue`](Self::queue). If the guest may only read, the image may be one that cannot be
    /// written, and others may have it open, too.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. The image is not open then.
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError>;
    /// A warning about the open image for the administrator, if there is one.
    fn strange(&self) -> Option<String> {
        None
    }
    /// The open image's identity in words, which differs from that of any other image that its name
    /// may lead to, now or later, and is the same each time that this image is opened, by any
    /// process. None: there is no identity.
    fn identity(&self) -> Option<String> {
        None
    }
    /// True if the image is lost with this process, so that no other process can give it to the
    /// guest again.
    fn ends_with_process(&self) -> bool {
        false
    }
    /// The open image's current length in sectors of 512 bytes. None: the length is unchanged, as
    /// far as is known.
    fn sectors(&mut self) -> Option<u64> {
        None
    }
    /// The guest has disconnected and all handles are dropped: closes the image, so that others may
    /// open it.
    fn close(&mut self) {}
    /// Creates a handle for one queue. A write on one queue is durable once a later flush on any
    /// queue has succeeded.
    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError>;
}
