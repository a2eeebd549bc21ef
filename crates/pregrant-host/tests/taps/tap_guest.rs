//! A guest's queues with a real tap behind them, in a network namespace of its own: what its frames
//! are when the kernel has cut them, and in which of its queues the kernel's frames come. Needs
//! root, /dev/net/tun and `ip`.
//!
//! ```text
//!   front --ring--> TxQueue --> vif7.0 --bridge--> vif8.0, whose guest takes nothing unfinished: the kernel cuts
//! ```

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use pregrant::net::back::{Polled, SharedControl, TxQueue};
use pregrant::net::front::Granting;
use pregrant::net::path::{AnyPath, MapPath};
use pregrant::platform::{Access, Events, GrantPool, PeerMem, Platform};
use pregrant::port::{Arena, FramePort, Offload, Offloads, Steering};
use pregrant::ring::{BackRing, NetTx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{TXF_MORE_DATA, TxRequest};
use pregrant::xenbus::{Class, DeviceId};
use pregrant_test_machine::netns::{BOTH, GUEST_MAC, apart_without_ipv6 as apart, ip};
use pregrant_testkit::model_front::{Slot, TxModel};

use pregrant::{DomId, GrantRef, PAGE_SIZE};
use pregrant_host::drivers::{CaptureFile, Captured, HotplugConfig, Plugged, PortProvider, RemoteSide, Taps};
use pregrant_host::ports::netdev_ioctl::Interface;
use pregrant_host::ports::tap::{Tap, TapPort, TransportKind};
use pregrant_loopback::{Broker, DomainSpec, Hooks};
use pregrant_testkit::skip::skip;
use pregrant_testkit::two_domains::{GUEST, TwoDomains, Way};
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

const OTHER_MAC: [u8; 6] = [0x00, 0x16, 0x3e, 0, 0, 8];

/// Checks for a frame, each a millisecond after the one before, until it counts as lost. The kernel
/// has the processor meanwhile.
const CHECKS: u32 = 10_000;

/// A tap at the bridge, up.
fn bridged(name: &str, front: Offloads) -> (Tap, TapPort) {
    let tap = Tap::open(name).unwrap();
    let port = tap.ports(1, front).unwrap().remove(0);
    tap.interface().join("br7").unwrap();
    tap.interface().set_up(true).unwrap();
    (tap, port)
}

/// A TCP packet of the guest's, its checksum finished.
fn tcp(v6: bool, payload: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(GUEST_MAC, OTHER_MAC);
    let ip = if v6 { link.ipv6([7; 16], [8; 16], 64) } else { link.ipv4([10, 77, 0, 7], [10, 77, 0, 8], 64) };
    let mut frame = Vec::new();
    ip.tcp(4000, 5000, 1_000_000, 500).ack(7).write(&mut frame, payload).unwrap();
    frame
}

/// The payload of a segment, whose checksums are right.
fn payload_of(frame: &[u8]) -> (u32, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(slice)) = packet.transport else { panic!("no TCP: {frame:02x?}") };
    let tcp = slice.to_header();
    let sum = match packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let ip = ip.header().to_header();
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            tcp.calc_checksum_ipv4(&ip, slice.payload()).unwrap()
        }
        Some(NetSlice::Ipv6(ip)) => {
            tcp.calc_checksum_ipv6(&ip.header().to_header(), slice.payload()).unwrap()
        }
        _ => panic!("no IP"),
    };
    assert_eq!(tcp.checksum, sum, "a segment of {} bytes", frame.len());
    (tcp.sequence_number, slice.payload().to_vec())
}

/// Waits until frames go from one port of the bridge to the other: a moment after they came up.
fn forwards(from: &mut TapPort, to: &mut TapPort) {
    let mut probe = Arena::new();
    assert!(probe.push(&[&OTHER_MAC[..], &GUEST_MAC, &[0x88, 0xb5], &[0; 46]].concat(), Offload::default()));
    let mut came = Arena::new();
    for _ in 0..CHECKS {
        from.tx_burst(&probe.burst());
        to.rx_burst(&mut came);
        if came.burst().iter().any(|(frame, _)| is_probe(frame)) {
            return;
        }
        came.clear();
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the bridge forwards nothing");
}

/// What comes next at `port`, one frame or more.
fn next_burst(port: &mut TapPort, into: &mut Arena) {
    into.clear();
    for _ in 0..CHECKS {
        if port.rx_burst(into) > 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("frames are lost");
}

fn is_probe(frame: &[u8]) -> bool {
    frame[12..14] == [0x88, 0xb5]
}

#[test]
fn what_the_kernel_cuts_of_a_guest_s_frames_has_right_checksums() {
    apart(|| {
        if !ip("link add br7 type bridge") || !ip("link set br7 up") {
            return skip("no bridge can be made; apt-get install iproute2, modprobe bridge");
        }
        let (_tap, mut port) = bridged("vif7.0", BOTH);
        let (_other, mut received) = bridged("vif8.0", Offloads::default());
        forwards(&mut port, &mut received);
        let payload: Vec<u8> = (0..50_000u32).map(|k| ((k * 7) ^ (k >> 8)) as u8).collect();
        for (way, v6, csum_blank) in [
            (Way::Copy, false, false),
            (Way::Staging(65535), true, false),
            (Way::Copy, true, true),
            (Way::Map, false, false),
            (Way::Map, true, true),
        ] {
            let domains = TwoDomains::new();
            let mut ends = domains.tx(way, Granting::PerFrame, 0);
            let mut frame = tcp(v6, &payload);
            if csum_blank {
                pregrant::net::checksum::make_blank(&mut frame).unwrap();
            }
            let gso = Offload { csum_blank, csum_ok: true, gso_type: 1 + u8::from(v6), gso_size: 1400 };
            let mut arena = Arena::new();
            assert!(arena.push(&frame, gso));
            assert_eq!(ends.front.send(&domains.guest, &ends.front_chan, &arena.burst()), Ok(1));
            let control = SharedControl::default();
            while ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &mut arena, &control)
                == Ok(Polled::More)
            {}
            assert_eq!(ends.back.stats().gso_checksum_fixups, u64::from(!csum_blank));
            assert!(port.drops().iter().all(|d| d.frames == 0), "{:?}", port.drops());
            let ops = ends.back.stats().grant_ops;
            let pages = if way == Way::Map { frame.len().div_ceil(PAGE_SIZE) as u64 } else { 0 };
            assert_eq!((ops.maps, ops.unmaps), (pages, pages), "{way:?}");
            if pages > 0 {
                assert_eq!(ops.copies, 1, "the kernel took the payload from the guest's pages");
            }
            ends.front.reclaim(&domains.guest, 1).unwrap();
            ends.close(&domains);
            let (mut came, mut segments) = (vec![0; payload.len()], 0);
            while segments < payload.len().div_ceil(1400) {
                next_burst(&mut received, &mut arena);
                for (frame, offload) in
                    arena.burst().iter().filter(|(f, _)| f[..6] == OTHER_MAC && !is_probe(f))
                {
                    assert!(offload.gso_type == 0 && !offload.csum_blank, "{offload:?}");
                    let (seq, piece) = payload_of(frame);
                    let at = (seq - 1_000_000) as usize;
                    came[at..at + piece.len()].copy_from_slice(&piece);
                    segments += 1;
                }
            }
            assert!(came == payload, "{way:?}");
        }
    });
}

/// The kernel reads what the loopback mapped, by either way, of short frames and of several pages;
/// afterwards nothing is mapped.
#[test]
fn a_guest_s_pages_reach_a_tap_from_where_they_are_mapped() {
    const LENGTHS: [usize; 9] = [60, 128, 129, 1514, 4096, 5000, 8300, 9014, 300];
    const BACK: DomId = DomId(0);
    apart(|| {
        if !ip("link add br7 type bridge") || !ip("link set br7 mtu 9000 up") {
            return skip("no bridge can be made; apt-get install iproute2, modprobe bridge");
        }
        let (mut tap, port) = bridged("vif7.0", BOTH);
        let (other, mut received) = bridged("vif8.0", BOTH);
        for tap in [&tap, &other] {
            tap.interface().set_mtu(9000).unwrap();
        }
        drop(port);
        let broker = Broker::start(None, Hooks::default()).unwrap();
        broker.create_domain(DomainSpec::driver(BACK)).unwrap();
        broker.create_domain(DomainSpec::guest(GUEST)).unwrap();
        let (guest, host) = (broker.attach(GUEST).unwrap(), broker.attach(BACK).unwrap());
        for way in [TransportKind::Frame, TransportKind::Burst] {
            tap.set_way(way);
            let mut port = tap.ports(1, BOTH).unwrap().remove(0);
            if port.way() != way {
                return skip("no io_uring here");
            }
            forwards(&mut port, &mut received);
            let mut refs = [GrantRef::NONE];
            let page = guest.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
            let mut model = TxModel::new(RingPages::<NetTx, _>::new(page));
            let map = host.peer().map(GUEST, &refs, Access::ReadWrite).unwrap();
            let (_front_chan, number) = guest.events().offer(BACK).unwrap();
            let back_chan = host.events().bind(GUEST, number).unwrap();
            let mut refs = [GrantRef::NONE; 32];
            let memory = guest.grants().alloc(BACK, Access::ReadOnly, &mut refs).unwrap();
            let (ring, _) = BackRing::attach(RingPages::<NetTx, _>::new(map), None).unwrap();
            let mut back = TxQueue::new(ring, AnyPath::Map(MapPath::default())).expect("memory");
            let (mut arena, control) = (Arena::new(), SharedControl::default());
            for round in 0..30 {
                let (mut sent, mut page) = (Vec::new(), 0);
                for len in LENGTHS {
                    let byte = |at: usize| (at * 7 + at / 251 + round * 31 + sent.len()) as u8;
                    let head = [&OTHER_MAC[..], &GUEST_MAC, &[0x88, 0xb6]].concat();
                    let frame = [head, (14..len).map(byte).collect()].concat();
                    assert!(memory.copy_in(page * PAGE_SIZE, &frame));
                    let pages = frame.chunks(PAGE_SIZE).zip(&refs[page..]).enumerate();
                    let slots = pages.map(|(k, (piece, gref))| {
                        let flags = if (k + 1) * PAGE_SIZE < len { TXF_MORE_DATA } else { 0 };
                        let size = if k == 0 { len } else { piece.len() } as u16;
                        Slot::Data(TxRequest { gref: gref.0, offset: 0, flags, id: k as u16, size })
                    });
                    model.play(&slots.collect::<Vec<_>>());
                    page += len.div_ceil(PAGE_SIZE);
                    sent.push(frame);
                }
                while back.poll(&host, GUEST, &back_chan, &mut port, &mut arena, &control) == Ok(Polled::More)
                {
                }
                assert_eq!(model.answers().unwrap().len(), LENGTHS.len());
                let mut came = Vec::new();
                while came.len() < sent.len() {
                    next_burst(&mut received, &mut arena);
                    let frames = arena.burst();
                    came.extend(
                        frames.iter().filter(|(f, _)| f[12..14] == [0x88, 0xb6]).map(|f| f.0.to_vec()),
                    );
                }
                assert!(came == sent, "{way:?}, round {round}");
            }
            let stats = back.stats();
            let pieces = LENGTHS.iter().filter(|&&len| len > 128).map(|len| len.div_ceil(PAGE_SIZE) as u64);
            let maps = 30 * pieces.sum::<u64>();
            assert_eq!((stats.frames, stats.grant_ops.maps, stats.grant_ops.unmaps), (270, maps, maps));
            assert_eq!(stats.grant_ops.copies, 270, "each head, and no payload");
            drop(back);
            assert!(guest.grants().release(memory).is_ok(), "a page is still mapped");
        }
    });
}

/// Steers by the UDP destination port.
#[derive(Debug)]
struct ByPort;

impl ByPort {
    fn port(frame: &[u8]) -> u16 {
        u16::from_be_bytes([frame[36], frame[37]])
    }
}

impl Steering for ByPort {
    fn queue_of(&self, frame: &[u8]) -> usize {
        usize::from(Self::port(frame)) % 2
    }
}

#[test]
fn the_kernel_s_frames_come_in_the_queues_that_the_guest_chose() {
    const FLOWS: u16 = 64;
    // All of them fit one queue of the kernel.
    const EACH: u16 = 6;
    apart(|| {
        let mut taps = Taps::new().unwrap();
        let id = DeviceId { class: Class::VIF, front: DomId(7), back: DomId(0), handle: 0 };
        let place = HotplugConfig { name: "vif7.0".into(), ..HotplugConfig::default() };
        taps.found(&id, &place, true).unwrap();
        let mut ports = taps.connected(&id, 2, BOTH).unwrap();
        if !ip("addr add 10.77.0.1/24 dev vif7.0") {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        assert!(ip("neigh add 10.77.0.2 lladdr 00:16:3e:00:00:07 dev vif7.0"));
        let socket = UdpSocket::bind("10.77.0.1:5000").unwrap();
        let mut arena = Arena::new();
        // How many frames came in the queue that the guest would choose, and in the other; a worker
        // sleeps when nothing says that it should not.
        let mut round = |taps: &mut Taps, ports: &mut [Box<dyn FramePort>]| {
            for n in 0..FLOWS * EACH {
                socket.send_to(&[n as u8; 100], ("10.77.0.2", 4000 + n % FLOWS)).unwrap();
            }
            let mut came = [0; 2];
            taps.turn();
            loop {
                let mut moved = false;
                for (queue, port) in ports.iter_mut().enumerate() {
                    arena.clear();
                    moved |= port.rx_burst(&mut arena) > 0;
                    for (frame, _) in arena.burst().iter().filter(|(f, _)| f[..6] == GUEST_MAC && f[23] == 17)
                    {
                        came[usize::from(ByPort.queue_of(frame) != queue)] += 1;
                    }
                }
                if !moved && !taps.turn() {
                    return came;
                }
            }
        };
        let [right, wrong] = round(&mut taps, &mut ports);
        assert_eq!(right + wrong, FLOWS * EACH);
        assert!(wrong > 0, "the kernel chose as the guest would: this shows nothing");
        ports.iter_mut().for_each(|port| port.steer(Some(Arc::new(ByPort))));
        assert_eq!(round(&mut taps, &mut ports), [FLOWS * EACH, 0]);
        assert!(ports.iter().all(|port| port.held() == 0));
        let [right, wrong] = {
            ports.iter_mut().for_each(|port| port.steer(None));
            round(&mut taps, &mut ports)
        };
        assert_eq!(right + wrong, FLOWS * EACH);
        drop(ports);
        taps.removed(&id).unwrap();
    });
}

/// An interface that somebody renames or removes under a vif: its guest gets no ports, its backend
/// the reason, and nothing is left of the attempt.
#[test]
fn a_vif_whose_tap_is_renamed_connects_and_one_whose_tap_is_gone_says_so() {
    apart(|| {
        let mut taps = Taps::new().unwrap();
        let vif = |handle| DeviceId { class: Class::VIF, front: DomId(7), back: DomId(0), handle };
        let ports = taps.connected(&vif(0), 1, BOTH).map(|ports| ports.len());
        assert_eq!(ports, Err("the vif has no interface".into()));
        for handle in 0..2 {
            let place = HotplugConfig { name: format!("vif7.{handle}"), ..HotplugConfig::default() };
            taps.found(&vif(handle), &place, false).unwrap();
        }
        if !ip("link set vif7.0 name other0") {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        for queues in [1, 2] {
            assert_eq!(taps.connected(&vif(0), queues, BOTH).map(|ports| ports.len()), Ok(queues));
            assert!(!ip("link show vif7.0"), "another interface was made, and is left");
        }
        assert!(ip("link set other0 name vif7.0"));
        assert_eq!(taps.connected(&vif(0), 2, BOTH).map(|ports| ports.len()), Ok(2), "it has its name again");
        assert!(ip("link del vif7.1"));
        let why = taps.connected(&vif(1), 2, BOTH).map(|ports| ports.len()).unwrap_err();
        assert!(why.contains("tap vif7.1: cannot take offloads"), "{why}");
        assert!(!ip("link show vif7.1"));
        taps.removed(&vif(0)).unwrap();
    });
}

/// A guest that takes one slot a frame: its interface sends nothing longer, though somebody sets
/// another MTU, and has its own again for a guest that takes more.
#[test]
fn the_mtu_is_limited_for_a_guest_of_one_slot_and_is_what_it_was_afterwards() {
    apart(|| {
        let mut taps = Taps::new().unwrap();
        let id = DeviceId { class: Class::VIF, front: DomId(7), back: DomId(0), handle: 0 };
        let place = HotplugConfig { name: "vif7.0".into(), mtu: Some(9000), ..HotplugConfig::default() };
        assert_eq!(taps.limit_mtu(&id, Some(1500)), Ok(vec![]), "it has no interface");
        taps.found(&id, &place, false).unwrap();
        let mtu = || Interface::new("vif7.0").unwrap().mtu().unwrap();
        let set = |mtu| Interface::new("vif7.0").unwrap().set_mtu(mtu).unwrap();
        let mut limit = |most| {
            let notes = taps.limit_mtu(&id, most).unwrap();
            (mtu(), notes.into_iter().map(|(_, text)| text).collect::<String>())
        };
        assert_eq!(limit(None), (9000, String::new()));
        let (now, text) = limit(Some(1500));
        assert!(now == 1500 && text.contains("the MTU of vif7.0 is 1500 now, and was 9000"), "{now}: {text}");
        assert_eq!(limit(Some(1500)), (1500, String::new()), "nothing is to be done");
        // A boot loader's front, and then the kernel's.
        let (now, text) = limit(None);
        assert!(now == 9000 && text.contains("the MTU of vif7.0 is 9000 again"), "{now}: {text}");
        assert_eq!(limit(None), (9000, String::new()));
        // Ends that take different lengths, one after another.
        for most in [4082, 1500, 4082] {
            assert_eq!(limit(Some(most)).0, most);
        }
        assert_eq!(limit(None).0, 9000);
        // Set meanwhile: undone, and remembered.
        let _ = limit(Some(1500));
        set(8000);
        let (now, text) = limit(Some(1500));
        assert!(now == 1500 && text.contains("was 8000"), "{now}: {text}");
        // A smaller one is its owner's will.
        set(1400);
        assert_eq!(limit(Some(1500)), (1400, String::new()));
        assert_eq!(limit(None), (1400, String::new()));
        assert!(ip("link del vif7.0"));
        let why = taps.limit_mtu(&id, Some(1500)).unwrap_err();
        assert!(why.contains("it was removed") && why.contains("dropped and counted"), "{why}");
    });
}

/// Two guests at a bridge, whose backend dies: what the first one sends to the second, whose rings
/// are taken up later, arrives.
#[test]
fn taps_of_a_predecessor_forward_before_the_first_is_served() {
    const FRAMES: u8 = 32;
    apart(|| {
        if !ip("link add br7 type bridge") || !ip("link set br7 up") {
            return skip("no bridge can be made; apt-get install iproute2, modprobe bridge");
        }
        let vif = |front| DeviceId { class: Class::VIF, front: DomId(front), back: DomId(0), handle: 0 };
        let place = |front: u16| HotplugConfig {
            name: format!("vif{front}.0"),
            bridge: Some("br7".into()),
            ..HotplugConfig::default()
        };
        let mut taps = Taps::new().unwrap();
        for front in [7, 8] {
            taps.found(&vif(front), &place(front), false).unwrap();
            assert_eq!(taps.plug(&vif(front), &place(front)), Plugged::Yes);
        }
        drop(taps); // it dies, and the interfaces stay
        let mut taps = Taps::new().unwrap();
        for front in [7, 8] {
            taps.found(&vif(front), &place(front), true).unwrap();
        }
        let mut seven = taps.connected(&vif(7), 1, BOTH).unwrap();
        let mut sent = Arena::new();
        for n in 0..FRAMES {
            let frame = [&OTHER_MAC[..], &GUEST_MAC, &[0x88, 0xb6, n], &[0; 45]].concat();
            assert!(sent.push(&frame, Offload::default()));
        }
        assert_eq!(seven[0].tx_burst(&sent.burst()), usize::from(FRAMES));
        let mut eight = taps.connected(&vif(8), 1, BOTH).unwrap();
        let (mut came, mut numbers) = (Arena::new(), Vec::new());
        for _ in 0..CHECKS {
            came.clear();
            eight[0].rx_burst(&mut came);
            let burst = came.burst();
            numbers.extend(burst.iter().filter(|(f, _)| f[12..14] == [0x88, 0xb6]).map(|(f, _)| f[14]));
            if numbers.len() >= usize::from(FRAMES) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(numbers, (0..FRAMES).collect::<Vec<_>>());
        drop((seven, eight));
        for front in [7, 8] {
            taps.removed(&vif(front)).unwrap();
        }
    });
}

#[test]
fn both_directions_of_all_queues_of_a_tap_are_captured() {
    const DATAGRAMS: u16 = 64;
    apart(|| {
        let path = std::env::temp_dir().join(format!("pregrant-tap-{}.pcap", std::process::id()));
        let file = CaptureFile::open(7, 0, path.clone()).unwrap();
        let mut provider = Captured::new(Box::new(Taps::new().unwrap()), vec![file], u64::MAX).unwrap();
        let id = DeviceId { class: Class::VIF, front: DomId(7), back: DomId(0), handle: 0 };
        let place = HotplugConfig { name: "vif7.0".into(), ..HotplugConfig::default() };
        provider.found(&id, &place, true).unwrap();
        let mut ports = provider.connected(&id, 2, BOTH).unwrap();
        if !ip("addr add 10.77.0.1/24 dev vif7.0") {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        assert!(ip("neigh add 10.77.0.2 lladdr 00:16:3e:00:00:07 dev vif7.0"));
        let socket = UdpSocket::bind("10.77.0.1:5000").unwrap();
        for n in 0..DATAGRAMS {
            socket.send_to(&[n as u8; 100], ("10.77.0.2", 4000 + n)).unwrap();
        }
        let mut arena = Arena::new();
        let mut due = Vec::new();
        for port in &mut ports {
            let mut empty = 0;
            while empty < 2 {
                arena.clear();
                empty = if port.rx_burst(&mut arena) == 0 { empty + 1 } else { 0 };
                due.extend(arena.burst().iter().map(|(frame, _)| frame.to_vec()));
            }
            arena.clear();
            let sent = tcp(false, &[due.len() as u8; 30]);
            assert!(arena.push(&sent, Offload::default()));
            assert_eq!(port.tx_burst(&arena.burst()), 1);
            due.push(sent);
        }
        assert_eq!(provider.failures(), [], "what is buffered is written in control turns");
        let file = std::fs::read(&path).unwrap();
        let (mut rest, mut came) = (&file[24..], Vec::new());
        while !rest.is_empty() {
            let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
            came.push(rest[16..16 + len].to_vec());
            rest = &rest[16 + len..];
        }
        assert!(came == due, "{} of {} frames, or others", came.len(), due.len());
        assert!(came.len() >= usize::from(DATAGRAMS) + 2);
        drop(ports);
        provider.removed(&id).unwrap();
        std::fs::remove_file(path).unwrap();
    });
}
