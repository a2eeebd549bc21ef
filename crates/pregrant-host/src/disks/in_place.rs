//! Transfers of a file on tmpfs, done by the worker itself.
//!
//! ```text
//!   read, write, flush --submit--> waiting --start: one call each--> done --complete--> Done
//!   discard ------------------------------> another way (io_uring, threads)
//! ```
//! No device is involved, so a call takes only as long as its copy. io_uring would hand each of
//! these to a kernel thread, because tmpfs does not support IOCB_NOWAIT, and waking that thread
//! takes longer than copying 4096 bytes.
//!
//! Invariants: between two polls only discards are in flight, since they may take long. The file is
//! never opened with O_DIRECT, so no transfer waits for another.
//!
//! What a guest may do: access pages that were swapped out. Its worker then waits for the swap
//! device, as for its own memory.

use super::open_file::OpenFile;
use super::transfer::{Ended, Pieces, Transfer};
use pregrant::blk::disk::{Disk, Done, Io, IoOp};
use rustix::fd::BorrowedFd;
use rustix::fs::fstatfs;
use std::sync::Arc;

/// The values of `TMPFS_MAGIC` and `RAMFS_MAGIC` in linux/magic.h.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Returns true if an open file is on tmpfs or ramfs.
pub(super) fn is_in_memory(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|fs| IN_MEMORY.contains(&(fs.f_type as u32)))
}

/// A queue that does transfers at once, on the calling thread.
pub(super) struct InPlaceDisk {
    file: Arc<OpenFile>,
    waiting: Vec<Transfer>,
    done: Vec<Done>,
    /// Empty lists of fragments that are kept for reuse.
    spare: Vec<Pieces>,
    /// The queue that executes discards.
    others: Box<dyn Disk>,
}

impl InPlaceDisk {
    pub(super) fn new(file: Arc<OpenFile>, others: Box<dyn Disk>) -> Self {
        Self { file, waiting: Vec::new(), done: Vec::new(), spare: Vec::new(), others }
    }
}

impl Disk for InPlaceDisk {
    fn submit(&mut self, io: Io) {
        if matches!(io.op, IoOp::Discard { .. }) {
            return self.others.submit(io);
        }
        self.waiting.push(Transfer::new(io, &self.file, self.spare.pop().unwrap_or_default()));
    }

    fn start(&mut self) {
        for mut transfer in self.waiting.drain(..) {
            let outcome = loop {
                if let Ended::Over(outcome) = transfer.perform(&self.file) {
                    break outcome;
                }
            };
            let (done, pieces) = transfer.into_done(outcome);
            self.done.push(done);
            self.spare.push(pieces);
        }
        self.others.start();
    }

    fn complete(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
        self.others.complete(done);
    }

    fn wait(&mut self) -> bool {
        self.start();
        !self.done.is_empty() || self.others.wait()
    }
}
