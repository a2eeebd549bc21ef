//! A guest that misbehaves in every way, on real Xen: prints a line for each case with the back's
//! reaction.
//!
//! Root in a guest without netfront, with the modules xen-evtchn and xen-gntalloc and vifs 0, 1 ...
//! of domain 0. `cargo xtask rig misbehaviour` plays it against Linux's netback and against
//! `pregrant back`, and compares.

mod cases;

use pregrant::DomId;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::linux::Xen;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut xs = Client::new(UnixTransport::find()?);
    let own = DomId(String::from_utf8_lossy(&xs.read("domid")?).trim().parse()?);
    let xen = Xen::open(own)?;
    xen.ready_for_front()?;
    println!("{} vifs are needed", cases::vifs());
    cases::play(&xen, &mut xs, DomId(0), |line| println!("{line}"))
}
