//! `pregrant-guest-dkms`: for guests, which need no Rust.
//!
//! ```text
//!   /usr/src/pregrant-guest-VERSION    C of linux/module, front.core, dkms.conf
//!   /etc/modprobe.d                    pregrant is loaded before xen-netfront
//!   /usr/share/initramfs-tools/hooks   ... in the initial file system beside it, and by dracut
//!   /etc/kernel                        ... where headers come later than their kernel; which kernels have none
//! ```

use crate::linux;
use crate::tool;
use crate::workspace::{Workspace, empty_dir, read, run, write};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const NAME: &str = "pregrant-guest-dkms";
const KERNEL_HOOKS: [&str; 2] =
    ["etc/kernel/header_postinst.d/pregrant-guest", "etc/kernel/postinst.d/zz-pregrant-guest"];

/// The version of the workspace.
fn version(w: &Workspace) -> Result<String, String> {
    let manifest = read(&w.root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    Ok(line.ok_or("Cargo.toml has no version")?.trim_matches('"').to_string())
}

/// Builds the package. `core` is Rust's part of the driver.
pub(super) fn build(w: &Workspace, core: &Path) -> Result<PathBuf, String> {
    tool::debian(w, "dpkg-deb", "dpkg")?;
    let version = version(w)?;
    let dir = w.target().join("package");
    let root = dir.join("guest");
    empty_dir(&root)?;
    let source = format!("usr/src/pregrant-guest-{version}");
    let put = |from: &Path, to: &str, mode: u32| put(from, &root.join(to), mode, &version);
    for file in linux::sources(w)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with("selftest") {
            put(&file, &format!("{source}/{name}"), 0o644)?;
        }
    }
    put(core, &format!("{source}/front.core"), 0o644)?;
    let of = |name: &str| w.root().join("dist/guest").join(name);
    put(&of("dkms.conf"), &format!("{source}/dkms.conf"), 0o644)?;
    put(&of("modprobe.conf"), "etc/modprobe.d/pregrant-guest.conf", 0o644)?;
    put(&of("initramfs-hook"), "usr/share/initramfs-tools/hooks/zz-pregrant-guest", 0o755)?;
    let dracut = "usr/lib/dracut/modules.d/90pregrant-guest/module-setup.sh";
    put(&of("dracut-module"), dracut, 0o755)?;
    for script in ["initial-file-systems", "says-kernels"] {
        put(&of(script), &format!("usr/share/pregrant-guest/{script}"), 0o755)?;
    }
    for hook in KERNEL_HOOKS {
        put(&of("kernel-hook"), hook, 0o755)?;
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        put(&w.root().join(licence), &format!("usr/share/doc/{NAME}/{licence}"), 0o644)?;
    }
    put(&of("control"), "DEBIAN/control", 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        put(&of(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    let of_etc = std::iter::once("etc/modprobe.d/pregrant-guest.conf").chain(KERNEL_HOOKS);
    let of_etc = of_etc.map(|file| format!("/{file}\n")).collect::<String>();
    write(&root.join("DEBIAN/conffiles"), of_etc)?;
    let package = dir.join(format!("{NAME}_{version}_amd64.deb"));
    run(w.program("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&package))?;
    println!("package: {}", package.display());
    Ok(package)
}

/// Copies a file, and replaces the placeholder of the version in it.
fn put(from: &Path, to: &Path, mode: u32, version: &str) -> Result<(), String> {
    let said = |e: std::io::Error| format!("{} to {}: {e}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(said)?;
    let bytes = fs::read(from).map_err(said)?;
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => text.replace("@VERSION@", version).into_bytes(),
        Err(binary) => binary.into_bytes(),
    };
    write(to, bytes)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(said)
}
