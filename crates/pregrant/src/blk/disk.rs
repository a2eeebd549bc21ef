//! The disk behind a back: it reads and writes sectors, and reports each result later.
//!
//! ```text
//!   queue --submit(Io)--> Disk ... --complete--> Done: the same Io, and its outcome       in any order
//!   Io:  op, sectors, token, and the memory itself
//!          Private: a buffer of our own, the whole transfer in one piece
//!          Mapped:  pieces of the guest's pages, in the transfer's order
//! ```
//! Invariants: an [`Io`] owns its memory until it comes back, so that a disk which hands addresses
//! to the kernel knows that they stand as long as it keeps the `Io`; every `Io` comes back once; a
//! disk that is dropped waits until nothing that was submitted to it can reach its memory or the
//! image any more, or leaves the wait to somebody who keeps both, the memory and the image's lock.
//!
//! What a guest may do: change mapped bytes at any time. So a disk does not read them twice and
//! believe that it saw the same. Sector ranges, lengths and alignment were validated before.

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

/// The figures of a disk, as its guest sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskFigures {
    /// Its length in sectors of 512 bytes, whatever its own are.
    pub sectors: u64,
    /// Bytes of its logical sectors, a power of 2 from 512 to 4096: transfers are multiples of it.
    pub sector_size: u32,
    /// Bytes of its physical sectors.
    pub physical_sector_size: u32,
    /// It is never written to.
    pub read_only: bool,
    /// It is a CD or DVD.
    pub cdrom: bool,
    /// Its medium can be taken out.
    pub removable: bool,
    /// It has a cache that a flush empties.
    pub flush: bool,
    /// It can discard sectors whose data no one needs.
    pub discard: Option<Discard>,
}

impl DiskFigures {
    /// A writable disk of `sectors` sectors, 512 bytes each, with a cache.
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

    /// The same disk with logical sectors of 512 bytes, for a disk that makes whole sectors of its
    /// own of them: the physical ones.
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

/// How a disk discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discard {
    /// Bytes of the units that it discards.
    pub granularity: u32,
    /// Bytes at which the first unit begins.
    pub alignment: u32,
    /// It can discard so that the data is gone for good.
    pub secure: bool,
    /// Whole units that were discarded read as zeroes from then on, for all readers, until they
    /// are written.
    pub zeroes: bool,
}

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOp {
    /// Sectors into memory.
    Read,
    /// Memory into sectors.
    Write,
    /// Writes that came back before this was submitted are to survive a loss of power.
    Flush,
    /// Sectors hold nothing of use.
    Discard {
        /// Their data is to be gone for good.
        secure: bool,
    },
}

/// One I/O of a disk.
#[derive(Debug)]
pub struct Io {
    /// The submitter's number for it.
    pub token: u64,
    /// The operation.
    pub op: IoOp,
    /// First sector, of 512 bytes.
    pub sector: u64,
    /// How many; 0 for a flush.
    pub sectors: u64,
    /// Where the bytes are, as many as the sectors have; none for a flush or a discard.
    pub memory: IoMemory,
}

/// Of how many pieces [`IoMemory::prefetch`] asks for lines, and for how many bytes of each.
const PREFETCHED_PIECES: usize = 2;
const PREFETCHED_BYTES: usize = 1024;

/// The memory of an I/O.
#[derive(Debug)]
pub enum IoMemory {
    /// One piece of our own.
    Private(Buffer),
    /// Pieces of mapped pages, in the transfer's order. Neighbours in the list need not be
    /// neighbours in memory.
    Mapped(Vec<MappedPiece>),
}

impl Default for IoMemory {
    fn default() -> Self {
        Self::Mapped(Vec::new())
    }
}

impl IoMemory {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Private(buffer) => buffer.len(),
            Self::Mapped(pieces) => pieces.iter().map(|piece| piece.len).sum(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all of it to `to`, which is as long. Mapped bytes may be others the next time.
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

    /// Asks for the first cache lines of the pages that are mapped: to be read, or written to. What
    /// follows them the processor asks for by itself.
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

    /// Copies all of it to the memory `to` at `at`, which may be shared. False: it passes its end.
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

    /// Fills all of it from the memory `from` at `at`, which may be shared. False: it passes its
    /// end.
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

    /// Fills all of it from `from`, which is as long.
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

/// A piece of a guest's page that stays mapped as long as this is there.
#[derive(Clone)]
pub struct MappedPiece {
    page: Arc<dyn SharedBytes + Send + Sync>,
    at: usize,
    len: usize,
}

impl MappedPiece {
    /// `len` bytes of `page` from `at` on; None where they pass its end.
    pub fn new(page: Arc<dyn SharedBytes + Send + Sync>, at: usize, len: usize) -> Option<Self> {
        page.piece(at, len)?;
        Some(Self { page, at, len })
    }

    /// The bytes, for a request to the kernel; None never: they were seen to be there.
    pub fn piece(&self) -> Option<Piece<'_>> {
        self.page.piece(self.at, self.len)
    }
}

impl fmt::Debug for MappedPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.len, self.at)
    }
}

/// Private bytes whose first one begins a page, as direct I/O wants it.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Bytes to which the first is aligned.
    pub const ALIGNMENT: usize = 4096;

    /// Room for `capacity` bytes, zeroed, and none in use.
    pub fn new(capacity: usize) -> Self {
        let bytes = vec![0; capacity + Self::ALIGNMENT - 1];
        let start = bytes.as_ptr().align_offset(Self::ALIGNMENT).min(Self::ALIGNMENT - 1);
        Self { bytes, start, len: 0 }
    }

    /// Bytes that there is room for.
    pub fn capacity(&self) -> usize {
        self.bytes.len() - (Self::ALIGNMENT - 1)
    }

    /// Bytes in use from here on, at most the [capacity](Self::capacity). Their content stays.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those in use.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The same.
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
    /// The disk could not.
    Failed,
    /// It never can.
    NotSupported,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "the disk failed the operation",
            Self::NotSupported => "the disk does not support the operation",
        })
    }
}

impl core::error::Error for IoError {}

/// An I/O that came back.
#[derive(Debug)]
pub struct Done {
    /// As it was submitted, with all of its memory.
    pub io: Io,
    /// How it went.
    pub outcome: Result<(), IoError>,
}

/// One queue's way to a disk. Owned by one loop, and may go to another thread's.
pub trait Disk: Send {
    /// Takes an I/O. It may begin at once, or with the next [`start`](Self::start).
    fn submit(&mut self, io: Io);
    /// A batch of I/O is complete: whatever has not started begins. Called after each
    /// [`submit`](Self::submit), not before the next [`wait`](Self::wait).
    fn start(&mut self) {}
    /// Adds those that came back to `done`, in any order. Never sleeps.
    fn complete(&mut self, done: &mut Vec<Done>);
    /// Sleeps until something that was submitted has come back: for an end in good order, when
    /// nothing else is to be done. False: nothing did for so long that no one is to wait for it.
    fn wait(&mut self) -> bool {
        true
    }
}

/// An image as it is known before it is opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opening {
    /// Whose disk it is.
    pub guest: DomId,
    /// Its name by the toolstack (`params`), or the one that a script has put in its place; None:
    /// there is none.
    pub params: Option<String>,
    /// Whether its guest may write.
    pub writable: bool,
    /// Whether a predecessor's guest is connected, which is to find the disk that it knows.
    pub is_live: bool,
    /// Whether its guest may see the image's own logical sectors. If not it is a disk
    /// [of 512](DiskFigures::in_sectors_of_512).
    pub native_sectors: bool,
    /// Whether it is let go of at once, for no guest connects yet.
    pub is_trial: bool,
}

/// Why an image is not open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// Somebody has it who may soon let go, such as a process that is dead and whose last writes
    /// are on their way. Who, in words.
    Busy(String),
    /// It cannot be had. Why, and what to do.
    Failed(String),
    /// It was there, its guest is connected to it, and it will never be there again. Why.
    Lost(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Busy(why) | Self::Failed(why) | Self::Lost(why)) = self;
        f.write_str(why)
    }
}

impl core::error::Error for OpenError {}

/// An image that a disk's queues are made of: opened before its guest is connected.
pub trait Image: Send {
    /// Opens it, and says what it is. Called for each connection, before [`queue`](Self::queue).
    /// One that is not written to can be one which no one may write to, and others may have open
    /// too.
    ///
    /// # Errors
    /// See [`OpenError`]. It is not open then.
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError>;
    /// A warning about it for the host's administrator, while it is open. None: there is none.
    fn strange(&self) -> Option<String> {
        None
    }
    /// Its identity in words, different from that of any other image that its name may lead to, now
    /// or later: the same each time that this image is opened, by whichever process. While it is
    /// open; None: nothing does.
    fn identity(&self) -> Option<String> {
        None
    }
    /// Whether it is lost with this process, so that no other can give it to its guest again.
    fn ends_with_process(&self) -> bool {
        false
    }
    /// How many sectors of 512 bytes it has now, while it is open; None: as many as it had.
    fn sectors(&mut self) -> Option<u64> {
        None
    }
    /// Its guest is connected no longer, and all ways to it are gone: others may have it.
    fn close(&mut self) {}
    /// A handle for one queue. A write of one queue survives once a flush of any queue has covered
    /// it.
    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError>;
}
