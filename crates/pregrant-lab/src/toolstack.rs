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
    devices_of(xs, Class::VIF, front)
}

/// The devices of a kind that a guest has.
pub fn devices_of<T: Transport>(xs: &mut Client<T>, class: Class, front: DomId) -> Result<Vec<DeviceId>> {
    let mut all = toolstack::backs_of(xs, DRIVER, class)?;
    all.retain(|id| id.front == front);
    Ok(all)
}

/// Has a guest's vifs closed by the backend, and removes them. Returns how many there were.
pub fn remove_vifs<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<usize> {
    let mut removal = Removal::begin(xs, front)?;
    while !removal.turn(xs)? {
        std::thread::sleep(Removal::LOOK);
    }
    Ok(removal.ids.len())
}

/// A guest's vifs on their way out: their backend was asked to close them. Nobody waits for it meanwhile.
pub struct Removal {
    ids: Vec<DeviceId>,
    until: Instant,
}

impl Removal {
    /// Between two looks.
    pub const LOOK: Duration = Duration::from_millis(2);

    /// Asks for it.
    pub fn begin<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<Self> {
        let ids = vifs_of(xs, front)?;
        for id in &ids {
            toolstack::request_removal(xs, id)?;
        }
        Ok(Self { ids, until: Instant::now() + PATIENCE })
    }

    /// Removes them, when they are closed or their backend took too long. True: they are gone.
    pub fn turn<T: Transport>(&mut self, xs: &mut Client<T>) -> Result<bool> {
        if Instant::now() < self.until {
            for id in &self.ids {
                if back_state(xs, id)? != XenbusState::Closed {
                    return Ok(false);
                }
            }
        }
        for id in &self.ids {
            toolstack::remove(xs, id)?;
        }
        Ok(true)
    }

    /// Their numbers at the guest.
    pub fn handles(&self) -> Vec<u32> {
        self.ids.iter().map(|id| id.handle).collect()
    }
}

fn back_state<T: Transport>(xs: &mut Client<T>, id: &DeviceId) -> Result<XenbusState> {
    let value = xs.read_if_there(&format!("{}/state", id.dir(Side::Back)))?;
    Ok(XenbusState::parse(value.as_deref()))
}
