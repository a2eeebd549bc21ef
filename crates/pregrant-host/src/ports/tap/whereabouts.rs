//! Where a tap's interface is now, read from an attached descriptor: its owner may rename it, move
//! it to another network namespace (of a container or a router), or remove it.
//!
//! ```text
//!   descriptor --TUNGETIFF--> its name of now; EBADFD: it was removed
//!        |------TUNGETDEVNETNS--> the namespace that the interface is in
//!        '------SIOCGSKNS-------> that in which this descriptor was opened
//! ```

use crate::ports::netdev_ioctl::text;
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater};
use std::ffi::c_void;

/// `TUNGETIFF`.
const GET_IFF: Opcode = 0x8004_54D2;
/// `TUNGETDEVNETNS`.
const GET_INTERFACES_NAMESPACE: Opcode = 0x54E3;
/// `SIOCGSKNS`.
const GET_OWN_NAMESPACE: Opcode = 0x894C;

pub(super) const ELSEWHERE: &str = "it is in another network namespace now";
pub(super) const GONE: &str = "it was removed";

/// `struct ifreq` with the fields that a tap's descriptor uses.
#[repr(C)]
pub(super) struct IfReq {
    pub(super) name: [u8; 16],
    pub(super) flags: u16,
    pub(super) rest: [u8; 22],
}

/// The place where an interface is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// The interface is in this process's network namespace, under this name.
    Here(String),
    /// The interface is in another namespace, where its name has no meaning for this process.
    Elsewhere,
    /// The interface was removed.
    Gone,
}

impl Whereabouts {
    /// Locates the interface to which this descriptor was attached. None: it cannot be queried now,
    /// for example because no descriptor is left.
    pub(super) fn of(fd: impl AsFd) -> Option<Self> {
        let mut request = IfReq { name: [0; 16], flags: 0, rest: [0; 22] };
        // SAFETY: TUNGETIFF writes one ifreq, 40 bytes.
        let asked = unsafe { rustix::ioctl::ioctl(fd.as_fd(), Updater::<GET_IFF, IfReq>::new(&mut request)) };
        if asked.is_err() {
            return Some(Self::Gone);
        }
        let own = namespace::<GET_OWN_NAMESPACE>(&fd);
        match (namespace::<GET_INTERFACES_NAMESPACE>(&fd), own) {
            (Ok(interfaces), Ok(own)) if interfaces != own => Some(Self::Elsewhere),
            (Ok(_), Ok(_)) => Some(Self::Here(text(&request.name))),
            // A kernel before 5.4 does not support the query; then only the name is known.
            (Err(Errno::NOTTY | Errno::INVAL), _) | (_, Err(Errno::NOTTY | Errno::INVAL)) => {
                Some(Self::Here(text(&request.name)))
            }
            _ => None,
        }
    }
}

/// The identity of a network namespace: the device and inode of its file.
fn namespace<const OPCODE: Opcode>(fd: impl AsFd) -> Result<(u64, u64), Errno> {
    // SAFETY: both operations take no argument, and return a new descriptor.
    let file = unsafe { rustix::ioctl::ioctl(fd.as_fd(), NamespaceOf::<OPCODE>) }?;
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// An ioctl that returns a descriptor of a namespace.
struct NamespaceOf<const OPCODE: Opcode>;

// SAFETY: the operations that are made of it take no argument, and return a descriptor that no one
// else has.
unsafe impl<const OPCODE: Opcode> Ioctl for NamespaceOf<OPCODE> {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: see above.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}
