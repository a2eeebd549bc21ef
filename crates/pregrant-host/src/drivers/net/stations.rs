//! Each vif as a station of one switch: the remote side that needs no interface of this machine.
//!
//! ```text
//!   reserve    a predecessor's vif: a port for each queue already, where frames for its guest wait until it is connected
//!   found      the vif's `mac` is read: the toolstack's key, in the back's directory, which no guest may write
//!   connected  a port for each queue; the address is pinned, and the guest sends with no other
//!   closed     the ports go, the address with them
//! ```
//! A vif without `mac` may send with any address that is no one else's. One that the operator lets
//! ([`allow_mac_spoofing`](Stations::allow_mac_spoofing)) may send with any but another vif's own:
//! for a guest that bridges, or shares an address with another (VRRP).
//!
//! What a guest may do: as for a [switch](crate::ports::switch).

use super::port_provider::{HotplugConfig, Notes, PortProvider, Ports};
use crate::drivers::DeviceChoice;
use crate::drivers::device_class::RemoteSide;
use crate::excerpt::excerpt;
use crate::ports::switch::{Sources, Switch, SwitchFull, SwitchPort};
use pregrant::net::headers::MacAddr;
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::{DeviceId, KeyValue};
use std::collections::BTreeMap;

/// A guest that may send with source addresses other than its own, on all of its vifs or on one;
/// None: all guests.
pub type Spoofing = Option<DeviceChoice>;

/// Ports of the built-in switch, one for each vif.
#[derive(Debug, Default)]
pub struct Stations {
    switch: Switch,
    spoofing: Vec<Spoofing>,
    vifs: BTreeMap<(u16, u32), Station>,
}

#[derive(Debug, Default)]
struct Station {
    mac: Option<MacAddr>,
    reserved: Option<Reserved>,
}

/// Ports that were made for a vif that is not connected yet.
#[derive(Debug)]
struct Reserved {
    ports: Vec<SwitchPort>,
    front: Offloads,
    sources: Sources,
}

/// Parses the address in a vif's key `mac`.
fn mac_of(place: &HotplugConfig) -> Result<Option<MacAddr>, String> {
    let Some(text) = &place.mac else { return Ok(None) };
    let mac = <[u8; 6]>::parse(text.trim_end_matches('\0')).map(MacAddr);
    match mac.filter(|mac| !mac.is_group() && !mac.is_zero()) {
        Some(mac) => Ok(Some(mac)),
        None => {
            let (text, expected) = (excerpt(text, 40), <[u8; 6]>::EXPECTED);
            Err(format!("{}/mac is {text:?}, expected a unicast MAC address, {expected}", place.dir))
        }
    }
}

impl Stations {
    /// Creates a provider of ports at this switch.
    pub fn at(switch: &Switch) -> Self {
        Self { switch: switch.clone(), ..Self::default() }
    }

    /// Lets guests use source addresses other than their own, once they connect.
    pub fn allow_mac_spoofing(&mut self, whose: impl IntoIterator<Item = Spoofing>) {
        self.spoofing.extend(whose);
    }

    /// Returns a port for each queue of a vif that was [found](PortProvider::found). Uses the
    /// [reserved](PortProvider::reserve) ports if their number is right. `front` is the offload
    /// work that the guest accepts to do.
    ///
    /// # Errors
    /// The switch has no port left.
    pub fn ports(
        &mut self,
        id: &DeviceId,
        queues: usize,
        front: Offloads,
    ) -> Result<Vec<SwitchPort>, SwitchFull> {
        let station = self.vifs.get_mut(&(id.front.0, id.handle));
        let reserved = station.and_then(|station| station.reserved.take());
        // Others go first: an address is one port's.
        let reserved = reserved.filter(|reserved| reserved.ports.len() == queues);
        let Some(Reserved { ports, front: before, sources }) = reserved else {
            return self.new_ports(id, queues, front).map(|made| made.ports);
        };
        if let Some(port) = ports.first() {
            if before != front {
                port.set_guest_caps(front);
            }
            if sources != self.sources(id) {
                port.set_sources(self.sources(id));
            }
        }
        Ok(ports)
    }

    fn new_ports(&self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Reserved, SwitchFull> {
        let ports = self.switch.add_multi_queue_port(queues, front)?;
        let sources = self.sources(id);
        if let Some(port) = ports.first() {
            port.set_sources(sources);
        }
        Ok(Reserved { ports, front, sources })
    }

    /// Returns the source addresses that a vif's guest may use.
    fn sources(&self, id: &DeviceId) -> Sources {
        let mac = self.vifs.get(&(id.front.0, id.handle)).and_then(|station| station.mac);
        let may_spoof = |whose: &Spoofing| whose.is_none_or(|vifs| vifs.names(id.front.0, id.handle));
        match mac {
            _ if self.spoofing.iter().any(may_spoof) => Sources::Any(mac),
            Some(mac) => Sources::Own(mac),
            None => Sources::Learnt,
        }
    }
}

impl PortProvider for Stations {
    fn found(&mut self, id: &DeviceId, place: &HotplugConfig, _: bool) -> Result<Notes, String> {
        let mac = mac_of(place)?;
        self.vifs.entry((id.front.0, id.handle)).or_default().mac = mac;
        Ok(Notes::new())
    }

    /// Reserves the vif's port. If the address is invalid, or the switch is full, nothing is
    /// reserved, and the connect reports that.
    fn reserve(&mut self, id: &DeviceId, place: &HotplugConfig, queues: usize, front: Offloads) {
        let Ok(mac) = mac_of(place) else { return };
        let key = (id.front.0, id.handle);
        let station = self.vifs.entry(key).or_default();
        if station.reserved.is_some() {
            return;
        }
        station.mac = mac;
        let reserved = self.new_ports(id, queues, front).ok();
        self.vifs.entry(key).or_default().reserved = reserved;
    }

    fn release(&mut self, id: &DeviceId) -> usize {
        let station = self.vifs.get_mut(&(id.front.0, id.handle));
        let reserved = station.and_then(|station| station.reserved.take());
        reserved.map_or(0, |reserved| reserved.ports.iter().map(SwitchPort::held).sum())
    }

    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Ports, String> {
        let ports = self.ports(id, queues, front).map_err(|e| e.to_string())?;
        Ok(ports.into_iter().map(|p| Box::new(p) as Box<dyn FramePort>).collect())
    }
}

impl RemoteSide for Stations {
    fn removed(&mut self, id: &DeviceId) -> Result<(), String> {
        self.vifs.remove(&(id.front.0, id.handle));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::DomId;
    use pregrant::port::{Arena, Offload};
    use pregrant::xenbus::Class;

    const BOTH: Offloads = Offloads { csum: true, gso: true };

    fn id(front: u16) -> DeviceId {
        DeviceId { class: Class::VIF, front: DomId(front), back: DomId(0), handle: 0 }
    }

    fn place(mac: Option<&str>) -> HotplugConfig {
        HotplugConfig { mac: mac.map(String::from), dir: "/back".into(), ..HotplugConfig::default() }
    }

    /// Sends a broadcast with this source address. Returns how many of the other ports get it.
    fn received(ports: &mut [Vec<SwitchPort>], from: usize, source: u8) -> usize {
        let mut arena = Arena::new();
        let frame = [&[0xFF; 6][..], &[0, 0x16, 0x3e, 0, 0, source], &[0; 48]].concat();
        assert!(arena.push(&frame, Offload::default()));
        ports[from][0].tx_burst(&arena.burst());
        arena.clear();
        ports.iter_mut().flatten().map(|port| port.rx_burst(&mut arena)).sum()
    }

    #[test]
    fn guests_send_with_the_address_that_the_toolstack_gave_them() {
        let mut stations = Stations::at(&Switch::new());
        stations.allow_mac_spoofing([Some(DeviceChoice { front: 7, handle: None })]);
        let keys = [Some("00:16:3e:00:00:05"), Some("00:16:3e:00:00:06\0"), Some("00:16:3e:00:00:07"), None];
        let mut ports = Vec::new();
        for (front, mac) in (5..).zip(keys) {
            stations.found(&id(front), &place(mac), false).unwrap();
            ports.push(stations.ports(&id(front), 1, BOTH).unwrap());
        }
        // 5, 6 and 7 have addresses; 8 has none that is known; 7 may use others, also those that 8
        // used.
        for (from, sources) in [(0, &[5][..]), (1, &[6]), (3, &[8, 9, 10]), (2, &[7, 8, 9, 10]), (3, &[])] {
            for source in 5..11 {
                let expected = if sources.contains(&source) { 3 } else { 0 };
                assert_eq!(received(&mut ports, from, source), expected, "{from} as {source}");
            }
        }
    }

    #[test]
    fn frames_wait_for_a_vif_that_is_about_to_be_taken_up() {
        let mut stations = Stations::at(&Switch::new());
        // Guest 6 has an address from the toolstack. The address of guest 7 is unknown, so frames
        // for it go to all.
        let keys = [(5, Some("00:16:3e:00:00:05")), (6, Some("00:16:3e:00:00:06")), (7, None)];
        for (front, mac) in keys {
            stations.reserve(&id(front), &place(mac), 2, BOTH);
        }
        let mut five = stations.ports(&id(5), 2, BOTH).unwrap();
        let mut arena = Arena::new();
        for to in [6, 6, 9] {
            let frame = [&[0, 0x16, 0x3e, 0, 0, to][..], &[0, 0x16, 0x3e, 0, 0, 5], &[0; 48]].concat();
            assert!(arena.push(&frame, Offload::default()));
        }
        five[0].tx_burst(&arena.burst());
        // The vif is found again and again, as happens while its last owner is dying, now with the
        // guest's real offloads.
        stations.reserve(&id(6), &place(keys[1].1), 2, BOTH);
        stations.found(&id(6), &place(keys[1].1), true).unwrap();
        let waiting = |ports: &[SwitchPort]| ports.iter().map(SwitchPort::held).sum::<usize>();
        let six = stations.ports(&id(6), 2, Offloads::default()).unwrap();
        let seven = stations.ports(&id(7), 2, BOTH).unwrap();
        assert_eq!([waiting(&six), waiting(&seven), waiting(&five)], [3, 1, 0]);
        // The ports are in use, so there is nothing to release.
        assert_eq!(stations.release(&id(6)) + stations.release(&id(7)), 0);
        drop((six, seven));
        // A vif with another number of queues than reserved gets its own ports; one that is not
        // taken over gets none.
        for (front, mac) in [(6, keys[1].1), (7, None)] {
            stations.reserve(&id(front), &place(mac), 2, BOTH);
        }
        five[0].tx_burst(&arena.burst());
        assert_eq!(waiting(&stations.ports(&id(6), 1, BOTH).unwrap()), 0);
        assert_eq!(stations.release(&id(7)), 1);
        five[0].tx_burst(&arena.burst());
        assert_eq!((five[0].stats().flooded, five[0].stats().no_port), (2, 3));
    }

    #[test]
    fn all_may_where_that_is_said() {
        let mut stations = Stations::at(&Switch::new());
        stations.allow_mac_spoofing([None]);
        stations.found(&id(5), &place(Some("00:16:3e:00:00:05")), false).unwrap();
        let mut ports: Vec<_> = [5, 6].map(|front| stations.ports(&id(front), 1, BOTH).unwrap()).into();
        assert_eq!(
            (received(&mut ports, 0, 9), received(&mut ports, 1, 9), received(&mut ports, 1, 5)),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_vif_whose_address_is_none_is_not_served() {
        let mut stations = Stations::at(&Switch::new());
        for bad in
            ["", "00:16:3e:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00", "\u{1b}[2J"]
        {
            let why = stations.found(&id(5), &place(Some(bad)), false).unwrap_err();
            assert!(why.starts_with("/back/mac is ") && why.is_ascii(), "{why}");
            // The address that the line names is in use.
            let named = why.rsplit(' ').next();
            assert_eq!(stations.found(&id(6), &place(named), false), Ok(Notes::new()), "{why}");
        }
    }
}
