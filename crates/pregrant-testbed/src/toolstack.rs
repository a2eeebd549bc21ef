//! The part of `xl` for a loopback machine: makes vifs and vbds in xenstore, and removes them.

use pregrant::DomId;
use pregrant::blk::device_number;
use pregrant::blk::features::{MODE, PARAMS, mode_writes};
use pregrant::xenbus::toolstack::{self, Vbd, Vif};
use pregrant::xenbus::{Class, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant_cli::loopback_machine::DRIVER;
use std::error::Error;
use std::str::FromStr;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The time that a backend may need to close a device of a guest that ends. After that the device
/// is removed anyway, as libxl does.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time that a running guest may need to release a device that is detached. After that the
/// guest keeps the device, as with libxl.
const DETACH_PATIENCE: Duration = Duration::from_secs(10);

/// The hardware address of a guest's vif: Xen's vendor number, domain, handle.
pub fn mac(front: DomId, handle: u32) -> [u8; 6] {
    let [hi, lo] = front.0.to_be_bytes();
    [0x00, 0x16, 0x3e, hi, lo, handle as u8]
}

/// Keys of the back's directory that define how a vif is plugged in, as in xl's `vif=` lines.
const VIF_KEYS: [&str; 5] = ["bridge", "script", "vifname", "mtu", "vlan"];

/// The settings by which a guest's vif is connected to the network: keys of the back's directory,
/// with their values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VifSpec {
    keys: Vec<(&'static str, String)>,
}

impl FromStr for VifSpec {
    type Err = String;

    /// Parses keys as in xl's vif lines, such as
    /// `bridge=xenbr0,script=/etc/xen/scripts/vif-bridge`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = VIF_KEYS.join(", ");
        let keys = text.split(',').map(|part| {
            let (key, value) =
                part.split_once('=').ok_or(format!("{part:?} is no KEY=VALUE; keys: {known}"))?;
            let known = VIF_KEYS.into_iter().find(|known| *known == key.trim());
            Ok((known.ok_or(format!("{key:?} is none of {}", VIF_KEYS.join(", ")))?, value.trim().to_owned()))
        });
        Ok(Self { keys: keys.collect::<std::result::Result<_, String>>()? })
    }
}

/// Makes a vif of guest `front` served by domain 0, as libxl does.
pub fn make_vif<T: Transport>(xs: &mut Client<T>, front: DomId, handle: u32) -> Result<()> {
    make_plugged_vif(xs, front, handle, &VifSpec::default())
}

/// Makes a vif that is plugged in according to `spec`.
pub fn make_plugged_vif<T: Transport>(
    xs: &mut Client<T>,
    front: DomId,
    handle: u32,
    spec: &VifSpec,
) -> Result<()> {
    let back_keys: Vec<(&str, &str)> = spec.keys.iter().map(|(key, value)| (*key, &**value)).collect();
    let vif = Vif { back_keys: &back_keys, ..Vif::new(front, DRIVER, handle, mac(front, handle)) };
    Ok(vif.create(xs)?)
}

/// The properties of a disk that a guest should get.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// The image for the disk's back, as the value of the key `params`.
    pub params: String,
    /// True if the guest may write.
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

/// Returns the vifs of a guest.
pub fn vifs_of<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<Vec<DeviceId>> {
    devices_of(xs, Class::VIF, front)
}

/// Returns a guest's devices of one class.
pub fn devices_of<T: Transport>(xs: &mut Client<T>, class: Class, front: DomId) -> Result<Vec<DeviceId>> {
    let mut all = toolstack::backs_of(xs, DRIVER, class)?;
    all.retain(|id| id.front == front);
    Ok(all)
}

/// Asks the backends to close a guest's devices, and removes them. Returns how many there were.
pub fn remove_devices<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<usize> {
    let mut removal = Removal::begin(xs, front)?;
    while !removal.turn(xs)? {
        std::thread::sleep(Removal::CHECK);
    }
    Ok(removal.devices.len())
}

/// Removes one device from a running guest, as `xl network-detach` and `block-detach` do: the back
/// is asked to close it, and the guest may refuse. With `force` it is removed at once.
///
/// # Errors
/// There is no such device, or the guest keeps it: it goes on, and is closed when the guest lets
/// go.
pub fn detach<T: Transport>(xs: &mut Client<T>, id: &DeviceId, force: bool) -> Result<()> {
    if !devices_of(xs, id.class, id.front)?.contains(id) {
        let there = devices_of(xs, id.class, id.front)?;
        let there: Vec<String> = there.iter().map(ToString::to_string).collect();
        let has = if there.is_empty() { "none".into() } else { there.join(", ") };
        return Err(
            format!("there is no {id}, so nothing is detached; of that kind {} has {has}", id.front).into()
        );
    }
    toolstack::request_removal(xs, id)?;
    let until = Instant::now() + DETACH_PATIENCE;
    while !force && back_state(xs, id)? != XenbusState::Closed {
        if Instant::now() >= until {
            return Err(format!(
                "{id} is still in use after {} s, and goes on: its guest, or its backend, does not close it; it is closed when \
                 that lets go of it (a disk: when it is unmounted). Detach it again then, or remove it at once, with what was not \
                 written: --force",
                DETACH_PATIENCE.as_secs()
            )
            .into());
        }
        std::thread::sleep(Removal::CHECK);
    }
    Ok(toolstack::remove(xs, id)?)
}

/// The properties with which a removed device is created again.
enum Remade {
    Vif(VifSpec),
    Disk(DiskSpec),
}

/// A guest's devices that are being removed: their backends were asked to close them. No one waits
/// for this.
pub struct Removal {
    devices: Vec<(DeviceId, Remade)>,
    until: Instant,
}

impl Removal {
    pub const CHECK: Duration = Duration::from_millis(2);

    pub fn begin<T: Transport>(xs: &mut Client<T>, front: DomId) -> Result<Self> {
        let mut devices = Vec::new();
        for id in vifs_of(xs, front)? {
            devices.push((id, Remade::Vif(plugged_as(xs, &id)?)));
        }
        for id in devices_of(xs, Class::VBD, front)? {
            devices.push((id, Remade::Disk(disk_of(xs, &id)?)));
        }
        for (id, _) in &devices {
            toolstack::request_removal(xs, id)?;
        }
        Ok(Self { devices, until: Instant::now() + PATIENCE })
    }

    /// Removes the devices when they are closed or their backend took too long. Returns true when
    /// they are gone.
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

    /// Returns true if the guest had no device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Creates the removed devices again with the properties that they had.
    pub fn undo<T: Transport>(&self, xs: &mut Client<T>) -> Result<()> {
        for (id, remade) in &self.devices {
            match remade {
                Remade::Vif(spec) => make_plugged_vif(xs, id.front, id.handle, spec)?,
                Remade::Disk(disk) => make_vbd(xs, id.front, id.handle, disk)?,
            }
        }
        Ok(())
    }
}

/// Reads the settings by which a vif is connected to the network.
fn plugged_as<T: Transport>(xs: &mut Client<T>, id: &DeviceId) -> Result<VifSpec> {
    let mut keys = Vec::new();
    for key in VIF_KEYS {
        if let Some(value) = xs.read_if_there(&format!("{}/{key}", id.dir(Side::Back)))? {
            keys.push((key, String::from_utf8_lossy(&value).into_owned()));
        }
    }
    Ok(VifSpec { keys })
}

/// Reads the properties with which a disk was created.
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

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant_xenstored::LocalStore;

    #[test]
    fn a_vif_that_is_made_again_is_plugged_in_as_before() {
        let spec: VifSpec = "bridge=xenbr0, script=/etc/vif-bridge,vlan=10".parse().unwrap();
        for (text, word) in [("bridge", "KEY=VALUE"), ("color=red", "bridge, script")] {
            assert!(text.parse::<VifSpec>().unwrap_err().contains(word), "{text}");
        }
        let store = LocalStore::new();
        store.with_server(|s| s.introduce(DomId(5)).unwrap());
        let mut xs = store.client(DomId(0));
        make_plugged_vif(&mut xs, DomId(5), 0, &spec).unwrap();
        make_vif(&mut xs, DomId(5), 1).unwrap();
        let mut removal = Removal::begin(&mut xs, DomId(5)).unwrap();
        for handle in [0, 1] {
            let state = format!("/local/domain/0/backend/vif/5/{handle}/state");
            xs.write(&state, XenbusState::Closed.digit()).unwrap();
        }
        assert!(removal.turn(&mut xs).unwrap() && vifs_of(&mut xs, DomId(5)).unwrap().is_empty());
        removal.undo(&mut xs).unwrap();
        let vifs = vifs_of(&mut xs, DomId(5)).unwrap();
        let plugged: Vec<_> = vifs.iter().map(|id| plugged_as(&mut xs, id).unwrap()).collect();
        let bridged = plugged.iter().filter(|found| found.keys.len() == 3).count();
        assert_eq!((plugged.len(), bridged), (2, 1), "{plugged:?}");
    }

    #[test]
    fn one_device_is_detached_and_the_guest_keeps_the_others() {
        let store = LocalStore::new();
        store.with_server(|s| s.introduce(DomId(5)).unwrap());
        let mut xs = store.client(DomId(0));
        for handle in [0, 1] {
            make_vif(&mut xs, DomId(5), handle).unwrap();
        }
        let ids = vifs_of(&mut xs, DomId(5)).unwrap();
        let other = DeviceId { handle: 7, ..ids[0] };
        let why = detach(&mut xs, &other, true).unwrap_err().to_string();
        assert!(why.contains("there is no ") && why.contains(&ids[1].to_string()), "{why}");
        // Its back has closed it.
        xs.write(&format!("{}/state", ids[0].back_dir()), XenbusState::Closed.digit()).unwrap();
        detach(&mut xs, &ids[0], false).unwrap();
        assert_eq!(vifs_of(&mut xs, DomId(5)).unwrap(), [ids[1]]);
        // No back is there to close it.
        detach(&mut xs, &ids[1], true).unwrap();
        assert!(vifs_of(&mut xs, DomId(5)).unwrap().is_empty());
    }
}
