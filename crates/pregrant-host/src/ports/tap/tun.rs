//! Descriptors of `/dev/net/tun`: a queue of a tap each, attached to its interface by name.
//!
//! ```text
//!   made: open --> attach (TUNSETIFF makes the interface, or joins it) --> 12 bytes of header --> descriptor
//!   set_queue: one of several queues gets frames, or none
//! ```
//! The kernel checks who may do this; a guest has no part in it.

use super::header::HEADER;
use super::whereabouts::IfReq;
use crate::ports::netdev_ioctl::text;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater};
use std::io;

/// `TUNSETIFF`.
const SET_IFF: Opcode = 0x4004_54CA;
/// `TUNSETQUEUE`.
const SET_QUEUE: Opcode = 0x4004_54D9;
/// `TUNSETVNETHDRSZ`.
const SET_VNET_HDR_SZ: Opcode = 0x4004_54D8;

const IFF_TAP: u16 = 0x0002;
pub(super) const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_ATTACH_QUEUE: u16 = 0x0200;
const IFF_DETACH_QUEUE: u16 = 0x0400;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

/// The device node that creates taps.
const TUN: &str = "/dev/net/tun";

/// Explains an error of the kernel, with the remedy.
pub(super) fn failed(name: &str, what: &str, e: Errno) -> io::Error {
    let remedy = match e {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => "load the module: modprobe tun",
        Errno::PERM | Errno::ACCESS => "run as root, or with CAP_NET_ADMIN",
        Errno::BUSY => "another process has it; stop that one first",
        Errno::INVAL => {
            "an interface of this name exists and is of another kind (no tap, or of one queue); remove or rename it"
        }
        _ => "the kernel's log may say more (dmesg)",
    };
    io::Error::new(io::Error::from(e).kind(), format!("tap {name}: cannot {what}: {e}; {remedy}"))
}

/// Opens one more queue of the interface `name`, which the first one creates.
pub(super) fn queue(name: &str) -> io::Result<OwnedFd> {
    // The number of queues is only known after the guest connects, so always ask for multiqueue.
    made(name, IFF_MULTI_QUEUE).map(|(fd, _)| fd)
}

/// Opens a queue of the interface `name`; `%d` in the name stands for the lowest free number.
/// Returns the queue and the interface's name.
pub(super) fn made(name: &str, flags: u16) -> io::Result<(OwnedFd, String)> {
    let open = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(TUN, open, Mode::empty()).map_err(|e| failed(name, "open /dev/net/tun", e))?;
    let called = attach(&fd, name, flags)?;
    Ok((fd, called))
}

/// Attaches a descriptor to the interface `name`, which is created if necessary. Returns its name.
pub(super) fn attach(fd: &OwnedFd, name: &str, flags: u16) -> io::Result<String> {
    let mut bytes = [0; 16];
    // Keep a byte for the terminating NUL.
    let room = bytes.get_mut(..name.len()).filter(|r| r.len() < 16 && !r.is_empty());
    room.ok_or_else(|| failed(name, "have a name that is not 1 to 15 bytes long", Errno::NAMETOOLONG))?
        .copy_from_slice(name.as_bytes());
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | flags;
    let mut request = IfReq { name: bytes, flags, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads and writes one ifreq, 40 bytes.
    unsafe { rustix::ioctl::ioctl(fd, Updater::<SET_IFF, IfReq>::new(&mut request)) }
        .map_err(|e| failed(name, "make the interface, or attach to it", e))?;
    // SAFETY: TUNSETVNETHDRSZ reads an int through the pointer.
    unsafe { rustix::ioctl::ioctl(fd, Setter::<SET_VNET_HDR_SZ, i32>::new(HEADER as i32)) }
        .map_err(|e| failed(name, "set the header's size", e))?;
    Ok(text(&request.name))
}

/// Enables or disables a queue. A disabled queue gets no frames, and those in it are dropped.
pub(super) fn set_queue(name: &str, fd: &OwnedFd, has_frames: bool) -> io::Result<()> {
    let flags = if has_frames { IFF_ATTACH_QUEUE } else { IFF_DETACH_QUEUE };
    let request = IfReq { name: [0; 16], flags, rest: [0; 22] };
    // SAFETY: TUNSETQUEUE reads one ifreq, 40 bytes.
    unsafe { rustix::ioctl::ioctl(fd, Setter::<SET_QUEUE, IfReq>::new(request)) }
        .map_err(|e| failed(name, "attach or detach a queue", e))
}
