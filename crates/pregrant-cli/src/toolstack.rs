//! What `xl` does on real Xen, for a loopback machine: makes vifs in xenstore, and removes them.

use crate::machine::DRIVER;
use pregrant::DomId;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenbus::{Class, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use std::error::Error;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long a backend may take to close a vif that is removed; then it goes anyway, as with libxl.
const PATIENCE: Duration = Duration::from_secs(1);

/// The hardware address of a guest's vif: Xen's vendor number, domain, handle.
pub fn mac(front: DomId, handle: u32) -> [u8; 6] {
    let [hi, lo] = front.0.to_be_bytes();
    [0x00, 0x16, 0x3e, hi, lo, handle as u8]
}

/// Makes a vif of guest `front` served by domain 0, as libxl does.
pub fn make_vif<T: Transport>(xs: &mut Client<T>, front: DomId, handle: u32) -> Result<()> {
    Ok(Vif::new(front, DRIVER, handle, mac(front, handle)).create(xs)?)
}

/// The vifs of a guest.
pub fn vifs_of<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<Vec<DeviceId>> {
    let mut all = toolstack::backs_of(xs, DRIVER, Class::Vif)?;
    all.retain(|id| id.front == front);
    Ok(all)
}

/// Has a guest's vifs closed by the backend, and removes them. Returns how many there were.
pub fn remove_vifs<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<usize> {
    let ids = vifs_of(xs, front)?;
    for id in &ids {
        toolstack::request_removal(xs, id)?;
    }
    let until = Instant::now() + PATIENCE;
    for id in &ids {
        while back_state(xs, id)? != XenbusState::Closed && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        toolstack::remove(xs, id)?;
    }
    Ok(ids.len())
}

fn back_state<T: Transport>(xs: &mut Client<T>, id: &DeviceId) -> Result<XenbusState> {
    let value = xs.read_if_there(&format!("{}/state", id.dir(Side::Back)))?;
    Ok(XenbusState::parse(value.as_deref()))
}
