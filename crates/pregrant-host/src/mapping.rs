//! Maps files as memory that processes share.
//!
//! Invariants: what is mapped is allocated ([`Backing`]), so no access raises SIGBUS; a [`Mapping`]
//! keeps its address until it is dropped; its words are accessed only as atomics.
//!
//! What a peer may do: change any byte at any time. It cannot change the size.
#![expect(unsafe_code, reason = "mmap of memory that processes share")]

use crate::backing::Backing;
use crate::line_budget::LineBudget;
use pregrant::shm::SharedBytes;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

#[derive(Clone, Copy, Debug)]
pub struct Base(pub NonNull<u8>);

// SAFETY: a mapping belongs to the process, not to a thread; what is mapped is only touched through
// atomics and the copies of `shm`, for which a peer may write at any time, and so may another
// thread.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// A shared, writable mapping of a file, which is unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: Base,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the file has fewer.
    pub fn new(backing: &Backing, len: usize) -> Result<Self, Errno> {
        if len > backing.len() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let p = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                backing.as_fd(),
                0,
            )
        }?;
        Ok(Self { base: Base(NonNull::new(p.cast()).ok_or(Errno::NOMEM)?), len })
    }

    /// Returns the address of the first byte, which peers pass to `process_vm_readv`.
    pub fn address(&self) -> u64 {
        self.base.0.as_ptr() as u64
    }

    /// Locks the pages that are touched into memory (`mlock2`). A page that left the page cache
    /// under memory pressure would fault in a peer's window as if it were unmapped. This is best
    /// effort, limited by RLIMIT_MEMLOCK.
    pub fn keep_resident(&self) {
        // SAFETY: the range is this mapping's own; locking changes no content.
        let locked = unsafe {
            rustix::mm::mlock_with(self.base.0.as_ptr().cast(), self.len, rustix::mm::MlockFlags::ONFAULT)
        };
        if let Err(e) = locked {
            log::debug!("memory is not locked ({e}); it matters only when the machine swaps");
        }
    }

    #[inline(always)]
    fn at<T>(&self, byte: usize) -> NonNull<T> {
        let end = byte.checked_add(size_of::<T>());
        assert!(
            end.is_some_and(|end| end <= self.len) && byte.is_multiple_of(align_of::<T>()),
            "offset {byte} is outside of a mapping of {} bytes or not aligned",
            self.len
        );
        // SAFETY: `byte + size_of::<T>() <= len`, so the address is in the mapping.
        unsafe { self.base.0.add(byte) }.cast()
    }

    /// Copies `bytes` to offset `at`. An offset is never a peer's; one out of range panics.
    #[inline(always)]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(
            self.copy_in(at, bytes),
            "{} bytes at {at} are outside of a mapping of {}",
            bytes.len(),
            self.len
        );
    }

    /// Copies from offset `at` to `bytes`. An offset out of range panics.
    #[inline(always)]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let n = bytes.len();
        assert!(self.copy_out(at, bytes), "{n} bytes at {at} are outside of a mapping of {}", self.len);
    }

    /// Returns the byte at offset `byte`. An offset never comes from a peer; an offset out of range
    /// panics.
    #[inline(always)]
    pub fn u8(&self, byte: usize) -> &AtomicU8 {
        // SAFETY: in range and aligned (`at` checked), mapped while `self` lives; an atomic may be
        // shared.
        unsafe { self.at::<AtomicU8>(byte).as_ref() }
    }

    /// Returns the 16-bit word at `byte`.
    #[inline(always)]
    pub fn u16(&self, byte: usize) -> &AtomicU16 {
        // SAFETY: as in `u8`.
        unsafe { self.at::<AtomicU16>(byte).as_ref() }
    }

    /// Returns the 32-bit word at `byte`.
    #[inline(always)]
    pub fn u32(&self, byte: usize) -> &AtomicU32 {
        // SAFETY: as in `u8`.
        unsafe { self.at::<AtomicU32>(byte).as_ref() }
    }

    /// Returns two 32-bit words from `byte` on.
    #[inline(always)]
    pub fn two_u32(&self, byte: usize) -> &[AtomicU32; 2] {
        // SAFETY: as in `u8`.
        unsafe { self.at::<[AtomicU32; 2]>(byte).as_ref() }
    }

    /// Returns two 64-bit words from `byte` on.
    #[inline(always)]
    pub fn two_u64(&self, byte: usize) -> &[AtomicU64; 2] {
        // SAFETY: as in `u8`.
        unsafe { self.at::<[AtomicU64; 2]>(byte).as_ref() }
    }

    /// Returns the 64-bit word at `byte`.
    #[inline(always)]
    pub fn u64(&self, byte: usize) -> &AtomicU64 {
        // SAFETY: as in `u8`.
        unsafe { self.at::<AtomicU64>(byte).as_ref() }
    }
}

// SAFETY: `new` mapped `len` bytes, page aligned, readable and writable, until drop; the file is
// not made smaller; only atomics and `shm`'s copies touch it.
unsafe impl SharedBytes for Mapping {
    #[inline(always)]
    fn base(&self) -> NonNull<u8> {
        self.base.0
    }
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }
}

static UNMAPPED: LineBudget = LineBudget::new();

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own and nothing borrows from it any more.
        if let Err(e) = unsafe { rustix::mm::munmap(self.base.0.as_ptr().cast(), self.len) } {
            UNMAPPED.warn(format_args!("munmap of {len} bytes failed: {e}", len = self.len));
        }
    }
}
