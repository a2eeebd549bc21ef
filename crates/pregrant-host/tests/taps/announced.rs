//! The announcement of an interface whose vif has connected: its addresses, and those of the bridge
//! that it is a port of.

use pregrant::net::announcement::{arp, neighbour_advertisement, rarp};
use pregrant::net::headers::MacAddr;
use pregrant::port::Arena;
use pregrant_host::ports::announcement::announce;
use pregrant_host::ports::netdev_ioctl::Interface;
use pregrant_host::ports::tap::Tap;
use pregrant_test_machine::netns::{GUEST_MAC, apart, ip};
use pregrant_testkit::skip::skip;
use std::net::Ipv6Addr;

const MAC: MacAddr = MacAddr(GUEST_MAC);
const BRIDGE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn announced(interface: &Interface) -> Vec<Vec<u8>> {
    let mut arena = Arena::new();
    announce(interface.index().unwrap(), &mut arena).unwrap();
    let mut frames: Vec<_> = arena.burst().iter().map(|(frame, _)| frame.to_vec()).collect();
    frames.sort();
    frames
}

fn sorted<const N: usize>(frames: [Vec<u8>; N]) -> Vec<Vec<u8>> {
    let mut frames = Vec::from(frames);
    frames.sort();
    frames
}

fn v6(mac: MacAddr, ip: &str, router: bool) -> Vec<u8> {
    neighbour_advertisement(mac, ip.parse::<Ipv6Addr>().unwrap().octets(), router).into()
}

#[test]
fn each_address_of_an_interface_and_of_its_bridge_is_announced() {
    apart(|| {
        let tap = Tap::open("eth7").unwrap();
        let interface = tap.interface();
        interface.set_address(GUEST_MAC).unwrap();
        if !ip("link set eth7 addrgenmode none") {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        assert!(announced(&interface).is_empty(), "it is down");
        interface.set_up(true).unwrap();
        assert_eq!(announced(&interface), [rarp(MAC).to_vec()], "it has no address");
        let addresses = ["10.7.0.1/24", "10.7.0.2/24", "192.168.7.1 peer 192.168.7.2", "fd00:7::1/64 nodad"];
        assert!(addresses.iter().all(|of| ip(&format!("addr add {of} dev eth7"))));
        let of_tap = |router| {
            [
                arp(MAC, [10, 7, 0, 1]).into(),
                arp(MAC, [10, 7, 0, 2]).into(),
                arp(MAC, [192, 168, 7, 1]).into(),
                v6(MAC, "fd00:7::1", router),
            ]
        };
        assert_eq!(announced(&interface), sorted(of_tap(false)));
        std::fs::write("/proc/sys/net/ipv6/conf/eth7/forwarding", "1").unwrap();
        assert_eq!(announced(&interface), sorted(of_tap(true)), "hosts keep it as a router");
        // Not its own yet: detection of duplicates ends when the link is there.
        tap.carrier(false).unwrap();
        assert!(ip("addr add fd00:7::2/64 dev eth7"));
        assert_eq!(announced(&interface), sorted(of_tap(true)));
        assert!(ip("addr flush dev eth7"));
        if !ip("link add br7 address 02:00:00:00:00:09 type bridge") {
            return skip("no bridge can be made; modprobe bridge");
        }
        for line in
            ["link set br7 addrgenmode none", "link set eth7 master br7", "addr add 10.7.0.3/24 dev br7"]
        {
            assert!(ip(line), "{line}");
        }
        assert_eq!(announced(&interface), [rarp(MAC).to_vec()], "its bridge is down");
        assert!(ip("link set br7 up") && ip("addr add fd00:7::3/64 dev br7 nodad"));
        let due =
            [rarp(MAC).into(), arp(BRIDGE_MAC, [10, 7, 0, 3]).into(), v6(BRIDGE_MAC, "fd00:7::3", false)];
        assert_eq!(announced(&interface), sorted(due));
        assert!(announce(interface.index().unwrap() + 1000, &mut Arena::new()).is_err(), "there is none");
    });
}
