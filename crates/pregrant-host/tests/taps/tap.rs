//! A tap in a network namespace of its own: frames both ways, their checksums left blank. Needs
//! root, /dev/net/tun and `ip`.
//!
//! ```text
//!   this test (as the guest, 10.77.0.2) <--TapPort--> interface vif7.0, 10.77.0.1 <--> a socket of the same namespace
//! ```

use pregrant::DomId;
use pregrant::net::checksum;
use pregrant::platform::local::Pages;
use pregrant::port::{
    Arena, BURST_FRAMES, FramePort, Offload, Offloads, PayloadSource, Piece, Token, ZeroCopyBurst,
};
use pregrant::shm::SharedBytes;
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::drivers::net::hotplug::{RUNS_MAX, Service};
use pregrant_host::drivers::{HotplugConfig, Plugged, PortProvider, RemoteSide, Taps};
use pregrant_host::ports::port_readiness::PortReadiness;
use pregrant_host::ports::tap::{Tap, TapPort, TransportKind};
use pregrant_test_machine::netns::{BOTH, GUEST_MAC, apart, ip};
use pregrant_testkit::skip::{skip, skip_for_kernel};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The interface's other side: a packet socket that sees what the interface receives, and sends
/// through it.
pub struct Packets(std::fs::File);

impl Packets {
    /// Frames of `protocol`; with a virtio_net_hdr in front, or without.
    pub fn on(tap: &Tap, protocol: u16, headers: bool) -> Self {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it was just made, and no one else has it.
        let socket = Self(unsafe { std::fs::File::from_raw_fd(fd) });
        for (option, value) in [(libc::SO_RCVBUFFORCE, 64 << 20), (libc::SO_SNDBUFFORCE, 64 << 20)] {
            socket.set(libc::SOL_SOCKET, option, value);
        }
        if headers {
            // PACKET_VNET_HDR.
            socket.set(libc::SOL_PACKET, 15, 1);
        }
        // SAFETY: bytes and numbers alone, for which zero is a value.
        let mut place: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        place.sll_family = libc::AF_PACKET as u16;
        place.sll_protocol = protocol.to_be();
        place.sll_ifindex = tap.interface().index().unwrap() as i32;
        // SAFETY: `place` is a sockaddr_ll, of this length.
        let bound = unsafe { libc::bind(fd, (&raw const place).cast(), size_of_val(&place) as u32) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        socket
    }

    fn set(&self, level: i32, option: i32, value: i32) {
        // SAFETY: the option is an int, which is read through the pointer.
        let set =
            unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), 4) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    fn next(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        let n = (&self.0).read(&mut frame).ok()?;
        frame.truncate(n);
        Some(frame)
    }

    pub fn send(&self, frame: &[u8]) {
        assert_eq!((&self.0).write(frame).unwrap(), frame.len());
    }
}

const OWN_MAC: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];

/// The interface with an address, and a neighbour that answers no ARP. None: there is no `ip`.
fn network(queues: usize, front: Offloads) -> Option<(Tap, Vec<TapPort>)> {
    let tap = Tap::open("vif7.0").unwrap();
    let ports = tap.ports(queues, front).unwrap();
    tap.interface().set_address(OWN_MAC).unwrap();
    tap.interface().set_mtu(9000).unwrap();
    tap.interface().set_up(true).unwrap();
    if !ip("addr add 10.77.0.1/24 dev vif7.0") {
        skip("`ip` does not run; apt-get install iproute2");
        return None;
    }
    assert!(ip("neigh add 10.77.0.2 lladdr 00:16:3e:00:00:07 dev vif7.0"));
    Some((tap, ports))
}

/// The next UDP frame that the interface sends. The stack's own multicast is passed over.
fn next_udp(port: &mut TapPort) -> Option<(Vec<u8>, Offload)> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut arena = Arena::new();
    while Instant::now() < until {
        arena.clear();
        port.rx_burst(&mut arena);
        let found = arena.burst().iter().find(|(f, _)| f.get(..6) == Some(&GUEST_MAC) && f[23] == 17);
        if let Some((frame, offload)) = found {
            return Some((frame.to_vec(), offload));
        }
    }
    None
}

/// A UDP frame from the guest to `to`, with the sum of the pseudo-header where the checksum goes.
fn udp_to(to: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&OWN_MAC[..], &GUEST_MAC, &[8, 0]].concat();
    let len = (28 + payload.len()) as u16;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1];
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = checksum::checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    frame.extend(ip);
    let pseudo = checksum::fold(checksum::pseudo_v4([10, 77, 0, 2], [10, 77, 0, 1], 17, len - 20));
    for field in [4000, to, len - 20, pseudo] {
        frame.extend(field.to_be_bytes());
    }
    frame.extend(payload);
    frame
}

#[test]
fn frames_go_both_ways_and_no_one_finishes_their_checksums() {
    apart(|| {
        let Some((mut tap, ports)) = network(1, BOTH) else { return };
        drop(ports);
        // Once: a child that another test forks has each socket until it executes its program.
        let socket = UdpSocket::bind("10.77.0.1:5000").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for way in [TransportKind::Frame, TransportKind::Burst, TransportKind::Vhost] {
            tap.set_way(way);
            let mut ports = tap.ports(1, BOTH).unwrap();
            if ports[0].way() != way {
                match way {
                    // Scenario 22 of the rig has it.
                    TransportKind::Vhost => skip_for_kernel(format!("{way:?}: no /dev/vhost-net")),
                    _ => skip(format!("{way:?}: no io_uring")),
                }
                continue;
            }
            // One, which is a call's, and so many that they go through a ring, where there is one.
            for n in [1, 40] {
                let mut arena = Arena::new();
                for i in 0..n {
                    let text = format!("to the guest {i}");
                    socket.send_to(text.as_bytes(), "10.77.0.2:4000").unwrap();
                    let (frame, offload) = next_udp(&mut ports[0]).expect("no frame for the guest");
                    assert!(
                        offload.csum_blank && frame.ends_with(text.as_bytes()),
                        "{offload:?} {frame:02x?}"
                    );
                    let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
                    assert!(arena.push(&udp_to(5000, format!("from the guest {i}").as_bytes()), blank));
                }
                assert_eq!(ports[0].tx_burst(&arena.burst()), n);
                for i in 0..n {
                    let mut bytes = [0; 100];
                    let (n, from) =
                        socket.recv_from(&mut bytes).expect("the kernel dropped the guest's frame");
                    assert_eq!(bytes[..n], *format!("from the guest {i}").as_bytes(), "{way:?}");
                    assert_eq!(from.to_string(), "10.77.0.2:4000");
                }
            }
            assert!(ports[0].drops().iter().all(|d| d.frames == 0));
        }
    });
}

#[test]
fn a_guest_that_takes_no_blank_checksums_gets_none() {
    apart(|| {
        let Some((_tap, mut ports)) = network(1, Offloads::default()) else { return };
        let socket = UdpSocket::bind("10.77.0.1:5000").unwrap();
        socket.send_to(b"whole", "10.77.0.2:4000").unwrap();
        let (frame, offload) = next_udp(&mut ports[0]).expect("no frame for the guest");
        assert!(!offload.csum_blank);
        assert!(checksum::verify(&frame) == Ok(true), "{frame:02x?}");
    });
}

#[test]
fn an_interface_is_taken_up_again_with_as_many_queues_as_its_guest_has() {
    apart(|| {
        let tap = Tap::open("vif7.1").unwrap();
        let ports = tap.ports(2, BOTH).unwrap();
        tap.persist(true).unwrap();
        tap.carrier(false).unwrap();
        let index = tap.interface().index().unwrap();
        drop((tap, ports));
        let tap = Tap::open("vif7.1").unwrap();
        let ports = tap.ports(2, BOTH).unwrap();
        assert_eq!((tap.interface().index().unwrap(), ports.len()), (index, 2), "another interface was made");
        tap.carrier(true).unwrap();
        tap.persist(false).unwrap();
        drop((tap, ports));
        assert!(Tap::open("a-name-that-is-too-long").unwrap_err().to_string().contains("1 to 15"));
    });
}

#[test]
fn an_interface_joins_a_bridge() {
    apart(|| {
        if !ip("link add br7 type bridge") {
            return skip("no bridge can be made; apt-get install iproute2, modprobe bridge");
        }
        let tap = Tap::open("vif7.3").unwrap();
        tap.interface().join("br7").unwrap();
        let missing = tap.interface().join("br8").unwrap_err().to_string();
        assert!(missing.contains("interface br8") && missing.contains("no such"), "{missing}");
    });
}

#[test]
fn who_forgets_arrivals_is_notified_of_frames_that_no_one_read() {
    apart(|| {
        let Some((_tap, mut ports)) = network(1, BOTH) else { return };
        let arrivals = PortReadiness::new().unwrap();
        arrivals.add(&ports[0], 7).unwrap();
        let received = || {
            let mut numbers = Vec::new();
            arrivals.take(|number| numbers.push(number));
            assert!(numbers.iter().all(|number| *number == 7));
            !numbers.is_empty()
        };
        let mut arena = Arena::new();
        // Frames that the stack sends of its own accord go first, and then there are none.
        std::fs::write("/proc/sys/net/ipv6/conf/vif7.0/disable_ipv6", "1").unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while received() && Instant::now() < until {
            arena.clear();
            ports[0].rx_burst(&mut arena);
        }
        let socket = UdpSocket::bind("10.77.0.1:5000").unwrap();
        socket.send_to(b"unread", "10.77.0.2:4000").unwrap();
        assert!(received(), "a sleep would not end for it");
        assert!(!received(), "once for each frame");
        socket.send_to(b"read", "10.77.0.2:4000").unwrap();
        arena.clear();
        assert!(ports[0].rx_burst(&mut arena) >= 2);
        assert!(!received(), "nothing is there");
    });
}

/// Both ways that frames take: a call each, a burst a call.
pub fn each_way(test: impl Fn(&Tap, TapPort, TransportKind) + Send + 'static) {
    apart(move || {
        let Some((mut tap, ports)) = network(1, BOTH) else { return };
        drop(ports);
        for way in [TransportKind::Frame, TransportKind::Burst] {
            tap.set_way(way);
            let port = tap.ports(1, BOTH).unwrap().remove(0);
            if port.way() != way {
                return skip("no io_uring here");
            }
            test(&tap, port, way);
        }
    });
}

const PROTOCOL: u16 = 0x88b5;

/// Frame `number` of `len` bytes: no byte of it equals its neighbour.
fn numbered(number: usize, len: usize) -> Vec<u8> {
    let mut frame = [&OWN_MAC[..], &GUEST_MAC, &PROTOCOL.to_be_bytes()].concat();
    frame.extend((0..len - 14).map(|i| (i * 7 + number * 31 + i / 251) as u8));
    frame
}

/// Lengths short and long; some do not fit an outbox.
fn mixed(number: usize) -> usize {
    [60, 61, 1514, 2037, 2038, 2039, 64, 5000, 9014, 128][number % 10]
}

/// Lends what follows the heads of frames, in pieces of odd lengths.
struct Pieces {
    memory: Pages,
    at: Vec<Vec<(usize, usize)>>,
}

impl Pieces {
    fn of(frames: &[Vec<u8>], head: usize) -> Self {
        let (memory, mut used) = (Pages::new(128), 0);
        let place = |frame: &Vec<u8>| {
            let mut rest = frame.get(head..).unwrap_or_default();
            let mut at = Vec::new();
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(rest.len().min(1 + used * 7 % 4096));
                assert!(memory.copy_in(used, piece));
                at.push((used, piece.len()));
                used += piece.len() + 3;
                rest = behind;
            }
            at
        };
        let at = frames.iter().map(place).collect();
        Self { memory, at }
    }

    /// A bit for each frame that has some.
    fn lent(&self) -> u64 {
        self.at.iter().rev().fold(0, |lent, at| lent << 1 | u64::from(!at.is_empty()))
    }
}

impl PayloadSource for Pieces {
    fn map_payload(&mut self) -> u64 {
        0
    }
    fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        let (at, len) = *self.at[i].get(k)?;
        self.memory.piece(at, len)
    }
    fn hold(&mut self, _: usize) -> Option<Token> {
        None
    }
}

#[test]
fn a_burst_arrives_in_its_order_and_byte_by_byte() {
    each_way(|tap, mut port, way| {
        let seen = Packets::on(tap, PROTOCOL, false);
        for round in 0..100 {
            // All of it private, or payload where it is.
            let lent = round % 2 == 1;
            let (mut arena, mut sent) = (Arena::new(), Vec::new());
            while sent.len() < 64 {
                let frame = numbered(round + sent.len(), mixed(round + sent.len()));
                assert!(arena.push(&frame, Offload::default()));
                sent.push(frame);
            }
            // A malformed one among them is left out.
            arena.set_offload(20, Offload { csum_blank: true, ..Offload::default() });
            // A path before may have fetched more than a head.
            let head = [128, 2036, 2037, 3000][round / 2 % 4];
            let mut pieces = Pieces::of(&sent, head);
            sent.remove(20);
            if lent {
                for i in 0..64 {
                    let at = arena.desc(i).at as usize;
                    let len = arena.desc(i).len as usize;
                    arena.bytes_mut()[at + head.min(len)..at + len].fill(0xEE);
                }
                let (bits, heads) = (pieces.lent(), [head as u16; BURST_FRAMES]);
                let mut keeper = None;
                let mut burst = ZeroCopyBurst::new(&mut arena, bits, &heads, &mut pieces, &mut keeper);
                assert_eq!(port.tx_zero_copy(&mut burst), 64);
                assert!(keeper.is_none(), "the kernel has its own copy");
            } else {
                assert_eq!(port.tx_burst(&arena.burst()), 64);
            }
            for (i, frame) in sent.iter().enumerate() {
                let came = seen.next().expect("a frame is missing");
                assert!(came == *frame, "{way:?}, round {round}, frame {i}: {} bytes", came.len());
            }
            assert_eq!(seen.next(), None, "a frame came twice");
        }
        let drops: Vec<_> = port.drops().iter().map(|d| (d.dir, d.reason, d.frames)).collect();
        assert_eq!(drops, [("tx", "tap_refused", 0), ("tx", "bad_headers", 100), ("rx", "bad_headers", 0)]);
    });
}

#[test]
fn what_an_interface_that_is_down_refuses_is_counted() {
    each_way(|tap, mut port, way| {
        tap.interface().set_up(false).unwrap();
        let mut arena = Arena::new();
        for i in 0..64 {
            assert!(arena.push(&numbered(i, 100), Offload::default()));
        }
        assert_eq!(port.tx_burst(&arena.burst()), 64);
        arena.clear();
        assert!(arena.push(&numbered(0, 100), Offload::default()));
        assert_eq!(port.tx_burst(&arena.burst()), 1);
        let refused = port.drops().iter().find(|d| d.reason == "tap_refused").map(|d| d.frames);
        assert_eq!(refused, Some(65), "{way:?}");
    });
}

/// The next UDP datagram's number, of a frame that the port read; None: another frame.
fn number_of(frame: &[u8]) -> Option<u32> {
    if frame.get(..6) != Some(&GUEST_MAC) || frame.get(23) != Some(&17) {
        return None;
    }
    Some(u32::from_be_bytes(frame[42..46].try_into().unwrap()))
}

#[test]
fn a_queue_is_read_in_order_however_many_a_call_reads() {
    each_way(|_, mut port, way| {
        let socket = UdpSocket::bind("10.77.0.1:5000").unwrap();
        let (mut sent, mut read, mut held) = (0u32, 0u32, 0);
        let mut arena = Arena::new();
        // One alone, a few, many; long ones behind short ones do not all fit the arena for which
        // they are read.
        let fills: [&[(u32, usize)]; 7] = [
            &[(1, 22)],
            &[(3, 22)],
            &[(200, 22)],
            &[(1, 22)],
            &[(100, 8900)],
            &[(65, 22), (90, 8900)],
            &[(40, 22)],
        ];
        for fill in fills {
            for &(count, len) in fill {
                for _ in 0..count {
                    let mut payload = sent.to_be_bytes().to_vec();
                    payload.resize(len, sent as u8);
                    socket.send_to(&payload, "10.77.0.2:4000").unwrap();
                    sent += 1;
                }
            }
            let mut empty = 0;
            while empty < 2 {
                arena.clear();
                empty = if port.rx_burst(&mut arena) == 0 { empty + 1 } else { 0 };
                held = held.max(port.held());
                for (frame, offload) in arena.burst().iter() {
                    let Some(number) = number_of(frame) else { continue };
                    assert_eq!(number, read, "{way:?}");
                    assert!(offload.csum_blank);
                    assert!(frame[46..].iter().all(|b| *b == number as u8) && frame.len() >= 64);
                    read += 1;
                }
            }
            assert_eq!((read, port.held()), (sent, 0), "{way:?}");
        }
        // A call each reads none that finds no room; others keep what they read.
        assert_eq!(held > 0, way == TransportKind::Burst, "{way:?}: {held} held at most");
        assert!(held <= 32);
    });
}

/// A TCP frame of `len` bytes to the guest, which no one listens to.
fn tcp(number: u8, len: usize) -> Vec<u8> {
    let mut frame = [&GUEST_MAC[..], &OWN_MAC, &[8, 0]].concat();
    frame.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame.resize(54, 0);
    frame[46] = 0x50;
    frame.extend((54..len).map(|i| (i * 7) as u8 ^ number));
    frame
}

#[test]
fn uncut_frames_of_the_greatest_length_are_read_in_batches() {
    each_way(|tap, mut port, way| {
        let socket = Packets::on(tap, 0x0800, true);
        let uncut = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 };
        let mut sent = Vec::new();
        for i in 0..40 {
            let len = if i % 8 == 0 { 65_535 } else { 60 + 700 * i };
            let frame = tcp(i as u8, len);
            // struct virtio_net_hdr: blank checksum; TCP over IPv4, 54 bytes of headers; where the
            // checksum goes.
            let header: [u8; 10] = if len > 1514 { [1, 1, 54, 0, 168, 5, 34, 0, 16, 0] } else { [0; 10] };
            socket.send(&[&header[..], &frame].concat());
            sent.push((frame, if len > 1514 { uncut } else { Offload::default() }));
        }
        let (mut sent, mut arena, mut empty) = (sent.into_iter(), Arena::new(), 0);
        while empty < 2 {
            arena.clear();
            empty = if port.rx_burst(&mut arena) == 0 { empty + 1 } else { 0 };
            for (frame, offload) in arena.burst().iter().filter(|(f, _)| f[..6] == GUEST_MAC) {
                let (wanted, of) = sent.next().expect("more than was sent");
                assert_eq!((frame.len(), offload), (wanted.len(), of), "{way:?}");
                assert!(frame == wanted, "{way:?}");
            }
        }
        assert_eq!(sent.len(), 0, "{way:?}: frames are missing");
    });
}

#[test]
fn a_script_is_run_when_a_vif_comes_and_when_it_goes() {
    use std::os::unix::fs::PermissionsExt;
    apart(|| {
        let dir = std::env::temp_dir().join(format!("pregrant-script-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (script, log) = (dir.join("vif-script"), dir.join("log"));
        // The last word is the script's: as long as it runs, nothing is plugged in.
        let text = format!("#!/bin/sh\nsleep 0.1\necho \"$1 $vif\" >> {}\n", log.display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let said = || std::fs::read_to_string(&log).unwrap_or_default();

        let id = DeviceId { class: Class::VIF, front: DomId(9), back: DomId(0), handle: 0 };
        let script = Some(script.display().to_string());
        let place = HotplugConfig { name: "vif9.0".into(), script, ..HotplugConfig::default() };
        let mut taps = Taps::new().unwrap();
        taps.found(&id, &place, false).unwrap();
        assert_eq!((taps.plug(&id, &place), said()), (Plugged::NotYet, String::new()));
        while taps.plug(&id, &place) == Plugged::NotYet {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(said(), "online vif9.0\n");
        taps.removed(&id).unwrap();
        while !said().contains("offline") {
            taps.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(said(), "online vif9.0\noffline vif9.0\n");
        assert!(!ip("link show vif9.0"), "the interface stays");

        // A vif that is over before its directory goes: the script is run once, and nothing of one
        // that runs still stays.
        let text = format!(
            "#!/bin/sh\necho \"$1 $vif\" >> {0}/log\n[ $1 = offline ] && exit 0\nsleep 1000 & echo $! > {0}/pid\nwait\n",
            dir.display()
        );
        std::fs::write(place.script.as_deref().unwrap(), text).unwrap();
        std::fs::remove_file(&log).unwrap();
        taps.found(&id, &place, false).unwrap();
        let pid = loop {
            taps.turn();
            assert_eq!(taps.plug(&id, &place), Plugged::NotYet);
            let text = std::fs::read_to_string(dir.join("pid")).unwrap_or_default();
            if let Some(pid) = text.strip_suffix('\n') {
                break pid.to_owned();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        while taps.unplug(&id) == Plugged::NotYet {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(said(), "online vif9.0\noffline vif9.0\n");
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        while !(state().is_empty() || state().contains(") Z ")) {
            // what the script started was killed with it
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(taps.unplug(&id), Plugged::Yes);
        taps.removed(&id).unwrap();
        taps.turn();
        assert_eq!(said(), "online vif9.0\noffline vif9.0\n");

        // Our script undoes the work of a predecessor's.
        taps.found(&id, &place, true).unwrap();
        while taps.unplug(&id) == Plugged::NotYet {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(said(), "online vif9.0\noffline vif9.0\noffline vif9.0\n");
        taps.removed(&id).unwrap();

        // One that fails is reported, and is not undone.
        let place = HotplugConfig { script: Some("/bin/false".into()), ..place };
        taps.found(&id, &place, false).unwrap();
        let mut plugged = taps.plug(&id, &place);
        while plugged == Plugged::NotYet {
            taps.turn();
            plugged = taps.plug(&id, &place);
        }
        assert!(matches!(&plugged, Plugged::No(why) if why.contains("/bin/false")), "{plugged:?}");
        taps.removed(&id).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// Many guests that start at once are not many scripts at once: the hotplug service takes a bounded
/// number.
#[test]
fn vifs_beyond_the_scripts_that_run_at_a_time_wait() {
    use std::os::unix::fs::PermissionsExt;
    apart(|| {
        let dir = std::env::temp_dir().join(format!("pregrant-scripts-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let script = dir.join("vif-script");
        // Each says that it runs, and goes on when its vif may.
        let at = dir.display();
        let text =
            format!("#!/bin/sh\n: > {at}/began-$vif\nuntil [ -e {at}/go-$vif ]; do sleep 0.02; done\n");
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let vif = |handle| DeviceId { class: Class::VIF, front: DomId(9), back: DomId(0), handle };
        let place = |handle| HotplugConfig {
            name: format!("vif9.{handle}"),
            script: Some(script.display().to_string()),
            ..HotplugConfig::default()
        };
        let began = |handle: u32| dir.join(format!("began-vif9.{handle}")).exists();
        let last = RUNS_MAX as u32;
        let mut taps = Taps::new().unwrap();
        for handle in 0..=last {
            taps.found(&vif(handle), &place(handle), false).unwrap();
            assert_eq!(taps.plug(&vif(handle), &place(handle)), Plugged::NotYet);
        }
        while !(0..last).all(began) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(taps.plug(&vif(last), &place(last)), Plugged::NotYet);
        assert!(!began(last));
        // One is over, and the last one has its turn.
        std::fs::write(dir.join("go-vif9.0"), "").unwrap();
        while taps.plug(&vif(0), &place(0)) == Plugged::NotYet {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(taps.plug(&vif(last), &place(last)), Plugged::NotYet);
        while !began(last) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::write(dir.join(format!("go-vif9.{last}")), "").unwrap();
        while taps.plug(&vif(last), &place(last)) == Plugged::NotYet {
            std::thread::sleep(Duration::from_millis(1));
        }
        for handle in 1..last {
            std::fs::write(dir.join(format!("go-vif9.{handle}")), "").unwrap();
            while taps.plug(&vif(handle), &place(handle)) == Plugged::NotYet {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for handle in 0..=last {
            taps.removed(&vif(handle)).unwrap();
        }
        while {
            taps.turn();
            (0..=last).any(|handle| ip(&format!("link show vif9.{handle}")))
        } {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = std::fs::remove_dir_all(&dir);
    });
}

/// Serves as systemd's socket does: a process per connection, here a thread; connections beyond
/// `most` at a time are closed at once. Returns the largest number there was.
fn serve_scripts(at: &Path, service: Service, most: usize) -> Arc<AtomicUsize> {
    let kind = SocketType::SEQPACKET;
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(at).unwrap()).unwrap();
    listen(&listener, 4).unwrap();
    let peak = Arc::new(AtomicUsize::new(0));
    let reported = Arc::clone(&peak);
    std::thread::spawn(move || {
        let running = Arc::new(AtomicUsize::new(0));
        while let Ok(connection) = accept(&listener) {
            let n = running.fetch_add(1, Ordering::SeqCst) + 1;
            reported.fetch_max(n, Ordering::SeqCst);
            let (running, service) = (Arc::clone(&running), service.clone());
            std::thread::spawn(move || {
                if n <= most {
                    let _ = service.serve(connection);
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    peak
}

/// More vifs go at once than the service runs scripts, and than its queue takes: each has its
/// script, and those that fail are reported by name.
#[test]
fn vifs_that_go_at_once_lose_no_script() {
    use std::os::unix::fs::PermissionsExt;
    const VIFS: u32 = 80;
    apart(|| {
        let dir = std::env::temp_dir().join(format!("pregrant-offline-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let script = dir.join("vif-script");
        // The first ones wait, so that all are there at once; one fails.
        let at = dir.display();
        let text = format!(
            "#!/bin/sh\n[ $1 = online ] && exit 0\nuntil [ -e {at}/go ]; do sleep 0.02; done\n: > {at}/$vif\n\
             [ $vif != vif9.7 ]\n"
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = dir.join("socket");
        let mut taps = Taps::new().unwrap();
        taps.ask_for_scripts_at(socket.clone());
        let peak = serve_scripts(&socket, Service::new(&dir, "/sys/class/net"), 64);
        let vif = |handle| DeviceId { class: Class::VIF, front: DomId(9), back: DomId(0), handle };
        for handle in 0..VIFS {
            let place = HotplugConfig {
                name: format!("vif9.{handle}"),
                script: Some(script.display().to_string()),
                dir: format!("/local/domain/0/backend/vif/9/{handle}"),
                ..HotplugConfig::default()
            };
            taps.found(&vif(handle), &place, false).unwrap();
            let mut plugged = Plugged::NotYet;
            while plugged == Plugged::NotYet {
                std::thread::sleep(Duration::from_millis(1));
                plugged = taps.plug(&vif(handle), &place);
            }
            assert_eq!(plugged, Plugged::Yes);
        }
        for handle in 0..VIFS {
            assert_eq!(taps.removed(&vif(handle)), Ok(()));
            assert!(taps.is_ending(&vif(handle)));
        }
        let mut failed = taps.failures();
        while peak.load(Ordering::SeqCst) < RUNS_MAX && failed.is_empty() {
            taps.turn();
            failed = taps.failures();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(failed, []);
        std::fs::write(dir.join("go"), "").unwrap();
        while taps.due().is_some() {
            taps.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        for handle in 0..VIFS {
            assert!(dir.join(format!("vif9.{handle}")).exists(), "no offline for vif9.{handle}");
            assert_eq!(taps.is_ending(&vif(handle)), handle == 7, "its result is not reported yet");
        }
        let why = format!("{} offline ended with exit status: 1", script.display());
        assert_eq!(taps.failures(), [(vif(7), why)]);
        assert!(!taps.is_ending(&vif(7)));
        assert_eq!(peak.load(Ordering::SeqCst), RUNS_MAX, "all that may run at a time, and no more");
        // No one is there to be asked: that is reported too.
        std::fs::remove_file(&socket).unwrap();
        let place = HotplugConfig {
            name: "vif9.0".into(),
            script: Some(script.display().to_string()),
            ..HotplugConfig::default()
        };
        taps.found(&vif(0), &place, true).unwrap();
        assert!(matches!(taps.unplug(&vif(0)), Plugged::No(why) if why.contains("pregrant-hotplug.socket")));
        taps.removed(&vif(0)).unwrap();
        let _ = std::fs::remove_dir_all(&dir);
    });
}
