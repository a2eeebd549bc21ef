//! Two whole interfaces, one by `copy` and one by `staging`: what they say in xenstore, and what
//! their frames cost.
//!
//! ```text
//!   toolstack --makes vif 0, vif 1--> xenstore <--keys and states--> FrontVif, BackVif
//!                                     FrontVif --frames--> BackVif --> a port that counts
//! ```
//! Everything is in one process: `pregrant::platform::local` is its Xen and
//! `pregrant_xenstored::local` its xenstore. Run it: `cargo run -p pregrant --features examples
//! --example two_paths`

use pregrant::DomId;
use pregrant::net::back::{BackVif, Polled, VifConfig};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::toolstack::Vif;
use pregrant::xenbus::{Class, Device, Side};
use pregrant::xenstore::Client;
use pregrant_xenstored::{LocalLink, LocalStore};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const GUEST: DomId = DomId(5);
const HOST: DomId = DomId(0);
const FRAMES: u64 = 1000;
const FRAME: [u8; 64] = [0x5A; 64];

/// Counts what the guest sends.
#[derive(Default)]
struct Counter {
    frames: u64,
}

impl FramePort for Counter {
    fn caps(&self) -> Offloads {
        Offloads::default()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.frames += frames.iter().filter(|(frame, _)| *frame == FRAME).count() as u64;
        frames.frames.len()
    }
    fn rx_burst(&mut self, _: &mut Arena) -> usize {
        0
    }
}

/// One end of a device, with its domain's connection to xenstore.
struct End {
    device: Device,
    xs: Client<LocalLink>,
}

impl End {
    fn bus(&mut self) -> StoreBus<'_, LocalLink> {
        StoreBus { device: &self.device, xs: &mut self.xs }
    }
}

/// Steps both ends until neither has anything left to do. Programs with watches do so only when one
/// of them fires.
fn settle(
    guest: &LocalDomain,
    host: &LocalDomain,
    (front, front_end): (&mut FrontVif<LocalDomain>, &mut End),
    (back, back_end): (&mut BackVif<LocalDomain>, &mut End),
) -> Result<()> {
    loop {
        let before = (back.state(), front.state(), front.is_live());
        back.step(host, &mut back_end.bus(), &mut |_, _| None).map_err(|e| e.to_string())?;
        front.step(guest, &mut front_end.bus()).map_err(|e| e.to_string())?;
        if (back.state(), front.state(), front.is_live()) == before {
            return Ok(());
        }
    }
}

/// Makes vif `handle`, connects it, sends frames, closes it.
fn run(xen: &LocalXen, store: &LocalStore, handle: u32, config: FrontConfig) -> Result<()> {
    let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let vif = Vif::new(GUEST, HOST, handle, [0x00, 0x16, 0x3e, 0, 5, handle as u8]);
    vif.create(&mut store.client(HOST))?;

    let mut front_xs = store.client(GUEST);
    let device = Device::front(&mut front_xs, Class::VIF, handle)?;
    let mut front_end = End { device, xs: front_xs };
    let mut back_end = End { device: Device::new(vif.id, Side::Back), xs: store.client(HOST) };
    let mut front = FrontVif::new(HOST, config, false);
    let mut back = BackVif::new(GUEST, handle, VifConfig::default());
    settle(&guest, &host, (&mut front, &mut front_end), (&mut back, &mut back_end))?;
    let (tx_path, _) = back.path_names(0);
    println!("vif {handle}: front {:?}, back {:?}, TX by {tx_path}", front.state(), back.state());
    for end in [&mut front_end, &mut back_end] {
        let dir = end.device.own_dir().to_string();
        for key in end.xs.directory(&dir)?.iter().filter(|k| k.contains("staging") || k.contains("data")) {
            let value = end.xs.read(&format!("{dir}/{key}"))?;
            println!("  {dir}/{key} = {:?}", String::from_utf8_lossy(&value));
        }
    }

    let (mut port, mut scratch, mut burst) = (Counter::default(), Arena::new(), Arena::new());
    while burst.push(&FRAME, Offload::default()) {}
    let before = xen.counts();
    let mut sent = 0;
    while sent < FRAMES {
        let burst = burst.burst();
        let n = burst.frames.len().min((FRAMES - sent) as usize);
        sent += front
            .queue_mut(0)
            .expect("a live vif")
            .send(&guest, &Burst::of(burst.bytes, &burst.frames[..n]))? as u64;
        while back.poll_tx(&host, 0, &mut port, &mut scratch)? == Polled::More {}
        front.queue_mut(0).expect("a live vif").reclaim(&guest, 1)?;
    }
    let after = xen.counts();
    println!("  {} of {FRAMES} frames arrived, {} grant copies\n", port.frames, after.copies - before.copies);

    front.close(&mut front_end.bus(), None)?;
    settle(&guest, &host, (&mut front, &mut front_end), (&mut back, &mut back_end))?;
    match front.is_closed() {
        true => Ok(()),
        false => Err(format!("vif {handle} did not close: front in state {:?}", front.state()).into()),
    }
}

pub fn main() -> Result<()> {
    let (xen, store) = (LocalXen::new(), LocalStore::new());
    store.with_server(|server| server.introduce(GUEST))?;
    run(&xen, &store, 0, FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() })?;
    run(&xen, &store, 1, FrontConfig::default())?;
    let left = xen.counts();
    println!("left: {} grants, {} mappings, {} channel ends", left.grants, left.mapped, left.channels);
    Ok(())
}
