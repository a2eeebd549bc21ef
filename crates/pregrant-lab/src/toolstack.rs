//! The part of `xl` for a loopback machine: makes vifs and vbds in xenstore, and removes them.

use crate::machine::DRIVER;
use pregrant::DomId;
use pregrant::blk::device_number;
use pregrant::blk::features::{MODE, PARAMS, mode_writes};
use pregrant::xenbus::toolstack::{self, Vbd, Vif};
use pregrant::xenbus::{Class, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use std::error::Error;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long a backend may take to close a device that is removed; then it goes anyway, as with
/// libxl.
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

/// A disk that a guest is to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// The image that its back is to open, as the key `params` has it.
    pub params: String,
    /// Whether the guest may write.
    pub writable: bool,
}

/// Makes a disk of guest `front` served by domain 0, as libxl does.
pub fn make_vbd<T: Transport>(xs: &mut Client<T>, front: DomId, handle: u32, disk: &DiskSpec) -> Result<()> {
    let name = device_number::name(handle);
    let vbd = Vbd { writable: disk.writable, ..Vbd::new(front, DRIVER, (handle, &name), &disk.params) };
    Ok(vbd.create(xs)?)
}

/// The number for a guest's next disk: `xvda`, `xvdb` ...
pub fn next_disk<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<u32> {
    let taken = devices_of(xs, Class::VBD, front)?;
    let numbers = ('a'..='p').filter_map(|letter| device_number::parse(&format!("xvd{letter}")));
    let free = numbers.into_iter().find(|handle| taken.iter().all(|id| id.handle != *handle));
    free.ok_or_else(|| format!("{front} has 16 disks, and gets no more here").into())
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

/// Has a guest's devices closed by their backends, and removes them. Returns how many there were.
pub fn remove_devices<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<usize> {
    let mut removal = Removal::begin(xs, front)?;
    while !removal.turn(xs)? {
        std::thread::sleep(Removal::CHECK);
    }
    Ok(removal.devices.len())
}

/// A guest's devices on their way out: their backends were asked to close them. No one waits for it
/// meanwhile.
pub struct Removal {
    /// Each, and what a disk is to be again.
    devices: Vec<(DeviceId, Option<DiskSpec>)>,
    until: Instant,
}

impl Removal {
    /// Between two checks.
    pub const CHECK: Duration = Duration::from_millis(2);

    /// Asks for it.
    pub fn begin<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<Self> {
        let mut devices: Vec<_> = vifs_of(xs, front)?.into_iter().map(|id| (id, None)).collect();
        for id in devices_of(xs, Class::VBD, front)? {
            devices.push((id, Some(disk_of(xs, &id)?)));
        }
        for (id, _) in &devices {
            toolstack::request_removal(xs, id)?;
        }
        Ok(Self { devices, until: Instant::now() + PATIENCE })
    }

    /// Removes them, when they are closed or their backend took too long. True: they are gone.
    pub fn turn<T: Transport>(&mut self, xs: &mut Client<T>) -> Result<bool> {
        if Instant::now() < self.until {
            for (id, _) in &self.devices {
                if back_state(xs, id)? != XenbusState::Closed {
                    return Ok(false);
                }
            }
        }
        for (id, _) in &self.devices {
            toolstack::remove(xs, id)?;
        }
        Ok(true)
    }

    /// Whether the guest had no device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Makes them again, as they were made before.
    pub fn undo<T: Transport>(&self, xs: &mut Client<T>) -> Result<()> {
        for (id, disk) in &self.devices {
            match disk {
                None => make_vif(xs, id.front, id.handle)?,
                Some(disk) => make_vbd(xs, id.front, id.handle, disk)?,
            }
        }
        Ok(())
    }
}

/// The properties of a disk as it was made.
fn disk_of<T: Transport>(xs: &mut Client<T>, id: &DeviceId) -> Result<DiskSpec> {
    let mut text = |key: &str| -> Result<String> {
        let value = xs.read_if_there(&format!("{}/{key}", id.dir(Side::Back)))?;
        Ok(String::from_utf8_lossy(&value.unwrap_or_default()).into_owned())
    };
    Ok(DiskSpec { params: text(PARAMS)?, writable: mode_writes(Some(&text(MODE)?)) })
}

fn back_state<T: Transport>(xs: &mut Client<T>, id: &DeviceId) -> Result<XenbusState> {
    let value = xs.read_if_there(&format!("{}/state", id.dir(Side::Back)))?;
    Ok(XenbusState::parse(value.as_deref()))
}
