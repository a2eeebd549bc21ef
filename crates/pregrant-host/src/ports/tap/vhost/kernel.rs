//! `/dev/vhost-net`: the ioctls that give two rings and a tap to the kernel's worker
//! (include/uapi/linux/vhost.h).
//!
//! ```text
//!   SET_OWNER, features, SET_MEM_TABLE          once
//!   VRING_NUM, BASE, ADDR, KICK, CALL           for each ring, while no backend is set
//!   NET_SET_BACKEND tap | -1                    from now on the worker works; not any more, when the call returns
//! ```
//! The memory table is one region that maps each address to itself, so it covers every page of this
//! process, also those that are mapped later. Which memory the worker accesses is decided by the
//! descriptors, and only this process writes them.

use super::virtqueue::Virtqueue;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Path of the device file.
pub const PATH: &str = "/dev/vhost-net";

/// `VHOST_GET_FEATURES`.
const GET_FEATURES: Opcode = 0x8008_AF00;
/// `VHOST_SET_FEATURES`.
const SET_FEATURES: Opcode = 0x4008_AF00;
/// `VHOST_SET_OWNER`.
const SET_OWNER: Opcode = 0xAF01;
/// `VHOST_SET_MEM_TABLE`. The number contains the size of a table without regions.
const SET_MEM_TABLE: Opcode = 0x4008_AF03;
/// `VHOST_SET_VRING_NUM`.
const SET_VRING_NUM: Opcode = 0x4008_AF10;
/// `VHOST_SET_VRING_ADDR`.
const SET_VRING_ADDR: Opcode = 0x4028_AF11;
/// `VHOST_SET_VRING_BASE`.
const SET_VRING_BASE: Opcode = 0x4008_AF12;
/// `VHOST_SET_VRING_KICK`.
const SET_VRING_KICK: Opcode = 0x4008_AF20;
/// `VHOST_SET_VRING_CALL`.
const SET_VRING_CALL: Opcode = 0x4008_AF21;
/// `VHOST_NET_SET_BACKEND`.
const SET_BACKEND: Opcode = 0x4008_AF30;

/// `VIRTIO_NET_F_MRG_RXBUF`, by which a frame may use several buffers.
const MRG_RXBUF: u64 = 1 << 15;
/// `VIRTIO_RING_F_EVENT_IDX`.
const EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;
const FEATURES: u64 = MRG_RXBUF | EVENT_IDX | VERSION_1;

/// The end of a process's address space with four levels of page tables on x86-64; on other
/// machines it is no higher.
const USER_END: u64 = 0x7FFF_FFFF_F000;

/// `struct vhost_vring_state` or `vhost_vring_file`: a ring, and a number or a descriptor.
#[repr(C)]
struct OfRing {
    index: u32,
    value: i32,
}

/// `struct vhost_vring_addr`.
#[repr(C)]
struct Addr {
    index: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    avail: u64,
    log: u64,
}

/// `struct vhost_memory` with one region.
#[repr(C)]
struct Memory {
    nregions: u32,
    padding: u32,
    guest_phys_addr: u64,
    memory_size: u64,
    userspace_addr: u64,
    flags: u64,
}

const _: () = assert!(size_of::<Addr>() == 0x28 && size_of::<OfRing>() == 8 && size_of::<Memory>() == 40);

/// Makes reads and writes of an eventfd return at once instead of blocking.
const FLAGS: EventfdFlags = EventfdFlags::CLOEXEC.union(EventfdFlags::NONBLOCK);

/// Names one of the two rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The worker writes frames that the interface sends.
    Rx = 0,
    /// The worker reads frames that the interface receives.
    Tx = 1,
}

/// The eventfds by which both sides of a ring wake each other.
#[derive(Debug)]
pub struct Doors {
    kick: OwnedFd,
    /// The eventfd by which the worker calls, for both rings of a queue: a thread that is woken by
    /// it checks both.
    call: Arc<OwnedFd>,
}

impl Doors {
    /// Creates the eventfds.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { kick: eventfd(0, FLAGS)?, call: Arc::new(eventfd(0, FLAGS)?) })
    }

    /// Eventfds for the other ring of the same queue.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn of_other_ring(&self) -> io::Result<Self> {
        Ok(Self { kick: eventfd(0, FLAGS)?, call: Arc::clone(&self.call) })
    }

    /// Duplicates the descriptors for another thread.
    #[cfg(test)]
    pub fn another(&self) -> Self {
        Self { kick: self.kick.try_clone().unwrap(), call: Arc::clone(&self.call) }
    }

    /// The worker's side: waits for a kick, at most for `most`.
    #[cfg(test)]
    pub fn wait_for_kick(&self, most: Duration) {
        let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.kick, PollFlags::IN)], Some(&most));
        let _ = rustix::io::read(&self.kick, &mut [0; 8]);
    }

    pub fn kick(&self) {
        // If the counter is at its maximum, the worker has a kick pending.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Returns the eventfd by which the worker wakes us.
    pub fn call(&self) -> &Arc<OwnedFd> {
        &self.call
    }

    /// Waits at most for `most` until the worker calls for either ring. A thread that waits for the
    /// other ring by the same eventfd must be [called again](Self::call_again).
    pub fn wait(&self, most: Duration) {
        #[cfg(test)]
        WAITS.set(WAITS.get() + 1);
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&*self.call, PollFlags::IN)], Some(&most));
        let _ = rustix::io::read(&*self.call, &mut [0; 8]);
    }

    /// Sends the worker's notification once more.
    pub fn call_again(&self) {
        let _ = rustix::io::write(&*self.call, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
thread_local! {
    /// Number of times that this thread slept for a worker.
    pub static WAITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The server of both rings, which is the kernel, or a test.
pub trait Worker: Sized {
    /// Creates a worker for rings of this process.
    ///
    /// # Errors
    ///
    /// There is none, the process may not open it, or it lacks a feature.
    fn open() -> io::Result<Self>;

    /// Tells the worker of a new ring, to which no backend is set.
    ///
    /// # Safety
    /// The ring's memory stays until a backend that was set is [taken away](Self::detach), or the
    /// worker is dropped.
    ///
    /// # Errors
    /// The kernel refuses.
    unsafe fn give_ring(&self, which: Which, ring: &Virtqueue, size: u16, doors: &Doors) -> io::Result<()>;

    /// Lets the vhost worker serve a ring of this tap.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    fn attach(&self, which: Which, tap: BorrowedFd<'_>) -> io::Result<()>;

    /// Stops the vhost worker from serving a ring. When this returns, the worker no longer touches
    /// the ring or the memory that its descriptors name.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    fn detach(&self, which: Which) -> io::Result<()>;
}

/// An open device, which is a kernel worker for this process.
#[derive(Debug)]
pub struct Device(OwnedFd);

/// Explains an error of the kernel, with the remedy.
fn failed(what: &str, e: Errno) -> io::Error {
    let remedy = match e {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => "load the module: modprobe vhost_net",
        Errno::PERM | Errno::ACCESS => {
            "run as root, or let this process open it (a unit of systemd: DeviceAllow)"
        }
        _ => "the kernel's log may say more (dmesg)",
    };
    io::Error::new(io::Error::from(e).kind(), format!("{PATH}: cannot {what}: {e}; {remedy}"))
}

impl Device {
    fn set<const OP: Opcode, T>(&self, what: &str, value: T) -> io::Result<()> {
        // SAFETY: each of the requests here reads one value of its type (checked by size above),
        // and keeps no pointer to it.
        unsafe { rustix::ioctl::ioctl(&self.0, Setter::<OP, T>::new(value)) }.map_err(|e| failed(what, e))
    }
}

impl Worker for Device {
    fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(PATH, flags, Mode::empty()).map_err(|e| failed("open it", e))?;
        // SAFETY: SET_OWNER has no argument.
        unsafe { rustix::ioctl::ioctl(&fd, NoArg::<SET_OWNER>::new()) }.map_err(|e| failed("own it", e))?;
        // SAFETY: GET_FEATURES writes a u64.
        let has = unsafe { rustix::ioctl::ioctl(&fd, Getter::<GET_FEATURES, u64>::new()) }
            .map_err(|e| failed("ask for its features", e))?;
        if has & FEATURES != FEATURES {
            return Err(failed(
                &format!("use it, for it has the features {has:#x}, and {FEATURES:#x} are needed"),
                Errno::NOTSUP,
            ));
        }
        let device = Self(fd);
        device.set::<SET_FEATURES, u64>("set its features", FEATURES)?;
        let memory = Memory {
            nregions: 1,
            padding: 0,
            guest_phys_addr: 0,
            memory_size: USER_END,
            userspace_addr: 0,
            flags: 0,
        };
        device.set::<SET_MEM_TABLE, Memory>("tell it of our memory", memory)?;
        Ok(device)
    }

    unsafe fn give_ring(&self, which: Which, ring: &Virtqueue, size: u16, doors: &Doors) -> io::Result<()> {
        let index = which as u32;
        let of = |value| OfRing { index, value };
        self.set::<SET_VRING_NUM, _>("set a ring's size", of(size.into()))?;
        self.set::<SET_VRING_BASE, _>("set where a ring begins", of(0))?;
        let at = ring.addresses();
        let addr =
            Addr { index, flags: 0, descriptors: at.descriptors, used: at.used, avail: at.avail, log: 0 };
        self.set::<SET_VRING_ADDR, _>("say where a ring is", addr)?;
        self.set::<SET_VRING_KICK, _>("give it what wakes it", of(doors.kick.as_raw_fd()))?;
        self.set::<SET_VRING_CALL, _>("give it what wakes us", of(doors.call.as_raw_fd()))
    }

    fn attach(&self, which: Which, tap: BorrowedFd<'_>) -> io::Result<()> {
        let backend = OfRing { index: which as u32, value: tap.as_raw_fd() };
        self.set::<SET_BACKEND, _>("attach the tap", backend)
    }

    fn detach(&self, which: Which) -> io::Result<()> {
        self.set::<SET_BACKEND, _>("detach the tap", OfRing { index: which as u32, value: -1 })
    }
}
