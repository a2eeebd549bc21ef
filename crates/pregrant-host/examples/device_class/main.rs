//! A class of devices of your own, served by the registry that serves vifs and disks:
//! `cargo run -p pregrant-host --example device_class`.
//!
//! ```text
//!   vtoy.rs   the class: copy it       front.rs  a guest's end, for this example
//!   main.rs   one thread with both ends, over a Xen and a xenstore inside the process
//! ```
//! The test `toy_class` runs this, and serves the class from processes that are killed, beside
//! vifs.

pub mod front;
pub mod vtoy;

use front::ToyFront;
use pregrant::DomId;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::xenbus::toolstack::Vif;
use pregrant::xenbus::{DeviceId, XenbusState};
use pregrant_host::drivers::{Backend, BackendConfig};
use pregrant_xenstored::{LocalLink, LocalStore};
use std::error::Error;
use vtoy::{Toys, VTOY};

const BACK: DomId = DomId(0);
const GUEST: DomId = DomId(5);

/// Serves until it has happened.
fn serve_until(
    backend: &mut Backend<LocalDomain, LocalLink>,
    mut happened: impl FnMut() -> bool,
) -> Result<(), Box<dyn Error>> {
    while !happened() {
        backend.control()?;
        backend.round();
        backend.arm();
    }
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let (xen, store) = (LocalXen::new(), LocalStore::new());
    store.with_server(|server| server.introduce(GUEST))?;
    let config = BackendConfig::default();
    let mut backend = Backend::new(xen.domain(BACK.0), store.client(BACK), config, vec![Box::new(Toys)])?;

    // The toolstack makes a device of the class.
    let id = DeviceId { class: VTOY, front: GUEST, back: BACK, handle: 0 };
    Vif { id, mac: [0; 6], front_keys: &[], back_keys: &[] }.create(&mut store.client(BACK))?;

    let mut front = ToyFront::attach(xen.domain(GUEST.0), store.client(GUEST), id);
    serve_until(&mut backend, || front.back_state() == XenbusState::InitWait)?;
    front.offer();
    serve_until(&mut backend, || front.back_state() == XenbusState::Connected)?;
    front.ask(100);
    serve_until(&mut backend, || front.answered() == 100)?;
    println!("{id}: the back has counted to {}", front.answered());

    // A toy that is at work holds its device's close.
    front.set_at_work(true);
    front.set_state(XenbusState::Closing);
    for _ in 0..10 {
        backend.control()?;
    }
    println!("{id}: at work, and the back's state is {:?}", front.back_state());
    front.set_at_work(false);
    serve_until(&mut backend, || front.back_state() == XenbusState::Closing)?;
    front.set_state(XenbusState::Closed);
    serve_until(&mut backend, || front.back_state() == XenbusState::Closed)?;
    println!("{id}: closed in good order, at {}", front.answered());
    Ok(())
}
