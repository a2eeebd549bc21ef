//! One TCP connection between two guests, through the switch in the back's process: it lives
//! through every death of the back, and every byte arrives once and in its place.

use crate::world::World;
use pregrant::DomId;
use pregrant::net::front::FrontConfig;
use pregrant::net::front::Granting;
use pregrant::platform::Clock;
use pregrant::port::{Arena, Offload};
use pregrant_host::MonotonicClock;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Frontend;
use pregrant_loopback::{DomainSpec, Loopback};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;
use std::time::Duration;

const CLIENT: DomId = DomId(7);
const SERVER: DomId = DomId(8);
const PORT: u16 = 5000;
/// The stack sends again after a second at least, and backs live for some ms: its seconds are this
/// much shorter, so that the connection is at work and not asleep when they die.
const HURRY: u64 = 64;

/// Frames between the stack and the vif.
#[derive(Default)]
struct Frames {
    came: VecDeque<Vec<u8>>,
    to_send: VecDeque<Vec<u8>>,
}

struct Came(Vec<u8>);

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Room<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Frames {
    type RxToken<'a> = Came;
    type TxToken<'a> = Room<'a>;
    fn receive(&mut self, _: Instant) -> Option<(Came, Room<'_>)> {
        Some((Came(self.came.pop_front()?), Room(&mut self.to_send)))
    }
    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        (self.to_send.len() < 64).then_some(Room(&mut self.to_send))
    }
    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 1514;
        caps
    }
}

/// A guest with a vif, a stack and one socket.
struct Station {
    front: Frontend<Loopback, UnixTransport>,
    frames: Frames,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    arena: Arena,
}

fn now() -> Instant {
    Instant::from_micros((MonotonicClock.now_ns() / 1000 * HURRY) as i64)
}

fn address(of: DomId) -> IpAddress {
    IpAddress::v4(10, 0, 0, of.0 as u8)
}

impl Station {
    fn new(world: &mut World, domid: DomId) -> Self {
        world.add(DomainSpec::guest(domid));
        let (platform, xs) = world.attach(domid);
        // Standing grants, so that the machine's account is the same at every rest.
        let config = FrontConfig { granting: Granting::Standing, ..FrontConfig::default() };
        let mut front = Frontend::new(platform, xs, 0, config, false).unwrap();
        assert!(front.connect(Duration::from_secs(60)).unwrap());
        let mut frames = Frames::default();
        let mac = EthernetAddress([2, 0, 0, 0, 0, domid.0 as u8]);
        let mut interface = Interface::new(Config::new(HardwareAddress::Ethernet(mac)), &mut frames, now());
        interface.update_ip_addrs(|list| list.push(IpCidr::new(address(domid), 24)).unwrap());
        let buffer = || tcp::SocketBuffer::new(vec![0; 32 * 1024]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Self { front, frames, interface, sockets, socket, arena: Arena::new() }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn step(&mut self) {
        self.arena.clear();
        self.front.recv(0, &mut self.arena, 1).unwrap();
        self.frames.came.extend(self.arena.burst().iter().map(|(frame, _)| frame.to_vec()));
        self.interface.poll(now(), &mut self.frames, &mut self.sockets);
        self.front.reclaim(0, 1).unwrap();
        self.arena.clear();
        for frame in self.frames.to_send.iter().take(32) {
            assert!(self.arena.push(frame, Offload::default()));
        }
        let sent = self.front.send(0, &self.arena.burst()).unwrap();
        self.frames.to_send.drain(..sent);
    }
}

/// Byte `at` of the stream.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

pub struct Stream {
    client: Station,
    server: Station,
    /// Bytes that the client's socket took, and those that arrived.
    pub sent: u64,
    pub arrived: u64,
}

impl Stream {
    /// Opens a connection between two new guests; returns when it is established.
    pub fn open(world: &mut World) -> Self {
        let (mut client, mut server) = (Station::new(world, CLIENT), Station::new(world, SERVER));
        server.socket().listen(PORT).unwrap();
        let to = (address(SERVER), PORT);
        let context = client.interface.context();
        client.sockets.get_mut::<tcp::Socket>(client.socket).connect(context, to, 49152).unwrap();
        let mut stream = Self { client, server, sent: 0, arrived: 0 };
        while stream.arrived == 0 {
            stream.step(true);
        }
        stream
    }

    /// Runs one turn of both ends; the client always has more to send if `send`.
    pub fn step(&mut self, send: bool) {
        let (from, sent) = (self.sent, &mut self.sent);
        let socket = self.client.sockets.get_mut::<tcp::Socket>(self.client.socket);
        if send && socket.can_send() {
            *sent += socket
                .send(|room| {
                    let n = room.len().min(4096);
                    room[..n].iter_mut().zip(from..).for_each(|(to, at)| *to = byte(at));
                    (n, n as u64)
                })
                .unwrap();
        }
        self.client.step();
        self.server.step();
        let (from, arrived) = (self.arrived, &mut self.arrived);
        let socket = self.server.sockets.get_mut::<tcp::Socket>(self.server.socket);
        if socket.can_recv() {
            *arrived += socket
                .recv(|data| {
                    let wrong = data.iter().zip(from..).find(|(got, at)| **got != byte(*at));
                    assert!(wrong.is_none(), "byte {} of the TCP stream is wrong", wrong.unwrap().1);
                    (data.len(), data.len() as u64)
                })
                .unwrap();
        }
    }

    /// Whether all that was sent has arrived, and no one waits for an answer.
    pub fn rests(&mut self) -> bool {
        self.arrived == self.sent && self.client.socket().send_queue() == 0
    }

    /// The states of both ends.
    pub fn states(&mut self) -> [tcp::State; 2] {
        [self.client.socket().state(), self.server.socket().state()]
    }

    /// Checks that the machine is as it was at the start, with both vifs closed.
    pub fn close(mut self) {
        assert_eq!(self.states(), [tcp::State::Established; 2], "the connection did not live");
        for station in [&mut self.client, &mut self.server] {
            assert!(station.front.close(Duration::from_secs(60)).unwrap());
        }
    }
}
