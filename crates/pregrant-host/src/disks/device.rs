//! Reads a block device's properties and discards its sectors, by ioctls of the kernel's block
//! layer and by sysfs. Also reads a file's generation, by an ioctl.
#![expect(unsafe_code, reason = "ioctls on a block device, and on a file for its generation")]

use pregrant::blk::disk::Discard;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, fstat, ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKSECDISCARD: Opcode = opcode::none(0x12, 125);
/// FS_IOC_GETVERSION. Its number names a long, but file systems write an int.
const GETVERSION: Opcode = opcode::read::<core::ffi::c_long>(b'v', 1);

/// Returns the sizes in bytes of the device's logical and physical sectors.
pub(super) fn sector_sizes(device: impl AsFd) -> Result<(u32, u32), Errno> {
    let logical = ioctl_blksszget(&device)?;
    Ok((logical, ioctl_blkpbszget(&device).unwrap_or(logical).max(logical)))
}

/// Returns the length of the logical sectors of the device that holds an open file, or that it is.
/// None: the file is on no device, or on several.
pub(super) fn sector_size_below(fd: BorrowedFd<'_>) -> Option<u32> {
    let stat = fstat(fd).ok()?;
    let number = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => stat.st_rdev,
        _ => stat.st_dev,
    };
    of_queue(number, "logical_block_size").filter(|bytes| bytes.is_power_of_two())
}

/// Returns the device's discard limits. None: the device cannot discard.
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
        // The kernel does not define what a discarded sector of a device reads as.
        zeroes: false,
    })
}

/// Discards the sectors of `sector_size` bytes that lie entirely in the `len` bytes from `at` on.
/// Blocks until the device is done.
pub(super) fn discard_sectors(
    device: impl AsFd,
    (at, len): (u64, u64),
    sector_size: u32,
    secure: bool,
) -> Result<(), Errno> {
    let sector = u64::from(sector_size);
    let (begin, end) = (at.next_multiple_of(sector), (at + len) / sector * sector);
    // Parts of sectors keep their content, as a discard permits. A secure discard would not, so a
    // disk whose guest may ask for parts of sectors offers none.
    if begin >= end { Ok(()) } else { discard(device, begin, end - begin, secure) }
}

/// Discards `len` bytes from `at` on, which must be whole sectors. Blocks until the device is done.
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

/// Returns the inode's generation number, by which file systems distinguish the successive files of
/// an inode. None: there is none.
pub(super) fn generation(file: impl AsFd) -> Option<u32> {
    let mut version = [0i32; 2];
    // SAFETY: it writes an int or a long, for which there is room, and changes no other memory of
    // this process.
    unsafe { ioctl(file, Updater::<GETVERSION, [i32; 2]>::new(&mut version)) }.ok()?;
    Some(version[0] as u32)
}

/// Returns true if the device supports this kind of discard. It is asked to discard an empty range:
/// a device that does not support the request refuses it before it checks the range, so nothing is
/// discarded.
fn knows(device: BorrowedFd<'_>, secure: bool) -> bool {
    discard(device, 1, 1, secure) == Err(Errno::INVAL)
}

/// Reads a numeric attribute of a device's queue in sysfs; a partition has those of its disk.
fn of_queue(number: u64, name: &str) -> Option<u32> {
    of_disk(number, &format!("queue/{name}"))?.parse().ok()
}

/// Reads an attribute of a disk in sysfs, also for one of the disk's partitions.
pub(super) fn of_disk(number: u64, name: &str) -> Option<String> {
    sysfs_value(number, name).or_else(|| sysfs_value(number, &format!("../{name}")))
}

/// Reads a numeric attribute of a device in sysfs.
fn sysfs(number: u64, name: &str) -> Option<u32> {
    sysfs_value(number, name)?.parse().ok()
}

/// Reads an attribute in sysfs of the block device of this number.
pub(super) fn sysfs_value(number: u64, name: &str) -> Option<String> {
    let at = format!("/sys/dev/block/{}:{}/{name}", major(number), minor(number));
    Some(std::fs::read_to_string(at).ok()?.trim().into())
}
