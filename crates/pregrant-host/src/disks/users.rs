//! Users of an image that do not take our [`lock`](super::lock): the kernel's loop devices and file
//! systems, and qemu.
//!
//! ```text
//!   our lock (flock)     this program's processes alone
//!   loop devices         sysfs: backing_file; the same inode, or the same device
//!   mounts               /proc/self/mountinfo: the image itself, and a loop device on it
//!   qemu, qemu-img       locks of two bytes of the file:  101 "I write",  201 "no one else writes"
//! ```
//! | a guest | a loop device | a mount | byte 101 | byte 201 |
//! |---|---|---|---|---|
//! | writes | excludes it | excludes it | excludes it | excludes it |
//! | writes, and did before this process | if that is writable | if that writes | excludes it | excludes it |
//! | reads | if it is mounted and that writes | if that writes | excludes it | does not |
//!
//! A connected image has qemu's locks as well, so that qemu-img refuses what would harm its guest.
//! Like [`lock`](super::lock) they belong to the open file, so that requests of a dead process hold
//! them.
//!
//! The guest's own device model, which has the image for an emulated disk, is none of those: the
//! disk is both, until the guest's driver unplugs the emulated one. qemu's own back does the same.
//!
//! What a guest may do: nothing here. Services of this domain may have mount namespaces of their
//! own, whose mounts are not found; a device that is written to has `O_EXCL` against these.

use super::open_file::ImageNumber;
use crate::byte_lock;
use pregrant::DomId;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, major, makedev, minor, openat2,
    stat, statx,
};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// The use that a guest makes of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Purpose {
    pub guest: DomId,
    /// The guest may write.
    pub writable: bool,
    /// The guest was connected to the image before this process started.
    pub is_live: bool,
}

/// The offset from which on qemu locks bytes of a file.
const FIRST_BYTE: i64 = 100;
/// The byte that qemu locks if it writes to the file. The next constant is the byte that it locks
/// if no other process may write.
const WRITES: i64 = 101;
const NO_OTHER_WRITES: i64 = 201;

/// Describes a user that excludes this purpose, and how to end its use.
pub(super) fn excluding(fd: BorrowedFd<'_>, stat: &Stat, path: &Path, purpose: Purpose) -> Option<String> {
    let image = Image::new(fd, stat);
    let mounts = Mount::all(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let counts = |writes: bool| writes || purpose.writable && !purpose.is_live;
    let at = |mount: &Mount| mount.at.display().to_string();
    if let Some(mount) =
        mounts.iter().find(|mount| counts(mount.writes) && image.is(&mount.source, mount.number))
    {
        return Some(format!("it is mounted at {at}; umount {at}", at = at(mount)));
    }
    for on in LoopDevice::all().filter(|on| image.is(&on.file, 0)) {
        let mount = mounts.iter().find(|mount| counts(mount.writes) && on.has(mount.number));
        let name = &on.name;
        match mount {
            Some(mount) => {
                return Some(format!(
                    "the loop device {name} has it and is mounted at {at}; umount {at}",
                    at = at(mount)
                ));
            }
            None if purpose.writable && counts(on.writable) => {
                return Some(format!(
                    "the loop device {name} has it; losetup -d {name}, once no one uses that"
                ));
            }
            None => {}
        }
    }
    let excluded = has(fd, WRITES) || purpose.writable && has(fd, NO_OTHER_WRITES);
    if excluded && !is_with_device_model(path, purpose.guest) {
        let does = if has(fd, WRITES) { "writes to it" } else { "reads it and lets no one write" };
        return Some(format!("a qemu or qemu-img {does} (fuser -v {} says which); end that", path.display()));
    }
    None
}

/// Acquires the locks that qemu checks. On a file system without such locks there is still the
/// other [`lock`](super::lock).
pub(super) fn lock_for_qemu(fd: BorrowedFd<'_>, writable: bool) {
    for byte in [writable.then_some(WRITES), Some(NO_OTHER_WRITES)].into_iter().flatten() {
        let _ = byte_lock::take(fd, byte..byte + 1, byte_lock::Kind::Shared);
    }
}

/// True if another open file has locked this very byte, as qemu does. A lock of the whole file does
/// not count: on NFS that is the other [`lock`](super::lock).
fn has(fd: BorrowedFd<'_>, byte: i64) -> bool {
    byte_lock::other(fd, byte..byte + 1).is_some_and(|first| first >= FIRST_BYTE)
}

/// Returns true if this guest's device model has the image among its arguments.
fn is_with_device_model(path: &Path, guest: DomId) -> bool {
    let Some(path) = path.to_str() else { return false };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| is_device_model(&line, path, guest))
}

/// Returns true if a process with these arguments is this guest's device model and uses an image of
/// this path.
fn is_device_model(cmdline: &[u8], path: &str, guest: DomId) -> bool {
    let arguments: Vec<_> = cmdline.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let number = guest.0.to_string();
    let serves = arguments.array_windows().any(|[name, value]| name == "-xen-domid" && *value == number);
    let names_it = |argument: &str| argument.split([',', '=', '"']).any(|part| part == path);
    serves && arguments.iter().any(|argument| names_it(argument))
}

/// The names of an open image.
struct Image {
    number: ImageNumber,
    /// The numbers of a device and of its partitions.
    devices: Vec<u64>,
    /// The path to which the descriptor in `/proc` of the open image leads.
    path: Option<PathBuf>,
}

impl Image {
    fn new(fd: BorrowedFd<'_>, stat: &Stat) -> Self {
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Self {
            number: ImageNumber::of(stat),
            devices: if is_device { numbers_of(stat.st_rdev) } else { Vec::new() },
            path: fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).ok(),
        }
    }

    /// Returns true if this path, or the device of this number (0: none), is the image.
    fn is(&self, named: &Path, number: u64) -> bool {
        if self.devices.contains(&number) {
            return true;
        }
        // Anything else is a keyword or a server's path.
        if !named.is_absolute() {
            return false;
        }
        match number_of(named) {
            Ok(number) => number == self.number,
            // It is not visible to this process: compare the path that it had.
            Err(_) => self.path.as_deref() == Some(named),
        }
    }
}

/// Returns the numbers of a block device and of its partitions.
fn numbers_of(device: u64) -> Vec<u64> {
    let at = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    [vec![device], numbers_at(Path::new(&at))].concat()
}

/// Returns the device numbers of the device in this directory of sysfs, and of its partitions.
fn numbers_at(at: &Path) -> Vec<u64> {
    let parts = fs::read_dir(at).into_iter().flatten().flatten().map(|part| part.path());
    let all = parts.chain([at.into()]);
    all.filter_map(|at| number(&fs::read_to_string(at.join("dev")).ok()?)).collect()
}

/// Returns the number of the inode at a path, from the kernel's cache, in which an open file always
/// is. A file system that hangs is not queried, so it does not block the images of other file
/// systems.
fn number_of(path: &Path) -> Result<ImageNumber, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(found) => {
            let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let said = statx(&found, "", how, StatxFlags::TYPE | StatxFlags::INO)?;
            let device = makedev(said.stx_rdev_major, said.stx_rdev_minor);
            let file_system = makedev(said.stx_dev_major, said.stx_dev_minor);
            Ok(ImageNumber::from_parts(said.stx_mode.into(), device, (file_system, said.stx_ino)))
        }
        // A kernel before 5.12.
        Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => stat(path).map(|stat| ImageNumber::of(&stat)),
        Err(e) => Err(e),
    }
}

/// A loop device with a backing file.
struct LoopDevice {
    name: String,
    file: PathBuf,
    writable: bool,
    /// The numbers of the device and of its partitions.
    numbers: Vec<u64>,
}

impl LoopDevice {
    fn all() -> impl Iterator<Item = Self> {
        let there = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        there.filter_map(|entry| {
            let at = entry.path();
            let file = fs::read_to_string(at.join("loop/backing_file")).ok()?;
            Some(Self {
                name: format!("/dev/{}", entry.file_name().to_string_lossy()),
                file: PathBuf::from(file.trim_end_matches('\n')),
                writable: fs::read_to_string(at.join("ro")).is_ok_and(|ro| ro.trim() == "0"),
                numbers: numbers_at(&at),
            })
        })
    }

    fn has(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }
}

/// Parses `7:0`, the form of a device's number in sysfs and mountinfo.
fn number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// An entry of `/proc/self/mountinfo`.
#[derive(PartialEq, Eq, Debug)]
struct Mount {
    number: u64,
    at: PathBuf,
    source: PathBuf,
    writes: bool,
}

impl Mount {
    fn all(mountinfo: &str) -> Vec<Self> {
        mountinfo.lines().filter_map(Self::of_line).collect()
    }

    /// Parses a line such as `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root
    /// rw,errors=continue`.
    fn of_line(line: &str) -> Option<Self> {
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ').skip(2);
        let (device, at) = (head.next()?, head.nth(1)?);
        let mut tail = tail.split(' ').skip(1);
        let (source, options) = (tail.next()?, tail.next()?);
        Some(Self {
            number: number(device)?,
            at: unescaped(at).into(),
            source: unescaped(source).into(),
            // The option of the file system, not of one of its mounts.
            writes: options.split(',').any(|option| option == "rw"),
        })
    }
}

/// Decodes the octal escapes of mountinfo for blanks, tabs, line feeds and backslashes.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.into(), |text: String, (number, byte)| text.replace(number, byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn mounts_are_read() {
        let text = "36 35 98:0 / /a\\040b rw,noatime master:1 - ext4 /dev/x ro\n37 35 0:44 / /c ro - fuse.f /d.img rw,x\nodd\n";
        let mount = |number, at: &str, source: &str, writes| Mount {
            number,
            at: at.into(),
            source: source.into(),
            writes,
        };
        let (disk, fuse) = (makedev(98, 0), makedev(0, 44));
        assert_eq!(
            Mount::all(text),
            [mount(disk, "/a b", "/dev/x", false), mount(fuse, "/c", "/d.img", true)]
        );
    }

    #[test]
    fn a_device_model_is_its_own_guests_and_names_the_image() {
        let line = "qemu-system-i386 -xen-domid 5 -drive file=/d/a,b.img,if=ide -drive file=/d/c.img,if=ide ";
        let line = line.replace(' ', "\0");
        let is = |path, guest| is_device_model(line.as_bytes(), path, DomId(guest));
        assert!(is("/d/c.img", 5));
        assert!(!is("/d/c.img", 55) && !is("/d/c.img", 0) && !is("/d/c", 5) && !is("/d/other.img", 5));
        assert!(!is_device_model(b"qemu-img\0convert\0/d/c.img\0-xen-domid\0", "/d/c.img", DomId(5)));
    }

    #[test]
    fn qemus_locks_are_seen_by_others_until_their_file_is_closed() {
        let path = std::env::temp_dir().join(format!("pregrant-qemu-lock-{}", std::process::id()));
        fs::write(&path, [0; 512]).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (ours, other) = (open(), open());
        for (writable, seen) in [(false, [false, true]), (true, [true, true])] {
            lock_for_qemu(ours.as_fd(), writable);
            assert_eq!([WRITES, NO_OTHER_WRITES].map(|byte| has(other.as_fd(), byte)), seen);
            assert_eq!(
                [WRITES, NO_OTHER_WRITES].map(|byte| has(ours.as_fd(), byte)),
                [false; 2],
                "it has them itself"
            );
        }
        drop(ours);
        assert_eq!([WRITES, NO_OTHER_WRITES].map(|byte| has(other.as_fd(), byte)), [false; 2]);
        fs::remove_file(&path).unwrap();
    }
}
