//! A tap: the vif as a network interface of this machine, which the kernel routes or bridges.
//!
//! ```text
//!   guest TX: | virtio_net_hdr, 12 bytes | frame |  a write for each --> the interface receives it
//!   guest RX: | virtio_net_hdr, 12 bytes | frame |  <-- a read for each, what the interface sends
//!
//!   port --burst--> vhost-net's rings: no system call; few frames for a worker that sleeps: one each --> descriptor
//!     |--burst--> uring (io_uring: the writes or reads of a burst in one system call) ----------------------^
//!     \--neither: one frame a system call------------------------------------------------------------------^
//! ```
//! | file | |
//! |---|---|
//! | [`port`] | a queue: bursts in, bursts out; which way they take |
//! | `vhost` | many frames without a system call |
//! | `uring` | many writes or reads in one system call |
//! | `inbox` | frames that one call read, and how many the next one asks for |
//! | `outbox` | frames that one call is to write |
//! | `gather` | a frame in pieces, some of them its guest's |
//! | `transport_kind` | which transport a queue asks for |
//! | `transport` | the one that it gets |
//! | `probe` | which of them is cheapest here |
//! | `header` | what is still to be done to a frame; what netif cannot say is done there |
//! | `cut_frames` | frames of a large segment that netif cannot pass on |
//! | `tap_log` | what it says in the log |
//!
//! The header carries what netif's extras do: a blank checksum and where it goes, segments still to
//! be cut (TCP over IPv4 and IPv6). So both ends leave that work undone as long as no one needs it.
//! One descriptor for each queue; the kernel spreads flows over them. A persistent interface
//! outlives this process, so that a bridge or an address stays when the backend is restarted.
//!
//! A system call is what a frame costs here, and in a PV dom0 a very dear one; so a burst is one
//! where that is cheaper, and io_uring is there (Linux 5.19, not forbidden by
//! `kernel.io_uring_disabled` or seccomp); or none, where vhost-net is there. Frames that were read
//! and found no room wait in the port, 32 at most (by vhost-net 256), and count as
//! [held](pregrant::port::FramePort::held). A queue takes 2 MiB of address space for them, where
//! only pages that frames were read into count as used, and 128 KiB for frames on their way out; by
//! vhost-net 1.6 MiB beside.
//!
//! Where a path lends payload (`map`), the kernel takes it from the guest's pages: no copy is ours,
//! and when the call is over it has its own.
//!
//! What a guest may do: send any frame, as it could on a wire; the kernel checks the header once
//! more. Lent payload it may change until the kernel has copied it: that is what it sent then. What
//! the kernel cannot take (its queue is full) is dropped and counted.

mod cut_frames;
mod gather;
mod header;
mod inbox;
mod outbox;
pub mod port;
mod probe;
mod tap_log;
mod transport;
mod transport_kind;
mod uring;
mod vhost;

pub use port::TapPort;
pub use transport_kind::TransportKind;

use super::netdev_ioctl::Interface;
use header::HEADER;
use port::Drops;
use pregrant::port::Offloads;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater};
use std::io;
use std::sync::Arc;
use tap_log::TapLines;

/// `TUNSETIFF`.
const SET_IFF: Opcode = 0x4004_54CA;
/// `TUNSETPERSIST`.
const SET_PERSIST: Opcode = 0x4004_54CB;
/// `TUNSETOFFLOAD`.
const SET_OFFLOAD: Opcode = 0x4004_54D0;
/// `TUNSETVNETHDRSZ`.
const SET_VNET_HDR_SZ: Opcode = 0x4004_54D8;
/// `TUNSETCARRIER`.
const SET_CARRIER: Opcode = 0x4004_54E2;

const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

/// `TUN_F_CSUM`: the kernel may leave checksums blank.
const TAKES_BLANK: usize = 0x01;
/// `TUN_F_TSO4 | TUN_F_TSO6`: and TCP uncut.
const TAKES_UNCUT: usize = 0x02 | 0x04;

/// Where the kernel makes taps.
const TUN: &str = "/dev/net/tun";

/// A vif's interface; it goes with this value and its ports, unless it is asked to
/// [persist](Tap::persist).
#[derive(Debug)]
pub struct Tap {
    interface: Interface,
    /// Its number in this machine, which stays when its name does not.
    index: u32,
    first: Arc<OwnedFd>,
    way: TransportKind,
    lines: Arc<TapLines>,
}

/// `struct ifreq` as `TUNSETIFF` reads it.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// The meaning of a kernel's refusal, and the remedy.
fn failed(name: &str, what: &str, e: Errno) -> io::Error {
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

/// One more queue of the interface `name`, which is made with the first.
fn queue(name: &str) -> io::Result<OwnedFd> {
    // How many queues its guest wants shows after the interface is there.
    made(name, IFF_MULTI_QUEUE).map(|(fd, _)| fd)
}

/// A queue of the interface of that name, and what it is called: `%d` stands for the first number
/// that is free.
fn made(name: &str, flags: u16) -> io::Result<(OwnedFd, String)> {
    let mut bytes = [0; 16];
    // One byte stays for the end of the name.
    let room = bytes.get_mut(..name.len()).filter(|r| r.len() < 16 && !r.is_empty());
    room.ok_or_else(|| failed(name, "have a name that is not 1 to 15 bytes long", Errno::NAMETOOLONG))?
        .copy_from_slice(name.as_bytes());
    let open = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(TUN, open, Mode::empty()).map_err(|e| failed(name, "open /dev/net/tun", e))?;
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | flags;
    let mut request = IfReq { name: bytes, flags, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads and writes one ifreq, 40 bytes.
    unsafe { rustix::ioctl::ioctl(&fd, Updater::<SET_IFF, IfReq>::new(&mut request)) }
        .map_err(|e| failed(name, "make the interface, or attach to it", e))?;
    // SAFETY: TUNSETVNETHDRSZ reads an int through the pointer.
    unsafe { rustix::ioctl::ioctl(&fd, Setter::<SET_VNET_HDR_SZ, i32>::new(HEADER as i32)) }
        .map_err(|e| failed(name, "set the header's size", e))?;
    let called = request.name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok((fd, String::from_utf8_lossy(called).into_owned()))
}

impl Tap {
    /// Makes the interface `name`, or attaches to it where it exists and no one has it, with its
    /// first queue.
    ///
    /// # Errors
    /// No rights (CAP_NET_ADMIN), no `/dev/net/tun`, the name is taken by another kind of
    /// interface.
    pub fn open(name: &str) -> io::Result<Self> {
        let first = Arc::new(queue(name)?);
        let interface = Interface::new(name)?;
        let index = interface.index()?;
        Ok(Self {
            interface,
            index,
            first,
            way: TransportKind::default(),
            lines: Arc::new(TapLines::new(name)),
        })
    }

    /// Which way bursts take through ports made from now on.
    pub fn set_way(&mut self, way: TransportKind) {
        self.way = way;
    }

    /// A port for each of `queues`. `front` says what may be left undone towards the guest. The
    /// ports before must be dropped.
    ///
    /// # Errors
    /// As for [`open`](Self::open); the kernel has no more queues for it.
    pub fn ports(&self, queues: usize, front: Offloads) -> io::Result<Vec<TapPort>> {
        // Uncut means blank too.
        let offloads = match front {
            Offloads { csum: true, gso: true } => TAKES_BLANK | TAKES_UNCUT,
            Offloads { csum: true, gso: false } => TAKES_BLANK,
            Offloads { csum: false, .. } => 0,
        };
        let name = self.interface.name();
        // SAFETY: TUNSETOFFLOAD takes its argument as a number.
        unsafe { rustix::ioctl::ioctl(&self.first, IntegerSetter::<SET_OFFLOAD>::new_usize(offloads)) }
            .map_err(|e| failed(name, "take offloads", e))?;
        let drops = Arc::new(Drops::default());
        let port = |i: usize| {
            let fd = if i == 0 { Arc::clone(&self.first) } else { Arc::new(queue(name)?) };
            // By a name that it no longer has another interface would have been made.
            if self.interface.index().ok() != Some(self.index) {
                return Err(io::Error::other(format!(
                    "tap {name}: it was removed or renamed meanwhile; give it its name back, or detach the vif and attach it again"
                )));
            }
            Ok(TapPort::new(fd, Arc::clone(&drops), self.way, &self.lines))
        };
        (0..queues.max(1)).map(port).collect()
    }

    /// The interface, to give it an MTU, a bridge, its state.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Lets the interface outlive this process, or not.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn persist(&self, yes: bool) -> io::Result<()> {
        // SAFETY: TUNSETPERSIST takes its argument as a number.
        Ok(unsafe { rustix::ioctl::ioctl(&self.first, IntegerSetter::<SET_PERSIST>::new_usize(yes.into())) }?)
    }

    /// Tells the stack whether there is a link: whether the guest's end is connected.
    ///
    /// # Errors
    /// A kernel before 5.0.
    pub fn carrier(&self, yes: bool) -> io::Result<()> {
        // SAFETY: TUNSETCARRIER reads an int through the pointer.
        Ok(unsafe { rustix::ioctl::ioctl(&self.first, Setter::<SET_CARRIER, i32>::new(yes.into())) }?)
    }
}
