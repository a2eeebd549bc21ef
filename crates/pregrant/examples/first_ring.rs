//! One frame over one ring: a guest grants, asks and is answered; its backend takes, copies and
//! answers.
//!
//! ```text
//!   guest (domain 5)                         backend (domain 0)
//!   TxFront::send --ring page, event channel--> TxQueue::poll --copy--> Printer (a frame port)
//!   TxFront::reclaim <------------------------- the answer
//! ```
//! Everything is in one process, on the small Xen of `pregrant::platform::local`. Run it:
//! `cargo run -p pregrant --features examples --example first_ring`

use pregrant::net::back::{SharedControl, TxQueue};
use pregrant::net::front::Granting;
use pregrant::net::front::TxFront;
use pregrant::net::front::regions::Regions;
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::{AnyPath, CopyPath, FrontChain};
use pregrant::platform::local::LocalXen;
use pregrant::platform::{Access, Events, GrantPool, PeerMem};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::ring::{BackRing, FrontRing, NetTx, RingPages};
use pregrant::{DomId, GrantRef};
use std::error::Error;

const GUEST: DomId = DomId(5);
const HOST: DomId = DomId(0);

/// The remote side of the backend: prints what the guest sent, and has nothing for it.
struct Printer;

impl FramePort for Printer {
    fn caps(&self) -> Offloads {
        Offloads::default()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        for (bytes, _) in frames.iter() {
            println!("backend  a frame of {} bytes: {:?}", bytes.len(), String::from_utf8_lossy(bytes));
        }
        frames.frames.len()
    }
    fn rx_burst(&mut self, _: &mut Arena) -> usize {
        0
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let xen = LocalXen::new();
    let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));

    // The guest grants a page for the ring and offers an event channel. Both numbers would go into
    // xenstore.
    let mut ring_ref = [GrantRef::NONE];
    let page = guest.alloc(HOST, Access::ReadWrite, &mut ring_ref)?;
    let ring = RingPages::<NetTx, _>::new(page);
    ring.init();
    let (guest_chan, channel) = guest.offer(HOST)?;
    println!("guest    ring in {}, offers {channel}", ring_ref[0]);

    // One page for each id that a request can have, granted while a frame is in it.
    let ring = FrontRing::<NetTx, _>::new(ring);
    let pages = OrdinaryPages::new(
        &guest,
        &mut Regions::new(HOST),
        Access::ReadOnly,
        ring.size(),
        Granting::PerFrame,
    )?;
    let mut front = TxFront::new(&guest, ring, FrontChain::new(None, Some(pages)))?;

    // The backend maps the same page and binds the same channel.
    let map = host.map(GUEST, &ring_ref, Access::ReadWrite).map_err(|e| e.status.to_string())?;
    let host_chan = host.bind(GUEST, channel)?;
    let (ring, _) = BackRing::attach(RingPages::<NetTx, _>::new(map), None)?;
    let mut back = TxQueue::new(ring, AnyPath::Copy(CopyPath::default())).expect("memory");

    // A burst of one frame. It must have an Ethernet header's 14 bytes at least.
    let mut burst = Arena::new();
    assert!(burst.push(b"a frame that crosses two domains", Offload::default()));
    let sent = front.send(&guest, &guest_chan, &burst.burst())?;
    println!("guest    sent {sent} frame, {} request in flight", front.in_flight());

    back.poll(&host, GUEST, &host_chan, &mut Printer, &mut Arena::new(), &SharedControl::default())?;

    let answers = front.reclaim(&guest, 1)?;
    let counts = xen.counts();
    println!("guest    took {answers} answer, {} requests in flight", front.in_flight());
    println!("machine  {} grant copy, {} events", counts.copies, counts.notifications);

    // Down again: the backend lets go first, then the guest can end its grants.
    drop((back, host_chan));
    let (ring, chain) = front.into_parts();
    guest.release(ring.into_pages()).map_err(|_| "the backend still maps the ring")?;
    let (_, pages) = chain.into_parts();
    pages
        .map_or(Ok(()), |p| p.into_granted().release(&guest))
        .map_err(|_| "the backend still uses a page")?;
    drop(guest_chan);
    let counts = xen.counts();
    println!(
        "machine  {} grants, {} mappings, {} channel ends left",
        counts.grants, counts.mapped, counts.channels
    );
    Ok(())
}
