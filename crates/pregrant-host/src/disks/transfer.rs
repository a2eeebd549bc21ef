//! One [`Io`] in the form that the kernel takes: its fragments in memory, and what is left to do.
//!
//! ```text
//!   Io --new--> Transfer --request--> io_uring           perform: the same by a call that sleeps
//!                  ^  '--ended: over, with its outcome --> Done
//!                  '------ended: the kernel did a part, or was interrupted: again
//! ```
//! A discard is split into parts of at most [`DISCARD_PIECE`] bytes, and other transfers get their
//! turn between two of them. A guest may discard its whole disk; as one call, that would keep the
//! image's lock and a thread until its last byte, even if the process is killed meanwhile.
//!
//! Invariants: a transfer owns the memory of its fragments ([`Io`]), which does not move when the
//! transfer does. Memory that the kernel uses is not touched until the kernel reports the end of
//! the request. No reference to a guest's pages exists: they are named by address and length.
//!
//! A direct transfer that the kernel refuses is submitted again, through the page cache
//! ([`direct`](super::direct)).
//!
//! Data goes through a bounce buffer if the kernel cannot access the guest's pages (which is logged
//! once), and also for reads of an image that others may have open: there a dead process may have
//! left reads in flight that no lock shows. They end in its own buffer, and not in a page that the
//! guest uses for something else by now.
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

/// Largest number of fragments of one system call: the kernel's IOV_MAX.
const PIECES_MOST: usize = 1024;
/// Largest number of bytes that one call discards.
const DISCARD_PIECE: u64 = 256 << 20;
/// Number of times a request that made no progress is retried.
const TRIES: u8 = 100;
/// Number of times io_uring gets a request again that it failed to carry out.
const URING_TRIES: u8 = 3;

/// The state of a transfer after one of its system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The rest of the transfer must be submitted again.
    Again,
    /// The transfer has ended.
    Over(Result<(), IoError>),
}

/// A list of addresses and lengths, in the form that the kernel reads.
#[derive(Default)]
pub(super) struct Pieces(Vec<iovec>);

// SAFETY: a list of addresses; a transfer that has it owns the memory that they are of, which may
// go to another thread with it.
unsafe impl Send for Pieces {}

/// A request to the image ([`Io`]) in the form that the kernel accepts.
pub(super) struct Transfer {
    io: Io,
    bounce: Option<Buffer>,
    /// All fragments of the transfer; those before `first` are done.
    pieces: Pieces,
    first: usize,
    /// The next byte on the disk; `left` is the number of bytes that are left.
    at: u64,
    left: u64,
    tries: u8,
}

impl Transfer {
    /// Creates the transfer of an I/O; `pieces` is an old list that is reused.
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

    /// Lists the fragments of the transfer's own memory.
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

    /// Restarts the transfer with a bounce buffer.
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

    /// True if the kernel's io_uring does not support the request, so that a thread must execute
    /// it.
    pub(super) fn needs_thread(&self, file: &OpenFile) -> bool {
        matches!(self.io.op, IoOp::Discard { .. }) && file.is_device()
    }

    /// Returns the io_uring request for the bytes that are not transferred yet. The submitter must
    /// keep the transfer untouched until the kernel has [ended](Self::ended) the request.
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

    /// Returns the size of the next part of a discard. A part ends at a multiple of the maximum, so
    /// that it does not split a unit of the device.
    fn discard_piece(&self) -> u64 {
        self.left.min(DISCARD_PIECE - self.at % DISCARD_PIECE)
    }

    /// Makes the next system call of the transfer, and blocks until it returns.
    pub(super) fn perform(&mut self, file: &OpenFile) -> Ended {
        let result = self.call(file);
        self.ended(file, result)
    }

    /// Makes the system call for the bytes that are not transferred yet.
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

    /// Returns true if io_uring itself keeps failing, without reaching the storage, so that a
    /// system call must do the transfer. If the error was the storage's after all, that system call
    /// returns it again.
    pub(super) fn is_not_carried_out(&mut self, e: Errno) -> bool {
        // A failed flush is not retried, since the second one would succeed.
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

    /// Handles the result of the last request.
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
            // Nothing was done. io_uring also cancels the requests of a thread that ends.
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
            // A feature found when the image was opened is missing for a part of it, which is no
            // fault of the disk.
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

    /// Returns the completed transfer, and its list of fragments for reuse.
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

    /// A discard is submitted in parts, one at a time. Each part begins where the last one ended,
    /// mostly at a multiple of the maximum.
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
