//! The announcement of a guest's interface when its vif has connected, as Linux's netfront triggers
//! it (`netdev_notify_peers`): the network may have learnt the guest's addresses at another port.
//!
//! ```text
//!   eth0 with addresses      gratuitous ARP or neighbour advertisement of each, from eth0's MAC
//!   eth0 without addresses   RARP of eth0's MAC, so that switches learn it
//!   eth0 is a port of br0    besides, the addresses of br0, from br0's MAC: others have noted these
//! ```
//! Stations behind a bridge in the guest are not announced; they send frames themselves, as behind
//! any switch whose cable was moved. User space cannot make Linux send the announcement, so its
//! frames are built here, and go to the vif past the kernel's queues. Unlike Linux, this does not
//! announce the addresses of VLAN interfaces on top of the interface.

use super::netdev_addresses::Netdev;
use pregrant::net::announcement::{arp, neighbour_advertisement, rarp};
use pregrant::port::{Arena, Offload};
use std::io;
use std::net::IpAddr;

/// Appends the frames that announce interface number `index`, as many as fit; none if it is down.
///
/// # Errors
///
/// There is no such interface.
pub fn announce(index: u32, to: &mut Arena) -> io::Result<()> {
    let netdev = Netdev::of(index)?;
    if !netdev.is_up {
        return Ok(());
    }
    // The bridge may have been removed meanwhile.
    let bridge = netdev.bridge.and_then(|bridge| Netdev::of(bridge).ok()).filter(|bridge| bridge.is_up);
    if netdev.ips.is_empty() {
        let _ = to.push(&rarp(netdev.mac), Offload::default());
    }
    for Netdev { name, mac, ips, .. } in [&netdev].into_iter().chain(&bridge) {
        let router = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/forwarding"));
        let router = router.is_ok_and(|text| text.trim() != "0");
        for ip in ips {
            let _ = match ip {
                IpAddr::V4(ip) => to.push(&arp(*mac, ip.octets()), Offload::default()),
                IpAddr::V6(ip) => {
                    to.push(&neighbour_advertisement(*mac, ip.octets(), router), Offload::default())
                }
            };
        }
    }
    Ok(())
}
