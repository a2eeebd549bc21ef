//! One [`Io`] as the kernel takes it: where its bytes are, piece by piece, and what of it is left
//! to do.
//!
//! ```text
//!   Io --new--> Transfer --request--> io_uring           perform: the same by a call that sleeps
//!                  ^  '--ended: over, with its outcome --> Done
//!                  '------ended: the kernel did a part, or was interrupted: again
//! ```
//! A discard is given to the kernel in pieces of [`DISCARD_PIECE`] bytes at most, and between two
//! of them others have their turn: a guest may ask for one of its whole disk, for which the kernel
//! would hold the image's lock, and a thread of its own or ours, until the last byte of it, also
//! when its process waits or is killed meanwhile.
//!
//! Invariants: a transfer owns the memory that its pieces name ([`Io`]), and that memory stays
//! where it is when the transfer moves; what the kernel knows of is not touched before it says that
//! it is done. No reference to a guest's pages exists: they are named by address and length.
//!
//! Direct I/O that the kernel refuses is submitted again, through the page cache
//! ([`direct`](super::direct)).
//!
//! Bytes go through a buffer of our own (`bounce`) where the kernel cannot reach a guest's pages
//! (it says so once), and in reads of an image that others may have open too: there a process that
//! is dead may have reads on their way that no lock tells of, and these end in its own buffer and
//! not in a page that its guest uses for something else by now.
#![expect(
    unsafe_code,
    reason = "preadv and pwritev name an I/O's memory, which may be a guest's mapped pages"
)]

use super::device;
use super::open_file::{HOLE, OpenFile};
use io_uring::{opcode, squeue, types};
use libc::iovec;
use pregrant::blk::disk::{Buffer, Done, Io, IoError, IoMemory, IoOp, SECTOR_BYTES};
use rustix::fd::AsRawFd;
use rustix::fs::{fallocate, fdatasync};
use rustix::io::Errno;

/// Pieces that one request has at most: the kernel's IOV_MAX.
const PIECES_MOST: usize = 1024;
/// Bytes of a discard that the kernel is asked for at a time.
const DISCARD_PIECE: u64 = 256 << 20;
/// How often a request that did nothing is tried again.
const TRIES: u8 = 100;
/// How often io_uring is given a request again that it did not carry out.
const URING_TRIES: u8 = 3;

/// The state of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// It is to be requested again: for what is left.
    Again,
    /// It is over.
    Over(Result<(), IoError>),
}

/// Where bytes are: addresses and lengths, as the kernel reads them.
#[derive(Default)]
pub(super) struct Pieces(Vec<iovec>);

// SAFETY: a list of addresses; a transfer that has it owns the memory that they are of, which may
// go to another thread with it.
unsafe impl Send for Pieces {}

/// See the module.
pub(super) struct Transfer {
    io: Io,
    bounce: Option<Buffer>,
    /// All of its pieces; those before `first` are done.
    pieces: Pieces,
    first: usize,
    /// Byte on the disk of the first that is not done, and how many there are.
    at: u64,
    left: u64,
    tries: u8,
}

impl Transfer {
    /// The transfer, whose pieces are listed in `pieces`, whatever that was before.
    pub(super) fn new(io: Io, file: &OpenFile, pieces: Pieces) -> Self {
        let (at, left) = (io.sector * SECTOR_BYTES as u64, io.sectors * SECTOR_BYTES as u64);
        let mut transfer = Self { io, bounce: None, pieces, first: 0, at, left, tries: 0 };
        if file.bounces(transfer.io.op) && matches!(transfer.io.memory, IoMemory::Mapped(_)) {
            transfer.bounce();
        } else {
            transfer.split();
        }
        transfer
    }

    /// Lists the transfer's own memory.
    fn split(&mut self) {
        self.pieces.0.clear();
        match &mut self.io.memory {
            IoMemory::Private(buffer) => {
                let bytes = buffer.bytes_mut();
                self.pieces.0.push(iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
            }
            IoMemory::Mapped(pieces) => self.pieces.0.extend(pieces.iter().filter_map(|piece| {
                let (base, len) = piece.piece()?.as_raw();
                Some(iovec { iov_base: base.cast_mut().cast(), iov_len: len })
            })),
        }
    }

    /// Restarts, through a buffer.
    #[cold]
    fn bounce(&mut self) {
        let len = self.io.memory.len();
        let mut buffer = Buffer::new(len);
        buffer.set_len(len);
        let bytes = buffer.bytes_mut();
        if self.io.op == IoOp::Write {
            self.io.memory.read_into(bytes);
        }
        self.pieces.0.clear();
        self.pieces.0.push(iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len });
        (self.first, self.at, self.left) = (0, self.io.sector * SECTOR_BYTES as u64, len as u64);
        self.bounce = Some(buffer);
    }

    /// Whether the kernel's io_uring has no such request.
    pub(super) fn needs_thread(&self, file: &OpenFile) -> bool {
        matches!(self.io.op, IoOp::Discard { .. }) && file.is_device()
    }

    /// The rest of it, for io_uring. Its submitter keeps the transfer, and does not touch it, until
    /// the kernel has [ended](Self::ended) it.
    pub(super) fn request(&self, file: &OpenFile) -> squeue::Entry {
        let fd = types::Fd(file.fd().as_raw_fd());
        let pieces = &self.pieces.0[self.first..];
        let n = pieces.len().min(PIECES_MOST) as u32;
        match self.io.op {
            IoOp::Read if let [one] = pieces => {
                opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(self.at).build()
            }
            IoOp::Write if let [one] = pieces => {
                opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(self.at).build()
            }
            IoOp::Read => opcode::Readv::new(fd, pieces.as_ptr(), n).offset(self.at).build(),
            IoOp::Write => opcode::Writev::new(fd, pieces.as_ptr(), n).offset(self.at).build(),
            IoOp::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            IoOp::Discard { .. } => {
                let len = self.discard_piece();
                opcode::Fallocate::new(fd, len).offset(self.at).mode(HOLE.bits() as i32).build()
            }
        }
    }

    /// Bytes of a discard that are next. One ends at a multiple of the most that there are,
    /// wherever it began, so that it does not cut a unit of the device in two.
    fn discard_piece(&self) -> u64 {
        self.left.min(DISCARD_PIECE - self.at % DISCARD_PIECE)
    }

    /// Does what the kernel does of it in one call, and sleeps as long as that takes.
    pub(super) fn perform(&mut self, file: &OpenFile) -> Ended {
        let result = self.call(file);
        self.ended(file, result)
    }

    /// The rest of it, as a system call.
    fn call(&self, file: &OpenFile) -> Result<usize, Errno> {
        let pieces = &self.pieces.0[self.first..];
        let (fd, n) = (file.fd().as_raw_fd(), pieces.len().min(PIECES_MOST) as i32);
        let moved = match self.io.op {
            IoOp::Flush => return fdatasync(file.fd()).map(|()| 0),
            IoOp::Discard { secure } if file.is_device() => {
                let range = (self.at, self.discard_piece());
                return device::discard_sectors(file.fd(), range, file.sector_size(), secure).map(|()| 0);
            }
            IoOp::Discard { .. } => {
                return fallocate(file.fd(), HOLE, self.at, self.discard_piece()).map(|()| 0);
            }
            // SAFETY: as many pieces as are said; each names memory that `self` owns, and that
            // no one of this process touches meanwhile; the kernel writes there.
            IoOp::Read => unsafe { libc::preadv(fd, pieces.as_ptr(), n, self.at as i64) },
            // SAFETY: the same; the kernel only reads there.
            IoOp::Write => unsafe { libc::pwritev(fd, pieces.as_ptr(), n, self.at as i64) },
        };
        usize::try_from(moved)
            .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// Whether this is io_uring's own failure, again and again, and the transfer is to be done by a
    /// call: the storage was not asked. A call gets the storage's answer, if it was that after all.
    pub(super) fn is_not_carried_out(&mut self, e: Errno) -> bool {
        // A flush that failed is not tried again: the second one would succeed.
        let moves = matches!(self.io.op, IoOp::Read | IoOp::Write);
        let is_own = match e {
            Errno::INTR | Errno::AGAIN | Errno::CANCELED => self.tries >= URING_TRIES,
            Errno::NOMEM | Errno::PERM | Errno::ACCESS | Errno::NOSYS => moves,
            _ => false,
        };
        if is_own {
            self.tries = 0;
        }
        is_own
    }

    /// The kernel has done with what it was asked for last.
    pub(super) fn ended(&mut self, file: &OpenFile, result: Result<usize, Errno>) -> Ended {
        let moves = matches!(self.io.op, IoOp::Read | IoOp::Write);
        match result {
            Ok(0) if moves => self.failed(file, "it ends before that"),
            Ok(n) if moves => {
                self.advance(n);
                if self.left > 0 { Ended::Again } else { Ended::Over(Ok(())) }
            }
            Ok(_) if matches!(self.io.op, IoOp::Discard { .. }) => {
                self.advance(self.discard_piece() as usize);
                if self.left > 0 { Ended::Again } else { Ended::Over(Ok(())) }
            }
            Ok(_) => self.flushed(file, Ok(())),
            // Nothing was done. io_uring cancels what a thread submitted that ends now.
            Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) if self.tries < TRIES => {
                self.tries += 1;
                Ended::Again
            }
            Err(Errno::FAULT) if self.bounce.is_none() && matches!(self.io.memory, IoMemory::Mapped(_)) => {
                file.cannot_reach_guests();
                self.bounce();
                Ended::Again
            }
            Err(e @ (Errno::INVAL | Errno::OPNOTSUPP)) if moves && self.goes_another_way(file, e) => {
                Ended::Again
            }
            // A feature that was found when the image was opened is not there for all of it: no
            // fault of the disk's.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::PERM)
                if matches!(self.io.op, IoOp::Discard { .. }) =>
            {
                Ended::Over(Err(IoError::NotSupported))
            }
            Err(e) if matches!(self.io.op, IoOp::Flush) => self.flushed(file, Err(e)),
            Err(e) => self.failed(file, e),
        }
    }

    fn flushed(&self, file: &OpenFile, outcome: Result<(), Errno>) -> Ended {
        match file.flushed(outcome) {
            Ok(()) => Ended::Over(Ok(())),
            Err(e) => self.failed(file, e),
        }
    }

    #[cold]
    fn goes_another_way(&self, file: &OpenFile, why: Errno) -> bool {
        let Io { op, sector, sectors, .. } = &self.io;
        file.goes_another_way(format_args!("{op:?} of {sectors} sector(s) at {sector}: {why}"))
    }

    #[cold]
    fn failed(&self, file: &OpenFile, why: impl std::fmt::Display) -> Ended {
        let Io { op, sector, sectors, .. } = &self.io;
        file.complain(format_args!("{op:?} of {sectors} sector(s) at {sector} failed: {why}"));
        Ended::Over(Err(IoError::Failed))
    }

    fn advance(&mut self, moved: usize) {
        self.at += moved as u64;
        self.left = self.left.saturating_sub(moved as u64);
        self.tries = 0;
        let mut moved = moved;
        while let Some(piece) = self.pieces.0.get_mut(self.first)
            && moved > 0
        {
            if moved < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(moved);
                piece.iov_len -= moved;
                return;
            }
            moved -= piece.iov_len;
            self.first += 1;
        }
    }

    /// Gives the transfer back, and the list for another's pieces.
    pub(super) fn into_done(mut self, outcome: Result<(), IoError>) -> (Done, Pieces) {
        if let (Some(buffer), IoOp::Read, Ok(())) = (&self.bounce, self.io.op, outcome) {
            self.io.memory.fill_from(buffer.bytes());
        }
        (Done { io: self.io, outcome }, self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::super::direct::Direct;
    use super::super::open_file::ImageNumber;
    use super::super::writeback::Writeback;
    use super::*;
    use crate::line_budget::LineBudget;
    use rustix::fs::OFlags;
    use std::path::Path;
    use std::sync::Arc;

    /// The kernel has one piece of a discard at a time. A piece begins where the last one ended;
    /// most begin at multiples.
    #[test]
    fn a_discard_is_done_in_pieces() {
        let fd = rustix::fs::memfd_create("pregrant-pieces", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let direct = Direct::new(false, OFlags::RDWR, Arc::default());
        let lines = Arc::new(LineBudget::new());
        let number = ImageNumber::of(&rustix::fs::fstat(&fd).unwrap());
        let ways = (direct, Writeback::none());
        let file = OpenFile::new((fd, number), Path::new("/pieces"), None, false, ways, lines);
        let (sector, sectors) = (12_345, (5 << 40) / 2 / SECTOR_BYTES as u64);
        let op = IoOp::Discard { secure: false };
        let io = Io { token: 1, op, sector, sectors, memory: IoMemory::default() };
        let mut transfer = Transfer::new(io, &file, Pieces::default());
        let (mut at, end) = (sector * SECTOR_BYTES as u64, (sector + sectors) * SECTOR_BYTES as u64);
        let mut pieces = 0;
        loop {
            let piece = transfer.discard_piece();
            assert!(transfer.at == at && (1..=DISCARD_PIECE).contains(&piece));
            assert!(pieces == 0 || at.is_multiple_of(DISCARD_PIECE));
            (at, pieces) = (at + piece, pieces + 1);
            match transfer.ended(&file, Ok(0)) {
                Ended::Again => {}
                over => break assert_eq!(over, Ended::Over(Ok(()))),
            }
        }
        assert_eq!((at, pieces), (end, 10_241));
    }
}
