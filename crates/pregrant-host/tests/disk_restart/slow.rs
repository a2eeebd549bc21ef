//! A disk that is as slow as the test wants: a file that a thread of this process serves through
//! FUSE.
//!
//! ```text
//!   back --io_uring--> kernel --FUSE--> this thread: a write waits here until the gate is open
//!   image --open, stat, lseek-->  the same: so do these, while it is silent
//! ```

use crate::guest::{Guest, ask};
use crate::world::World;
use fuser::{
    BackgroundSession, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};
use pregrant::blk::disk::{Buffer, Disk, Image, Io, IoError, IoMemory, IoOp, OpenError, Opening};
use pregrant::blk::front::FrontConfig;
use pregrant_host::disks::{DiskConfig, FileImage, IoWay};
use pregrant_host::drivers::blk::front::shared_disk::DiskOp;
use pregrant_testkit::skip::skip;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const BYTES: usize = 1 << 20;
const DISK: INodeNo = INodeNo(2);
/// A place that no one reads to open the image.
const HELD: u64 = 65536;

#[derive(Default)]
struct Inside {
    bytes: Vec<u8>,
    shut: bool,
    /// Writes that wait for the gate.
    waiting: Vec<(u64, Vec<u8>, ReplyWrite)>,
    came: usize,
    /// Number of times it was opened.
    opened: usize,
    /// Direct I/O must be whole pages; the file system reports that only when another write
    /// arrives.
    takes_pages: bool,
    refused: usize,
    /// Number of writes through the page cache that arrived while direct writes were in flight.
    mixed: usize,
    silent: bool,
    /// Reads at [`HELD`] wait, until it is false.
    holds_reads: bool,
    held: Vec<(ReplyData, Vec<u8>)>,
    /// Requests that wait for the end of the silence.
    unanswered: Vec<Box<dyn FnOnce() + Send>>,
}

#[derive(Clone, Default)]
struct SlowFile(Arc<Mutex<Inside>>);

impl SlowFile {
    fn set_shut(&self, shut: bool) {
        let mut inside = self.0.lock().unwrap();
        inside.shut = shut;
        if !shut {
            for (at, bytes, reply) in std::mem::take(&mut inside.waiting) {
                inside.put(at, &bytes, reply);
            }
        }
    }

    fn set_silent(&self, silent: bool) {
        let mut inside = self.0.lock().unwrap();
        inside.silent = silent;
        if !silent {
            std::mem::take(&mut inside.unanswered).into_iter().for_each(|answer| answer());
        }
    }

    /// Answers, once it is not silent.
    fn answer(&self, answer: impl FnOnce() + Send + 'static) {
        let mut inside = self.0.lock().unwrap();
        if inside.silent {
            inside.unanswered.push(Box::new(answer));
        } else {
            answer();
        }
    }

    fn set_holds_reads(&self, holds: bool) {
        let mut inside = self.0.lock().unwrap();
        inside.holds_reads = holds;
        if !holds {
            std::mem::take(&mut inside.held).into_iter().for_each(|(reply, bytes)| reply.data(&bytes));
        }
    }

    fn held(&self) -> usize {
        self.0.lock().unwrap().held.len()
    }

    fn waiting(&self) -> usize {
        self.0.lock().unwrap().waiting.len()
    }

    fn came(&self) -> usize {
        self.0.lock().unwrap().came
    }

    fn opened(&self) -> usize {
        self.0.lock().unwrap().opened
    }
}

impl Inside {
    fn put(&mut self, at: u64, bytes: &[u8], reply: ReplyWrite) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
        reply.written(bytes.len() as u32);
    }
}

fn attr(ino: INodeNo) -> FileAttr {
    let is_disk = ino == DISK;
    let then = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino,
        size: if is_disk { BYTES as u64 } else { 0 },
        blocks: 0,
        atime: then,
        mtime: then,
        ctime: then,
        crtime: then,
        kind: if is_disk { FileType::RegularFile } else { FileType::Directory },
        perm: 0o700,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for SlowFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("disk") => reply.entry(&Duration::ZERO, &attr(DISK), Generation(0)),
            _ => reply.error(fuser::Errno::ENOENT),
        }
    }
    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(move || reply.attr(&Duration::ZERO, &attr(ino)));
    }
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.lock().unwrap().opened += 1;
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        self.answer(move || reply.opened(FileHandle(0), flags));
    }
    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        at: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut inside = self.0.lock().unwrap();
        let end = (at as usize + size as usize).min(BYTES);
        let bytes = inside.bytes[(at as usize).min(end)..end].to_vec();
        if inside.holds_reads && at == HELD {
            inside.held.push((reply, bytes));
        } else {
            reply.data(&bytes);
        }
    }
    /// With direct I/O of whole pages only, it frees nothing, and refuses to where there is data.
    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        match (self.0.lock().unwrap().takes_pages, offset < BYTES as u64) {
            (false, _) => reply.error(fuser::Errno::ENOSYS),
            (true, false) => reply.ok(),
            (true, true) => reply.error(fuser::Errno::EINVAL),
        }
    }
    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        at: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut inside = self.0.lock().unwrap();
        inside.came += 1;
        let is_direct = flags.0 & libc::O_DIRECT != 0;
        if !is_direct {
            inside.mixed += inside.waiting.len();
        }
        if inside.takes_pages && is_direct && !(at as usize | data.len()).is_multiple_of(4096) {
            inside.refused += 1;
            reply.error(fuser::Errno::EINVAL);
        } else if inside.shut {
            inside.waiting.push((at, data.to_vec(), reply));
        } else {
            inside.put(at, data, reply);
        }
    }
}

/// A mount with the file, until it is dropped.
struct Mount {
    file: SlowFile,
    dir: PathBuf,
    session: Option<BackgroundSession>,
}

impl Mount {
    /// None: FUSE is not available here, which was printed.
    fn new(name: &str) -> Option<Self> {
        let file = SlowFile(Arc::new(Mutex::new(Inside { bytes: vec![0; BYTES], ..Inside::default() })));
        let dir = std::env::temp_dir().join(format!("pregrant-slow-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        match Session::new(file.clone(), &dir, &Config::default()).and_then(Session::spawn) {
            Ok(session) => Some(Self { file, dir, session: Some(session) }),
            Err(e) => {
                let _ = std::fs::remove_dir(&dir);
                skip(format!("no FUSE mount here: {e}"));
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("disk")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.file.set_shut(false);
        self.file.set_silent(false);
        self.file.set_holds_reads(false);
        drop(self.session.take());
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// True if somebody has locked an image: its back, or the rest of that back in the kernel.
fn is_locked(path: &Path) -> bool {
    flock(File::open(path).unwrap(), FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The first back is killed while its write is in the kernel. The process is gone but the write is
/// not: the lock shows that, and the successor sends nothing to the disk before the write has
/// ended. Then it executes the write once more, because it was not answered.
pub fn a_successor_waits_for_the_last_write_of_a_dead_back() {
    for (path, persistent) in [("copy", true), ("copy", false), ("map", false)] {
        let Some(mount) = Mount::new(path) else { return };
        let world = World::new(&mount.path());
        let mut first = world.back("uring", path, None);
        let guest = Guest::start(&world, FrontConfig { persistent, ..FrontConfig::default() });
        let disk = guest.disk();
        ask(disk, DiskOp::Write { at: 0, bytes: vec![1; 4096] }).unwrap();
        mount.file.set_shut(true);
        let before = mount.file.came();
        let (report, reported) = std::sync::mpsc::channel();
        let done = Box::new(move |outcome: Result<&[u8], _>| {
            let _ = report.send(outcome.map(drop)); // the test may be over
        });
        disk.put(DiskOp::Write { at: 0, bytes: vec![2; 4096] }, done);
        until(|| mount.file.waiting() == 1);
        first.kill();
        // It is dead and buried; what it asked for is still under way, and holds the open file.
        assert!(is_locked(&mount.path()), "{path}: the lock went with the process");
        let second = world.back("uring", path, None);
        // Long enough for some checks of the successor at the lock. A machine that is busy makes it
        // less strict and not wrong.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(
            mount.file.came(),
            before + 1,
            "{path}: the successor wrote while the old write could land"
        );
        assert!(reported.try_recv().is_err());
        mount.file.set_shut(false);
        reported.recv().unwrap().unwrap();
        assert_eq!(mount.file.came(), before + 2, "{path}: it was done once more");
        assert_eq!(ask(disk, DiskOp::Read { at: 0, len: 4096 }), Ok(vec![2; 4096]));
        assert_eq!(guest.close(), 0, "{path}: the guest noticed");
        world.end(second);
    }
}

/// A guest closes its disk, or dies, while the disk hangs: the back goes on, accepts the next
/// connection when the disk is free, and ends in good order.
pub fn a_disk_that_hangs_holds_no_one_but_its_guest() {
    let Some(mount) = Mount::new("hangs") else { return };
    let mut world = World::new(&mount.path());
    let back = world.back("uring", "copy", None);
    let guest = Guest::start(&world, FrontConfig::default());
    mount.file.set_shut(true);
    guest.disk().put(DiskOp::Write { at: 0, bytes: vec![3; 4096] }, Box::new(|_| ()));
    until(|| mount.file.waiting() == 1);
    guest.die();
    // The toolstack has its answer though the disk has none to give.
    world.remove_disk();
    assert!(is_locked(&mount.path()), "the write is under way");
    mount.file.set_shut(false);
    until(|| !is_locked(&mount.path()));
    world.finish(back);
}

/// A disk that hangs returns no error and changes no counter: the log reports how long the oldest
/// request has waited, and later that it no longer waits.
pub fn a_disk_that_hangs_is_said() {
    let Some(mount) = Mount::new("said") else { return };
    let world = World::new(&mount.path());
    let log = mount.dir.with_extension("log");
    let back = world.logged_back("uring", &log);
    let guest = Guest::start(&world, FrontConfig::default());
    let has = |text: &str| std::fs::read_to_string(&log).unwrap().contains(text);
    mount.file.set_shut(true);
    let (report, reported) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome: Result<&[u8], _>| report.send(outcome.map(drop)).unwrap());
    guest.disk().put(DiskOp::Write { at: 0, bytes: vec![3; 4096] }, done);
    until(|| has("a request has waited 5 s for the image, of 1 under way: "));
    assert!(!has("the image answers again"));
    mount.file.set_shut(false);
    reported.recv().unwrap().unwrap();
    until(|| has("the image answers again; a request had waited "));
    std::fs::remove_file(&log).unwrap();
    assert_eq!(guest.close(), 0);
    world.end(back);
}

/// A file system that does not answer at all: a call that opens an image there, or asks for its
/// length, returns an error, and its caller goes on.
pub fn an_image_whose_file_system_is_silent_is_busy_and_no_more() {
    let Some(mount) = Mount::new("silent") else { return };
    let mut image = FileImage::new(mount.path(), DiskConfig::default());
    let how = Opening { writable: true, ..Opening::default() };
    mount.file.set_silent(true);
    for _ in 0..3 {
        let Err(OpenError::Busy(why)) = image.open(&how) else { panic!("it is open, or failed") };
        assert!(why.contains("has not answered"), "{why}");
    }
    mount.file.set_silent(false);
    let figures = loop {
        match image.open(&how) {
            Ok(figures) => break figures,
            Err(OpenError::Busy(_)) => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(figures.sectors, BYTES as u64 / 512);
    mount.file.set_silent(true);
    assert_eq!(image.sectors(), None, "it is as long as it was");
    mount.file.set_silent(false);
    while image.sectors() != Some(figures.sectors) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A result that is given up is dropped when it comes.
    image.close();
    mount.file.set_silent(true);
    assert!(matches!(image.open(&how), Err(OpenError::Busy(_))));
    image.close();
    mount.file.set_silent(false);
    until(|| !is_locked(&mount.path()));
}

/// Threads of this process that are an image's, by their names.
fn threads_of_images() -> usize {
    let comm =
        |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
    let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| comm(task).ok());
    names.filter(|name| ["image", "disk ", "last req"].iter().any(|of| name.starts_with(of))).count()
}

/// A guest that reads from storage which hangs, and connects again and again: what its first
/// connection has under way is waited for, and nothing is added to it. To read, the lock is shared.
pub fn reads_that_hang_do_not_pile_up() {
    for io in IoWay::ALL {
        let Some(mount) = Mount::new(&format!("reads-{io}")) else { return };
        let mut image = FileImage::new(mount.path(), DiskConfig { io, direct: true });
        let how = Opening::default();
        let open = |image: &mut FileImage| {
            while let Err(e) = image.open(&how) {
                assert!(matches!(e, OpenError::Busy(_)), "{e}");
            }
        };
        open(&mut image);
        let mut disk = image.queue().unwrap();
        mount.file.set_holds_reads(true);
        let mut buffer = Buffer::new(4096);
        buffer.set_len(4096);
        let (op, memory) = (IoOp::Read, IoMemory::Private(buffer));
        disk.submit(Io { token: 1, op, sector: HELD / 512, sectors: 8, memory });
        disk.start();
        until(|| mount.file.held() == 1);
        let before = (threads_of_images(), mount.file.opened());
        drop(disk);
        image.close();
        for k in 0..4 {
            // Also one that the toolstack has attached again.
            let mut another = FileImage::new(mount.path(), DiskConfig { io, direct: true });
            for image in [&mut image, &mut another] {
                let opened = image.open(&how);
                let early =
                    (opened.is_ok(), threads_of_images() > before.0 + 1, mount.file.opened() - before.1);
                if early != (false, false, 0) {
                    // Before anything is asserted: see below.
                    mount.file.set_holds_reads(false);
                }
                assert_eq!(early, (false, false, 0), "{io}, {k}: opened, with more threads, opened so often");
                assert!(matches!(opened, Err(OpenError::Busy(_))), "{opened:?}");
                image.close();
            }
        }
        mount.file.set_holds_reads(false);
        open(&mut image);
        let mut buffer = Buffer::new(4096);
        buffer.set_len(4096);
        let mut disk = image.queue().unwrap();
        let (op, memory) = (IoOp::Read, IoMemory::Private(buffer));
        disk.submit(Io { token: 2, op, sector: HELD / 512, sectors: 8, memory });
        disk.start();
        let mut done = Vec::new();
        while done.is_empty() {
            assert!(disk.wait());
            disk.complete(&mut done);
        }
        assert_eq!((done[0].io.token, done[0].outcome), (2, Ok(())), "{io}");
    }
}

/// A front connects and leaves again and again while the file system does not answer: only one
/// `open` waits there, not one for each time.
pub fn a_silent_file_system_has_one_open_however_often_a_front_comes() {
    let Some(mount) = Mount::new("opens") else { return };
    let mut image = FileImage::new(mount.path(), DiskConfig::default());
    let before = mount.file.opened();
    mount.file.set_silent(true);
    for k in 0..8 {
        let how = Opening { writable: k % 3 != 1, ..Opening::default() };
        assert!(matches!(image.open(&how), Err(OpenError::Busy(_))));
        image.close();
    }
    mount.file.set_silent(false);
    let how = Opening { writable: true, ..Opening::default() };
    while let Err(e) = image.open(&how) {
        assert!(matches!(e, OpenError::Busy(_)), "{e}");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The one that waited there, and one where that came before somebody wanted it again.
    let opened = mount.file.opened() - before;
    // Each time twice: once to be asked whether writes were lost.
    assert!((2..=4).contains(&opened), "{opened} times");
    image.close();
    until(|| !is_locked(&mount.path()));
}

/// Storage that does not report its requirements for direct I/O, and refuses such I/O later: the
/// guest gets no error; from then on the whole image uses the page cache, but only after the last
/// direct write has ended.
pub fn direct_io_that_is_refused_later_is_given_up_for_the_whole_image() {
    for io in IoWay::ALL {
        let Some(mount) = Mount::new(&format!("refuses-{io}")) else { return };
        mount.file.0.lock().unwrap().takes_pages = true;
        let mut image = FileImage::new(mount.path(), DiskConfig { io, direct: true });
        let how = Opening { writable: true, ..Opening::default() };
        let open = |image: &mut FileImage| {
            while let Err(e) = image.open(&how) {
                assert!(matches!(e, OpenError::Busy(_)), "{e}");
            }
        };
        open(&mut image);
        let words = image.describe().unwrap();
        if !words.contains("direct") {
            return skip(format!("no direct I/O on FUSE here: {words}"));
        }
        let (mut first, mut second) = (image.queue().unwrap(), image.queue().unwrap());
        let write = |disk: &mut dyn Disk, sector: u64, byte: u8, len: usize| {
            let mut buffer = Buffer::new(len);
            buffer.set_len(len);
            buffer.bytes_mut().fill(byte);
            let memory = IoMemory::Private(buffer);
            disk.submit(Io { token: sector, op: IoOp::Write, sector, sectors: len as u64 / 512, memory });
            disk.start();
        };
        mount.file.set_shut(true);
        write(&mut *first, 0, 1, 4096);
        until(|| mount.file.waiting() == 1);
        // A sector, which is refused; and a page, which would be taken.
        write(&mut *second, 100, 2, 512);
        let refused = || mount.file.0.lock().unwrap().refused;
        let mut done = Vec::new();
        until(|| refused() == 1);
        for _ in 0..20 {
            second.complete(&mut done);
            std::thread::sleep(Duration::from_millis(5));
        }
        write(&mut *second, 8, 3, 4096);
        for _ in 0..20 {
            second.complete(&mut done);
            std::thread::sleep(Duration::from_millis(5));
        }
        let early = (done.len(), mount.file.waiting());
        // Before anything is asserted: a process that holds up its own file system does not end.
        mount.file.set_shut(false);
        assert_eq!(early, (0, 1), "{io}: {done:?} while a direct write is under way");
        let mut all = |disk: &mut dyn Disk, n: usize| {
            while done.len() < n {
                assert!(disk.wait());
                disk.complete(&mut done);
            }
            assert!(done.drain(..).all(|done| done.outcome.is_ok()), "{io}");
        };
        all(&mut *first, 1);
        all(&mut *second, 2);
        write(&mut *first, 101, 4, 512);
        all(&mut *first, 1);
        let inside = mount.file.0.lock().unwrap();
        assert_eq!((inside.refused, inside.mixed), (1, 0), "{io}");
        let at = |sector: usize| inside.bytes[sector * 512];
        assert_eq!([0, 8, 100, 101, 102].map(at), [1, 3, 2, 4, 0]);
        drop(inside);
        // Nor is a discard that is found to be refused.
        let discard = IoOp::Discard { secure: false };
        first.submit(Io { token: 1, op: discard, sector: 0, sectors: 8, memory: IoMemory::default() });
        first.start();
        while done.is_empty() {
            assert!(first.wait());
            first.complete(&mut done);
        }
        assert_eq!(done[0].outcome, Err(IoError::NotSupported), "{io}");
        drop((first, second));
        for _ in 0..2 {
            assert!(image.describe().unwrap().contains("page cache"), "{io}");
            image.close();
            open(&mut image);
        }
        image.close();
    }
}
