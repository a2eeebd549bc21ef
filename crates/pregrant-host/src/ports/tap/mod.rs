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
//! | `tun` | descriptors of `/dev/net/tun`, one for each queue |
//! | `probe` | which of them is cheapest here |
//! | `header` | what is still to be done to a frame; what netif cannot say is done there |
//! | `cut_frames` | frames of a large segment that netif cannot pass on |
//! | `tap_log` | what it says in the log |
//! | [`whereabouts`] | what became of the interface, asked of the descriptor |
//!
//! The header carries what netif's extras do: a blank checksum and where it goes, segments still to
//! be cut (TCP over IPv4 and IPv6). So both ends leave that work undone as long as no one needs it.
//! One descriptor for each queue; the kernel spreads flows over them. A persistent interface
//! outlives this process, so that a bridge or an address stays when the backend is restarted.
//!
//! The descriptors stay this process' when the interface is renamed or moved to another network
//! namespace, and frames go on. When it is removed they can be attached to one that is
//! [made again](Tap::make_again), under the ports that have them. So the interface is asked of the
//! descriptor each time, and never found by the name that it had.
//!
//! A system call is what a frame costs here, and in a PV dom0 a very dear one; so a burst is one
//! where that is cheaper, and io_uring is there (Linux 5.19, not forbidden by
//! `kernel.io_uring_disabled` or seccomp); or none, where vhost-net is there. Frames that were read
//! and found no room wait in the port, 32 at most (by vhost-net 256), and count as
//! [held](pregrant::port::FramePort::held). A queue takes 2 MiB of address space for them, where
//! only pages that frames were read into count as used, and 128 KiB for frames on their way out; by
//! vhost-net 1.6 MiB beside.
//!
//! Where a path lends payload (`map`, and long frames by `staging`, `gref-mapping` and
//! `persistent`), the kernel takes it from the guest's pages: no copy is ours, and when the call is
//! over it has its own.
//!
//! What a guest may do: send any frame, as it could on a wire; the kernel checks the header once
//! more. Lent payload it may change until the kernel has copied it: that is what it sent then. What
//! the kernel cannot take (its queue is full) is dropped and counted.
#![expect(
    unsafe_code,
    reason = "ioctls on a tap and on vhost-net; io_uring, virtqueues, writev and readv name memory"
)]

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
mod tun;
mod uring;
mod vhost;
pub mod whereabouts;

pub use port::TapPort;
pub use transport_kind::TransportKind;
pub use whereabouts::Whereabouts;

use super::netdev_ioctl::Interface;
use port::Drops;
use pregrant::port::Offloads;
use rustix::fd::OwnedFd;
use rustix::ioctl::{IntegerSetter, Opcode, Setter};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use tap_log::TapLines;
use tun::{IFF_MULTI_QUEUE, attach, failed, queue, set_queue};

/// `TUNSETPERSIST`.
const SET_PERSIST: Opcode = 0x4004_54CB;
/// `TUNSETOFFLOAD`.
const SET_OFFLOAD: Opcode = 0x4004_54D0;
/// `TUNSETCARRIER`.
const SET_CARRIER: Opcode = 0x4004_54E2;

/// `TUN_F_CSUM`, which allows the kernel to leave checksums blank.
const TAKES_BLANK: usize = 0x01;
/// `TUN_F_TSO4 | TUN_F_TSO6`: the kernel may leave TCP segments uncut.
const TAKES_UNCUT: usize = 0x02 | 0x04;

/// The interface of a vif. It is removed with this value and its ports, unless it is made
/// [persistent](Tap::persist).
#[derive(Debug)]
pub struct Tap {
    /// The interface, under its last known name.
    interface: RefCell<Interface>,
    /// The last known location of the interface.
    seen: RefCell<Whereabouts>,
    /// Queues attached to a new interface that is being [made again](Tap::make_again).
    attached: Cell<usize>,
    first: Arc<OwnedFd>,
    /// The queues after the first, and whether each receives frames. They are kept for reuse,
    /// because new queues can only be made in this process's network namespace.
    others: RefCell<Vec<(Arc<OwnedFd>, bool)>>,
    /// The argument of the last `TUNSETOFFLOAD`.
    offloads: Cell<usize>,
    way: TransportKind,
    lines: Arc<TapLines>,
}

impl Tap {
    /// Opens the first queue of the interface `name`, which is created, or reused if it exists and
    /// is unused.
    ///
    /// # Errors
    ///
    /// The process lacks CAP_NET_ADMIN, there is no `/dev/net/tun`, or another kind of interface
    /// has the name.
    pub fn open(name: &str) -> io::Result<Self> {
        Ok(Self {
            first: Arc::new(queue(name)?),
            interface: RefCell::new(Interface::new(name)?),
            seen: RefCell::new(Whereabouts::Here(name.into())),
            attached: Cell::new(0),
            others: RefCell::default(),
            offloads: Cell::new(0),
            way: TransportKind::default(),
            lines: Arc::new(TapLines::new(name)),
        })
    }

    /// Sets the transport of ports that are made from now on.
    pub fn set_way(&mut self, way: TransportKind) {
        self.way = way;
    }

    /// Creates a port for each of `queues` queues. `front` has the offloads that the guest
    /// supports. The previous ports must have been dropped.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open); or the kernel has no more queues for it.
    pub fn ports(&self, queues: usize, front: Offloads) -> io::Result<Vec<TapPort>> {
        // Uncut segments also have blank checksums.
        let offloads = match front {
            Offloads { csum: true, gso: true } => TAKES_BLANK | TAKES_UNCUT,
            Offloads { csum: true, gso: false } => TAKES_BLANK,
            Offloads { csum: false, .. } => 0,
        };
        self.offloads.set(offloads);
        self.set_offloads()?;
        self.use_queues(queues.max(1) - 1)?;
        let drops = Arc::new(Drops::default());
        let others = self.others.borrow();
        let fds = std::iter::once(&self.first).chain(others.iter().map(|(fd, _)| fd));
        let port =
            |fd: &Arc<OwnedFd>| TapPort::new(Arc::clone(fd), Arc::clone(&drops), self.way, &self.lines);
        Ok(fds.take(queues.max(1)).map(port).collect())
    }

    fn set_offloads(&self) -> io::Result<()> {
        let offloads = self.offloads.get();
        // SAFETY: TUNSETOFFLOAD takes its argument as a number.
        unsafe { rustix::ioctl::ioctl(&self.first, IntegerSetter::<SET_OFFLOAD>::new_usize(offloads)) }
            .map_err(|e| failed(&self.name(), "take offloads", e))
    }

    /// Opens queues for later [`ports`](Self::ports), which then exist even if the interface moves
    /// to another network namespace.
    ///
    /// # Errors
    ///
    /// As for `ports`.
    pub fn reserve(&self, queues: usize) -> io::Result<()> {
        self.use_queues(queues.max(1) - 1)?;
        self.use_queues(0)
    }

    /// Enables this many queues after the first, and disables the others. Enabled queues start
    /// empty.
    fn use_queues(&self, queues: usize) -> io::Result<()> {
        let mut others = self.others.borrow_mut();
        for (fd, has_frames) in others.iter_mut().filter(|(_, has_frames)| *has_frames) {
            set_queue(&self.name(), fd, false)?;
            *has_frames = false;
        }
        for (fd, has_frames) in others.iter_mut().take(queues) {
            set_queue(&self.name(), fd, true)?;
            *has_frames = true;
        }
        while others.len() < queues {
            let refused = |why: &str| {
                io::Error::other(format!(
                    "tap {}: {why}, so that it gets no more queues than {}; if the interface was moved, move it back, and have the guest's front connect again",
                    self.name(),
                    others.len() + 1
                ))
            };
            let name = match self.whereabouts() {
                Whereabouts::Here(name) => name,
                Whereabouts::Elsewhere => return Err(refused(whereabouts::ELSEWHERE)),
                Whereabouts::Gone => return Err(refused(whereabouts::GONE)),
            };
            let fd = queue(&name)?;
            // The old name may belong to another interface now.
            if self.whereabouts() != Whereabouts::Here(name) {
                return Err(refused("the interface was renamed or moved just now"));
            }
            others.push((Arc::new(fd), true));
        }
        Ok(())
    }

    /// Creates an interface of the same name for the tap's queues if the old one is
    /// [gone](Whereabouts::Gone). Its ports continue with the new one, which is down.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open). If this fails half way, it counts as gone until another call
    /// succeeds.
    pub fn make_again(&self) -> io::Result<()> {
        match Whereabouts::of(&self.first) {
            // It was renamed while only a part of its queues was attached.
            Some(Whereabouts::Here(name)) if self.attached.get() > 0 => {
                let called = self.interface.borrow().called(&name, None);
                *self.interface.borrow_mut() = called;
            }
            Some(Whereabouts::Elsewhere) if self.attached.get() > 0 => {
                return Err(io::Error::other(format!(
                    "tap {}: {}; move it back, or delete it where it is",
                    self.name(),
                    whereabouts::ELSEWHERE
                )));
            }
            Some(Whereabouts::Gone) => self.attached.set(0),
            _ => {}
        }
        let name = self.name();
        if self.attached.get() == 0 {
            attach(&self.first, &name, IFF_MULTI_QUEUE)?;
            self.attached.set(1);
        }
        self.set_offloads()?;
        for (fd, has_frames) in self.others.borrow().iter().skip(self.attached.get() - 1) {
            // The name may belong to another interface now.
            if Whereabouts::of(&self.first) != Some(Whereabouts::Here(name.clone())) {
                return Err(io::Error::other(format!(
                    "tap {name}: the interface was renamed or moved just now"
                )));
            }
            attach(fd, &name, IFF_MULTI_QUEUE)?;
            if !has_frames {
                set_queue(&name, fd, false)?;
            }
            self.attached.set(self.attached.get() + 1);
        }
        self.attached.set(0);
        Ok(())
    }

    /// Returns the last known name of the interface.
    pub fn name(&self) -> String {
        self.interface.borrow().name().into()
    }

    /// Finds out where the interface is now.
    pub fn whereabouts(&self) -> Whereabouts {
        if self.attached.get() > 0 {
            return Whereabouts::Gone;
        }
        let Some(whereabouts) = Whereabouts::of(&self.first) else { return self.seen.borrow().clone() };
        if let Whereabouts::Here(name) = &whereabouts {
            let called = self.interface.borrow().called(name, None);
            *self.interface.borrow_mut() = called;
        }
        self.seen.replace(whereabouts.clone());
        whereabouts
    }

    /// The interface under its current name, to set its MTU, bridge or state. Each of these fails
    /// if it is in another network namespace, or gone.
    pub fn interface(&self) -> Interface {
        let absent = match self.whereabouts() {
            Whereabouts::Here(_) => None,
            Whereabouts::Elsewhere => Some(whereabouts::ELSEWHERE),
            Whereabouts::Gone => Some(whereabouts::GONE),
        };
        let interface = self.interface.borrow();
        interface.called(interface.name(), absent)
    }

    /// Sets whether the interface outlives this process.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn persist(&self, yes: bool) -> io::Result<()> {
        // SAFETY: TUNSETPERSIST takes its argument as a number.
        Ok(unsafe { rustix::ioctl::ioctl(&self.first, IntegerSetter::<SET_PERSIST>::new_usize(yes.into())) }?)
    }

    /// Sets the carrier: whether the guest's end is connected.
    ///
    /// # Errors
    ///
    /// The kernel is older than 5.0.
    pub fn carrier(&self, yes: bool) -> io::Result<()> {
        // SAFETY: TUNSETCARRIER reads an int through the pointer.
        Ok(unsafe { rustix::ioctl::ioctl(&self.first, Setter::<SET_CARRIER, i32>::new(yes.into())) }?)
    }
}
