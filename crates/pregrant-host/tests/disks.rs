//! Images of disks, without a guest: in RAM, in files, on block devices; by io_uring and by
//! threads; with private memory and with a guest's.

use pregrant::DomId;
use pregrant::blk::disk::{
    Buffer, Disk, DiskFigures, Done, Image, Io, IoError, IoMemory, IoOp, MappedPiece, OpenError, Opening,
    SECTOR_BYTES,
};
use pregrant::shm::SharedBytes;
use pregrant_host::disks::{DiskConfig, FileImage, IoWay, NamedImage, RamImage};
use pregrant_test_machine::log_lines;
use pregrant_testkit::skip::skip;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fdatasync};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A file that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, len: u64) -> Self {
        // Not below /tmp: that may be memory, and holes and direct I/O are to be those of a file
        // system.
        Self::at(Path::new(env!("CARGO_TARGET_TMPDIR")), name, len)
    }

    fn at(dir: &Path, name: &str, len: u64) -> Self {
        let path = dir.join(format!("disk-{}-{name}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.set_len(len).unwrap();
        Self(path)
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Pages that somebody else might write to.
struct Pages(NonNull<u8>, usize);

impl Pages {
    fn new(n: usize) -> Arc<Self> {
        let layout = std::alloc::Layout::from_size_align(n * 4096, 4096).unwrap();
        // SAFETY: the layout has a size.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        Arc::new(Self(NonNull::new(base).unwrap(), n * 4096))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.1, 4096).unwrap();
        // SAFETY: allocated so, and no one has it any more.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), layout) };
    }
}

// SAFETY: memory of the process, touched by the copies of `shm` and by the kernel alone.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}
// SAFETY: allocated in whole pages until it is dropped.
unsafe impl SharedBytes for Pages {
    fn base(&self) -> NonNull<u8> {
        self.0
    }
    fn len(&self) -> usize {
        self.1
    }
}

/// Opens an image, and retries if the machine is too slow.
fn open(image: &mut dyn Image, how: &Opening) -> Result<DiskFigures, OpenError> {
    loop {
        match image.open(how) {
            Err(OpenError::Busy(why)) if why.contains("has not answered") => std::thread::yield_now(),
            other => return other,
        }
    }
}

fn private(bytes: &[u8]) -> IoMemory {
    let mut buffer = Buffer::new(bytes.len());
    buffer.set_len(bytes.len());
    buffer.bytes_mut().copy_from_slice(bytes);
    IoMemory::Private(buffer)
}

/// The bytes in three fragments, none of which is aligned to a page.
fn mapped(bytes: &[u8]) -> IoMemory {
    assert!(bytes.len() >= 3 * 512 && bytes.len() <= 3 * 3584);
    let third = bytes.len() / 3 / 512 * 512;
    let lens = [third, third, bytes.len() - 2 * third];
    let pages = Pages::new(3);
    let piece = |(k, len)| MappedPiece::new(pages.clone(), k * 4096 + 512, len).unwrap();
    let mut memory = IoMemory::Mapped(lens.into_iter().enumerate().map(piece).collect());
    memory.fill_from(bytes);
    memory
}

fn run(disk: &mut dyn Disk, op: IoOp, sector: u64, sectors: u64, memory: IoMemory) -> Done {
    disk.submit(Io { token: sector, op, sector, sectors, memory });
    disk.start();
    let mut done = Vec::new();
    while done.is_empty() {
        assert!(disk.wait());
        disk.complete(&mut done);
    }
    assert_eq!((done.len(), done[0].io.token), (1, sector));
    done.pop().unwrap()
}

fn read(
    disk: &mut dyn Disk,
    sector: u64,
    len: usize,
    make: fn(&[u8]) -> IoMemory,
) -> Result<Vec<u8>, IoError> {
    let Done { io, outcome } = run(disk, IoOp::Read, sector, len as u64 / SECTOR, make(&vec![0xEE; len]));
    let mut bytes = vec![0; len];
    io.memory.read_into(&mut bytes);
    outcome.map(|()| bytes)
}

fn write(disk: &mut dyn Disk, sector: u64, bytes: &[u8], make: fn(&[u8]) -> IoMemory) -> Result<(), IoError> {
    run(disk, IoOp::Write, sector, bytes.len() as u64 / SECTOR, make(bytes)).outcome
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|k| (k * 7 + k / 512 + seed) as u8).collect()
}

const WRITABLE: Opening = Opening {
    guest: DomId(5),
    params: None,
    writable: true,
    is_live: false,
    native_sectors: false,
    is_trial: false,
};
const READ_ONLY: Opening = Opening { writable: false, ..WRITABLE };

fn ways() -> Vec<DiskConfig> {
    let all = IoWay::ALL.into_iter().flat_map(|io| [true, false].map(|direct| DiskConfig { io, direct }));
    all.collect()
}

/// The duties of any writable disk.
fn exercise(image: &mut dyn Image, figures: DiskFigures) {
    let mut disk = image.queue().unwrap();
    let mut other = image.queue().unwrap();
    for (k, make) in [private as fn(&[u8]) -> IoMemory, mapped].into_iter().enumerate() {
        let bytes = pattern(k, 9 * 512);
        for sector in [0, 3, 8, figures.sectors - 9] {
            write(&mut *disk, sector, &bytes, make).unwrap();
            assert_eq!(read(&mut *disk, sector, bytes.len(), make).as_deref(), Ok(&bytes[..]));
            assert_eq!(read(&mut *other, sector, bytes.len(), private).as_deref(), Ok(&bytes[..]));
        }
    }
    assert_eq!(run(&mut *disk, IoOp::Flush, 0, 0, IoMemory::default()).outcome, Ok(()));
    if figures.discard.is_some() {
        write(&mut *disk, 0, &pattern(1, 65536), private).unwrap();
        let discard = IoOp::Discard { secure: false };
        assert_eq!(run(&mut *disk, discard, 16, 64, IoMemory::default()).outcome, Ok(()));
        let bytes = read(&mut *other, 0, 65536, private).unwrap();
        assert!(
            bytes[..16 * 512] == pattern(1, 65536)[..16 * 512]
                && bytes[80 * 512..] == pattern(1, 65536)[80 * 512..]
        );
        assert!(bytes[16 * 512..80 * 512].iter().all(|b| *b == 0));
    }
    // Many at once, which come back each once.
    let n = 500;
    for token in 0..n {
        let memory = private(&pattern(token as usize, 512));
        disk.submit(Io { token, op: IoOp::Write, sector: token, sectors: 1, memory });
    }
    disk.start();
    let mut done = Vec::new();
    while done.len() < n as usize {
        assert!(disk.wait());
        disk.complete(&mut done);
    }
    let mut tokens: Vec<_> = done.iter().map(|d| (d.io.token, d.outcome)).collect();
    tokens.sort_by_key(|(token, _)| *token);
    assert_eq!(tokens, (0..n).map(|token| (token, Ok(()))).collect::<Vec<_>>());
    for token in [0, 255, n - 1] {
        assert_eq!(read(&mut *disk, token, 512, private), Ok(pattern(token as usize, 512)));
    }
}

#[test]
fn a_disk_in_memory_is_shared_by_its_queues() {
    let mut image = RamImage::new(1 << 20);
    let figures = open(&mut image, &WRITABLE).unwrap();
    assert_eq!((figures.sectors, figures.read_only), (2048, false));
    exercise(&mut image, figures);
    image.close();
    // It is there for the next connection, and no successor takes another for it.
    assert!(open(&mut image, &Opening { is_live: true, ..WRITABLE }).is_ok());
    assert_eq!(read(&mut *image.queue().unwrap(), 255, 512, private), Ok(pattern(255, 512)));
    let Err(OpenError::Lost(why)) = RamImage::new(1 << 20).open(&Opening { is_live: true, ..WRITABLE })
    else {
        panic!()
    };
    assert!(why.contains("/dev/shm"), "{why}");
    // The same one says so, and no other does.
    let same = image.identity();
    image.close();
    open(&mut image, &WRITABLE).unwrap();
    assert!(same.is_some() && image.identity() == same);
    let mut other = RamImage::new(1 << 20);
    open(&mut other, &WRITABLE).unwrap();
    assert_ne!(other.identity(), same);
}

#[test]
fn a_file_is_read_written_flushed_and_has_holes() {
    for (k, config) in ways().into_iter().enumerate() {
        let scratch = Scratch::new(&format!("file{k}"), (1 << 20) + 700);
        let mut image = FileImage::new(&scratch.0, config);
        let figures = open(&mut image, &WRITABLE).unwrap();
        assert_eq!(
            (figures.sectors, figures.sector_size, figures.read_only),
            (2049, 512, false),
            "{config:?}"
        );
        exercise(&mut image, figures);
        let text = image.describe().unwrap();
        assert!(text.contains(config.io.name()), "{text}");
        assert!(config.direct || text.contains("page cache"), "{text}");
    }
}

/// A worker does the transfers of a file in memory itself; what io_uring or threads do beside them
/// is discards.
#[test]
fn a_file_in_memory_is_read_and_written_in_place() {
    for (k, config) in ways().into_iter().enumerate() {
        let scratch = Scratch::at(Path::new("/dev/shm"), &format!("memory{k}"), 1 << 20);
        let mut image = FileImage::new(&scratch.0, config);
        let figures = open(&mut image, &WRITABLE).unwrap();
        let text = image.describe().unwrap();
        if !text.contains("in memory") {
            return skip("/dev/shm is not in memory here");
        }
        assert_eq!(text.contains("in place"), config.io == IoWay::Uring, "{text}");
        exercise(&mut image, figures);
        // Nothing is under way behind a start.
        let mut disk = image.queue().unwrap();
        disk.submit(Io { token: 7, op: IoOp::Read, sector: 9, sectors: 1, memory: private(&[1; 512]) });
        disk.start();
        let mut done = Vec::new();
        disk.complete(&mut done);
        assert!(config.io != IoWay::Uring || done.len() == 1, "{text}");
        // It ends early.
        scratch.file().set_len(10 * 512).unwrap();
        let mut other = image.queue().unwrap();
        assert_eq!(read(&mut *other, 2000, 512, private), Err(IoError::Failed));
        assert_eq!(read(&mut *other, 9, 2048, mapped), Err(IoError::Failed), "a part of it is there");
    }
}

#[test]
fn a_discard_frees_blocks() {
    for config in ways() {
        let scratch = Scratch::new(&format!("holes-{}-{}", config.io, config.direct), 1 << 20);
        let mut image = FileImage::new(&scratch.0, config);
        let figures = open(&mut image, &WRITABLE).unwrap();
        let Some(discard) = figures.discard else {
            return skip("this file system punches no holes");
        };
        assert!(!discard.secure, "a hole frees blocks, which hold what they held");
        let mut disk = image.queue().unwrap();
        write(&mut *disk, 0, &pattern(1, 1 << 20), private).unwrap();
        run(&mut *disk, IoOp::Flush, 0, 0, IoMemory::default()).outcome.unwrap();
        let before = scratch.file().metadata().unwrap().blocks();
        run(&mut *disk, IoOp::Discard { secure: false }, 0, 2048, IoMemory::default()).outcome.unwrap();
        let after = scratch.file().metadata().unwrap();
        assert!(
            after.blocks() < before / 4 && after.len() == 1 << 20,
            "{before} blocks, then {}",
            after.blocks()
        );
    }
}

/// A long discard neither delays nor loses requests that are made meanwhile.
#[test]
fn a_discard_of_a_terabyte_is_an_order_among_others() {
    let bytes = 1u64 << 40;
    for config in ways() {
        let scratch = Scratch::new(&format!("long-{}-{}", config.io, config.direct), 65536);
        if let Err(e) = scratch.file().set_len(bytes) {
            return skip(format_args!("a file of 1 TiB: {e}"));
        }
        let mut image = FileImage::new(&scratch.0, config);
        let figures = open(&mut image, &WRITABLE).unwrap();
        if figures.discard.is_none() {
            return skip("this file system punches no holes");
        }
        assert!(figures.discard.is_some_and(|discard| discard.zeroes));
        let mut disk = image.queue().unwrap();
        let last = figures.sectors - 8;
        for sector in [0, 1 << 30, last] {
            write(&mut *disk, sector, &pattern(1, 4096), private).unwrap();
        }
        let discard = IoOp::Discard { secure: false };
        let memory = IoMemory::default();
        disk.submit(Io { token: 0, op: discard, sector: 1, sectors: last - 1, memory });
        for token in 1..100 {
            let memory = private(&pattern(token as usize, 4096));
            disk.submit(Io { token, op: IoOp::Write, sector: last, sectors: 8, memory });
        }
        disk.start();
        let mut done = Vec::new();
        while done.len() < 100 {
            assert!(disk.wait());
            disk.complete(&mut done);
        }
        assert!(done.iter().all(|done| done.outcome.is_ok()));
        // All of it is gone, and nothing beside it.
        assert_eq!(read(&mut *disk, 0, 4096, private).unwrap()[..513], [&pattern(1, 512)[..], &[0]].concat());
        assert_eq!(read(&mut *disk, 1 << 30, 4096, private).unwrap(), [0; 4096]);
        assert_ne!(read(&mut *disk, last, 4096, private).unwrap(), [0; 4096]);
    }
}

#[test]
fn what_is_only_read_is_opened_so() {
    for config in ways() {
        let scratch = Scratch::new(&format!("read-{}-{}", config.io, config.direct), 65536);
        scratch.file().write_all_at(&pattern(5, 65536), 0).unwrap();
        let mut image = FileImage::new(&scratch.0, config);
        let figures = open(&mut image, &READ_ONLY).unwrap();
        assert!(figures.read_only && figures.discard.is_none());
        let mut disk = image.queue().unwrap();
        for make in [private as fn(&[u8]) -> IoMemory, mapped] {
            assert_eq!(read(&mut *disk, 1, 4096, make).as_deref(), Ok(&pattern(5, 65536)[512..4608]));
        }
        // No one asks for this: what is validated before forbids it. The kernel would, too.
        assert_eq!(write(&mut *disk, 0, &[1; 512], private), Err(IoError::Failed));
        // Two may read it, and no one writes meanwhile.
        let mut second = FileImage::new(&scratch.0, config);
        open(&mut second, &READ_ONLY).unwrap();
        let mut third = FileImage::new(&scratch.0, config);
        let Err(OpenError::Busy(who)) = open(&mut third, &WRITABLE) else { panic!() };
        assert!(who.contains("this process"), "{who}");
    }
}

#[test]
fn one_writes_at_a_time_until_its_last_order_is_over() {
    for config in ways() {
        let scratch = Scratch::new(&format!("lock-{}-{}", config.io, config.direct), 65536);
        let mut image = FileImage::new(&scratch.0, config);
        open(&mut image, &WRITABLE).unwrap();
        let mut other = FileImage::new(&scratch.0, config);
        assert!(matches!(open(&mut other, &READ_ONLY), Err(OpenError::Busy(_))));
        let mut disk = image.queue().unwrap();
        write(&mut *disk, 0, &[1; 512], private).unwrap();
        image.close();
        assert!(matches!(open(&mut other, &WRITABLE), Err(OpenError::Busy(_))), "a queue has it open");
        drop(disk);
        // Threads of a pool end by themselves, a moment later.
        while let Err(OpenError::Busy(_)) = open(&mut other, &WRITABLE) {
            std::thread::yield_now();
        }
    }
}

/// A loop device, until it is dropped. None: there is none, and the reason was printed.
fn loop_device(file: &Path, more: &[&str]) -> Option<LoopDevice> {
    let attached = Command::new("losetup").args(["--find", "--show"]).args(more).arg(file).output();
    match attached {
        Ok(out) if out.status.success() => {
            Some(LoopDevice(String::from_utf8(out.stdout).unwrap().trim().into()))
        }
        Ok(out) => {
            skip(format_args!("losetup: {}", String::from_utf8_lossy(&out.stderr).trim()));
            None
        }
        Err(e) => {
            skip(format_args!("losetup: {e}"));
            None
        }
    }
}

struct LoopDevice(PathBuf);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A file system on a device, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// None: the reason was printed.
    fn new(device: &Path) -> Option<Self> {
        let mut make = Command::new("mkfs.ext4");
        make.arg("-q").arg(device);
        Self::mount("device", Some(make), Command::new("mount").args(["-t", "ext4"]).arg(device))
    }

    /// A tmpfs with room for this many bytes.
    fn in_memory(bytes: u64) -> Option<Self> {
        let size = format!("size={bytes}");
        Self::mount("memory", None, Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]))
    }

    fn mount(name: &str, mut make: Option<Command>, mount: &mut Command) -> Option<Self> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.join(format!("mounted-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        mount.arg(&dir);
        for command in make.iter_mut().chain([mount]) {
            match command.output() {
                Ok(out) if out.status.success() => {}
                Ok(out) => {
                    skip(format_args!("{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim()));
                    return None;
                }
                Err(e) => {
                    skip(format_args!("{command:?}: {e}"));
                    return None;
                }
            }
        }
        Some(Self(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Opens the file once more and flushes it, as another process would.
fn written_through(path: &Path) -> OwnedFd {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let fds = fds.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == path));
    let fds = fds.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap());
    // SAFETY: the image has it open, until the test closes it.
    let mut fds = fds.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let writes = |fd: &BorrowedFd<'_>| fcntl_getfl(fd).unwrap().contains(OFlags::RDWR);
    fds.find(writes).unwrap().try_clone_to_owned().unwrap()
}

/// Linux reports lost writes once for each open file, and possibly to a flush that ends later than
/// one that it then confirms.
#[test]
fn a_flush_beside_one_that_failed_fails_too() {
    for io in IoWay::ALL {
        let config = DiskConfig { io, direct: false };
        let Some(memory) = Mounted::in_memory(256 << 10) else { return };
        let file = Scratch::at(&memory.0, "full", 4 << 20);
        let Some(device) = loop_device(&file.0, &[]) else { return };
        let mut image = FileImage::new(&device.0, config);
        opened(&mut image, &WRITABLE);
        let mut queues = [image.queue().unwrap(), image.queue().unwrap()];
        write(&mut *queues[0], 0, &[1; 1 << 20], private).unwrap();
        fdatasync(written_through(&device.0)).expect_err("there is no room for it");
        for k in [1, 0, 1] {
            let done = run(&mut *queues[k], IoOp::Flush, 0, 0, IoMemory::default());
            assert_eq!(done.outcome, Err(IoError::Failed), "{config:?}");
        }
        drop(queues);
        opened(&mut image, &WRITABLE);
        let done = run(&mut *image.queue().unwrap(), IoOp::Flush, 0, 0, IoMemory::default());
        assert_eq!(done.outcome, Ok(()), "{config:?}, opened again");
        image.close();
        drop((device, file));
    }
}

/// Direct reads of a hole are never refused, however short: what its storage wants is found out in
/// another way.
#[test]
fn a_sparse_image_on_storage_with_large_blocks_is_written_by_the_sector() {
    let storage = Scratch::new("large-blocks", 32 << 20);
    let Some(device) = loop_device(&storage.0, &["--sector-size", "4096"]) else { return };
    let Some(mounted) = Mounted::new(&device.0) else { return };
    for (k, config) in ways().into_iter().enumerate() {
        let path = mounted.0.join(format!("g{k}.img"));
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let mut image = FileImage::new(&path, config);
        let figures = open(&mut image, &WRITABLE).unwrap();
        exercise(&mut image, figures);
        // Any guest may ask for single sectors, and sees that whole blocks cost less.
        assert_eq!((figures.sector_size, figures.physical_sector_size), (512, 4096));
    }
    // The device itself has large sectors, which its guest knows. Threads let go of the images by
    // themselves, a moment later.
    while Command::new("umount").arg(&mounted.0).output().is_ok_and(|out| !out.status.success()) {
        std::thread::yield_now();
    }
    drop(mounted);
    // In small ones it goes through the page cache, which reads a large one for a part of it.
    for (native_sectors, way) in [(true, "direct"), (false, "served as 512, through the page cache")] {
        let mut image = FileImage::new(&device.0, DiskConfig::default());
        while let Err(e) = open(&mut image, &Opening { native_sectors, ..WRITABLE }) {
            assert!(matches!(e, OpenError::Busy(_)), "{e}");
            std::thread::yield_now(); // udev checks it
        }
        let text = image.describe().unwrap();
        assert!(text.contains(way), "{text}");
    }
}

#[test]
fn a_device_that_is_used_by_any_other_name_is_not_written_to() {
    let scratch = Scratch::new("loop", 1 << 20);
    let Some(device) = loop_device(&scratch.0, &[]) else { return };
    let image = |path: &Path| FileImage::new(path, DiskConfig::default());
    let busy = |path: &Path| match open(&mut image(path), &WRITABLE) {
        Err(OpenError::Busy(why)) => why,
        other => panic!("{other:?}"),
    };
    // As a mount has it, or LVM.
    let of_kernel = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&device.0).unwrap();
    let why = busy(&device.0);
    assert!(why.contains("mounted"), "{why}");
    open(&mut image(&device.0), &READ_ONLY).expect("it may be read");
    drop(of_kernel);
    // Another node of the same device has another lock.
    let node = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("node-{}", std::process::id()));
    let number = std::fs::metadata(&device.0).unwrap().rdev();
    rustix::fs::mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR, number).unwrap();
    // udev checks new devices, with a lock.
    let opened = || {
        let mut image = image(&device.0);
        while let Err(e) = open(&mut image, &WRITABLE) {
            assert!(matches!(e, OpenError::Busy(_)), "{e}");
            std::thread::yield_now();
        }
        image
    };
    let first = opened();
    let by_another_name = busy(&node);
    let why = busy(&device.0);
    std::fs::remove_file(&node).unwrap();
    assert!(by_another_name.contains("another name"), "{by_another_name}");
    assert!(why.contains("this process"), "{why}");
    drop(first);
    opened();
}

/// A device that udev, which checks new ones, may have for a moment.
fn opened(image: &mut dyn Image, how: &Opening) -> DiskFigures {
    loop {
        match open(image, how) {
            Err(OpenError::Busy(_)) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

#[test]
fn a_device_with_long_sectors_takes_short_ones() {
    let scratch = Scratch::new("loop-4096", 1 << 20);
    let Some(device) = loop_device(&scratch.0, &["--sector-size", "4096"]) else { return };
    for config in ways() {
        scratch.file().write_all_at(&vec![0; 1 << 20], 0).unwrap();
        let mut image = FileImage::new(&device.0, config);
        let figures = opened(&mut image, &WRITABLE);
        let reported = (figures.sector_size, figures.physical_sector_size, figures.sectors);
        assert_eq!(reported, (512, 4096, 2048), "{config:?}");
        let text = image.describe().unwrap();
        assert!(text.contains("sectors of 4096 bytes served as 512, through the page cache"), "{text}");
        exercise(&mut image, figures);
        // Parts of its own sectors are not discarded, nor is that an error.
        let discard = figures.discard.expect("a file has holes");
        assert!(discard.granularity >= 4096 && !discard.secure, "{discard:?}");
        let mut disk = image.queue().unwrap();
        write(&mut *disk, 0, &pattern(6, 16384), private).unwrap();
        for (sector, sectors) in [(1, 7), (9, 6), (4, 20)] {
            let op = IoOp::Discard { secure: false };
            assert_eq!(run(&mut *disk, op, sector, sectors, IoMemory::default()).outcome, Ok(()));
        }
        let mut expected = pattern(6, 16384);
        expected[4096..12288].fill(0);
        assert!(read(&mut *disk, 0, 16384, private) == Ok(expected), "{config:?}");
        drop(disk);
    }
}

#[test]
fn long_sectors_are_a_guest_s_own_where_they_are_announced() {
    let scratch = Scratch::new("loop-native", 1 << 20);
    let Some(device) = loop_device(&scratch.0, &["--sector-size", "4096"]) else { return };
    for config in ways() {
        let mut image = FileImage::new(&device.0, config);
        let figures = opened(&mut image, &Opening { native_sectors: true, ..WRITABLE });
        assert_eq!((figures.sector_size, figures.physical_sector_size, figures.sectors), (4096, 4096, 2048));
        assert!(image.describe().unwrap().contains("sectors of 4096 bytes, "), "{:?}", image.describe());
        let mut disk = image.queue().unwrap();
        for (k, make) in [private as fn(&[u8]) -> IoMemory, whole_pages].into_iter().enumerate() {
            let bytes = pattern(k, 3 * 4096);
            write(&mut *disk, 8, &bytes, make).unwrap();
            assert!(read(&mut *disk, 8, bytes.len(), make) == Ok(bytes));
        }
        drop(disk);
    }
}

/// Bytes in pages of somebody else, whole ones.
fn whole_pages(bytes: &[u8]) -> IoMemory {
    let n = bytes.len() / 4096;
    let pages = Pages::new(n);
    let piece = |k| MappedPiece::new(pages.clone(), k * 4096, 4096).unwrap();
    let mut memory = IoMemory::Mapped((0..n).map(piece).collect());
    memory.fill_from(bytes);
    memory
}

#[test]
fn bytes_behind_the_last_sector_are_said_to_be_left_out() {
    log_lines::capture();
    let scratch = Scratch::new("rest", 65536 + 300);
    let path = scratch.0.display().to_string();
    let said = || {
        log_lines::with(&path)
            .into_iter()
            .filter(|line| line.contains("not a multiple of"))
            .collect::<Vec<_>>()
    };
    let mut image = NamedImage::new(DiskConfig::default());
    let how = Opening { params: Some(path.clone()), ..WRITABLE };
    let words = |image: &NamedImage| image.face().describe();
    assert_eq!(open(&mut image, &how).unwrap().sectors, 128);
    assert!(words(&image).contains("without its last 300 bytes, which are no sector"), "{}", words(&image));
    let lines = said();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("WARN: ") && lines[0].contains("does not see the last 300 bytes"),
        "{lines:?}"
    );
    // Its remedy helps, while it is in use.
    let command = lines[0].split("with 212 zero bytes: ").nth(1).unwrap();
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    let measured = |image: &mut NamedImage| loop {
        // Until the file system has answered.
        if let Some(sectors) = image.sectors() {
            return sectors;
        }
    };
    assert_eq!(measured(&mut image), 129);
    assert!(!words(&image).contains("without"), "{}", words(&image));
    // It grows by less than a sector, and then by more.
    for (len, sectors, tail) in [(129 * 512 + 1, 129, 1), (200 * 512 + 511, 200, 511)] {
        scratch.file().set_len(len).unwrap();
        assert_eq!(measured(&mut image), sectors);
        assert!(words(&image).contains(&format!("without its last {tail} bytes")), "{}", words(&image));
        assert!(
            said().last().unwrap().contains(&format!("does not see the last {tail} bytes")),
            "{:?}",
            said()
        );
    }
    // A second open gets the place described, and the log not once more.
    let lines = said().len();
    assert_eq!(lines, 3);
    image.close();
    assert_eq!(opened(&mut image, &how).sectors, 200);
    assert!(words(&image).contains("without its last 511 bytes"), "{}", words(&image));
    assert_eq!(said().len(), lines);
}

#[test]
fn a_device_of_the_same_number_is_another_device() {
    let (first, second) =
        (Scratch::new("first-of-number", 1 << 20), Scratch::new("second-of-number", 1 << 20));
    let Some(device) = loop_device(&first.0, &[]) else { return };
    let identity = || {
        let mut image = FileImage::new(&device.0, DiskConfig::default());
        while let Err(e) = open(&mut image, &WRITABLE) {
            assert!(matches!(e, OpenError::Busy(_)), "{e}");
            std::thread::yield_now(); // udev checks it
        }
        image.identity().unwrap()
    };
    let before = identity();
    assert_eq!(identity(), before);
    first.file().set_len(1 << 21).unwrap();
    let losetup = |args: &[&str]| {
        let mut command = Command::new("losetup");
        assert!(command.args(args).arg(&device.0).status().unwrap().success(), "{args:?}");
    };
    losetup(&["--set-capacity"]);
    assert_eq!(identity(), before, "one that grew is the same");
    let number = std::fs::metadata(&device.0).unwrap().rdev();
    losetup(&["--detach"]);
    // A process that searched for a free one may have it for a while.
    while !Command::new("losetup").arg(&device.0).arg(&second.0).output().unwrap().status.success() {
        std::thread::yield_now();
    }
    assert_eq!(std::fs::metadata(&device.0).unwrap().rdev(), number);
    if !before.contains("disk ") {
        return skip("this kernel does not count disks");
    }
    assert_ne!(identity(), before);
}

#[test]
fn a_file_that_ends_early_or_is_full_is_an_error() {
    for config in ways() {
        let scratch = Scratch::new(&format!("short-{}-{}", config.io, config.direct), 1 << 20);
        let mut image = FileImage::new(&scratch.0, config);
        open(&mut image, &WRITABLE).unwrap();
        let mut disk = image.queue().unwrap();
        scratch.file().set_len(10 * 512).unwrap();
        assert_eq!(read(&mut *disk, 2000, 512, private), Err(IoError::Failed));
        assert_eq!(read(&mut *disk, 9, 2048, mapped), Err(IoError::Failed), "a part of it is there");
        assert_eq!(read(&mut *disk, 0, 512, private), Ok(vec![0; 512]));
        let measured = |image: &mut FileImage| loop {
            // None where its thread had no processor for a while.
            if let Some(sectors) = image.sectors() {
                break sectors;
            }
        };
        assert_eq!(measured(&mut image), 10);
        scratch.file().set_len(1 << 21).unwrap();
        assert_eq!(measured(&mut image), 4096);
    }
}

#[test]
fn what_cannot_be_an_image_says_so() {
    let config = DiskConfig::default();
    let open = |params: &str| {
        let params = Some(params.to_string());
        match open(&mut NamedImage::new(config), &Opening { params, ..WRITABLE }) {
            Err(OpenError::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    for (params, says) in [
        ("/nonexistent/x", "no such file"),
        ("/dev/null", "not an image"),
        ("/proc", "directory"),
        ("qcow2:/x", "qemu-img"),
    ] {
        let why = open(params);
        assert!(why.to_lowercase().contains(says), "{params}: {why}");
    }
    let empty = Scratch::new("empty", 0);
    assert!(open(empty.0.to_str().unwrap()).contains("truncate"));
    let Err(OpenError::Failed(why)) = NamedImage::new(config).open(&WRITABLE) else { panic!() };
    assert!(why.contains("params"), "{why}");
}

#[test]
fn a_name_leads_to_its_image() {
    let scratch = Scratch::new("named", 65536);
    let mut image = NamedImage::new(DiskConfig::default());
    let how = |params: String| Opening { params: Some(params), ..WRITABLE };
    let figures = open(&mut image, &how(format!("aio:{}", scratch.0.display()))).unwrap();
    assert_eq!(figures.sectors, 128);
    let mut disk = image.queue().unwrap();
    write(&mut *disk, 0, &pattern(3, 512), private).unwrap();
    assert_eq!(image.face().take_readable().iter().flatten().count(), 1);
    assert!(image.face().describe().contains("named"), "{}", image.face().describe());
    drop(disk);
    image.close();
    assert_eq!(image.face().describe(), "");
    // A disk in memory keeps its bytes from one connection to the next.
    for turn in 0..2 {
        assert_eq!(open(&mut image, &how("ram:64K".into())).unwrap().sectors, 128);
        let mut disk = image.queue().unwrap();
        assert_eq!(read(&mut *disk, 0, 512, private).unwrap()[1], 7 * turn);
        write(&mut *disk, 0, &pattern(0, 512), private).unwrap();
        assert!(image.face().take_readable().iter().all(Option::is_none));
        image.close();
    }
}
