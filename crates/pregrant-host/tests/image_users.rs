//! Other users of an image: the kernel's loop devices and mounts, and qemu; and to which file a
//! path leads while it is opened.

use nix::fcntl::{FcntlArg, fcntl};
use pregrant::DomId;
use pregrant::blk::disk::{Buffer, Disk, DiskFigures, Image, Io, IoMemory, IoOp, OpenError, Opening};
use pregrant_host::disks::{DiskConfig, FileImage, IoWay};
use pregrant_testkit::skip::skip;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const READ: Opening = Opening {
    guest: DomId(5),
    params: None,
    writable: false,
    is_live: false,
    native_sectors: false,
    is_trial: false,
};
const WRITE: Opening = Opening { writable: true, ..READ };
const WRITE_ON: Opening = Opening { is_live: true, ..WRITE };

/// A name that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn name() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("users-{}-{n}", std::process::id())))
    }

    fn file() -> Self {
        let scratch = Self::name();
        File::create(&scratch.0).unwrap().set_len(16 << 20).unwrap();
        scratch
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0).or_else(|_| std::fs::remove_dir(&self.0));
    }
}

/// The output of a command. None: it failed, which was printed.
fn output(command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(out) if out.status.success() => Some(String::from_utf8_lossy(&out.stdout).trim().into()),
        Ok(out) => {
            skip(format_args!("{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim()));
            None
        }
        Err(e) => {
            skip(format_args!("{command:?}: {e}"));
            None
        }
    }
}

/// Undone at the end: `umount`, `losetup --detach`.
struct Undo(&'static [&'static str], PathBuf);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Command::new(self.0[0]).args(&self.0[1..]).arg(&self.1).output();
    }
}

fn loop_device(file: &Path, more: &[&str]) -> Option<Undo> {
    let name = output(Command::new("losetup").args(["--find", "--show"]).args(more).arg(file))?;
    Some(Undo(&["losetup", "--detach"], name.into()))
}

fn mount(what: &Path, at: &Path, how: &str) -> Option<Undo> {
    output(Command::new("mount").args(["-o", how]).arg(what).arg(at))?;
    Some(Undo(&["umount"], at.into()))
}

/// Opens an image and closes it again; retries if the machine is too slow.
fn open(path: &Path, how: &Opening) -> Result<DiskFigures, String> {
    let mut image = FileImage::new(path, DiskConfig::default());
    loop {
        match image.open(how) {
            Err(OpenError::Busy(why)) if why.contains("has not answered yet") => std::thread::yield_now(),
            other => return other.map_err(|e| e.to_string()),
        }
    }
}

/// A lock that an earlier opening still has after this time is never released.
const HANGS: Duration = Duration::from_secs(60);

/// Checks that an image opens, possibly only after the previous user has released it.
fn opens(path: &Path, how: &Opening) {
    let began = Instant::now();
    while let Err(refusal) = open(path, how) {
        assert!(began.elapsed() < HANGS, "{refusal}");
        std::thread::yield_now();
    }
}

/// Checks that an image is refused, with these parts in the text.
fn refused(path: &Path, how: &Opening, why: &[&str]) {
    let refusal = || open(path, how).expect_err("it is served");
    let began = Instant::now();
    let mut said = refusal();
    while said.contains("has its lock") {
        assert!(began.elapsed() < HANGS, "{said}");
        std::thread::yield_now();
        said = refusal();
    }
    assert!(why.iter().all(|part| said.contains(part)), "{said}: no {why:?}");
}

#[test]
fn a_file_that_a_loop_device_has_is_not_written_to() {
    let file = Scratch::file();
    for (more, writes) in [(&["--read-only"][..], false), (&[], true)] {
        let Some(device) = loop_device(&file.0, more) else { return };
        let name = device.1.to_str().unwrap();
        refused(&file.0, &WRITE, &["in use:", name, "losetup -d"]);
        opens(&file.0, &READ);
        // Its guest was there first, and a reader does no harm to it.
        match writes {
            true => refused(&file.0, &WRITE_ON, &[name]),
            false => opens(&file.0, &WRITE_ON),
        }
        // By another name of the same file.
        let link = Scratch::name();
        std::fs::hard_link(&file.0, &link.0).unwrap();
        refused(&link.0, &WRITE, &[name]);
        drop(device);
        opens(&file.0, &WRITE);
    }
}

#[test]
fn what_is_mounted_here_is_not_written_to_nor_read_where_the_mount_writes() {
    let (file, dir) = (Scratch::file(), Scratch::name());
    std::fs::create_dir(&dir.0).unwrap();
    if output(Command::new("mkfs.ext4").arg("-q").arg(&file.0)).is_none() {
        return;
    }
    let at = dir.0.to_str().unwrap();
    for (how, writes) in [("loop,ro", false), ("loop,rw", true)] {
        let Some(mounted) = mount(&file.0, &dir.0, how) else { return };
        refused(&file.0, &WRITE, &["mounted at", at, "umount"]);
        match writes {
            true => refused(&file.0, &READ, &["for writing", at]),
            false => opens(&file.0, &READ),
        }
        drop(mounted);
        opens(&file.0, &WRITE);
    }
    // The device itself: its guest reads.
    let Some(device) = loop_device(&file.0, &[]) else { return };
    for (how, writes) in [("ro", false), ("rw", true)] {
        let Some(mounted) = mount(&device.1, &dir.0, how) else { return };
        match writes {
            true => refused(&device.1, &READ, &["for writing", at]),
            false => opens(&device.1, &READ),
        }
        drop(mounted);
        opens(&device.1, &WRITE);
    }
}

/// A loop device with a partition of 8 MiB, and the partition's path. None: the reason was printed.
fn with_partition(file: &Path, more: &[&str]) -> Option<(Undo, PathBuf)> {
    let device = loop_device(file, &[&["--partscan"], more].concat())?;
    // The kernel may know no partition tables.
    output(Command::new("addpart").arg(&device.1).args(["1", "2048", "16384"]))?;
    let part = PathBuf::from(format!("{}p1", device.1.display()));
    Some((device, part))
}

/// Its guest would read what the mount writes.
#[test]
fn a_device_with_a_mounted_partition_is_not_read() {
    let (file, dir) = (Scratch::file(), Scratch::name());
    std::fs::create_dir(&dir.0).unwrap();
    let Some((device, part)) = with_partition(&file.0, &[]) else { return };
    if output(Command::new("mkfs.ext4").arg("-q").arg(&part)).is_none() {
        return;
    }
    let Some(mounted) = mount(&part, &dir.0, "rw") else { return };
    refused(&device.1, &READ, &["for writing", dir.0.to_str().unwrap()]);
    drop(mounted);
    opens(&device.1, &READ);
}

fn qemus_lock(byte: i64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn has(file: &File, byte: i64) -> bool {
    let mut lock = qemus_lock(byte, libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).unwrap();
    lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Byte 101: it writes; byte 201: it lets no one else write.
#[test]
fn qemu_and_a_guest_exclude_each_other() {
    let file = Scratch::file();
    for (byte, read) in [(101, false), (201, true)] {
        let qemu = file.open();
        fcntl(&qemu, FcntlArg::F_OFD_SETLK(&qemus_lock(byte, libc::F_RDLCK))).unwrap();
        for how in [&WRITE, &WRITE_ON] {
            refused(&file.0, how, &["qemu", "fuser -v"]);
        }
        match read {
            true => opens(&file.0, &READ),
            false => refused(&file.0, &READ, &["for writing", "qemu"]),
        }
        drop(qemu);
        opens(&file.0, &WRITE);
    }
    let other = file.open();
    for (how, seen) in
        [(Opening { is_trial: true, ..WRITE }, [false, false]), (READ, [false, true]), (WRITE, [true, true])]
    {
        let mut image = FileImage::new(&file.0, DiskConfig::default());
        while image.open(&how).is_err() {
            std::thread::yield_now();
        }
        assert_eq!([101, 201].map(|byte| has(&other, byte)), seen, "{how:?}");
        if how == WRITE && output(Command::new("qemu-img").arg("--version")).is_some() {
            let out = Command::new("qemu-img").args(["resize", "-f", "raw"]).arg(&file.0).arg("32M").output();
            let out = out.unwrap();
            assert!(
                !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("lock"),
                "{out:?}"
            );
        }
    }
}

/// A CD drive stays open when its medium is changed, and the kernel would then read the new medium.
#[test]
fn another_medium_is_not_read_through_what_was_opened_before() {
    let (first, second) = (Scratch::file(), Scratch::file());
    for (io, of_partition) in IoWay::ALL.into_iter().flat_map(|io| [(io, false), (io, true)]) {
        let Some((device, part)) = with_partition(&first.0, &["--read-only"]) else { return };
        let path = if of_partition { &part } else { &device.1 };
        let mut image = FileImage::new(path, DiskConfig { io, direct: true });
        let open = |image: &mut FileImage| {
            while image.open(&READ).is_err() {
                std::thread::yield_now();
            }
        };
        open(&mut image);
        let read = |disk: &mut dyn Disk| {
            let mut buffer = Buffer::new(512);
            buffer.set_len(512);
            disk.submit(Io {
                token: 1,
                op: IoOp::Read,
                sector: 9,
                sectors: 1,
                memory: IoMemory::Private(buffer),
            });
            disk.start();
            let mut done = Vec::new();
            while done.is_empty() {
                disk.wait();
                disk.complete(&mut done);
            }
            done[0].outcome
        };
        let mut disk = image.queue().unwrap();
        assert_eq!(read(&mut *disk), Ok(()), "{io} {of_partition}");
        let before = image.identity();
        let drive = File::open(&device.1).unwrap();
        // LOOP_CHANGE_FD
        // SAFETY: it takes a descriptor, which is open, and changes no memory of this process.
        let changed = unsafe { libc::ioctl(drive.as_raw_fd(), 0x4c06, second.open().as_raw_fd()) };
        assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
        if !before.is_some_and(|identity| identity.contains("disk ")) {
            return skip("this kernel does not count media");
        }
        // It is seen when its length is asked for, each second.
        while read(&mut *disk).is_ok() {
            image.sectors();
            std::thread::yield_now();
        }
        assert!(read(&mut *disk).is_err() && image.sectors().is_none(), "{io} {of_partition}");
        drop(disk);
        image.close();
        open(&mut image);
        assert_eq!(
            read(&mut *image.queue().unwrap()),
            Ok(()),
            "{io} {of_partition}: the medium of the next connection"
        );
    }
}

/// Whether an image is a device is decided by the opened file, not by what the path led to before.
#[test]
fn a_path_that_changes_meanwhile_opens_no_device_that_is_in_use() {
    let (file, below, link) = (Scratch::file(), Scratch::file(), Scratch::name());
    // So that it is known which of them was opened.
    below.open().set_len(8 << 20).unwrap();
    let Some(device) = loop_device(&below.0, &[]) else { return };
    // As a mount has it.
    let in_use = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&device.1);
    let Ok(_in_use) = in_use else { return skip(format_args!("{in_use:?}")) };
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let next = link.0.with_extension("next");
            for k in 0.. {
                let to = if k % 2 == 0 { &file.0 } else { &device.1 };
                std::os::unix::fs::symlink(to, &next).unwrap();
                std::fs::rename(&next, &link.0).unwrap();
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut devices = 0;
        for _ in 0..1500 {
            devices +=
                u32::from(open(&link.0, &WRITE).is_ok_and(|figures| figures.sectors == (8 << 20) / 512));
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(devices, 0, "a device that is in use was opened for writing");
    });
}
