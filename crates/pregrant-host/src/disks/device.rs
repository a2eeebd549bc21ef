//! What a block device says of itself, and its discards: ioctls of the kernel's block layer, and sysfs.

use pregrant::blk::disk::Discard;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{fstat, ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKSECDISCARD: Opcode = opcode::none(0x12, 125);

/// Bytes of its logical and physical sectors.
pub(super) fn sector_sizes(device: impl AsFd) -> Result<(u32, u32), Errno> {
    let logical = ioctl_blksszget(&device)?;
    Ok((logical, ioctl_blkpbszget(&device).unwrap_or(logical).max(logical)))
}

/// How it discards; None: not at all.
pub(super) fn discards(device: impl AsFd, sector_size: u32) -> Option<Discard> {
    let device = device.as_fd();
    if !knows(device, false) {
        return None;
    }
    let granularity =
        sysfs(device, "queue/discard_granularity").or_else(|| sysfs(device, "../queue/discard_granularity"));
    Some(Discard {
        granularity: granularity.filter(|bytes| *bytes >= sector_size).unwrap_or(sector_size),
        alignment: sysfs(device, "discard_alignment").unwrap_or(0),
        secure: knows(device, true),
    })
}

/// Discards the whole sectors of `sector_size` bytes among the `len` bytes from `at` on. Sleeps until it is done.
pub(super) fn discard_sectors(
    device: impl AsFd,
    (at, len): (u64, u64),
    sector_size: u32,
    secure: bool,
) -> Result<(), Errno> {
    let sector = u64::from(sector_size);
    let (begin, end) = (at.next_multiple_of(sector), (at + len) / sector * sector);
    // Parts of sectors keep what they hold, as they may: a disk whose guest asks for parts has no secure discards.
    if begin >= end { Ok(()) } else { discard(device, begin, end - begin, secure) }
}

/// Discards `len` bytes from `at` on, whole sectors. Sleeps until it is done.
fn discard(device: impl AsFd, at: u64, len: u64, secure: bool) -> Result<(), Errno> {
    let range = [at, len];
    // SAFETY: both ioctls read two words of 64 bits, which are there, and change no memory of this process.
    unsafe {
        match secure {
            false => ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new(range)),
            true => ioctl(device, Setter::<BLKSECDISCARD, [u64; 2]>::new(range)),
        }
    }
}

/// Whether it discards so: it says so before it says that this range is none, which is why nothing is discarded.
fn knows(device: BorrowedFd<'_>, secure: bool) -> bool {
    discard(device, 1, 1, secure) == Err(Errno::INVAL)
}

/// A number that sysfs has of it.
fn sysfs(device: BorrowedFd<'_>, name: &str) -> Option<u32> {
    let number = fstat(device).ok()?.st_rdev;
    let text =
        std::fs::read_to_string(format!("/sys/dev/block/{}:{}/{name}", major(number), minor(number))).ok()?;
    text.trim().parse().ok()
}
