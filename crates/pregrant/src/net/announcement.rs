//! Frames by which a station tells its network where it is, unasked: after a vif has connected, the
//! switches in between may still know its address at another port.
//!
//! | frame | says | as sent by |
//! |---|---|---|
//! | [`arp`] | this IPv4 address is at this hardware address | Linux, for each address of an interface |
//! | [`neighbour_advertisement`] | the same of an IPv6 address, to all nodes | Linux |
//! | [`rarp`] | this hardware address is here | QEMU, for a guest whose IP addresses it does not know |
//!
//! Each is whole: no checksum is blank.

use super::checksum::checksum;
use super::headers::{ETHERNET_LEN, ETHERTYPE_IPV6, MacAddr};

/// The shortest Ethernet frame, without its FCS.
const SHORTEST: usize = 60;
/// Bytes of a neighbour advertisement: Ethernet, IPv6, ICMPv6 with one option.
const ADVERTISEMENT: usize = ETHERNET_LEN + 40 + ICMP;
const ICMP: usize = 24 + 8;

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;
/// ARP operation "request". The announcement asks for the sender's own address (RFC 5227, 3).
const ASKS: u16 = 1;
/// RARP's request, "which address does the station have?".
const ASKS_REVERSE: u16 = 3;

const PROTOCOL_ICMPV6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const IS_ROUTER: u8 = 0x80;
const OVERRIDES: u8 = 0x20;
const TARGET_LINK_ADDRESS: u8 = 2;
/// ff02::1, as a hardware address and as an IPv6 address.
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
const ALL_NODES: [u8; 16] = [0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_ethernet(frame: &mut [u8], to: MacAddr, from: MacAddr, ethertype: u16) {
    put(frame, 0, &to.0);
    put(frame, 6, &from.0);
    put(frame, 12, &ethertype.to_be_bytes());
}

fn resolution(ethertype: u16, operation: u16, mac: MacAddr, target: MacAddr, ip: [u8; 4]) -> [u8; SHORTEST] {
    let mut frame = [0; SHORTEST];
    put_ethernet(&mut frame, MacAddr::BROADCAST, mac, ethertype);
    // Ethernet with addresses of 6 bytes, IPv4 with 4.
    put(&mut frame, ETHERNET_LEN, &[0, 1, 8, 0, 6, 4]);
    put(&mut frame, ETHERNET_LEN + 6, &operation.to_be_bytes());
    put(&mut frame, ETHERNET_LEN + 8, &mac.0);
    put(&mut frame, ETHERNET_LEN + 14, &ip);
    put(&mut frame, ETHERNET_LEN + 18, &target.0);
    put(&mut frame, ETHERNET_LEN + 24, &ip);
    frame
}

/// Builds a gratuitous ARP request for an IPv4 address.
pub fn arp(mac: MacAddr, ip: [u8; 4]) -> [u8; SHORTEST] {
    resolution(ETHERTYPE_ARP, ASKS, mac, MacAddr::default(), ip)
}

/// Builds a reverse ARP request.
pub fn rarp(mac: MacAddr) -> [u8; SHORTEST] {
    resolution(ETHERTYPE_RARP, ASKS_REVERSE, mac, mac, [0; 4])
}

/// Builds an unsolicited neighbour advertisement of an IPv6 address, which overrides what others
/// have cached. `router` sets the router flag: without it hosts would remove the address from their
/// routers (RFC 4861, 7.2.5).
pub fn neighbour_advertisement(mac: MacAddr, ip: [u8; 16], router: bool) -> [u8; ADVERTISEMENT] {
    const IP: usize = ETHERNET_LEN;
    const AT: usize = IP + 40;
    let mut frame = [0; ADVERTISEMENT];
    put_ethernet(&mut frame, ALL_NODES_MAC, mac, ETHERTYPE_IPV6);
    frame[IP] = 0x60;
    put(&mut frame, IP + 4, &(ICMP as u16).to_be_bytes());
    // Hop limit 255: the packet passed no router.
    put(&mut frame, IP + 6, &[PROTOCOL_ICMPV6, 255]);
    put(&mut frame, IP + 8, &ip);
    put(&mut frame, IP + 24, &ALL_NODES);
    frame[AT] = NEIGHBOUR_ADVERTISEMENT;
    frame[AT + 4] = OVERRIDES | if router { IS_ROUTER } else { 0 };
    put(&mut frame, AT + 8, &ip);
    // In units of 8 bytes.
    put(&mut frame, AT + 24, &[TARGET_LINK_ADDRESS, 1]);
    put(&mut frame, AT + 26, &mac.0);
    // Pseudo-header: addresses, length, protocol.
    let mut summed = [0; 32 + 8 + ICMP];
    put(&mut summed, 0, &frame[IP + 8..AT]);
    put(&mut summed, 32, &(ICMP as u32).to_be_bytes());
    summed[39] = PROTOCOL_ICMPV6;
    put(&mut summed, 40, &frame[AT..]);
    let sum = checksum(&summed).to_be_bytes();
    put(&mut frame, AT + 2, &sum);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([0, 0x16, 0x3E, 1, 2, 3]);

    #[test]
    fn an_ipv4_address_is_asked_for_by_who_has_it() {
        let frame = arp(MAC, [10, 0, 0, 5]);
        let mut due = [0; 60];
        due[..42].copy_from_slice(&[
            0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x16, 0x3E, 1, 2, 3, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 1, // request
            0, 0x16, 0x3E, 1, 2, 3, 10, 0, 0, 5, // sender
            0, 0, 0, 0, 0, 0, 10, 0, 0, 5, // target
        ]);
        assert_eq!(frame, due);
    }

    #[test]
    fn a_station_without_addresses_asks_for_one() {
        let frame = rarp(MAC);
        assert_eq!((&frame[12..14], &frame[20..22]), (&[0x80, 0x35][..], &[0, 3][..]));
        assert_eq!((&frame[22..28], &frame[32..38], &frame[38..42]), (&MAC.0[..], &MAC.0[..], &[0; 4][..]));
    }

    #[test]
    fn an_advertisement_has_a_right_checksum_and_says_what_a_router_is() {
        let ip = [0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xAB, 0xCD];
        for router in [false, true] {
            let frame = neighbour_advertisement(MAC, ip, router);
            assert_eq!(&frame[..14], [0x33, 0x33, 0, 0, 0, 1, 0, 0x16, 0x3E, 1, 2, 3, 0x86, 0xDD]);
            assert_eq!(frame[18..22], [0, 32, 58, 255]);
            assert_eq!((frame[54], frame[58]), (136, if router { 0xA0 } else { 0x20 }));
            assert_eq!((&frame[22..38], &frame[62..78]), (&ip[..], &ip[..]));
            assert_eq!((&frame[78..80], &frame[80..]), (&[2, 1][..], &MAC.0[..]));
            // The sum over everything including the checksum is that of an empty packet.
            let pseudo = [&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, 58], &frame[54..]].concat();
            assert_eq!(checksum(&pseudo), 0);
        }
    }
}
