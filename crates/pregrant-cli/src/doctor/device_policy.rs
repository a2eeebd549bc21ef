//! `pregrant doctor --device-policy`: which devices the disk backend's unit may open, as a drop-in:
//! those of the disks that guests have of this domain, and no class of devices.
//!
//! ```text
//!   backend/vbd/5/51712: params, physical-device-path, mode --> DeviceAllow=/dev/vg/disk rw      a block device
//!                                                           --> ReadWritePaths=-/srv/disk.img    a file that is written, elsewhere
//!                                                           --> a remark                         not there, or not to be named in a unit
//! ```
//! What a guest may do: nothing; these keys are the toolstack's. A path is quoted as a unit has it
//! all the same, or only remarked.

use super::Result;
use super::finding::plain;
use pregrant::DomId;
use pregrant::blk::device_number;
use pregrant::blk::features::{DEVICE_PATH, MODE, PARAMS, mode_writes};
use pregrant::xenbus::{Class, Device, DeviceId, Side, toolstack};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::disks::ImageSpec;
use pregrant_host::linux::KernelBack;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Paths that the systemd unit already allows the backend to write to.
const WRITABLE: [&str; 2] = ["/var/lib/xen/images", "/var/lib/libvirt/images"];

/// The kind of file at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Device,
    File,
    Missing,
}

fn kind_of(path: &Path) -> Kind {
    match path.metadata() {
        Ok(found) if found.file_type().is_block_device() => Kind::Device,
        Ok(_) => Kind::File,
        Err(_) => Kind::Missing,
    }
}

/// A disk's image that the configuration names.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Configured {
    disk: String,
    path: PathBuf,
    writes: bool,
}

/// Returns the content of the systemd drop-in file for the disks that this domain serves now.
///
/// # Errors
/// xenstore cannot be read.
pub fn drop_in<T: Transport>(xs: &mut Client<T>, domid: DomId) -> Result<String> {
    let kernel = KernelBack::of(Class::VBD);
    let mut disks = Vec::new();
    for id in toolstack::backs_of(xs, domid, Class::VBD)? {
        if !kernel.has(&id) {
            disks.extend(configured(xs, id)?);
        }
    }
    Ok(text(domid, &disks, kind_of))
}

/// Returns the path of a disk's image. None: the disk has no image, or an image that is not a path.
fn configured<T: Transport>(xs: &mut Client<T>, id: DeviceId) -> Result<Option<Configured>> {
    let device = Device::new(id, Side::Back);
    let mut key = |key: &str| device.get_own::<String, T>(xs, key);
    let (params, mode) = (key(PARAMS)?, key(MODE)?);
    // Where a script wrote it, that is opened.
    let path = key(DEVICE_PATH)?.filter(|path| !path.is_empty()).or(params);
    let path = path.and_then(|path| match path.parse() {
        Ok(ImageSpec::Path(path)) => Some(path),
        _ => None,
    });
    let disk = format!("vbd {}.{} ({})", id.front.0, id.handle, device_number::name(id.handle));
    Ok(path.map(|path| Configured { disk, path, writes: mode_writes(mode.as_deref()) }))
}

/// Formats a path as it must be written in a systemd unit. None: the path has characters with a
/// special meaning there.
fn quoted(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.,:+@=-%".contains(c);
    text.chars().all(is_plain).then(|| text.replace('%', "%%"))
}

fn text(domid: DomId, disks: &[Configured], kind_of: impl Fn(&Path) -> Kind) -> String {
    // One device may be several guests' disk.
    let mut images: BTreeMap<&Path, (bool, Vec<&str>)> = BTreeMap::new();
    for disk in disks {
        let (writes, names) = images.entry(&disk.path).or_default();
        *writes |= disk.writes;
        names.push(&disk.disk);
    }
    let mut out = format!(
        "# A drop-in of pregrant-blkback.service, made by pregrant doctor --device-policy: the images of the disks that guests have of
# domain {} now. Into /etc/systemd/system/pregrant-blkback.service.d/disks.conf; then
#   systemctl daemon-reload && systemctl restart pregrant-blkback
# (guests' disks wait, and go on). For a disk that comes later, at once:
#   systemctl set-property --runtime pregrant-blkback DeviceAllow=\"/dev/vg/disk rw\"
[Service]
",
        domid.0
    );
    for (path, (writes, names)) in images {
        let kind = kind_of(path);
        let in_place = WRITABLE.iter().any(|dir| path.starts_with(dir));
        let line = match (quoted(path), kind) {
            (Some(path), Kind::Device) if path.starts_with("/dev/") => {
                Some(format!("DeviceAllow={path} {}", if writes { "rw" } else { "r" }))
            }
            (_, Kind::File) if in_place || !writes => continue,
            // Without the minus an image that is gone would keep the unit, and with it every
            // guest's disk, from starting again.
            (Some(path), Kind::File) => Some(format!("ReadWritePaths=-{path}")),
            _ => None,
        };
        let _ = writeln!(out, "# {}", names.join(", "));
        let _ = match line {
            Some(line) => writeln!(out, "{line}"),
            None => writeln!(
                out,
                "# {}: {}",
                plain(path.as_os_str().as_encoded_bytes()),
                match kind {
                    Kind::Missing => "is not there, so what it is to be is not known: name it by hand",
                    Kind::Device => "a device by this name cannot stand in a unit: name its node in /dev",
                    Kind::File => "a path of such characters cannot stand in a unit: move the image",
                }
            ),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::xenbus::toolstack::Vbd;
    use pregrant_xenstored::LocalStore;

    #[test]
    fn what_the_toolstack_configured_is_read_and_nothing_is_a_class() {
        let store = LocalStore::new();
        let mut xs = store.client(DomId(0));
        for (front, handle, params, writable) in [
            (5, 51712, "phy:vg/root", true),
            (5, 51728, "/dev/vg/shared", false),
            (6, 51712, "aio:/dev/vg/shared", true),
            (6, 51728, "/var/lib/xen/images/a.img", true),
            (7, 51712, "/srv/100%/b.img", true),
            (7, 51728, "/dev/loop3", false),
            (8, 51712, "/dev/vg/x\n[Install]", true),
            (8, 51728, "ram:64M", true),
            (9, 51712, "/dev/gone", true),
        ] {
            store.with_server(|s| {
                let _ = s.introduce(DomId(front));
            });
            let name = device_number::name(handle);
            let vbd = Vbd { writable, ..Vbd::new(DomId(front), DomId(0), (handle, &name), params) };
            vbd.create(&mut xs).unwrap();
        }
        let ids = toolstack::backs_of(&mut xs, DomId(0), Class::VBD).unwrap();
        let disks: Vec<_> = ids.into_iter().filter_map(|id| configured(&mut xs, id).unwrap()).collect();
        let kind = |path: &Path| match path.to_str().unwrap() {
            "/dev/gone" => Kind::Missing,
            path if path.starts_with("/dev") => Kind::Device,
            _ => Kind::File,
        };
        let text = text(DomId(0), &disks, kind);
        let said: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let due = [
            "[Service]",
            "DeviceAllow=/dev/loop3 r",
            "DeviceAllow=/dev/vg/root rw",
            "DeviceAllow=/dev/vg/shared rw",
            "ReadWritePaths=-/srv/100%%/b.img",
        ];
        assert_eq!(said, due, "{text}");
        assert!(
            text.contains("# vbd 5.51728 (xvdb), vbd 6.51712 (xvda)\nDeviceAllow=/dev/vg/shared rw"),
            "{text}"
        );
        assert!(text.contains("# /dev/gone: is not there") && !text.contains("block-"), "{text}");
    }
}
