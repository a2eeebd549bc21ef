//! The disk as a file in a directory: what FUSE asks, as requests to a [`SharedDisk`].
//!
//! ```text
//!   read, write        DiskOp::Read, Write          answered from the front's thread, as many at a time as programs ask for
//!   fsync, O_DSYNC     DiskOp::Flush
//!   fallocate          punch a hole: DiskOp::PunchHole       stat   the disk's length as its back says it now
//! ```
//! It is opened with `direct_io`: nothing is kept in a page cache, where a write would be answered ahead of the disk, and what another
//! wrote to the image would not be seen. Shared writable mappings are refused for it; `O_DIRECT` is no different. As a block device
//! it has a fixed length: what is beyond is ENOSPC, and truncating to nothing (`dd`, a shell's `>`) leaves it as it is.
//!
//! What a program may do: ask for any offsets. They are cut to the disk, as read(2) and write(2) may.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use pregrant::blk::disk::IoError;
use pregrant_host::drivers::SharedDisk;
use pregrant_host::drivers::blk::shared_disk::DiskOp;
use rustix::fs::{FallocateFlags, OFlags};
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The file's name.
pub(super) const NAME: &str = "disk";
/// Threads that take requests from the kernel: one copies what is written while another waits.
pub(super) const FUSE_THREADS: usize = 2;

const ROOT: INodeNo = INodeNo::ROOT;
const DISK: INodeNo = INodeNo(2);
/// Bytes of one read or write at most; the kernel cuts what is longer. More needs more of its `fs.fuse.max_pages_limit`.
const MAX_WRITE: u32 = 1 << 20;
/// Asynchronous requests that the kernel lets wait here: programs' queue depths, and more.
const MAX_BACKGROUND: u16 = 128;
/// Of a write's flags.
const DSYNC: i32 = OFlags::DSYNC.bits() as i32;
/// The length may change: the kernel asks each time.
const NO_CACHE: Duration = Duration::ZERO;

/// See the module.
pub(super) struct DiskFile {
    disk: Arc<SharedDisk>,
    /// Told when the kernel has let go of it.
    ended: Arc<AtomicBool>,
    began: SystemTime,
}

impl DiskFile {
    pub(super) fn new(disk: Arc<SharedDisk>, ended: Arc<AtomicBool>) -> Self {
        Self { disk, ended, began: SystemTime::now() }
    }

    fn is_read_only(&self) -> bool {
        self.disk.figures().is_none_or(|figures| figures.read_only)
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_disk = ino == DISK;
        let size = if is_disk { self.disk.len() } else { 0 };
        let perm = match (is_disk, self.is_read_only()) {
            (false, _) => 0o555,
            (true, true) => 0o400,
            (true, false) => 0o600,
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.began,
            mtime: self.began,
            ctime: self.began,
            crtime: self.began,
            kind: if is_disk { FileType::RegularFile } else { FileType::Directory },
            perm,
            nlink: if is_disk { 1 } else { 2 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Of `len` bytes at `offset` those that the disk has.
    fn cut(&self, offset: u64, len: u64) -> u64 {
        len.min(self.disk.len().saturating_sub(offset))
    }

    /// Writes, and tells `reply` how many bytes; where they are to be on the disk then, after a flush.
    fn put_write(&self, at: u64, data: &[u8], durable: bool, reply: ReplyWrite) {
        let (written, bytes) = (data.len() as u32, data.to_vec());
        let write = DiskOp::Write { at, bytes };
        if !durable {
            let done = move |outcome: Result<&[u8], IoError>| match outcome {
                Ok(_) => reply.written(written),
                Err(e) => reply.error(errno(e)),
            };
            return self.disk.put(write, Box::new(done));
        }
        // A flush begins when what came before it is done.
        let failed = Arc::new(Mutex::new(None));
        let tell = Arc::clone(&failed);
        let done = move |outcome: Result<&[u8], IoError>| {
            *tell.lock().unwrap_or_else(PoisonError::into_inner) = outcome.err();
        };
        self.disk.put(write, Box::new(done));
        let flushed = move |outcome: Result<&[u8], IoError>| {
            let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
            match failed.or(outcome.err()) {
                None => reply.written(written),
                Some(e) => reply.error(errno(e)),
            }
        };
        self.disk.put(DiskOp::Flush, Box::new(flushed));
    }
}

fn errno(e: IoError) -> Errno {
    match e {
        IoError::Failed => Errno::EIO,
        IoError::NotSupported => Errno::EOPNOTSUPP,
    }
}

impl Filesystem for DiskFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What the kernel does not have it does without.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.disk.wake();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == ROOT && name == NAME {
            reply.entry(&NO_CACHE, &self.attr(DISK), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NO_CACHE, &self.attr(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match size {
            Some(_) if ino == DISK && self.is_read_only() => reply.error(Errno::EROFS),
            Some(size) if size != 0 && size != self.disk.len() => reply.error(Errno::EINVAL),
            _ => reply.attr(&NO_CACHE, &self.attr(ino)),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ino != DISK {
            return reply.error(Errno::EISDIR);
        }
        if flags.acc_mode() != OpenAccMode::O_RDONLY && self.is_read_only() {
            return reply.error(Errno::EROFS);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        self.disk.begin_use();
        reply.opened(FileHandle(0), flags);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.disk.end_use();
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.cut(offset, size.into()) as usize;
        let done = move |outcome: Result<&[u8], IoError>| match outcome {
            Ok(bytes) => reply.data(bytes),
            Err(e) => reply.error(errno(e)),
        };
        if len == 0 {
            return done(Ok(&[]));
        }
        self.disk.put(DiskOp::Read { at: offset, len }, Box::new(done));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.is_read_only() {
            return reply.error(Errno::EROFS);
        }
        let len = self.cut(offset, data.len() as u64) as usize;
        if len == 0 {
            return reply.error(Errno::ENOSPC);
        }
        // O_SYNC has the bit of O_DSYNC.
        let durable = flags.0 & DSYNC != 0;
        self.put_write(offset, &data[..len], durable, reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if self.is_read_only() {
            return reply.ok();
        }
        let done = move |outcome: Result<&[u8], IoError>| match outcome {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        };
        self.disk.put(DiskOp::Flush, Box::new(done));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if self.is_read_only() {
            return reply.error(Errno::EROFS);
        }
        if mode as u32 != FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE).bits() {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let done = move |outcome: Result<&[u8], IoError>| match outcome {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        };
        self.disk.put(DiskOp::PunchHole { at: offset, len: self.cut(offset, length) }, Box::new(done));
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if ino != ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (ROOT, FileType::Directory, "."),
            (ROOT, FileType::Directory, ".."),
            (DISK, FileType::RegularFile, NAME),
        ];
        for (k, (ino, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(ino, k as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(self.disk.len() / 4096, 0, 0, 1, 0, 4096, 255, 4096);
    }

    // The kernel asks once, and then does it by itself.

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }
}
