//! A guest whose TCP/IP stack is smoltcp: the stack's device is a vif, frames go in bursts, and
//! copies are the vif's and the stack's alone.
//!
//! ```text
//!   guest:    TCP client -- smoltcp -- Link: Device --recv, send--> FrontVif
//!                                                                     || rings, staging buffers
//!   network:  TCP echo ---- smoltcp -- Others: Device <------------ BackVif, its port
//! ```
//! Time is a counter here; a guest has a clock, and sleeps on its vif's channels for as long as
//! `poll_delay` says. Run it: `cargo run -p pregrant --features examples --example smoltcp_front`

mod machine;

use machine::{Machine, Net, Result};
use pregrant::PeerFault;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::LocalDomain;
use pregrant::port::{Arena, Offload};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::net::Ipv4Addr;

const BYTES: usize = 1 << 20;
const PORT: u16 = 7;
const GUEST: [u8; 4] = [10, 0, 0, 5];
const OTHER: [u8; 4] = [10, 0, 0, 9];
/// Milliseconds of the stacks' own time in which all must be over.
const LONGEST: i64 = 600_000;

/// The guest's vif, as the stack's device.
struct Link<'a> {
    guest: &'a LocalDomain,
    front: &'a mut FrontVif<LocalDomain>,
    /// A burst that came, and how much of it the stack has.
    came: Arena,
    taken: usize,
    /// A burst to be sent, and how much of it was sent.
    leaving: Arena,
    gone: usize,
    fault: Option<PeerFault>,
}

impl Link<'_> {
    /// Sends the frames of the stack while there is room; the rest goes first the next time.
    fn flush(&mut self) -> Result<()> {
        self.front.queue_mut(0).expect("a live vif").reclaim(self.guest, 1)?;
        self.gone += self
            .front
            .queue_mut(0)
            .expect("a live vif")
            .send(self.guest, &self.leaving.burst().skip(self.gone))?;
        if self.gone == self.leaving.len() {
            self.leaving.clear();
            self.gone = 0;
        }
        self.fault.take().map_or(Ok(()), |fault| Err(fault.into()))
    }
}

impl Device for Link<'_> {
    type RxToken<'a>
        = Came<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Leaving<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Came<'_>, Leaving<'_>)> {
        if self.taken == self.came.len() {
            self.came.clear();
            self.taken = 0;
            // A device has no errors to give to a stack.
            let received = self.front.queue_mut(0).expect("a live vif").recv(self.guest, &mut self.came, 1);
            self.fault = received.err().or(self.fault.take());
        }
        // A frame is taken only when its answer has room.
        if self.taken == self.came.len() || !self.leaving.has_room() {
            return None;
        }
        self.taken += 1;
        Some((Came(&self.came, self.taken - 1), Leaving(&mut self.leaving)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        self.leaving.has_room().then_some(Leaving(&mut self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// A frame of a burst.
struct Came<'a>(&'a Arena, usize);

impl RxToken for Came<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0.burst().frame(self.1))
    }
}

/// Room for a frame of a burst.
struct Leaving<'a>(&'a mut Arena);

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        match self.0.room(len, Offload::default()) {
            Some(frame) => f(frame),
            None => f(&mut vec![0; len]), // longer than any frame: made, and not sent
        }
    }
}

/// The machine behind the back.
struct Others<'a>(&'a mut Net);

impl Device for Others<'_> {
    type RxToken<'a>
        = Received
    where
        Self: 'a;
    type TxToken<'a>
        = Said<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Received, Said<'_>)> {
        let frame = (!self.0.took.is_empty()).then(|| self.0.took.remove(0))?;
        Some((Received(frame), Said(self.0)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Said<'_>> {
        Some(Said(self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Said<'a>(&'a mut Net);

impl TxToken for Said<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.gives.push_back(frame);
        result
    }
}

fn capabilities() -> DeviceCapabilities {
    let mut caps = DeviceCapabilities::default();
    caps.medium = Medium::Ethernet;
    caps.max_transmission_unit = 1514;
    caps
}

/// A stack with one TCP socket.
fn stack(
    device: &mut impl Device,
    mac: [u8; 6],
    ip: [u8; 4],
) -> (Interface, SocketSet<'static>, SocketHandle) {
    let config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac)));
    let mut interface = Interface::new(config, device, Instant::ZERO);
    interface.update_ip_addrs(|addresses| {
        // the list has room for one
        let _ = addresses.push(IpCidr::new(Ipv4Addr::from(ip).into(), 24));
    });
    let buffer = || tcp::SocketBuffer::new(vec![0; 64 << 10]);
    let mut sockets = SocketSet::new(Vec::new());
    let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
    (interface, sockets, socket)
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

pub fn main() -> Result<()> {
    let mut machine = Machine::new()?;
    let len = DataLen::new(2048);
    let mut wire = machine.wire(FrontConfig { staging: Buffers::of(len, len), ..FrontConfig::default() })?;
    let guest = &machine.guest;
    let (front, host_end) = (&mut wire.front, &mut wire.host_end);
    let (came, leaving) = (Arena::new(), Arena::new());
    let mut link = Link { guest, front, came, taken: 0, leaving, gone: 0, fault: None };
    let (mut near, mut near_sockets, client) = stack(&mut link, [0x00, 0x16, 0x3e, 0, 5, 0], GUEST);
    let (mut other, mut other_sockets, server) =
        stack(&mut Others(&mut host_end.net), [0x02, 0, 0, 0, 0, OTHER[3]], OTHER);
    other_sockets.get_mut::<tcp::Socket>(server).listen(PORT)?;
    let to = (Ipv4Addr::from(OTHER), PORT);
    near_sockets.get_mut::<tcp::Socket>(client).connect(near.context(), to, 49152)?;

    let (mut sent, mut back, mut wrong, mut now) = (0, 0, 0, 0);
    while back < BYTES {
        now += 1;
        if now > LONGEST {
            return Err(format!("{back} of {BYTES} bytes came back, and then nothing").into());
        }
        near.poll(Instant::from_millis(now), &mut link, &mut near_sockets);
        let socket = near_sockets.get_mut::<tcp::Socket>(client);
        if socket.can_send() && sent < BYTES {
            let some: Vec<u8> = (sent..BYTES.min(sent + 16384)).map(byte).collect();
            sent += socket.send_slice(&some)?;
        }
        while socket.can_recv() {
            back += socket.recv(|bytes| {
                wrong += bytes.iter().enumerate().filter(|(k, b)| **b != byte(back + k)).count();
                (bytes.len(), bytes.len())
            })?;
        }
        near.poll(Instant::from_millis(now), &mut link, &mut near_sockets);
        link.flush()?;
        while host_end.turn()? {}

        other.poll(Instant::from_millis(now), &mut Others(&mut host_end.net), &mut other_sockets);
        let socket = other_sockets.get_mut::<tcp::Socket>(server);
        while socket.can_recv() && socket.can_send() {
            let room = socket.send_capacity() - socket.send_queue();
            let some = socket.recv(|bytes| {
                let n = bytes.len().min(room);
                (n, bytes[..n].to_vec())
            })?;
            socket.send_slice(&some)?;
        }
        other.poll(Instant::from_millis(now), &mut Others(&mut host_end.net), &mut other_sockets);
        while host_end.turn()? {}
    }
    let (tx, rx) = link.front.queue(0).expect("a vif with queues").stats();
    println!(
        "{back} bytes came back over TCP, {wrong} of them wrong; {} frames out and {} in, {} in staging buffers",
        tx.frames,
        rx.frames,
        tx.staging + rx.staging
    );
    wire.close(guest)?;
    let left = machine.xen.counts();
    if (wrong, left.grants, left.mapped) == (0, 0, 0) {
        Ok(())
    } else {
        Err("bytes or grants are amiss".into())
    }
}
