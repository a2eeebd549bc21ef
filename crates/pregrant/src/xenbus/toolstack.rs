//! The toolstack's part: creates the two directories of a device, as libxl does, and removes them.
//!
//! ```text
//!   /local/domain/<fd>/device/vif/<h>        owner fd, bd may read     backend, backend-id, handle, mac, state=1
//!   /local/domain/<bd>/backend/vif/<fd>/<h>  owner bd, fd may read     frontend, frontend-id, online=1, ..., state=1
//!   .../vbd/<number>                         the same: virtual-device, device-type; params, mode, dev, type
//! ```
//! Everything happens in one transaction: a driver that watches sees the whole device or nothing.

use super::device::{Class, DeviceId, ONLINE, Side};
use super::key::{DeviceError, KeyValue};
use super::state::XenbusState;
use crate::units::DomId;
use crate::xenstore::{Access, Client, Permission, Transaction, Transport, XsError, path};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A network interface to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vif<'a> {
    /// The device.
    pub id: DeviceId,
    /// The guest's MAC address.
    pub mac: [u8; 6],
    /// Further keys for the front's directory, such as `mtu` and `trusted`.
    pub front_keys: &'a [(&'a str, &'a str)],
    /// Further keys for the back's directory, such as `bridge` and `script`.
    pub back_keys: &'a [(&'a str, &'a str)],
}

impl<'a> Vif<'a> {
    /// A vif without further keys.
    pub fn new(front: DomId, back: DomId, handle: u32, mac: [u8; 6]) -> Self {
        Self { id: DeviceId { class: Class::VIF, front, back, handle }, mac, front_keys: &[], back_keys: &[] }
    }

    /// Creates both directories, replacing existing ones. It needs a connection of domain 0.
    pub fn create<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        let [a, b, c, d, e, f] = self.mac;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        let common = [("handle", self.id.handle.to_string()), ("mac", mac)];
        let front = [("backend", self.id.back_dir()), ("backend-id", self.id.back.0.to_string())];
        let back = [
            ("frontend", self.id.front_dir()),
            ("frontend-id", self.id.front.0.to_string()),
            (ONLINE, "1".into()),
            ("type", "vif".into()),
        ];
        let with = |keys: &[(&'a str, String)]| keys.iter().chain(&common).cloned().collect::<Vec<_>>();
        make(xs, &self.id, (&with(&front), self.front_keys), (&with(&back), self.back_keys))
    }
}

/// A disk to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vbd<'a> {
    /// The device; the handle is the number of a block device.
    pub id: DeviceId,
    /// The disk's name in the guest's kernel, such as `xvda`.
    pub name: &'a str,
    /// The image that the back should open, for `params`.
    pub params: &'a str,
    /// Whether the guest may write.
    pub writable: bool,
    /// Further keys for the back's directory, such as `script`.
    pub back_keys: &'a [(&'a str, &'a str)],
}

impl<'a> Vbd<'a> {
    /// A writable disk without further keys, with number `handle` and name `name`.
    pub fn new(front: DomId, back: DomId, (handle, name): (u32, &'a str), params: &'a str) -> Self {
        let id = DeviceId { class: Class::VBD, front, back, handle };
        Self { id, name, params, writable: true, back_keys: &[] }
    }

    /// Creates both directories, replacing existing ones. It needs a connection of domain 0.
    pub fn create<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        let device_type = ("device-type", "disk".into());
        let front = [
            ("backend", self.id.back_dir()),
            ("backend-id", self.id.back.0.to_string()),
            ("virtual-device", self.id.handle.to_string()),
            device_type.clone(),
        ];
        let back = [
            ("frontend", self.id.front_dir()),
            ("frontend-id", self.id.front.0.to_string()),
            (ONLINE, "1".into()),
            ("removable", "0".into()),
            ("bootable", "1".into()),
            ("dev", self.name.into()),
            ("type", "phy".into()),
            ("mode", String::from(if self.writable { "w" } else { "r" })),
            ("params", self.params.into()),
            device_type,
        ];
        make(xs, &self.id, (&front, &[]), (&back, self.back_keys))
    }
}

type Keys<'k, 'v> = (&'k [(&'v str, String)], &'k [(&'v str, &'v str)]);

/// Creates both directories with these keys, and writes the states last.
fn make<T: Transport>(
    xs: &mut Client<T>,
    id: &DeviceId,
    front: Keys<'_, '_>,
    back: Keys<'_, '_>,
) -> Result<(), XsError> {
    xs.transaction(|t| {
        for (side, (keys, more)) in [(Side::Front, front), (Side::Back, back)] {
            let dir = make_dir(t, id, side)?;
            for (key, value) in keys {
                t.write(&path::join(&dir, key), value)?;
            }
            for (key, value) in more {
                t.write(&path::join(&dir, key), value)?;
            }
            t.write(&path::join(&dir, "state"), XenbusState::Initialising.digit())?;
        }
        Ok(())
    })
}

/// Asks the back to remove the device for good: `online` 0 and state 5, unless it is in 6 (as libxl
/// does). When both ends are closed, call [`remove`].
pub fn request_removal<T: Transport>(xs: &mut Client<T>, id: &DeviceId) -> Result<(), XsError> {
    xs.transaction(|t| {
        let back = id.back_dir();
        t.read(&back)?;
        t.write(&path::join(&back, ONLINE), "0")?;
        let state = path::join(&back, "state");
        match XenbusState::parse(t.read_if_there(&state)?.as_deref()) {
            XenbusState::Closed => Ok(()),
            _ => t.write(&state, XenbusState::Closing.digit()),
        }
    })
}

/// Removes both directories, the errors that the ends reported, and the directories above that are
/// empty then.
pub fn remove<T: Transport>(xs: &mut Client<T>, id: &DeviceId) -> Result<(), XsError> {
    xs.transaction(|t| {
        for side in [Side::Front, Side::Back] {
            let error = id.error_path(side);
            for dir in [id.dir(side), path::parent(&error).map(String::from).unwrap_or(error)] {
                remove_with_empty_above(t, &dir, &path::home(id.domid(side)))?;
            }
        }
        Ok(())
    })
}

/// The devices of a class for which a domain has backs, from its `backend` directory. Names that
/// are no numbers are skipped.
pub fn backs_of<T: Transport>(
    xs: &mut Client<T>,
    back: DomId,
    class: Class,
) -> Result<Vec<DeviceId>, DeviceError> {
    let top = format!("{}/backend/{}", path::home(back), class.name());
    let mut found = alloc::vec![];
    for front in list(xs, &top)? {
        let Some(domid) = DomId::parse(&front) else { continue };
        for handle in list(xs, &path::join(&top, &front))? {
            if let Some(handle) = u32::parse(&handle) {
                found.push(DeviceId { class, front: domid, back, handle });
            }
        }
    }
    Ok(found)
}

fn list<T: Transport>(xs: &mut Client<T>, dir: &str) -> Result<Vec<String>, XsError> {
    match xs.directory(dir) {
        Err(e) if e.is_not_found() => Ok(alloc::vec![]),
        other => other,
    }
}

/// Creates an empty directory for one end, which owns it, readable by the other end.
fn make_dir<T: Transport>(t: &mut Transaction<'_, T>, id: &DeviceId, side: Side) -> Result<String, XsError> {
    let dir = id.dir(side);
    let (owner, reader) = match side {
        Side::Front => (id.front, id.back),
        Side::Back => (id.back, id.front),
    };
    t.rm_if_there(&dir)?;
    if side == Side::Back {
        // The driver domain owns and lists what is below; a guest only has access to its own
        // device.
        let top = path::join(&path::home(id.back), "backend");
        if t.read_if_there(&top)?.is_none() {
            t.mkdir(&top)?;
            t.set_perms(&top, &[Permission::new(Access::None, id.back)])?;
        }
    }
    t.mkdir(&dir)?;
    t.set_perms(&dir, &[Permission::new(Access::None, owner), Permission::new(Access::Read, reader)])?;
    Ok(dir)
}

/// Removes a directory, and each one above it that is empty then, down to the second level below
/// `home`, which stays.
fn remove_with_empty_above<T: Transport>(
    t: &mut Transaction<'_, T>,
    dir: &str,
    home: &str,
) -> Result<(), XsError> {
    t.rm_if_there(dir)?;
    let mut at = dir;
    while let Some(above) = path::parent(at) {
        // `device`, `backend` and `error` stay.
        if path::levels_below(above, home).is_none_or(|levels| levels < 2) {
            break;
        }
        match t.directory(above) {
            Ok(names) if names.is_empty() => t.rm(above)?,
            Ok(_) => break,
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
        at = above;
    }
    Ok(())
}
