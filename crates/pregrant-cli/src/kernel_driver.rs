//! Finds the devices of this guest that its kernel's drivers have. A front of ours leaves those
//! alone.

use std::path::Path;

/// Returns the name of the kernel's driver that has the device, such as `vif-0` or `vbd-51712`.
pub fn of(sysfs: &Path, device: &str) -> Option<String> {
    let link = sysfs.join(format!("bus/xen/devices/{device}/driver"));
    let driver = std::fs::read_link(link).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_the_kernel_has_names_its_driver() {
        let sysfs = std::env::temp_dir().join(format!("pregrant-sys-{}", std::process::id()));
        let device = sysfs.join("bus/xen/devices/vbd-51712");
        std::fs::create_dir_all(&device).unwrap();
        assert_eq!(of(&sysfs, "vbd-51712"), None);
        std::os::unix::fs::symlink("../../../bus/xen/drivers/vbd", device.join("driver")).unwrap();
        let driver = of(&sysfs, "vbd-51712");
        std::fs::remove_dir_all(&sysfs).unwrap();
        assert_eq!(driver.as_deref(), Some("vbd"));
    }
}
