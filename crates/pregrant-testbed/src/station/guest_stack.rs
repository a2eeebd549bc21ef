//! A guest's TCP/IP stack (smoltcp) between two bounded queues of frames.
//!
//! ```text
//!   TransferClient/Server -- GuestStack::poll --> outgoing() burst --> TxFront::send
//!                                            <--  receive(burst)   <-- RxFront::recv
//! ```
//!
//! It knows frames in bursts and the time, and nothing of Xen: the guest's loop moves the bursts
//! between it and a front. ARP is smoltcp's. Frames that come with a blank checksum or as one large
//! segment (another guest's netfront may send such) are finished on their way in, since smoltcp
//! checks every sum. Memory is bounded: what does not fit into the receive queue is dropped, as on
//! any wire, and TCP sends it again; what the stack would send waits inside the sockets.

use std::net::Ipv4Addr;

use super::frame_number::{self, Numbers};
use pregrant::net::headers::MacAddr;
use pregrant::port::{Arena, Burst, MAX_FRAME, Offload, Offloads};
use pregrant_host::ports::frame_queue::FrameQueue;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, HardwareAddress, IpCidr, IpProtocol, Ipv4Packet,
    TcpPacket,
};

/// Largest number of bytes that may wait to be received.
const RECEIVE_QUEUE_BYTES: usize = 512 * 1024;
/// Number of bytes of an Ethernet header, which smoltcp includes in the MTU.
const ETHERNET_LEN: usize = 14;

/// Settings of a guest's TCP/IP stack.
#[derive(Clone, Copy, Debug)]
pub struct StackConfig {
    /// The station's hardware address; a group address is changed to a unicast one.
    pub mac: MacAddr,
    pub address: Ipv4Addr,
    /// Number of leading bits of the address that name the network.
    pub prefix_len: u8,
    /// Length in bytes of the largest IP packet, from 576 to 65521. The Ethernet header is not
    /// included, as in Linux.
    pub mtu: usize,
    /// Number of bytes that each socket may hold in either direction.
    pub socket_bytes: usize,
    /// The seed of sequence numbers and port numbers.
    pub seed: u64,
    /// True if each frame ends with a number (`frame_number`), which its receiver counts.
    pub numbered: bool,
}

impl StackConfig {
    /// Creates the settings of a stack with the usual MTU of Ethernet, in a network of 256
    /// addresses.
    pub fn new(mac: MacAddr, address: Ipv4Addr) -> Self {
        Self { mac, address, prefix_len: 24, mtu: 1500, socket_bytes: 256 * 1024, seed: 1, numbered: false }
    }
}

/// The network device of smoltcp, which exchanges its frames as bursts.
#[derive(Debug)]
struct FrameDevice {
    incoming: FrameQueue,
    outgoing: Arena,
    mtu: usize,
    numbers: Option<Numbers>,
}

impl Device for FrameDevice {
    type RxToken<'a> = Incoming<'a>;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Incoming<'_>, Outgoing<'_>)> {
        // A frame is taken only when its answer has room, so that nothing is lost in between.
        if self.incoming.is_empty() || !self.outgoing.has_room() {
            return None;
        }
        Some((Incoming(&mut self.incoming), Outgoing(&mut self.outgoing, self.numbers.as_mut())))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Outgoing<'_>> {
        self.outgoing.has_room().then_some(Outgoing(&mut self.outgoing, self.numbers.as_mut()))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = self.mtu + ETHERNET_LEN;
        caps
    }
}

struct Incoming<'a>(&'a mut FrameQueue);

impl RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(self.0.front().map_or(&[], |(frame, _)| frame));
        self.0.pop();
        result
    }
}

struct Outgoing<'a>(&'a mut Arena, Option<&'a mut Numbers>);

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let behind = if self.1.is_some() { frame_number::LEN } else { 0 };
        match self.0.room(len + behind, Offload::default()) {
            Some(frame) => {
                if let Some(numbers) = self.1 {
                    frame_number::write(frame, numbers.take());
                }
                f(&mut frame[..len])
            }
            // A token is given only while the largest frame fits; a longer one than that is built
            // and not sent.
            None => f(&mut vec![0; len]),
        }
    }
}

/// The stack of one guest.
pub struct GuestStack {
    device: FrameDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket_bytes: usize,
    sent: usize,
    next_port: u16,
    overflow: u64,
}

impl GuestStack {
    /// A stack without sockets. `now_ns` is any clock that does not go back.
    pub fn new(config: &StackConfig, now_ns: u64) -> Self {
        let mtu = config.mtu.clamp(576, MAX_FRAME - ETHERNET_LEN);
        let (incoming, outgoing) = (FrameQueue::new(RECEIVE_QUEUE_BYTES), Arena::new());
        let numbers = config.numbered.then(Numbers::default);
        let mut device = FrameDevice { incoming, outgoing, mtu, numbers };
        let mut mac = config.mac.0;
        mac[0] &= !1;
        let mut settings = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac)));
        settings.random_seed = config.seed;
        let mut interface = Interface::new(settings, &mut device, instant(now_ns));
        interface.update_ip_addrs(|addresses| {
            // The list has room for at least one.
            let _ = addresses.push(IpCidr::new(config.address.into(), config.prefix_len.min(32)));
        });
        Self {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            socket_bytes: config.socket_bytes,
            sent: 0,
            next_port: 49152 + (config.seed % 16384) as u16,
            overflow: 0,
        }
    }

    /// Passes a burst of received frames to the stack; [`GuestStack::poll`] handles them.
    pub fn receive(&mut self, burst: &Burst<'_>) {
        for (frame, offload) in burst.iter() {
            if let Some(numbers) = &mut self.device.numbers {
                numbers.note(frame);
            }
            let done = self.device.incoming.push_finished(frame, offload, Offloads::default());
            self.overflow += u64::from(done.overflow);
        }
    }

    /// Lets the stack work: received frames, timers, data of the sockets. Returns true if a socket
    /// may have changed.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        self.interface.poll(instant(now_ns), &mut self.device, &mut self.sockets)
            == PollResult::SocketStateChanged
    }

    /// Nanoseconds until the stack must be polled again even if no frame arrives: 0 for at once,
    /// None for never.
    pub fn idle_for_ns(&mut self, now_ns: u64) -> Option<u64> {
        let delay = self.interface.poll_delay(instant(now_ns), &self.sockets)?;
        Some(delay.total_micros().saturating_mul(1000))
    }

    /// Frames that wait to be sent. Report with [`GuestStack::sent`] how many were.
    pub fn outgoing(&self) -> Burst<'_> {
        self.device.outgoing.burst().skip(self.sent)
    }

    /// Called when the first `n` frames of [`GuestStack::outgoing`] were sent.
    pub fn sent(&mut self, n: usize) {
        self.sent += n;
        if self.sent >= self.device.outgoing.len() {
            self.device.outgoing.clear();
            self.sent = 0;
        }
    }

    /// Number of received frames that found the queue full.
    pub fn overflow(&self) -> u64 {
        self.overflow
    }

    /// Returns the counts of numbered frames, if frames are numbered.
    pub fn numbers(&self) -> Option<&Numbers> {
        self.device.numbers.as_ref()
    }

    /// Adds a TCP socket, which is closed at first.
    pub fn add_socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; self.socket_bytes]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        self.sockets.add(socket)
    }

    pub fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Starts to connect a socket to `to`.
    pub fn connect(&mut self, handle: SocketHandle, to: (Ipv4Addr, u16)) -> Result<(), tcp::ConnectError> {
        let from = self.next_port;
        self.next_port = if from == u16::MAX { 49152 } else { from + 1 };
        self.sockets.get_mut::<tcp::Socket>(handle).connect(self.interface.context(), to, from)
    }

    pub fn sockets(&mut self) -> &mut SocketSet<'static> {
        &mut self.sockets
    }

    pub fn remove_socket(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }
}

/// Returns true if the frame is the first segment of a TCP connection to `port`.
pub fn asks_to_connect(frame: &[u8], port: u16) -> bool {
    let asks = || {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        let ip = (frame.ethertype() == EthernetProtocol::Ipv4)
            .then(|| Ipv4Packet::new_checked(frame.payload()))?
            .ok()?;
        let tcp =
            (ip.next_header() == IpProtocol::Tcp).then(|| TcpPacket::new_checked(ip.payload()))?.ok()?;
        Some(tcp.syn() && !tcp.ack() && tcp.dst_port() == port)
    };
    asks().unwrap_or(false)
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Creates two stacks on one network.
    pub fn pair(mtu: usize) -> (GuestStack, GuestStack) {
        let stack = |n: u8| {
            let mac = MacAddr([2, 0, 0, 0, 0, n]);
            GuestStack::new(
                &StackConfig { mtu, seed: n.into(), ..StackConfig::new(mac, Ipv4Addr::new(10, 0, 0, n)) },
                0,
            )
        };
        (stack(1), stack(2))
    }

    /// Moves the frames that `from` has to send to `to`, and returns their number.
    pub fn carry(from: &mut GuestStack, to: &mut GuestStack) -> usize {
        let burst = from.outgoing();
        let n = burst.frames.len();
        to.receive(&burst);
        from.sent(n);
        n
    }

    #[test]
    fn the_first_frame_asks_who_has_the_address() {
        let (mut a, mut b) = pair(1500);
        let socket = a.add_socket();
        a.connect(socket, (Ipv4Addr::new(10, 0, 0, 2), 7)).unwrap();
        a.poll(0);
        let first = a.outgoing().frame(0).to_vec();
        assert_eq!((&first[..6], &first[12..14]), (&[0xFF; 6][..], &[0x08, 0x06][..]));
        carry(&mut a, &mut b);
        b.poll(0);
        let answer = b.outgoing().frame(0).to_vec();
        assert_eq!(answer[..6], [2, 0, 0, 0, 0, 1]);
        carry(&mut b, &mut a);
        a.poll(1000);
        let asks = |port| asks_to_connect(a.outgoing().frame(0), port);
        assert!(asks(7) && !asks(8), "the connection request follows");
        assert!(!asks_to_connect(&first, 7) && !asks_to_connect(&answer, 7) && !asks_to_connect(&[], 7));
        assert!(a.idle_for_ns(1000).is_some(), "it would be sent again");
    }

    #[test]
    fn frames_taken_in_part_stay_in_order() {
        let (mut a, _) = pair(1500);
        for n in 0..3u8 {
            assert!(a.device.outgoing.push(&[n; 60], Offload::default()));
        }
        a.sent(2);
        assert_eq!(a.outgoing().frames.len(), 1);
        assert_eq!(a.outgoing().frame(0), [2; 60]);
        a.sent(1);
        assert_eq!((a.outgoing().frames.len(), a.device.outgoing.len()), (0, 0));
    }

    #[test]
    fn a_flood_is_dropped_not_kept() {
        let (mut a, _) = pair(1500);
        let mut arena = Arena::new();
        while arena.push(&[0xFF; 1500], Offload::default()) {}
        let mut given = 0;
        while a.overflow() == 0 {
            a.receive(&arena.burst());
            given += arena.len();
        }
        assert!(given * 1500 < 2 * RECEIVE_QUEUE_BYTES);
        a.poll(0);
        assert!(a.device.incoming.is_empty());
    }
}
