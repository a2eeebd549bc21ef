//! A back that misbehaves in every way, on real Xen: prints a line for each case with the front's
//! reaction.
//!
//! Root in dom0, where nothing else serves the vif: `hostile_back DOMID CASE`; without arguments
//! the names of all cases. `cargo xtask rig 82` plays them against the kernel module. Where pages
//! are still mapped when it has closed it says how many, and has them until its input ends.

mod cases;

use pregrant::DomId;
use pregrant::xenbus::{Class, DeviceId};
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::linux::Xen;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let all = cases::all::<Xen, UnixTransport>();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [domid, name] = args.as_slice() else {
        all.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    };
    let id = DeviceId { class: Class::VIF, front: DomId(domid.parse()?), back: DomId(0), handle: 0 };
    let case = all.iter().find(|case| case.name == name).ok_or("no such case")?;
    let xen = Xen::open(DomId(0))?;
    xen.ready_for_back()?;
    let line = case.play(&xen, &mut Client::new(UnixTransport::find()?), id, |pages| {
        println!("HOLDS {pages}");
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    })?;
    println!("{line}");
    match cases::GOLDEN.lines().any(|golden| golden == line) {
        true => Ok(()),
        false => Err("on the loopback the front ends otherwise".into()),
    }
}
