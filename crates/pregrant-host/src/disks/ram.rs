//! A disk in memory, shared by all of its queues. Transfers complete when they are submitted.
//!
//! ```text
//!   guest's pages <--one copy--> mapping of a memfd        discard: a hole in the memfd
//! ```
//! Invariants: its memory is treated as shared memory, by copies without references. Two queues may
//! write the same sectors at once, and the result is a mixture, as on any disk. It survives its
//! guest's connections and ends with its process. Each new RAM disk has a new identity, so a
//! successor of the process refuses to reconnect a guest to an empty one in place of the lost one,
//! and connecting again does not help the guest either.
//!
//! What a guest may do: change mapped bytes while they are copied; either version ends up on its
//! disk.

use crate::backing::Backing;
use crate::mapping::Mapping;
use pregrant::PlatformError;
use pregrant::blk::disk::{
    Discard, Disk, DiskFigures, Done, Image, Io, IoError, IoOp, OpenError, Opening, SECTOR_BYTES,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Memory {
    backing: Backing,
    bytes: Mapping,
    identity: String,
}

/// An image in the memory of the backend's process.
pub struct RamImage {
    bytes: u64,
    /// The image's memory, which is allocated when it is first used.
    memory: Option<Arc<Memory>>,
}

impl RamImage {
    /// Creates an image of `bytes` bytes, which must be whole pages. Its memory is not allocated
    /// yet.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, memory: None }
    }

    fn memory(&mut self) -> Result<&Arc<Memory>, Errno> {
        if self.memory.is_none() {
            let len = usize::try_from(self.bytes).map_err(|_| Errno::NOMEM)?;
            let backing = Backing::sealed("pregrant-disk", len)?;
            let bytes = Mapping::new(&backing, len)?;
            self.memory = Some(Arc::new(Memory { backing, bytes, identity: identity() }));
        }
        self.memory.as_ref().ok_or(Errno::NOMEM)
    }
}

impl Image for RamImage {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError> {
        if how.is_live && self.memory.is_none() {
            return Err(OpenError::Lost(
                "the bytes of a ram: disk are lost with the process that served it, and its guest gets no empty disk in its \
                 place, also not by connecting again, until the disk is detached and attached. A raw file in /dev/shm \
                 outlives a process"
                    .into(),
            ));
        }
        let bytes = self.bytes;
        self.memory()
            .map_err(|e| OpenError::Failed(format!("there is no memory for a disk of {bytes} bytes: {e}")))?;
        let discard = Some(Discard { granularity: 4096, alignment: 0, secure: true, zeroes: true });
        Ok(DiskFigures { read_only: !how.writable, discard, ..DiskFigures::of(bytes / SECTOR_BYTES as u64) })
    }

    fn identity(&self) -> Option<String> {
        Some(self.memory.as_ref()?.identity.clone())
    }

    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError> {
        let memory = self
            .memory()
            .map_err(|e| PlatformError { op: "to make memory for a disk", code: e.raw_os_error() })?;
        Ok(Box::new(RamDisk { memory: Arc::clone(memory), done: Vec::new() }))
    }
}

impl fmt::Debug for RamImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RamImage of {} bytes", self.bytes)
    }
}

/// Returns a new identity, which no other RAM disk of any process in any namespace has while the
/// machine runs.
fn identity() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let now = clock_gettime(ClockId::Boottime);
    let (pid, at) = (std::process::id(), format_args!("{}.{:09}", now.tv_sec, now.tv_nsec));
    format!("memory {made} of process {pid}, made at {at} and lost with the process")
}

struct RamDisk {
    memory: Arc<Memory>,
    done: Vec<Done>,
}

impl Disk for RamDisk {
    fn submit(&mut self, mut io: Io) {
        let Memory { backing, bytes, .. } = &*self.memory;
        // They are within the disk, which was checked before.
        let at = io.sector * SECTOR_BYTES as u64;
        let good = match io.op {
            IoOp::Read => io.memory.load_at(bytes, at as usize),
            IoOp::Write => io.memory.store_at(bytes, at as usize),
            IoOp::Flush => true,
            IoOp::Discard { .. } => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(backing, hole, at, io.sectors * SECTOR_BYTES as u64).is_ok()
            }
        };
        self.done.push(Done { io, outcome: if good { Ok(()) } else { Err(IoError::Failed) } });
    }

    fn complete(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
    }
}
