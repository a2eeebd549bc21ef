//! The disk as a file in a directory: what FUSE asks, as requests to a [`SharedDisk`].
//!
//! ```text
//!   read, write        DiskOp::Read, Write          answered from the front's thread, as many at a time as programs ask for
//!   fsync, O_DSYNC     DiskOp::Flush
//!   fallocate          punch a hole: DiskOp::PunchHole       zero a range: DiskOp::Zero      a signal ends them
//!   stat               the disk's length as its back says it now
//! ```
//! waiting.rs has the ends of those that a back does not answer.
//!
//! It is opened with `direct_io`: nothing is kept in a page cache, where a write would be answered
//! ahead of the disk, and what another wrote to the image would not be seen. Shared writable
//! mappings are refused for it; `O_DIRECT` is no different. As a block device it has a fixed
//! length: what is beyond is ENOSPC, and truncating to nothing (`dd`, a shell's `>`) leaves it as
//! it is. As with a block device a hole is refused (EOPNOTSUPP) where the disk does not promise
//! that it reads as zeroes, and a range can be zeroed on any.
//!
//! What a program may do: ask for any offsets. They are cut to the disk, as read(2) and write(2)
//! may.

use super::fuse::{Attr, Kind, Op, ROOT, Reply, Request, Serve};
use super::waiting::{Caller, Waiting};
use pregrant::blk::disk::IoError;
use pregrant_host::drivers::SharedDisk;
use pregrant_host::drivers::blk::front::shared_disk::{DiskOp, Done};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The name of the file that shows the disk.
pub(super) const NAME: &str = "disk";
/// Number of threads that read FUSE requests: one copies written data while another waits.
pub(super) const FUSE_THREADS: usize = 2;

const DISK: u64 = 2;
/// The flag of a synchronous write. O_SYNC includes the bit of O_DSYNC.
const DSYNC: u32 = OFlags::DSYNC.bits();

pub(super) struct DiskFile {
    disk: Arc<SharedDisk>,
    waiting: Arc<Waiting>,
    /// True once the kernel has released the file.
    ended: Arc<AtomicBool>,
    began: SystemTime,
}

impl DiskFile {
    /// Creates the file. A request fails that has no answer within `timeout`, if that is given.
    pub(super) fn new(
        id: String,
        disk: Arc<SharedDisk>,
        ended: Arc<AtomicBool>,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        let waiting = Waiting::watched(id, &disk, timeout)?;
        Ok(Self { disk, waiting, ended, began: SystemTime::now() })
    }

    fn is_read_only(&self) -> bool {
        self.disk.figures().is_none_or(|figures| figures.read_only)
    }

    fn attr(&self, node: u64) -> Attr {
        let (kind, bytes, permissions) = match node {
            DISK => (Kind::File, self.disk.len(), if self.is_read_only() { 0o400 } else { 0o600 }),
            _ => (Kind::Directory, 0, 0o555),
        };
        Attr { node, kind, bytes, permissions, time: self.began }
    }

    /// Returns how many of the `len` bytes at `offset` are on the disk.
    fn cut(&self, offset: u64, len: u64) -> u64 {
        len.min(self.disk.len().saturating_sub(offset))
    }

    fn open(&self, node: u64, flags: u32, reply: Reply) {
        let only_read = flags & OFlags::ACCMODE.bits() == OFlags::RDONLY.bits();
        match node {
            DISK if !only_read && self.is_read_only() => reply.error(Errno::ROFS),
            DISK => {
                self.disk.begin_use();
                reply.opened(Kind::File);
            }
            _ => reply.error(Errno::ISDIR),
        }
    }

    fn set_size(&self, node: u64, size: Option<u64>, reply: Reply) {
        match size {
            Some(_) if node == DISK && self.is_read_only() => reply.error(Errno::ROFS),
            Some(size) if size != 0 && size != self.disk.len() => reply.error(Errno::INVAL),
            _ => reply.attr(&self.attr(node)),
        }
    }

    /// Executes an operation. `answer` gets the reply and the data, unless the program does not
    /// wait for them any more.
    fn put(&self, op: DiskOp, caller: Caller, answer: impl FnOnce(Reply, &[u8]) + Send + 'static) {
        let Some((unique, interrupt)) = self.waiting.begin(caller) else { return };
        self.disk.put_until(op, &interrupt, self.done(unique, answer));
    }

    fn done(&self, unique: u64, answer: impl FnOnce(Reply, &[u8]) + Send + 'static) -> Done {
        let waiting = Arc::clone(&self.waiting);
        Box::new(move |outcome| match (waiting.end(unique), outcome) {
            (None, _) => {}
            (Some(reply), Ok(bytes)) => answer(reply, bytes),
            (Some(reply), Err(e)) => reply.error(errno(e)),
        })
    }

    fn read(&self, offset: u64, size: u32, caller: Caller) {
        let len = self.cut(offset, size.into()) as usize;
        if len == 0 {
            return caller.reply.data(&[]);
        }
        self.put(DiskOp::Read { at: offset, len }, caller, Reply::data);
    }

    fn write(&self, offset: u64, data: &[u8], flags: u32, caller: Caller) {
        if self.is_read_only() {
            return caller.reply.error(Errno::ROFS);
        }
        let len = self.cut(offset, data.len() as u64) as usize;
        if len == 0 {
            return caller.reply.error(Errno::NOSPC);
        }
        self.put_write(offset, &data[..len], flags & DSYNC != 0, caller);
    }

    /// Writes the data, and answers with the number of bytes. If the data must be durable by then,
    /// a flush comes before the answer.
    fn put_write(&self, at: u64, data: &[u8], durable: bool, caller: Caller) {
        let (written, bytes) = (data.len() as u32, data.to_vec());
        let write = DiskOp::Write { at, bytes };
        let answer = move |reply: Reply, _: &[u8]| reply.written(written);
        if !durable {
            return self.put(write, caller, answer);
        }
        // A flush begins when what came before it is done.
        let Some((unique, interrupt)) = self.waiting.begin(caller) else { return };
        let failed = Arc::new(Mutex::new(None));
        let report = Arc::clone(&failed);
        let done = move |outcome: Result<&[u8], IoError>| {
            *report.lock().unwrap_or_else(PoisonError::into_inner) = outcome.err();
        };
        self.disk.put_until(write, &interrupt, Box::new(done));
        let flushed = self.done(unique, answer);
        let flushed = move |outcome: Result<&[u8], IoError>| {
            let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
            flushed(failed.map_or(outcome, Err));
        };
        self.disk.put_until(DiskOp::Flush, &interrupt, Box::new(flushed));
    }

    fn fsync(&self, caller: Caller) {
        if self.is_read_only() {
            return caller.reply.ok();
        }
        self.put(DiskOp::Flush, caller, |reply, _| reply.ok());
    }

    fn fallocate(&self, at: u64, len: u64, mode: u32, caller: Caller) {
        let mode = FallocateFlags::from_bits_retain(mode);
        let what = mode.difference(FallocateFlags::KEEP_SIZE);
        // Behind the end there is nothing to give back, as of any file.
        let (at, within) = (at.min(self.disk.len()), self.cut(at, len));
        if self.is_read_only() {
            return caller.reply.error(Errno::ROFS);
        }
        if !mode.contains(FallocateFlags::KEEP_SIZE) && within < len {
            return caller.reply.error(Errno::NOSPC);
        }
        let op = match what {
            FallocateFlags::PUNCH_HOLE => DiskOp::PunchHole { at, len: within },
            FallocateFlags::ZERO_RANGE => DiskOp::Zero { at, len: within },
            _ => return caller.reply.error(Errno::OPNOTSUPP),
        };
        self.put(op, Caller { expects_eintr: true, ..caller }, |reply, _| reply.ok());
    }
}

fn errno(e: IoError) -> Errno {
    match e {
        IoError::Failed => Errno::IO,
        IoError::NotSupported => Errno::OPNOTSUPP,
    }
}

impl Serve for DiskFile {
    fn answer(&self, Request { node, op, thread, .. }: Request<'_>, reply: Reply) {
        let caller = |reply| Caller { reply, thread, expects_eintr: false };
        match op {
            Op::Lookup { name } if node == ROOT && name == NAME.as_bytes() => reply.entry(&self.attr(DISK)),
            Op::Lookup { .. } => reply.error(Errno::NOENT),
            Op::GetAttr => reply.attr(&self.attr(node)),
            Op::SetAttr { owner: true, .. } => reply.error(Errno::PERM),
            Op::SetAttr { size, .. } => self.set_size(node, size, reply),
            Op::Open { flags } => self.open(node, flags, reply),
            Op::Read { offset, size } => self.read(offset, size, caller(reply)),
            Op::Write { offset, data, flags } => self.write(offset, data, flags, caller(reply)),
            Op::Fsync => self.fsync(caller(reply)),
            Op::Fallocate { offset, len, mode } => self.fallocate(offset, len, mode, caller(reply)),
            Op::Release => {
                self.disk.end_use();
                reply.ok();
            }
            Op::OpenDir => reply.opened(Kind::Directory),
            Op::ReleaseDir => reply.ok(),
            Op::ReadDir { .. } if node != ROOT => reply.error(Errno::NOTDIR),
            Op::ReadDir { offset, size } => {
                let all =
                    [(ROOT, Kind::Directory, "."), (ROOT, Kind::Directory, ".."), (DISK, Kind::File, NAME)];
                reply.names(&all, offset, size);
            }
            Op::StatFs => reply.statfs(self.disk.len() / 4096),
            // The kernel asks once, and then does without, or by itself.
            Op::Forget | Op::Interrupt { .. } | Op::Other => reply.error(Errno::NOSYS),
        }
    }

    fn interrupted(&self, unique: u64) {
        self.waiting.signal(unique, &self.disk);
    }
}

impl Drop for DiskFile {
    /// Marks the end of the file: it is dropped when the kernel has released it.
    fn drop(&mut self) {
        self.waiting.close();
        self.ended.store(true, Ordering::Release);
        self.disk.wake();
    }
}
