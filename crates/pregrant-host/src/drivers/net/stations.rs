//! Each vif as a station of one switch: the far side that needs no interface of this machine.
//!
//! ```text
//!   found      the vif's `mac` is read: the toolstack's key, in the back's directory, which no guest may write
//!   connected  a port for each queue; the address is pinned, and the guest sends with no other
//!   closed     the ports go, the address with them
//! ```
//! A vif without `mac` may send with any address that is nobody else's. One that the operator lets
//! ([`allow_mac_spoofing`](Stations::allow_mac_spoofing)) may send with any but another vif's own: for a guest that bridges, or
//! shares an address with another (VRRP).
//!
//! What a guest may do: as for a [switch](crate::ports::switch).

use super::port_provider::{HotplugConfig, Notes, PortProvider};
use crate::drivers::Chosen;
use crate::ports::switch::{Sources, Switch, SwitchFull, SwitchPort};
use pregrant::net::headers::MacAddr;
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::{DeviceId, KeyValue};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;

/// Whose guests may send with other addresses than their own: one guest's vifs, or one of them; None: all.
pub type Spoofing = Option<Chosen>;

/// See the module.
#[derive(Debug, Default)]
pub struct Stations {
    switch: Switch,
    spoofing: Vec<Spoofing>,
    vifs: BTreeMap<(u16, u32), Station>,
}

#[derive(Debug, Default)]
struct Station {
    mac: Option<MacAddr>,
}

/// The address in a vif's `mac`.
fn mac_of(place: &HotplugConfig) -> Result<Option<MacAddr>, String> {
    let Some(text) = &place.mac else { return Ok(None) };
    let mac = <[u8; 6]>::parse(text.trim_end_matches('\0')).map(MacAddr);
    match mac.filter(|mac| !mac.is_group() && !mac.is_zero()) {
        Some(mac) => Ok(Some(mac)),
        None => {
            Err(format!("{}/mac is {text:.40?}, expected one station's address, 00:16:3e:1:2:3", place.dir))
        }
    }
}

impl Stations {
    /// At this switch.
    pub fn at(switch: &Switch) -> Self {
        Self { switch: switch.clone(), ..Self::default() }
    }

    /// Lets guests send with other addresses than their own, once they connect.
    pub fn allow_mac_spoofing(&mut self, whose: impl IntoIterator<Item = Spoofing>) {
        self.spoofing.extend(whose);
    }

    /// A port for each queue of a vif that has been [found](PortProvider::found); `front` is what its guest takes unfinished.
    ///
    /// # Errors
    /// The switch has no port left.
    pub fn ports(
        &self,
        id: &DeviceId,
        queues: usize,
        front: Offloads,
    ) -> Result<Vec<SwitchPort>, SwitchFull> {
        let ports = self.switch.add_multi_queue_port(queues, front)?;
        let mac = self.vifs.get(&(id.front.0, id.handle)).and_then(|station| station.mac);
        let may_spoof = |whose: &Spoofing| whose.is_none_or(|vifs| vifs.names(id.front.0, id.handle));
        let sources = match mac {
            _ if self.spoofing.iter().any(may_spoof) => Sources::Any(mac),
            Some(mac) => Sources::Own(mac),
            None => Sources::Learnt,
        };
        if let Some(port) = ports.first() {
            port.set_sources(sources);
        }
        Ok(ports)
    }
}

impl PortProvider for Stations {
    fn found(&mut self, id: &DeviceId, place: &HotplugConfig, _: bool) -> Result<Notes, String> {
        let mac = mac_of(place)?;
        self.vifs.entry((id.front.0, id.handle)).or_default().mac = mac;
        Ok(Notes::new())
    }

    fn connected(
        &mut self,
        id: &DeviceId,
        queues: usize,
        front: Offloads,
    ) -> Result<Vec<Box<dyn FramePort>>, String> {
        let ports = self.ports(id, queues, front).map_err(|e| e.to_string())?;
        Ok(ports.into_iter().map(|p| Box::new(p) as Box<dyn FramePort>).collect())
    }

    fn readable(&mut self, _: &DeviceId) -> Vec<OwnedFd> {
        Vec::new()
    }
    fn link(&mut self, _: &DeviceId, _: bool) -> Result<(), String> {
        Ok(())
    }

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

    /// A broadcast with this source. How many of the others' ports get it.
    fn heard(ports: &mut [Vec<SwitchPort>], from: usize, source: u8) -> usize {
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
        stations.allow_mac_spoofing([Some(Chosen { front: 7, handle: None })]);
        let keys = [Some("00:16:3e:00:00:05"), Some("00:16:3e:00:00:06\0"), Some("00:16:3e:00:00:07"), None];
        let mut ports = Vec::new();
        for (front, mac) in (5..).zip(keys) {
            stations.found(&id(front), &place(mac), false).unwrap();
            ports.push(stations.ports(&id(front), 1, BOTH).unwrap());
        }
        // 5, 6 and 7 have addresses; 8 has none that is known; 7 may use others, also those that 8 used.
        for (from, sources) in [(0, &[5][..]), (1, &[6]), (3, &[8, 9, 10]), (2, &[7, 8, 9, 10]), (3, &[])] {
            for source in 5..11 {
                let expected = if sources.contains(&source) { 3 } else { 0 };
                assert_eq!(heard(&mut ports, from, source), expected, "{from} as {source}");
            }
        }
    }

    #[test]
    fn all_may_where_that_is_said() {
        let mut stations = Stations::at(&Switch::new());
        stations.allow_mac_spoofing([None]);
        stations.found(&id(5), &place(Some("00:16:3e:00:00:05")), false).unwrap();
        let mut ports: Vec<_> = [5, 6].map(|front| stations.ports(&id(front), 1, BOTH).unwrap()).into();
        assert_eq!((heard(&mut ports, 0, 9), heard(&mut ports, 1, 9), heard(&mut ports, 1, 5)), (1, 1, 0));
    }

    #[test]
    fn a_vif_whose_address_is_none_is_not_served() {
        let mut stations = Stations::at(&Switch::new());
        for bad in
            ["", "00:16:3e:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00", "\u{1b}[2J"]
        {
            let why = stations.found(&id(5), &place(Some(bad)), false).unwrap_err();
            assert!(why.starts_with("/back/mac is ") && why.is_ascii(), "{why}");
        }
    }
}
