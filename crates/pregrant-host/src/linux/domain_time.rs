//! The CPU time that Xen accounts to a domain, in nanoseconds (`xl list` rounds to tenths of a
//! second).
//!
//! ```text
//!   this process --/dev/xen/privcmd: IOCTL_PRIVCMD_HYPERCALL--> Xen: domctl getdomaininfo(domain) --> struct in locked memory
//! ```
//! It serves measurements in dom0, as root; no driver needs it. The version of the domctl interface
//! is found by trying the known ones: the fields that are read here have the same offsets in all of
//! them.
//!
//! What a guest may do: nothing; only the toolstack's interface is used.

use super::ioctl::{DomCtl, PRIVCMD_HYPERCALL};
use pregrant::DomId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::Updater;
use std::io;
use std::time::Duration;

const PRIVCMD: &str = "/dev/xen/privcmd";

/// The values of `XEN_DOMCTL_INTERFACE_VERSION` in Xen 4.16 to 4.20 (xen/include/public/domctl.h).
const VERSIONS: std::ops::RangeInclusive<u32> = 0x14..=0x17;

/// `struct privcmd_hypercall`.
#[repr(C)]
struct Hypercall {
    op: u64,
    arg: [u64; 5],
}

/// Returns the CPU time of `domid`, including Xen's own work on the domain's behalf.
///
/// # Errors
///
/// The system is not Xen, the process lacks the privilege, the domain does not exist, or Xen's
/// interface version is unknown.
pub fn domain_time(domid: DomId) -> io::Result<Duration> {
    let failed = |what: String, kind| io::Error::new(kind, format!("{PRIVCMD}: {what}"));
    let fd = rustix::fs::open(PRIVCMD, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
        failed(format!("{e}; in dom0, as root: modprobe xen-privcmd"), io::Error::from(e).kind())
    })?;
    let mut ctl = Box::<DomCtl>::default();
    // Xen writes there while the kernel cannot fault it in.
    // SAFETY: the box's own bytes; locking changes none of them.
    unsafe { rustix::mm::mlock((&raw mut *ctl).cast(), size_of::<DomCtl>()) }?;
    for version in VERSIONS {
        *ctl = DomCtl::get_domain_info(version, domid.0);
        let arg = [(&raw mut *ctl) as u64, 0, 0, 0, 0];
        let mut call = Hypercall { op: DomCtl::HYPERCALL, arg };
        // SAFETY: the kernel reads one privcmd_hypercall; Xen reads and writes one xen_domctl,
        // which is what the box has room for, and no one touches meanwhile.
        let done =
            unsafe { rustix::ioctl::ioctl(&fd, Updater::<PRIVCMD_HYPERCALL, Hypercall>::new(&mut call)) };
        match done {
            Ok(()) => return Ok(Duration::from_nanos(ctl.cpu_time())),
            // Xen has another version of the interface.
            Err(Errno::ACCESS) => {}
            Err(e) => return Err(failed(format!("domain {}: {e}", domid.0), io::Error::from(e).kind())),
        }
    }
    Err(failed("this Xen's version of the domctl interface is unknown".into(), io::ErrorKind::Unsupported))
}
