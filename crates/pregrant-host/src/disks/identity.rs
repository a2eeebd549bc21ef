//! The identity of an image, different from that of any other that its path may lead to: the same
//! each time that it is opened, while this machine runs.
//!
//! | an image | is identified by |
//! |---|---|
//! | file | its inode and its file system; and, for an inode's number is given again, its generation and when it was made |
//! | file system | its device; where that has no device of its own (NFS, btrfs, ZFS, FUSE), its number is another at each mount, and its kind and the id that it says count |
//! | volume of the device mapper | the UUID that LVM, multipath or cryptsetup gave it: it stays when the volume is switched off and on, and another volume of its name has another |
//! | other block device | its number, and the kernel's count of disks and media (`diskseq`, Linux 5.15), which no other disk gets, nor another medium in the same drive; of a partition where it begins |
//!
//! Kept beside a guest's connection and compared as text by successors, which may be other versions
//! of this program: another wording here is another image to them, and so a change of the version
//! of `pregrant::blk::back::kept_image`.

use super::device;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, StatxFlags, fstat, fstatfs, fstatvfs, major, minor, statx};

/// The major number of loop devices.
const LOOP: u32 = 7;

/// Returns the identity of an open file or block device. None: the kernel does not tell.
pub(super) fn of(fd: BorrowedFd<'_>, is_device: bool) -> Option<String> {
    let stat = fstat(fd).ok()?;
    if is_device {
        return Some(of_device(stat.st_rdev));
    }
    let mut text = format!("file {} of {}", stat.st_ino, file_system(fd, stat.st_dev));
    if let Some(generation) = device::generation(fd) {
        text += &format!(", generation {generation}");
    }
    let said = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    if let Some(said) = said.ok().filter(|said| said.stx_mask & StatxFlags::BTIME.bits() != 0) {
        text += &format!(", made at {}.{:09}", said.stx_btime.tv_sec, said.stx_btime.tv_nsec);
    }
    Some(text)
}

/// Returns the kernel's count of media in a drive whose medium may change while it is open: a
/// removable device or a loop device. None: the device is not such a drive, or the kernel does not
/// report the count. For other devices (ZFS) the count may also change with the length.
pub(super) fn medium(fd: BorrowedFd<'_>) -> Option<String> {
    let number = fstat(fd).ok()?.st_rdev;
    let is_removable = || device::of_disk(number, "removable").is_some_and(|removable| removable == "1");
    let changes =
        major(number) == LOOP || device::of_disk(number, "loop/backing_file").is_some() || is_removable();
    device::of_disk(number, "diskseq").filter(|_| changes)
}

fn file_system(fd: BorrowedFd<'_>, device: u64) -> String {
    match (major(device), fstatfs(fd), fstatvfs(fd)) {
        // Some file systems report an id of 0; then their type must suffice.
        (0, Ok(of), Ok(said)) => format!("file system {:x}, id {:x}", of.f_type, said.f_fsid),
        (major, ..) => format!("device {major}:{}", minor(device)),
    }
}

fn of_device(number: u64) -> String {
    if let Some(uuid) = device::sysfs_value(number, "dm/uuid").filter(|uuid| !uuid.is_empty()) {
        return format!("volume {uuid}");
    }
    let mut text = format!("device {}:{}", major(number), minor(number));
    for (name, value) in
        [("disk", device::of_disk(number, "diskseq")), ("from sector", device::sysfs_value(number, "start"))]
    {
        if let Some(value) = value {
            text += &format!(", {name} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs::{self, File};

    /// tmpfs has no device, so its device number must not be part of the identity if there is a
    /// file system id.
    #[test]
    fn a_device_number_that_is_another_at_each_mount_does_not_count() {
        let of_shm = file_system(File::open("/dev/shm").unwrap().as_fd(), 7);
        assert!(of_shm.starts_with("file system 1021994, id "), "{of_shm}");
        let of_disk = file_system(File::open("/dev/shm").unwrap().as_fd(), rustix::fs::makedev(8, 7));
        assert_eq!(of_disk, "device 8:7");
    }

    #[test]
    fn a_file_that_is_made_again_is_another_and_one_that_is_renamed_is_not() {
        let path = |name: &str| std::env::temp_dir().join(format!("pregrant-{}-{name}", std::process::id()));
        let (a, b) = (path("a"), path("b"));
        let made = |path| of(File::create(path).unwrap().as_fd(), false).unwrap();
        let first = made(&a);
        assert_eq!(of(File::open(&a).unwrap().as_fd(), false).unwrap(), first);
        fs::rename(&a, &b).unwrap();
        assert_eq!(of(File::open(&b).unwrap().as_fd(), false).unwrap(), first);
        // A longer file that was written to.
        fs::write(&b, [1; 9000]).unwrap();
        assert_eq!(of(File::open(&b).unwrap().as_fd(), false).unwrap(), first);
        assert_ne!(made(&a), first);
        // Frees its inode number for the next file.
        fs::remove_file(&b).unwrap();
        fs::remove_file(&a).unwrap();
        for _ in 0..8 {
            // Longer than a tick of the clock that file systems without generations take their
            // times from.
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_ne!(made(&a), first);
            fs::remove_file(&a).unwrap();
        }
    }
}
