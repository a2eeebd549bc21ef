//! A tap: the vif as a network interface of this machine, which the kernel routes or bridges.
//!
//! ```text
//!   guest TX: | virtio_net_hdr, 10 octets | frame |  one write a frame --> the interface receives it
//!   guest RX: | virtio_net_hdr, 10 octets | frame |  <-- one read a frame, what the interface sends
//! ```
//! The header carries what netif's extras do: a blank checksum and where it goes, segments still to be cut (TCP over IPv4 and
//! IPv6). So both ends leave that work undone as long as nobody needs it. One descriptor for each queue; the kernel spreads flows
//! over them. A persistent interface outlives this process, so that a bridge or an address stays when the backend is
//! restarted.
//!
//! What a guest may do: send any frame, as it could on a wire; the kernel checks the header once more. What the kernel
//! cannot take (its queue is full) is dropped and counted.

use super::interface::Interface;
use pregrant::net::headers::IpHeaders;
use pregrant::port::{Arena, Burst, FramePort, MAX_FRAME, Offload, Offloads, PortDrop};
use pregrant::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// `struct virtio_net_hdr`, host byte order: flags u8, gso_type u8, hdr_len, gso_size, csum_start, csum_offset u16.
const HEADER: usize = 10;
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const VIRTIO_TCPV4: u8 = 1;
const VIRTIO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`: congestion was signalled; segmentation is the same.
const VIRTIO_ECN: u8 = 0x80;

/// Where the kernel makes taps.
const TUN: &str = "/dev/net/tun";

/// A vif's interface; it goes with this value and its ports, unless it is told to [persist](Tap::persist).
#[derive(Debug)]
pub struct Tap {
    interface: Interface,
    first: Arc<OwnedFd>,
}

/// One queue of a tap.
#[derive(Debug)]
pub struct TapPort {
    fd: Arc<OwnedFd>,
    /// Where the kernel writes a frame.
    frame: Box<[u8]>,
    drops: Arc<Drops>,
}

/// Frames that were dropped, of all queues.
#[derive(Debug, Default)]
struct Drops {
    /// The interface is down, or its queue is full.
    refused: AtomicU64,
    /// Headers that do not fit what the guest said of them.
    malformed: AtomicU64,
}

/// `struct ifreq` as `TUNSETIFF` reads it.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// What a kernel that refuses means, and what to do.
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
    io::Error::new(io::Error::from(e).kind(), format!("tap {name}: {what}: {e}; {remedy}"))
}

/// One more queue of the interface `name`, which is made with the first.
fn queue(name: &str) -> io::Result<OwnedFd> {
    let mut bytes = [0; 16];
    // One octet stays for the end of the name.
    let room = bytes.get_mut(..name.len()).filter(|r| r.len() < 16 && !r.is_empty());
    room.ok_or_else(|| failed(name, "a name has 1 to 15 octets", Errno::INVAL))?
        .copy_from_slice(name.as_bytes());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(TUN, flags, Mode::empty()).map_err(|e| failed(name, TUN, e))?;
    // How many queues its guest wants shows after the interface is there.
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE;
    let mut request = IfReq { name: bytes, flags, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads and writes one ifreq, 40 octets.
    unsafe { rustix::ioctl::ioctl(&fd, Updater::<SET_IFF, IfReq>::new(&mut request)) }
        .map_err(|e| failed(name, "make the interface, or attach to it", e))?;
    // SAFETY: TUNSETVNETHDRSZ reads an int through the pointer.
    unsafe { rustix::ioctl::ioctl(&fd, Setter::<SET_VNET_HDR_SZ, i32>::new(HEADER as i32)) }
        .map_err(|e| failed(name, "set the header's size", e))?;
    Ok(fd)
}

impl Tap {
    /// Makes the interface `name`, or attaches to it where it exists and nobody has it, with its first queue.
    ///
    /// # Errors
    /// No rights (CAP_NET_ADMIN), no `/dev/net/tun`, the name is taken by another kind of interface.
    pub fn open(name: &str) -> io::Result<Self> {
        let first = Arc::new(queue(name)?);
        Ok(Self { interface: Interface::new(name)?, first })
    }

    /// A port for each of `queues`. `front` says what may be left undone towards the guest. The ports before must be
    /// dropped.
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
            let frame = vec![0; MAX_FRAME].into_boxed_slice();
            Ok(TapPort { fd, frame, drops: Arc::clone(&drops) })
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

/// The header of a frame that a guest sent. None: it claims what its headers do not bear out.
fn header_of(frame: &[u8], offload: Offload) -> Option<[u8; HEADER]> {
    let mut header = [0; HEADER];
    if offload.csum_blank || offload.gso_type != 0 {
        let ip = IpHeaders::parse(frame).ok()?;
        let field = ip.checksum_at().ok()?.checked_sub(ip.l4_at)?;
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&u16::try_from(ip.l4_at).ok()?.to_ne_bytes());
        header[8..10].copy_from_slice(&u16::try_from(field).ok()?.to_ne_bytes());
        if offload.gso_type != 0 {
            header[1] = match offload.gso_type {
                GSO_TYPE_TCPV4 => VIRTIO_TCPV4,
                GSO_TYPE_TCPV6 => VIRTIO_TCPV6,
                _ => return None,
            };
            let headers = ip.l4_at + ip.tcp_header_len(frame).ok()?;
            header[2..4].copy_from_slice(&u16::try_from(headers).ok()?.to_ne_bytes());
            header[4..6].copy_from_slice(&offload.gso_size.to_ne_bytes());
        }
    } else if offload.csum_ok {
        header[0] = DATA_VALID;
    }
    Some(header)
}

/// What is still to be done to a frame that the kernel gave. None: it was not to give such a one.
fn offload_of(header: &[u8; HEADER]) -> Option<Offload> {
    let gso_type = match header[1] & !VIRTIO_ECN {
        0 => 0,
        VIRTIO_TCPV4 => GSO_TYPE_TCPV4,
        VIRTIO_TCPV6 => GSO_TYPE_TCPV6,
        _ => return None,
    };
    let csum_blank = header[0] & NEEDS_CSUM != 0;
    Some(Offload {
        csum_blank,
        csum_ok: csum_blank || header[0] & DATA_VALID != 0,
        gso_type,
        gso_size: if gso_type == 0 { 0 } else { u16::from_ne_bytes([header[4], header[5]]) },
    })
}

impl FramePort for TapPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        for (frame, offload) in frames.iter() {
            let Some(header) = header_of(frame, offload) else {
                self.drops.malformed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let pieces = [IoSlice::new(&header), IoSlice::new(frame)];
            if rustix::io::writev(&self.fd, &pieces).is_err() {
                self.drops.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        frames.frames.len()
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut n = 0;
        while into.has_room() {
            let mut header = [0; HEADER];
            let mut pieces = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut self.frame)];
            let Ok(octets) = rustix::io::readv(&self.fd, &mut pieces) else { break };
            let Some(frame) = octets.checked_sub(HEADER).and_then(|len| self.frame.get(..len)) else {
                continue;
            };
            match offload_of(&header) {
                Some(offload) => n += usize::from(into.push(frame, offload)),
                None => {
                    self.drops.malformed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        n
    }

    fn drops(&self) -> Vec<PortDrop> {
        let drop =
            |reason, count: &AtomicU64| PortDrop { dir: "tx", reason, frames: count.load(Ordering::Relaxed) };
        vec![drop("tap_refused", &self.drops.refused), drop("bad_headers", &self.drops.malformed)]
    }
}

impl AsFd for TapPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet, IPv4 and TCP header, and `payload` octets; the checksum field is to be filled.
    fn tcp(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 54 + payload];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
        frame[22] = 64;
        frame[23] = 6;
        frame[46] = 0x50;
        frame
    }

    #[test]
    fn a_blank_checksum_and_segments_travel_in_the_header() {
        let blank = Offload { csum_blank: true, csum_ok: true, gso_type: 0, gso_size: 0 };
        let header = header_of(&tcp(100), blank).unwrap();
        assert_eq!((header[0], header[1]), (NEEDS_CSUM, 0));
        assert_eq!([header[6], header[8]], [34, 16]);
        assert_eq!(offload_of(&header), Some(blank));

        let uncut = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, ..blank };
        let header = header_of(&tcp(9000), uncut).unwrap();
        assert_eq!([header[1], header[2]], [VIRTIO_TCPV4, 54]);
        assert_eq!(offload_of(&header), Some(uncut));

        let ok = Offload { csum_ok: true, ..Offload::default() };
        assert_eq!(offload_of(&header_of(&tcp(0), ok).unwrap()), Some(ok));
        assert_eq!(header_of(&[0; 60], Offload::default()), Some([0; HEADER]));
    }

    #[test]
    fn what_headers_do_not_bear_out_is_no_frame() {
        let blank = Offload { csum_blank: true, ..Offload::default() };
        assert_eq!(header_of(&[0; 60], blank), None);
        assert_eq!(header_of(&tcp(9)[..40], blank), None);
        let unknown = Offload { gso_type: 9, gso_size: 100, ..blank };
        assert_eq!(header_of(&tcp(9), unknown), None);
        // UDP segmentation was not asked for.
        assert_eq!(offload_of(&[1, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
