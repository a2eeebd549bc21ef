//! A block device's properties and its discards, by ioctls of the kernel's block layer and by
//! sysfs; and a file's generation, by an ioctl.
#![expect(unsafe_code, reason = "ioctls on a block device, and on a file for its generation")]

use pregrant::blk::disk::Discard;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, fstat, ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKSECDISCARD: Opcode = opcode::none(0x12, 125);
/// FS_IOC_GETVERSION: the file systems write an int, whatever the number says.
const GETVERSION: Opcode = opcode::read::<core::ffi::c_long>(b'v', 1);

/// Bytes of its logical and physical sectors.
pub(super) fn sector_sizes(device: impl AsFd) -> Result<(u32, u32), Errno> {
    let logical = ioctl_blksszget(&device)?;
    Ok((logical, ioctl_blkpbszget(&device).unwrap_or(logical).max(logical)))
}

/// Bytes of the logical sectors of the device that an open file is on, or that it is; None: it is
/// on none, or on several.
pub(super) fn sector_size_below(fd: BorrowedFd<'_>) -> Option<u32> {
    let stat = fstat(fd).ok()?;
    let number = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => stat.st_rdev,
        _ => stat.st_dev,
    };
    of_queue(number, "logical_block_size").filter(|bytes| bytes.is_power_of_two())
}

/// How it discards; None: not at all.
pub(super) fn discards(device: impl AsFd, sector_size: u32) -> Option<Discard> {
    let device = device.as_fd();
    if !knows(device, false) {
        return None;
    }
    let number = fstat(device).ok()?.st_rdev;
    let granularity = of_queue(number, "discard_granularity");
    Some(Discard {
        granularity: granularity.filter(|bytes| *bytes >= sector_size).unwrap_or(sector_size),
        alignment: sysfs(number, "discard_alignment").unwrap_or(0),
        secure: knows(device, true),
        // The kernel promises nothing of what a discarded sector of a device holds.
        zeroes: false,
    })
}

/// Discards the whole sectors of `sector_size` bytes among the `len` bytes from `at` on. Sleeps
/// until it is done.
pub(super) fn discard_sectors(
    device: impl AsFd,
    (at, len): (u64, u64),
    sector_size: u32,
    secure: bool,
) -> Result<(), Errno> {
    let sector = u64::from(sector_size);
    let (begin, end) = (at.next_multiple_of(sector), (at + len) / sector * sector);
    // Parts of sectors keep what they hold, as they may: a disk whose guest asks for parts has no
    // secure discards.
    if begin >= end { Ok(()) } else { discard(device, begin, end - begin, secure) }
}

/// Discards `len` bytes from `at` on, whole sectors. Sleeps until it is done.
fn discard(device: impl AsFd, at: u64, len: u64, secure: bool) -> Result<(), Errno> {
    let range = [at, len];
    // SAFETY: both ioctls read two words of 64 bits, which are there, and change no memory of this
    // process.
    unsafe {
        match secure {
            false => ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new(range)),
            true => ioctl(device, Setter::<BLKSECDISCARD, [u64; 2]>::new(range)),
        }
    }
}

/// Which of the files that have had this file's inode it is, where the file system counts them.
pub(super) fn generation(file: impl AsFd) -> Option<u32> {
    let mut version = [0i32; 2];
    // SAFETY: it writes an int or a long, for which there is room, and changes no other memory of
    // this process.
    unsafe { ioctl(file, Updater::<GETVERSION, [i32; 2]>::new(&mut version)) }.ok()?;
    Some(version[0] as u32)
}

/// Whether it discards so: it says so before it says that this range is none, which is why nothing
/// is discarded.
fn knows(device: BorrowedFd<'_>, secure: bool) -> bool {
    discard(device, 1, 1, secure) == Err(Errno::INVAL)
}

/// A number that sysfs has of a device's queue, which a partition has of its disk.
fn of_queue(number: u64, name: &str) -> Option<u32> {
    of_disk(number, &format!("queue/{name}"))?.parse().ok()
}

/// What sysfs has of a disk, also for its partitions.
pub(super) fn of_disk(number: u64, name: &str) -> Option<String> {
    sysfs_value(number, name).or_else(|| sysfs_value(number, &format!("../{name}")))
}

/// A number that sysfs has of it.
fn sysfs(number: u64, name: &str) -> Option<u32> {
    sysfs_value(number, name)?.parse().ok()
}

/// The entries of sysfs for the block device of this number.
pub(super) fn sysfs_value(number: u64, name: &str) -> Option<String> {
    let at = format!("/sys/dev/block/{}:{}/{name}", major(number), minor(number));
    Some(std::fs::read_to_string(at).ok()?.trim().into())
}
