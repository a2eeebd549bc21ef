//! A tap in a network namespace of its own: frames both ways, their checksums left blank. Needs root, /dev/net/tun and `ip`.
//!
//! ```text
//!   this test (as the guest, 10.77.0.2) <--TapPort--> interface vif7.0, 10.77.0.1 <--> a socket of the same namespace
//! ```

use pregrant::net::checksum;
use pregrant::port::{Arena, FramePort, Offload, Offloads};
use pregrant_host::ports::tap::{Tap, TapPort};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

const BOTH: Offloads = Offloads { csum: true, gso: true };
const GUEST_MAC: [u8; 6] = [0x00, 0x16, 0x3e, 0, 0, 7];
const OWN_MAC: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];

/// In a namespace of its own, or why not.
fn apart(test: impl FnOnce() + Send + 'static) {
    let ended = std::thread::spawn(move || {
        // SAFETY: this thread alone changes its network namespace; it holds no file descriptors of the old one that matter.
        if let Err(e) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            return println!("skipped: no network namespace of its own ({e}); needs root");
        }
        if !std::path::Path::new("/dev/net/tun").exists() {
            return println!("skipped: there is no /dev/net/tun; modprobe tun");
        }
        test();
    });
    ended.join().expect("see above");
}

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split(' ')).status().is_ok_and(|s| s.success())
}

/// The interface with an address, and a neighbour that answers no ARP. None: there is no `ip`.
fn network(queues: usize, front: Offloads) -> Option<(Tap, Vec<TapPort>)> {
    let tap = Tap::open("vif7.0").unwrap();
    let ports = tap.ports(queues, front).unwrap();
    tap.interface().set_address(OWN_MAC).unwrap();
    tap.interface().set_mtu(9000).unwrap();
    tap.interface().set_up(true).unwrap();
    if !ip("addr add 10.77.0.1/24 dev vif7.0") {
        println!("skipped: `ip` does not run; apt-get install iproute2");
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
fn frames_go_both_ways_and_nobody_finishes_their_checksums() {
    apart(|| {
        let Some((_tap, mut ports)) = network(1, BOTH) else { return };
        let socket = UdpSocket::bind("10.77.0.1:5000").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.send_to(b"to the guest", "10.77.0.2:4000").unwrap();
        let (frame, offload) = next_udp(&mut ports[0]).expect("no frame for the guest");
        assert!(offload.csum_blank && frame.ends_with(b"to the guest"), "{offload:?} {frame:02x?}");

        let mut arena = Arena::new();
        let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
        assert!(arena.push(&udp_to(5000, b"from the guest"), blank));
        assert_eq!(ports[0].tx_burst(&arena.burst()), 1);
        let mut bytes = [0; 100];
        let (n, from) = socket.recv_from(&mut bytes).expect("the kernel dropped the guest's frame");
        assert_eq!((&bytes[..n], from.to_string().as_str()), (&b"from the guest"[..], "10.77.0.2:4000"));
        assert!(ports[0].drops().iter().all(|d| d.frames == 0));
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
            return println!("skipped: no bridge can be made; apt-get install iproute2, modprobe bridge");
        }
        let tap = Tap::open("vif7.3").unwrap();
        tap.interface().join("br7").unwrap();
        let missing = tap.interface().join("br8").unwrap_err().to_string();
        assert!(missing.contains("interface br8") && missing.contains("no such"), "{missing}");
    });
}
