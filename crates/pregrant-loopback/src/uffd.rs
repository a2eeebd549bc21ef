//! userfaultfd in minor mode: how a page enters a window without a new mapping, so that a touch of
//! any other page of the window is SIGBUS. C: linux/userfaultfd.h.
#![expect(unsafe_code, reason = "ioctls of userfaultfd")]

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Updater, opcode};
use rustix::mm::UserfaultfdFlags;

const API: u64 = 0xAA;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const REGISTER_MODE_MISSING: u64 = 1 << 0;
const REGISTER_MODE_MINOR: u64 = 1 << 2;
const CONTINUE_MODE_DONTWAKE: u64 = 1 << 0;
const USER_MODE_ONLY: u32 = 1;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioContinue {
    start: u64,
    len: u64,
    mode: u64,
    /// Set by the kernel: bytes mapped, or a negative errno.
    mapped: i64,
}

const UFFDIO_API: u32 = opcode::read_write::<UffdioApi>(0xAA, 0x3F);
const UFFDIO_REGISTER: u32 = opcode::read_write::<UffdioRegister>(0xAA, 0x00);
const UFFDIO_CONTINUE: u32 = opcode::read_write::<UffdioContinue>(0xAA, 0x07);

/// A userfaultfd of this process whose faults raise SIGBUS.
#[derive(Debug)]
pub(super) struct Uffd(OwnedFd);

impl Uffd {
    /// Opens a userfaultfd. The error names the step that the kernel does not support.
    pub(super) fn open() -> Result<Self, (&'static str, Errno)> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: the descriptor is used by this module only, on windows that `window` owns.
        let fd = unsafe { rustix::mm::userfaultfd(flags) }.map_err(|e| ("userfaultfd", e))?;
        let features = FEATURE_SIGBUS | FEATURE_MINOR_SHMEM | FEATURE_MISSING_SHMEM;
        let mut api = UffdioApi { api: API, features, ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes a `struct uffdio_api`, which `UffdioApi` mirrors.
        unsafe { rustix::ioctl::ioctl(&fd, Updater::<UFFDIO_API, _>::new(&mut api)) }
            .map_err(|e| ("userfaultfd's minor mode for shared memory", e))?;
        Ok(Self(fd))
    }

    /// Registers a range. From now on an access to one of its pages faults until
    /// [`show`](Self::show) has mapped the page.
    ///
    /// # Safety
    /// The range is a mapping of a memfd that the caller owns and that no safe value points into
    /// yet.
    pub(super) unsafe fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mode = REGISTER_MODE_MISSING | REGISTER_MODE_MINOR;
        let mut r = UffdioRegister { start: start as u64, len: len as u64, mode, ioctls: 0 };
        // SAFETY: the layout is `struct uffdio_register`; the caller vouches for the range.
        unsafe { rustix::ioctl::ioctl(self.0.as_fd(), Updater::<UFFDIO_REGISTER, _>::new(&mut r)) }
    }

    /// Maps pages of a registered range that are in the memfd's page cache. Returns how many bytes
    /// it got done; 0 with `FAULT` when the first page is not there.
    ///
    /// # Safety
    /// The range is in a registered window of the caller.
    pub(super) unsafe fn show(&self, start: usize, len: usize) -> Result<usize, Errno> {
        let mut c =
            UffdioContinue { start: start as u64, len: len as u64, mode: CONTINUE_MODE_DONTWAKE, mapped: 0 };
        // SAFETY: the layout is `struct uffdio_continue`; the caller vouches for the range.
        let result =
            unsafe { rustix::ioctl::ioctl(self.0.as_fd(), Updater::<UFFDIO_CONTINUE, _>::new(&mut c)) };
        match result {
            Ok(()) => Ok(len),
            // The call was interrupted half way: report what is mapped.
            Err(_) if c.mapped > 0 => Ok(c.mapped as usize),
            Err(Errno::AGAIN) => Ok(0),
            Err(e) => Err(e),
        }
    }
}
