//! A first front: a guest of the loopback that asks for the hardware address of another guest.
//! `cargo run -p pregrant-host --example first_front -- DIR DOMAIN ADDRESS`; docs/first-front.md
//! explains it line by line.

use pregrant::DomId;
use pregrant::net::front::FrontConfig;
use pregrant::net::headers::MacAddr;
use pregrant::platform::Platform;
use pregrant::port::{Arena, Offload};
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Frontend;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::Loopback;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// An ARP request from `from`: who has `to`?
fn who_has(mac: MacAddr, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&[0xFF; 6][..], &mac.0, &[0x08, 0x06]].concat(); // to all, from us, ARP
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]); // Ethernet, IPv4, lengths of their addresses, a request
    frame.extend([&mac.0[..], &from.octets(), &[0; 6], &to.octets()].concat());
    frame.resize(60, 0); // no Ethernet frame is shorter
    frame
}

/// The address in an ARP reply of `of`.
fn reply(frame: &[u8], of: Ipv4Addr) -> Option<MacAddr> {
    let (kind, sender) = (frame.get(12..22)?, frame.get(22..32)?);
    let is_reply = kind[..2] == [0x08, 0x06] && kind[8..] == [0, 2] && sender[6..] == of.octets();
    is_reply.then(|| MacAddr(std::array::from_fn(|i| sender[i])))
}

/// Attaches to guest `domid` of the machine in `dir`, and asks by its vif 0.
pub fn ask(dir: &Path, domid: DomId, to: Ipv4Addr) -> Result<MacAddr> {
    let platform = Loopback::attach(dir, domid)?;
    let store = platform.take_store_fd().ok_or("this machine has no xenstore")?;
    let xs = Client::new(UnixTransport::new(store)?);
    platform.events().also_wake_on(xs.transport().as_fd())?;
    let mut front = Frontend::new(platform, xs, 0, FrontConfig::default(), true)?;
    if !front.connect(Duration::from_secs(10))? {
        return Err("no backend: start `pregrant back --loopback DIR`".into());
    }
    let mac = front.mac().ok_or("the vif has no address")?;
    println!("connected: {mac}, MTU {}, {} queue(s)", front.mtu()?.unwrap_or(1500), front.vif().nr_queues());
    let [hi, lo] = domid.0.to_be_bytes();
    let (mut out, mut came) = (Arena::new(), Arena::new());
    assert!(out.push(&who_has(mac, Ipv4Addr::new(10, 0, hi, lo), to), Offload::NONE), "a burst has room");
    let until = Instant::now() + Duration::from_secs(10);
    let mut found = None;
    while found.is_none() && Instant::now() < until {
        front.send(0, &out.burst())?; // none is sent while the vif is not connected
        let next = Instant::now() + Duration::from_secs(1);
        while found.is_none() && Instant::now() < next {
            // Until there are frames, answers or news in xenstore.
            front.sleep(true, Some(next.saturating_duration_since(Instant::now())))?;
            front.control(Duration::ZERO)?; // the back's state: it may go and come back
            front.reclaim(0, 1)?; // TX answers
            came.clear();
            front.recv(0, &mut came, 1)?;
            found = came.burst().iter().find_map(|(frame, _)| reply(frame, to));
        }
    }
    println!("frames that were sent from another address than the vif's: {}", front.forged_source());
    front.close(Duration::from_secs(10))?;
    found.ok_or_else(|| format!("{to} does not answer").into())
}

pub fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, domain, to] = args.as_slice() else { return Err("first_front DIR DOMAIN ADDRESS".into()) };
    let to = to.parse()?;
    println!("{to} is at {}", ask(Path::new(dir), DomId(domain.parse()?), to)?);
    Ok(())
}
