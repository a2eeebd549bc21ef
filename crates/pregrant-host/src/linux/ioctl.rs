//! The ioctls of gntdev, gntalloc and evtchn: numbers and layouts (docs/protocol 8.3;
//! include/uapi/xen/).
//!
//! All are `_IOC_NONE` with the structure's size, or in older ones an element's, in bits 16 and up.
//! Structures that end in a list are built as words, list and all. WHY unsafe: an ioctl reads and
//! writes through a raw pointer; each call here passes one that covers what the kernel touches.

use rustix::fd::BorrowedFd;
use rustix::io::{self, Errno};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use std::ffi::c_void;

const fn request(kind: u8, nr: u8, size: u16) -> Opcode {
    (size as Opcode) << 16 | (kind as Opcode) << 8 | nr as Opcode
}

/// `IOCTL_GNTDEV_MAP_GRANT_REF`: count u32, pad, index u64 (out), then domid u32 and ref u32 for
/// each page.
pub(super) const GNTDEV_MAP: Opcode = request(b'G', 0, 24);
/// `IOCTL_GNTDEV_UNMAP_GRANT_REF`, with index u64, count u32 and padding.
pub(super) const GNTDEV_UNMAP: Opcode = request(b'G', 1, 16);
/// `IOCTL_GNTDEV_GRANT_COPY`: count u32, pad, pointer to segments.
pub(super) const GNTDEV_COPY: Opcode = request(b'G', 8, 16);
/// `IOCTL_GNTALLOC_ALLOC_GREF`: domid u16, flags u16, count u32, index u64 (out), then a ref u32
/// (out) for each page.
pub(super) const GNTALLOC_ALLOC: Opcode = request(b'G', 5, 24);
/// `IOCTL_GNTALLOC_DEALLOC_GREF`: index u64, count u32, pad.
pub(super) const GNTALLOC_DEALLOC: Opcode = request(b'G', 6, 16);
/// `IOCTL_EVTCHN_BIND_INTERDOMAIN`: remote domain u32, remote port u32; returns the local port.
pub(super) const EVTCHN_BIND_INTERDOMAIN: Opcode = request(b'E', 1, 8);
/// `IOCTL_EVTCHN_BIND_UNBOUND_PORT`: remote domain u32; returns the local port.
pub(super) const EVTCHN_BIND_UNBOUND: Opcode = request(b'E', 2, 4);
/// `IOCTL_EVTCHN_UNBIND`: port u32.
pub(super) const EVTCHN_UNBIND: Opcode = request(b'E', 3, 4);
/// `IOCTL_EVTCHN_NOTIFY`: port u32.
pub(super) const EVTCHN_NOTIFY: Opcode = request(b'E', 4, 4);
/// `IOCTL_EVTCHN_RESET`, without an argument; it discards the events that overflowed the device's
/// ring.
pub(super) const EVTCHN_RESET: Opcode = request(b'E', 5, 0);
/// `IOCTL_PRIVCMD_HYPERCALL`, with op u64 and five arguments u64. It returns what Xen returns.
pub(super) const PRIVCMD_HYPERCALL: Opcode = request(b'P', 0, 48);

const _: () = assert!(
    GNTDEV_MAP == 0x0018_4700
        && GNTDEV_UNMAP == 0x0010_4701
        && GNTDEV_COPY == 0x0010_4708
        && GNTALLOC_ALLOC == 0x0018_4705
        && GNTALLOC_DEALLOC == 0x0010_4706
        && EVTCHN_BIND_INTERDOMAIN == 0x0008_4501
        && EVTCHN_BIND_UNBOUND == 0x0004_4502
        && EVTCHN_UNBIND == 0x0004_4503
        && EVTCHN_NOTIFY == 0x0004_4504
        && EVTCHN_RESET == 0x0000_4505
        && PRIVCMD_HYPERCALL == 0x0030_5000
);

/// `struct xen_domctl` with a `struct xen_domctl_getdomaininfo`. 144 bytes.
///
/// ```text
/// | 0 .. 3 cmd | 4 .. 7 version | 8 9 domid | 10 .. 15 pad | 16 .. 143 the command's: | 16 17 domid | 20 .. 23 flags | 24 .. 71 pages | 72 .. 79 cpu_time |
/// ```
#[derive(Debug)]
#[repr(C, align(256))]
pub(super) struct DomCtl {
    cmd: u32,
    version: u32,
    domid: u16,
    pad: [u16; 3],
    /// The fields before the CPU time: flags, and then numbers of pages.
    before: [u64; 7],
    cpu_time: u64,
    behind: [u64; 8],
}

const _: () = assert!(core::mem::offset_of!(DomCtl, cpu_time) == 72);

impl Default for DomCtl {
    fn default() -> Self {
        Self::get_domain_info(0, 0)
    }
}

impl DomCtl {
    /// `__HYPERVISOR_domctl`.
    pub(super) const HYPERCALL: u64 = 36;

    /// `XEN_DOMCTL_getdomaininfo`.
    pub(super) fn get_domain_info(version: u32, domid: u16) -> Self {
        Self { cmd: 5, version, domid, pad: [0; 3], before: [0; 7], cpu_time: 0, behind: [0; 8] }
    }

    /// Returns the CPU time that Xen reported, in nanoseconds.
    pub(super) fn cpu_time(&self) -> u64 {
        self.cpu_time
    }
}

/// One segment of a grant copy: `struct gntdev_grant_copy_segment`. 24 bytes.
///
/// ```text
/// | 0 .. 7 source | 8 .. 15 dest | 16 17 len | 18 19 flags | 20 21 status (out) | 22 23 pad |
/// ```
/// Source and dest are an address each, or, if the flag of that side is set, ref u32, offset u16,
/// domid u16.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub(super) struct Segment {
    pub(super) source: u64,
    pub(super) dest: u64,
    pub(super) len: u16,
    pub(super) flags: u16,
    pub(super) status: i16,
    pub(super) pad: u16,
}

const _: () = assert!(size_of::<Segment>() == 24);

/// `GNTCOPY_source_gref`.
pub(super) const SOURCE_GREF: u16 = 1;
/// `GNTCOPY_dest_gref`.
pub(super) const DEST_GREF: u16 = 2;

/// A side of a [`Segment`] that is a grant.
pub(super) fn gref_side(gref: u32, offset: u16, domid: u16) -> u64 {
    u64::from(gref) | u64::from(offset) << 32 | u64::from(domid) << 48
}

/// An ioctl whose structure is built of words, which the kernel reads and may write.
struct Words<'a> {
    opcode: Opcode,
    words: &'a mut [u64],
}

// SAFETY: `call` is the only maker, and its callers pass at least as many words as the opcode's
// structure and list have. The slice is borrowed mutably for the call, so the kernel may write to
// it.
unsafe impl Ioctl for Words<'_> {
    type Output = i32;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    fn as_ptr(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> io::Result<i32> {
        Ok(out)
    }
}

/// Makes one of the calls above; `words` are its structure and list as 64-bit words, little-endian.
/// Returns what the ioctl returns.
///
/// # Safety
/// `words` must be as long as the opcode's structure with its list; for [`GNTDEV_COPY`] the pointer
/// in it must lead to as many segments as it says, whose addresses are valid for what their flags
/// and lengths say.
pub(super) unsafe fn call(fd: BorrowedFd<'_>, opcode: Opcode, words: &mut [u64]) -> Result<i32, Errno> {
    loop {
        // SAFETY: the caller vouches for the words.
        match unsafe { rustix::ioctl::ioctl(fd, Words { opcode, words: &mut *words }) } {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Packs two 32-bit fields into one word.
pub(super) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
