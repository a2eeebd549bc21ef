//! What the examples of the frame hook stand on: a guest with vifs, and a driver domain behind
//! them, in one process.
//!
//! ```text
//!   example's loop --> Wire.front ==rings== Wire.back --> Wire.port: what other machines send and get
//! ```
//! Everything is honest here; who serves a vif outside has peers that are not.
#![allow(dead_code)] // each example uses its part of it

use pregrant::DomId;
use pregrant::net::back::{BackVif, Polled, VifConfig};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::toolstack::Vif;
use pregrant::xenbus::{Class, Device, Side};
use pregrant::xenstore::Client;
use pregrant_xenstored::{LocalLink, LocalStore};
use std::collections::VecDeque;
use std::error::Error;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

const GUEST: DomId = DomId(5);
const HOST: DomId = DomId(0);

/// A machine with one guest.
pub struct Machine {
    pub xen: LocalXen,
    pub guest: LocalDomain,
    store: LocalStore,
    vifs: u32,
}

/// The network of a vif.
#[derive(Default)]
pub struct Net {
    /// What others send to the guest.
    pub gives: VecDeque<Vec<u8>>,
    pub took: Vec<Vec<u8>>,
}

impl FramePort for Net {
    fn caps(&self) -> Offloads {
        Offloads::default()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.took.extend(frames.iter().map(|(frame, _)| frame.to_vec()));
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut n = 0;
        while into.has_room()
            && let Some(frame) = self.gives.pop_front()
        {
            n += usize::from(into.push(&frame, Offload::default()));
        }
        n
    }
}

/// The back of a vif, which may be another thread's.
pub struct HostEnd {
    pub host: LocalDomain,
    pub back: BackVif<LocalDomain>,
    pub net: Net,
    scratch: Arena,
}

impl HostEnd {
    /// Moves what there is, both ways. False: nothing was.
    pub fn turn(&mut self) -> Result<bool> {
        let Self { host, back, net, scratch } = self;
        let tx = back.poll_tx(host, 0, net, scratch)? == Polled::More;
        let rx = back.poll_rx(host, 0, net)? == Polled::More;
        Ok(tx || rx)
    }
}

/// A vif, both ends of it, connected.
pub struct Wire {
    pub front: FrontVif<LocalDomain>,
    pub host_end: HostEnd,
    ends: [(Device, Client<LocalLink>); 2],
}

impl Machine {
    pub fn new() -> Result<Self> {
        let (xen, store) = (LocalXen::new(), LocalStore::new());
        store.with_server(|server| server.introduce(GUEST))?;
        Ok(Self { guest: xen.domain(GUEST.0), xen, store, vifs: 0 })
    }

    /// Makes a vif and connects it.
    pub fn wire(&mut self, config: FrontConfig) -> Result<Wire> {
        let handle = self.vifs;
        self.vifs += 1;
        let vif = Vif::new(GUEST, HOST, handle, [0x00, 0x16, 0x3e, 0, 5, handle as u8]);
        vif.create(&mut self.store.client(HOST))?;
        let mut front_xs = self.store.client(GUEST);
        let front_device = Device::front(&mut front_xs, Class::VIF, handle)?;
        let back_end = (Device::new(vif.id, Side::Back), self.store.client(HOST));
        let host_end = HostEnd {
            host: self.xen.domain(HOST.0),
            back: BackVif::new(GUEST, handle, VifConfig::default()),
            net: Net::default(),
            scratch: Arena::new(),
        };
        let front = FrontVif::new(HOST, config, false);
        let mut wire = Wire { front, host_end, ends: [(front_device, front_xs), back_end] };
        wire.settle(&self.guest)?;
        Ok(wire)
    }
}

impl Wire {
    /// Steps both ends until neither has anything left to do. Programs with watches do so only when
    /// one of them fires.
    fn settle(&mut self, guest: &LocalDomain) -> Result<()> {
        let Self { front, host_end: HostEnd { host, back, .. }, ends: [front_end, back_end] } = self;
        loop {
            let before = (back.state(), front.state(), front.is_live());
            let (device, xs) = (&back_end.0, &mut back_end.1);
            back.step(host, &mut StoreBus { device, xs }, &mut |_, _| None).map_err(|e| e.to_string())?;
            let (device, xs) = (&front_end.0, &mut front_end.1);
            front.step(guest, &mut StoreBus { device, xs }).map_err(|e| e.to_string())?;
            if (back.state(), front.state(), front.is_live()) == before {
                return Ok(());
            }
        }
    }

    /// Closes it from the guest; what the network has at the end.
    pub fn close(mut self, guest: &LocalDomain) -> Result<Net> {
        let (device, xs) = (&self.ends[0].0, &mut self.ends[0].1);
        self.front.close(&mut StoreBus { device, xs }, None)?;
        self.settle(guest)?;
        if self.front.is_closed() { Ok(self.host_end.net) } else { Err("the vif did not close".into()) }
    }
}

/// An Ethernet frame with a UDP packet of `len` bytes in all; the IPv4 header's checksum is right.
pub fn udp(from: [u8; 4], to: [u8; 4], port: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(60)];
    frame[..6].copy_from_slice(&[0x00, 0x16, 0x3e, 0, 5, 0]);
    frame[6..12].copy_from_slice(&[0x02, 0, 0, 0, 0, from[3]]);
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip_len = (frame.len() - 14) as u16;
    let ip = &mut frame[14..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&from);
    ip[16..20].copy_from_slice(&to);
    let sum = header_sum(&ip[..20]);
    ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
    ip[22..24].copy_from_slice(&port.to_be_bytes());
    ip[24..26].copy_from_slice(&(ip_len - 20).to_be_bytes());
    frame
}

/// The ones' complement sum of an IPv4 header; 0xFFFF with a right checksum in it.
pub fn header_sum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}
