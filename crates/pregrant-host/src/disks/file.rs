//! A raw file or a block device as an image: how it is opened, validated and locked.
//!
//! ```text
//!   open        not through the page cache, where that is to be had (`direct`); a device that is written to with O_EXCL: not one that
//!               is mounted, or part of another, or open by another node; nothing of which requests of this process are under way still
//!   lock        on this open file; somebody has it: busy, to be tried again; so are those who use it without a lock (`users`)
//!   another     a device whose medium was changed is another image: its transfers fail until it is opened again
//!   figures     length, sectors (a device's own, where its guest may see them; else of 512 bytes), discards: holes in a file,
//!               the device's own
//!   queue       uring or pool, all on the one open file
//!   close       the open file is gone with the last of its transfers, and the lock with it
//! ```
//! Calls that a file system may never answer are made on the image's own thread
//! ([`blocking_calls`](super::blocking_calls)). An image whose `open` has not returned is busy;
//! while its length is being read again, the old length holds.
//!
//! A device whose sectors are longer than its guest's is used through the page cache, which handles
//! partial sectors. Bytes after the last whole sector are not visible to the guest, and the log
//! states so.
//!
//! Errors name the path and the remedy. A transfer that fails is an I/O error for the guest and a
//! log line, and never ends this process (daemons ignore SIGXFSZ, which the kernel sends for a file
//! that may not grow).

use super::blocking_calls::{Answer, BlockingCalls};
use super::direct::{self, Direct};
use super::in_place::{InPlaceDisk, is_in_memory};
use super::lock::{LockError, lock};
use super::open_file::{HOLE, ImageNumber, OpenFile, is_left_behind};
use super::pool::Pool;
use super::uring::UringDisk;
use super::users::{self, Purpose};
use super::wake_fd::WakeFd;
use super::writeback::Writeback;
use super::{DiskConfig, IoWay, THREADS, device, format, identity};
use crate::line_budget::LineBudget;
use pregrant::blk::disk::{Discard, Disk, DiskFigures, Image, OpenError, Opening, SECTOR_BYTES};
use pregrant::{DomId, PAGE_SIZE, PlatformError};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat, fallocate, fcntl_setfl, fstat, seek};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time that the image's thread waits for threads that are ending before it reports the image
/// as busy.
const ENDS: Duration = Duration::from_millis(50);

/// An image in a raw file or on a block device.
pub struct FileImage {
    path: PathBuf,
    config: DiskConfig,
    open: Option<Opened>,
    /// The thread for the image's blocking calls. It starts when it is first used.
    thread: Option<BlockingCalls>,
    /// The opening that is in flight, with its purpose. There is one at a time, and perhaps its
    /// result is not wanted any more.
    opening: Option<(How, Answer<Result<Opened, OpenError>>)>,
    /// The query of the image's length, while the image's thread works on it.
    measuring: Option<Answer<Result<Measured, Errno>>>,
    /// Number of bytes after the last whole sector that was logged last.
    tail_said: u64,
    /// True if direct I/O of this image was refused. It is then not tried again at the next open.
    refused: Arc<AtomicBool>,
    lines: Arc<LineBudget>,
}

/// The purpose for which an image is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
struct How {
    guest: DomId,
    writable: bool,
    native_sectors: bool,
    is_live: bool,
    is_trial: bool,
}

struct Opened {
    file: Arc<OpenFile>,
    figures: DiskFigures,
    /// Number of bytes behind the file's last whole sector, which the disk does not show.
    tail: u64,
    identity: Option<String>,
    /// The kernel's count of media changes of the device's drive.
    medium: Option<String>,
    /// The image format that the content looks like. The image is served as raw nevertheless.
    format: Option<&'static str>,
    /// True if the file is on tmpfs, so that workers do its transfers themselves.
    in_memory: bool,
    /// The thread pool, made with the first queue if threads are configured or the kernel has no
    /// io_uring.
    pool: Option<Arc<Pool>>,
}

impl Opened {
    /// Returns the queue of the open file: one that does transfers on the calling thread if the
    /// file is in memory, else `others`.
    fn way_of(&self, others: Box<dyn Disk>) -> Box<dyn Disk> {
        if self.in_memory { Box::new(InPlaceDisk::new(Arc::clone(&self.file), others)) } else { others }
    }
}

impl FileImage {
    /// Creates the image at `path`, which is not opened yet.
    pub fn new(path: impl Into<PathBuf>, config: DiskConfig) -> Self {
        Self {
            path: path.into(),
            config,
            open: None,
            thread: None,
            opening: None,
            measuring: None,
            tail_said: 0,
            refused: Arc::default(),
            lines: Arc::default(),
        }
    }

    /// Describes how the image is open. None: the image is not open.
    pub fn describe(&self) -> Option<String> {
        let Opened { file, figures, tail, in_memory, pool, .. } = self.open.as_ref()?;
        let how = match in_memory {
            true => "in memory",
            false if file.is_direct() => "direct",
            false => "through the page cache",
        };
        let way = match (self.config.io, pool) {
            (IoWay::Uring, _) if *in_memory => "in place",
            (io, None) => io.name(),
            _ => IoWay::Threads.name(),
        };
        let kind = if file.is_device() { "block device" } else { "file" };
        let sectors = match (figures.sector_size, file.sector_size()) {
            (served, own) if served < own => format!(", sectors of {own} bytes served as {served}"),
            (512, _) => String::new(),
            (served, _) => format!(", sectors of {served} bytes"),
        };
        let tail = match tail {
            0 => String::new(),
            tail => format!(", without its last {tail} bytes, which are no sector"),
        };
        Some(format!("{} ({kind}{sectors}, {how}, {way}{tail})", self.path.display()))
    }

    /// Logs the bytes after the last whole sector, if their number has changed.
    fn say_tail(&mut self) {
        let Some(Opened { figures, tail, .. }) = &self.open else { return };
        let (tail, sector) = (*tail, u64::from(figures.sector_size));
        if tail != std::mem::replace(&mut self.tail_said, tail) && tail > 0 {
            self.lines.warn(format_args!(
                "{path}: the length is not a multiple of {sector} bytes: the guest does not see the last {tail} bytes. \
                 To pad the image with {more} zero bytes: truncate -s %{sector} {path}",
                path = self.path.display(),
                more = sector - tail,
            ));
        }
    }

    /// Returns the image's thread. None: it cannot be created.
    fn thread(&mut self) -> Option<&BlockingCalls> {
        if self.thread.is_none() {
            self.thread = BlockingCalls::start().ok();
        }
        self.thread.as_ref()
    }

    /// Starts to open the file on the image's thread.
    fn begin_open(&mut self, how: How) -> Result<Answer<Result<Opened, OpenError>>, OpenError> {
        let (path, config) = (self.path.clone(), self.config);
        let (refused, lines) = (Arc::clone(&self.refused), Arc::clone(&self.lines));
        match self.thread() {
            Some(thread) => Ok(thread.ask(move || open(&path, config, how, refused, lines))),
            None => Err(OpenError::Failed(format!(
                "{path}: cannot start a thread to open the image",
                path = self.path.display()
            ))),
        }
    }

    /// Remembers that the file is still being opened by the image's thread.
    #[cold]
    fn keep_opening(&mut self, how: How, answer: Answer<Result<Opened, OpenError>>) -> OpenError {
        self.opening = Some((how, answer));
        OpenError::Busy(format!(
            "{} is being opened, and its file system has not answered yet",
            self.path.display()
        ))
    }

    /// Closes the file. Transfers in flight may keep it open longer.
    fn close_file(&mut self) {
        self.measuring = None;
        let opened = self.open.take();
        if let Some(opened) = &opened {
            opened.file.leave_behind();
        }
        self.by_thread(opened);
    }

    /// Drops a value on the image's thread, since that may block, and waits a moment for it.
    fn by_thread<T: Send + 'static>(&self, what: Option<T>) {
        if let (Some(what), Some(thread)) = (what, &self.thread) {
            thread.ask(move || drop(what)).wait();
        }
    }

    /// Creates a queue of the image, and the descriptor that becomes readable when transfers
    /// complete.
    pub(super) fn way(&mut self) -> Result<(Box<dyn Disk>, Arc<WakeFd>), PlatformError> {
        let failed = |op| move |e: Errno| PlatformError { op, code: e.raw_os_error() };
        let (Some(opened), Some(thread)) = (&mut self.open, &self.thread) else {
            return Err(failed("to use an image that is not open")(Errno::BADF));
        };
        let wake = Arc::new(WakeFd::new().map_err(failed("to make a descriptor for a disk"))?);
        if self.config.io == IoWay::Uring && opened.pool.is_none() {
            match UringDisk::new(Arc::clone(&opened.file), Arc::clone(&wake), thread.clone()) {
                Ok(disk) => return Ok((opened.way_of(Box::new(disk)), wake)),
                // LOG: once for each image that is opened.
                Err(e) => log::info!(
                    "{}: io_uring is unavailable ({e}); using threads for its I/O",
                    self.path.display()
                ),
            }
        }
        let pool = match &opened.pool {
            Some(pool) => pool,
            None => {
                let pool = Pool::new(Arc::clone(&opened.file), THREADS, thread);
                let pool = pool.map_err(|e| PlatformError {
                    op: "to make a descriptor for a disk",
                    code: e.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error()),
                })?;
                opened.pool.insert(pool)
            }
        };
        let disk = Box::new(pool.queue(Arc::clone(&wake)));
        let by_worker = self.config.io == IoWay::Uring;
        Ok((if by_worker { opened.way_of(disk) } else { disk }, wake))
    }
}

impl Image for FileImage {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError> {
        let Opening { guest, writable, native_sectors, is_live, is_trial, .. } = *how;
        let how = How { guest, writable, native_sectors, is_live, is_trial };
        self.close_file();
        let mut answer = match self.opening.take() {
            Some((asked, answer)) if asked == how && answer.want() => answer,
            before => {
                if let Some((asked, answer)) = before {
                    let of_no_use = answer.give_up();
                    self.by_thread(of_no_use);
                    if answer.is_pending() {
                        return Err(self.keep_opening(asked, answer));
                    }
                }
                self.begin_open(how)?
            }
        };
        let Some(opened) = answer.wait() else { return Err(self.keep_opening(how, answer)) };
        let opened = opened?;
        let figures = opened.figures;
        self.open = Some(opened);
        self.say_tail();
        Ok(figures)
    }

    fn strange(&self) -> Option<String> {
        let format = self.open.as_ref()?.format?;
        Some(format!(
            "{} looks like a {format} image, and is served byte for byte: its guest sees the {format} header and not the disk in it. \
             qemu-img convert -O raw makes a raw image of one",
            self.path.display()
        ))
    }

    fn identity(&self) -> Option<String> {
        self.open.as_ref()?.identity.clone()
    }

    fn sectors(&mut self) -> Option<u64> {
        let Opened { file, figures, medium, .. } = self.open.as_ref()?;
        let (file, sector_size, medium) = (Arc::clone(file), figures.sector_size, medium.clone());
        let mut answer = match (self.measuring.take(), &self.thread) {
            (Some(answer), _) => answer,
            (None, thread) => thread.as_ref()?.ask(move || measure(&file, sector_size, medium)),
        };
        let Some(measured) = answer.wait() else {
            self.measuring = Some(answer);
            return None;
        };
        let Measured { length: Length { sectors, tail }, is_another } = measured.ok()?;
        let opened = self.open.as_mut()?;
        if is_another {
            // The guest has nothing to do with the new medium's length.
            opened.file.mark_replaced();
            return None;
        }
        opened.tail = tail;
        self.say_tail();
        Some(sectors)
    }

    fn close(&mut self) {
        self.close_file();
        let came = self.opening.as_ref().and_then(|(_, answer)| answer.give_up());
        self.by_thread(came);
    }

    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError> {
        self.way().map(|(disk, _)| disk)
    }
}

/// The length of an image.
struct Length {
    /// Number of whole logical sectors, in units of 512 bytes.
    sectors: u64,
    /// Number of bytes after the last whole sector.
    tail: u64,
}

/// Properties of an open image that may change.
struct Measured {
    length: Length,
    /// True if the drive contains another medium than the one that was opened.
    is_another: bool,
}

fn measure(file: &OpenFile, sector_size: u32, medium: Option<String>) -> Result<Measured, Errno> {
    let length = length(file.fd(), sector_size)?;
    // A file stays the one that was opened; so does a medium if the kernel does not tell.
    let now = medium.as_ref().and_then(|_| identity::medium(file.fd()));
    let is_another = now.is_some() && now != medium;
    Ok(Measured { length, is_another })
}

/// Reads the current length of the image.
fn length(fd: BorrowedFd<'_>, sector_size: u32) -> Result<Length, Errno> {
    let bytes = seek(fd, SeekFrom::End(0))?;
    let tail = bytes % u64::from(sector_size);
    Ok(Length { sectors: (bytes - tail) / SECTOR_BYTES as u64, tail })
}

impl Drop for FileImage {
    /// Closes the file on the image's thread, since the file system may block.
    fn drop(&mut self) {
        self.close();
    }
}

fn open(
    path: &Path,
    config: DiskConfig,
    How { guest, writable, native_sectors, is_live, is_trial }: How,
    refused: Arc<AtomicBool>,
    lines: Arc<LineBudget>,
) -> Result<Opened, OpenError> {
    let shown = path.display();
    let failed = |why: String| OpenError::Failed(format!("{shown}: {why}"));
    let unopened = |e: Errno, is_device: bool| {
        failed(match e {
            Errno::NOENT => "there is no such file, so the disk has no image".into(),
            // The device policy of the systemd unit refuses with EPERM whatever the file's mode.
            Errno::PERM if is_device => format!(
                "{e}: this process may not have that device; under systemd name it in the unit (pregrant doctor --device-policy)"
            ),
            Errno::ACCESS | Errno::PERM | Errno::ROFS if writable => {
                format!("{e}: this process may not write to it; give it the right to, or the disk mode \"r\"")
            }
            e => e.to_string(),
        })
    };
    // Check the type before opening it: opening a watchdog or a tape already has effects. The
    // descriptor from this lookup is opened then, whatever the path leads to by that time.
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let found = found.map_err(|e| unopened(e, false))?;
    let stat = fstat(&found).map_err(|e| unopened(e, false))?;
    let is_device = is_device(&stat).ok_or_else(|| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        failed(format!("a {kind:?} is not an image; use a raw file or a block device"))
    })?;
    let number = ImageNumber::of(&stat);
    let until = Instant::now() + ENDS;
    while is_left_behind(number) {
        if Instant::now() >= until {
            return Err(OpenError::Busy(format!(
                "{shown} is in use: its storage still works on requests of an earlier connection"
            )));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // The kernel refuses O_EXCL for a device that it uses itself, or that is claimed through
    // another node.
    let alone = if is_device && writable { OFlags::EXCL } else { OFlags::empty() };
    let flags = access | alone | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let fd = rustix::fs::open(again, flags, Mode::empty()).map_err(|e| match e {
        Errno::BUSY => OpenError::Busy(format!("{shown} is in use for writing: {}", who_has(path))),
        Errno::NOENT => failed("the image exists, but cannot be opened without /proc; mount /proc".into()),
        e => unopened(e, is_device),
    })?;
    drop(found);
    match lock(&fd, writable) {
        Ok(()) => {}
        Err(LockError::Held(who)) => {
            let what = if writable { "" } else { " for writing" };
            return Err(OpenError::Busy(format!("{shown} is in use{what}: {who} has its lock")));
        }
        Err(LockError::Failed(e)) => {
            return Err(failed(format!(
                "its file system has no locks ({e}), without which two processes could write to it; mount it with locks (NFS: not with \
                 nolock, and with rpc.statd and the server's lockd running), or put the image on another file system"
            )));
        }
    }
    if let Some(who) = users::excluding(fd.as_fd(), &stat, path, Purpose { guest, writable, is_live }) {
        let what = if writable { "" } else { " for writing" };
        return Err(OpenError::Busy(format!("{shown} is in use{what}: {who}")));
    }
    if !is_trial {
        users::lock_for_qemu(fd.as_fd(), writable);
    }
    let (sector_size, physical_sector_size) = if is_device {
        device::sector_sizes(&fd).map_err(|e| failed(format!("cannot read its sector size: {e}")))?
    } else {
        (SECTOR_BYTES as u32, direct::physical_sector_size(fd.as_fd()))
    };
    if !sector_size.is_power_of_two() || sector_size < SECTOR_BYTES as u32 {
        return Err(failed(format!("unsupported sector size of {sector_size} bytes")));
    }
    let discard =
        if writable { discards(fd.as_fd(), is_device, sector_size, stat.st_blksize as u32) } else { None };
    let own = DiskFigures {
        sector_size,
        physical_sector_size,
        read_only: !writable,
        discard,
        ..DiskFigures::of(0)
    };
    // Guests cannot use sectors longer than a page.
    let native_sectors = native_sectors && sector_size <= PAGE_SIZE as u32;
    let served = if native_sectors { own } else { own.in_sectors_of_512() };
    let in_memory = !is_device && is_in_memory(fd.as_fd());
    let is_direct = config.direct
        && !in_memory
        && !refused.load(Ordering::Relaxed)
        && direct::go_direct(fd.as_fd(), access, served.sector_size);
    if !is_direct {
        fcntl_setfl(&fd, access).map_err(|e| failed(e.to_string()))?;
    }
    let Length { sectors, tail } =
        length(fd.as_fd(), served.sector_size).map_err(|e| failed(format!("cannot read its length: {e}")))?;
    if sectors == 0 {
        return Err(failed(if is_device {
            "the device has no medium or no backing file; attach one first (losetup), or name another".into()
        } else {
            "it has no sectors; make it longer first (truncate -s 1G)".into()
        }));
    }
    let kind = is_device.then_some(sector_size);
    let identity = identity::of(fd.as_fd(), is_device);
    let medium = is_device.then(|| identity::medium(fd.as_fd())).flatten();
    let format = format::of(fd.as_fd(), sectors);
    let direct = Direct::new(is_direct, access, refused);
    let writeback = match writable && !in_memory {
        true => Writeback::of(fd.as_fd()).map_err(|e| {
            failed(format!(
                "cannot open it a second time, which is needed to detect lost writes: {e}; if too many files are open, raise \
                 LimitNOFILE of the unit, or ulimit -n"
            ))
        })?,
        false => Writeback::none(),
    };
    let file = OpenFile::new((fd, number), path, kind, !writable, (direct, writeback), lines);
    let figures = DiskFigures { sectors, ..served };
    Ok(Opened { file: Arc::new(file), figures, tail, identity, medium, format, in_memory, pool: None })
}

/// Returns true for a block device, and false for a regular file. None: it is neither.
fn is_device(stat: &Stat) -> Option<bool> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(false),
        FileType::BlockDevice => Some(true),
        _ => None,
    }
}

/// Describes which processes use a block device that could not be opened exclusively.
#[cold]
fn who_has(path: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::empty()).map(|fd| lock(fd, false)) {
        Ok(Err(LockError::Held(who))) => format!("{who} has its lock"),
        _ => "it is mounted here, part of another device, or open by another name; lsblk says where, or umount it first".into(),
    }
}

fn discards(fd: BorrowedFd<'_>, is_device: bool, sector_size: u32, block: u32) -> Option<Discard> {
    if is_device {
        return device::discards(fd, sector_size);
    }
    // Beyond the end there is no data to lose.
    let end = seek(fd, SeekFrom::End(0)).ok()?.next_multiple_of(1 << 20);
    fallocate(fd, HOLE, end, 4096).ok()?;
    // Blocks freed by a hole can still be read from the medium, but not through the file, so this
    // is no secure discard.
    Some(Discard { granularity: block.max(sector_size), alignment: 0, secure: false, zeroes: true })
}
