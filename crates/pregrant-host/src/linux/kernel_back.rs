//! The kernel's own backends, which claim the same vifs and vbds: netback, the module of linux/back
//! and blkback. Which driver has a device, and how a vif moves between them and this process, by
//! sysfs.
//!
//! ```text
//!   /sys/bus/xen-backend/devices/vif-5-0/driver      a link to drivers/vif, or drivers/pregrant_back: the kernel has it
//!   .../drivers/vif/unbind, bind                     "vif-5-0": take it, give it back
//!   .../drivers_autoprobe                            0: what is new is left to us...
//!   .../drivers_probe                                "vbd-5-51712": ...and what is not ours the kernel gets by name
//! ```
//! Unbinding a vif drains it and leaves its state at 4 (netback since 2019), so a guest notices
//! only a pause (docs/protocol 1.1).
//!
//! What a guest may do: nothing, it is not involved.

use pregrant::xenbus::{Class, DeviceId};
use std::fs;
use std::io;
use std::path::PathBuf;

/// A driver of the kernel for vifs or vbds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelDriver {
    /// Linux's netback or blkback.
    Linux,
    /// `pregrant_back.ko`, of linux/back.
    Module,
}

/// The name of the module, and of its driver.
pub(super) const MODULE: &str = "pregrant_back";

impl std::fmt::Display for KernelDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Linux => "the kernel's netback",
            Self::Module => "the kernel's module pregrant_back",
        })
    }
}

/// The kernel's backend drivers for a class of devices, in sysfs.
#[derive(Clone, Debug)]
pub struct KernelBack {
    bus: PathBuf,
    class: Class,
}

/// The reason why a vif could not be moved between this process and the kernel's driver.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}; {remedy}")]
pub struct SysfsError {
    path: PathBuf,
    source: io::Error,
    remedy: &'static str,
}

fn device(id: &DeviceId) -> String {
    format!("{}-{}-{}", id.class.name(), id.front.0, id.handle)
}

impl KernelBack {
    /// Returns the drivers for this class.
    pub fn of(class: Class) -> Self {
        Self::on_bus("/sys/bus/xen-backend", class)
    }

    /// Returns the drivers in another directory of the backend bus, for tests.
    pub fn on_bus(bus: impl Into<PathBuf>, class: Class) -> Self {
        Self { bus: bus.into(), class }
    }

    fn name_of(&self, driver: KernelDriver) -> &'static str {
        match driver {
            KernelDriver::Linux => self.class.name(),
            KernelDriver::Module => MODULE,
        }
    }

    /// Returns the driver that gets a vif that is given back. Where both are loaded it is the
    /// module, which no alias loads by itself. None: no driver is loaded.
    pub fn loaded(&self) -> Option<KernelDriver> {
        let all = match self.class {
            Class::VIF => &[KernelDriver::Module, KernelDriver::Linux][..],
            _ => &[KernelDriver::Linux],
        };
        all.iter().copied().find(|driver| self.is_there(*driver))
    }

    /// Returns true if Linux's driver is loaded (xen-netback or xen-blkback).
    pub fn is_loaded(&self) -> bool {
        self.is_there(KernelDriver::Linux)
    }

    fn is_there(&self, driver: KernelDriver) -> bool {
        self.bus.join("drivers").join(self.name_of(driver)).exists()
    }

    /// Returns true if the kernel has a backend bus, and can therefore run backends.
    pub fn has_bus(&self) -> bool {
        self.bus.join("drivers_autoprobe").exists()
    }

    /// Returns true if a driver of the kernel has the device.
    pub fn has(&self, id: &DeviceId) -> bool {
        self.driver(id).is_some()
    }

    /// Returns the kernel's driver that has the device.
    pub fn driver(&self, id: &DeviceId) -> Option<KernelDriver> {
        let name = self.driver_of(&device(id))?;
        Some(if name == MODULE { KernelDriver::Module } else { KernelDriver::Linux })
    }

    /// Returns the name of the driver that is bound to a device.
    fn driver_of(&self, device: &str) -> Option<String> {
        let link = fs::read_link(self.bus.join("devices").join(device).join("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// Unbinds a vif from this driver of the kernel: it is drained, and both ends stay at state 4.
    ///
    /// # Errors
    ///
    /// The driver does not have this vif.
    pub fn unbind(&self, driver: KernelDriver, id: &DeviceId) -> Result<(), SysfsError> {
        let file = format!("drivers/{}/unbind", self.name_of(driver));
        self.write(&file, &device(id), "is there such a vif, and does this driver have it?")
    }

    /// Binds a vif to this driver of the kernel.
    ///
    /// # Errors
    ///
    /// The driver is not loaded; the kernel knows no such vif, or a driver has it already.
    pub fn bind(&self, driver: KernelDriver, id: &DeviceId) -> Result<(), SysfsError> {
        let file = format!("drivers/{}/bind", self.name_of(driver));
        let remedy = match driver {
            KernelDriver::Linux => "modprobe xen-netback; is there such a vif?",
            KernelDriver::Module => "insmod pregrant_back.ko; is there such a vif?",
        };
        self.write(&file, &device(id), remedy)
    }

    /// Sets whether the kernel's drivers bind to new backend devices by themselves, of any class.
    ///
    /// # Errors
    ///
    /// The process is not root, or there is no Xen.
    pub fn set_autoprobe(&self, yes: bool) -> Result<(), SysfsError> {
        self.write("drivers_autoprobe", if yes { "1" } else { "0" }, "run as root")
    }

    /// Returns true if the kernel's drivers bind to new devices by themselves.
    pub fn autoprobe(&self) -> bool {
        fs::read_to_string(self.bus.join("drivers_autoprobe")).is_ok_and(|t| t.trim() == "1")
    }

    /// Lets the kernel bind the devices of any class that have no driver and are not `ours`. This
    /// is needed while the kernel's autoprobe is off.
    pub fn probe_others(&self, ours: impl Fn(Class, u16, u32) -> bool) {
        let Ok(devices) = fs::read_dir(self.bus.join("devices")) else { return };
        for name in devices.flatten().filter_map(|d| d.file_name().into_string().ok()) {
            let is_ours = device_of(&name).is_some_and(|(class, front, handle)| ours(class, front, handle));
            if !is_ours
                && self.driver_of(&name).is_none()
                && let Err(e) = self.write("drivers_probe", &name, "its driver may not be loaded")
            {
                log::debug!("{e}");
            }
        }
    }

    fn write(&self, file: &str, text: &str, remedy: &'static str) -> Result<(), SysfsError> {
        let path = self.bus.join(file);
        fs::write(&path, text).map_err(|source| SysfsError { path, source, remedy })
    }
}

/// Parses a name such as `vif-5-0` to class, domain and handle. None: it is of no class that we
/// serve.
pub(super) fn device_of(device: &str) -> Option<(Class, u16, u32)> {
    let (class, rest) = device.split_once('-')?;
    let class = [Class::VIF, Class::VBD].into_iter().find(|known| known.name() == class)?;
    let (front, handle) = rest.split_once('-')?;
    Some((class, front.parse().ok()?, handle.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::DomId;

    /// A directory that imitates the bus of sysfs, for tests.
    struct Bus(KernelBack);

    impl Bus {
        fn new(test: &str) -> Self {
            let bus = std::env::temp_dir().join(format!("pregrant-bus-{}-{test}", std::process::id()));
            let _ = fs::remove_dir_all(&bus);
            for dir in
                ["devices/vif-5-0", "devices/vif-6-0", "devices/vbd-5-51712", "drivers/vif", "drivers/vbd"]
            {
                fs::create_dir_all(bus.join(dir)).unwrap();
            }
            std::os::unix::fs::symlink("../../drivers/vif", bus.join("devices/vif-6-0/driver")).unwrap();
            Self(KernelBack { bus, class: Class::VIF })
        }
        fn wrote(&self, file: &str) -> String {
            fs::read_to_string(self.0.bus.join(file)).unwrap_or_default()
        }
    }

    impl Drop for Bus {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.bus);
        }
    }

    fn vif(front: u16) -> DeviceId {
        DeviceId { class: Class::VIF, front: DomId(front), back: DomId(0), handle: 0 }
    }

    #[test]
    fn who_has_a_vif_shows_and_can_be_changed() {
        let bus = Bus::new("hands");
        assert!(bus.0.is_loaded() && bus.0.has(&vif(6)) && !bus.0.has(&vif(5)));
        assert_eq!(
            (bus.0.driver(&vif(6)), bus.0.loaded()),
            (Some(KernelDriver::Linux), Some(KernelDriver::Linux))
        );
        bus.0.unbind(KernelDriver::Linux, &vif(6)).unwrap();
        bus.0.bind(KernelDriver::Linux, &vif(5)).unwrap();
        assert_eq!([bus.wrote("drivers/vif/unbind"), bus.wrote("drivers/vif/bind")], ["vif-6-0", "vif-5-0"]);
        let module = "drivers/pregrant_back";
        assert!(bus.0.bind(KernelDriver::Module, &vif(5)).unwrap_err().to_string().contains("insmod"));
        fs::create_dir_all(bus.0.bus.join(module)).unwrap();
        std::os::unix::fs::symlink("../../drivers/pregrant_back", bus.0.bus.join("devices/vif-5-0/driver"))
            .unwrap();
        let [has, gets] = [bus.0.driver(&vif(5)), bus.0.loaded()];
        assert_eq!((has, gets), (Some(KernelDriver::Module), Some(KernelDriver::Module)));
        bus.0.unbind(KernelDriver::Module, &vif(5)).unwrap();
        bus.0.bind(KernelDriver::Module, &vif(6)).unwrap();
        let wrote = ["unbind", "bind"].map(|file| bus.wrote(&format!("{module}/{file}")));
        assert_eq!(wrote, ["vif-5-0", "vif-6-0"]);
        bus.0.set_autoprobe(false).unwrap();
        assert!(!bus.0.autoprobe());
    }

    #[test]
    fn what_is_not_ours_goes_to_the_kernel() {
        let bus = Bus::new("others");
        bus.0.probe_others(|class, front, handle| class == Class::VIF && (front, handle) == (5, 0));
        assert_eq!(bus.wrote("drivers_probe"), "vbd-5-51712");
        let found = ["vif-7-1", "vbd-7-1", "vif-7", "vifs-7-1"].map(device_of);
        assert_eq!(found, [Some((Class::VIF, 7, 1)), Some((Class::VBD, 7, 1)), None, None]);
    }
}
