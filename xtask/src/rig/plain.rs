//! A machine without Xen: Debian's kernel and an initial file system with busybox in it, for a test
//! of a kernel module alone.

use super::packages;
use super::release::Release;
use super::{Rig, Selection};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};

/// Files for QEMU.
pub struct Plain {
    /// As it boots.
    pub kernel: PathBuf,
    /// With the files in its root.
    pub initrd: PathBuf,
    /// The kernel's, `uname -r`.
    pub version: String,
}

/// The release that CI plays, or one by its number.
fn numbered(number: Option<&str>) -> Result<&'static Release, String> {
    match number {
        None => Ok(<&Release>::default()),
        Some(number) => Release::numbered(number)
            .ok_or_else(|| format!("there is no Debian {number}; there are {}", Release::known())),
    }
}

/// Where packages of a release come from: a sources.list(5), and its codename.
pub fn sources(w: &Workspace, number: &str) -> Result<(String, &'static str), String> {
    let release = numbered(Some(number))?;
    let rig = Rig::new(w, &Selection::default());
    Ok((packages::sources_of(&rig, release)?, release.codename))
}

/// Debian's kernel, and `files`, of which the first is run.
pub fn plain(w: &Workspace, number: Option<&str>, files: &[PathBuf]) -> Result<Plain, String> {
    let rig = Rig::new(w, &Selection::default());
    let release = numbered(number)?;
    fs::create_dir_all(&rig.dir).map_err(|e| super::image::at(&rig.dir, e))?;
    packages::fetch(&rig, release)?;
    let root = packages::root(&rig, release);
    let version = super::image::kernel_version(&root)?;
    let dir = rig.dir.join("plain");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(|e| super::image::at(&dir, e))?;
    }
    let put = |from: &Path, to: &str| {
        let to = dir.join("root").join(to);
        fs::create_dir_all(to.parent().unwrap_or(&dir)).map_err(|e| super::image::at(&to, e))?;
        fs::copy(from, &to).map(drop).map_err(|e| super::image::at(from, e))
    };
    put(&root.join("bin/busybox"), "bin/busybox")
        .or_else(|_| put(&root.join("usr/bin/busybox"), "bin/busybox"))?;
    for (k, file) in files.iter().enumerate() {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        put(file, if k == 0 { "init" } else { &name })?;
    }
    for folder in ["proc", "sys", "dev"] {
        let folder = dir.join("root").join(folder);
        fs::create_dir_all(&folder).map_err(|e| super::image::at(&folder, e))?;
    }
    let initrd = dir.join("plain.cpio");
    super::image::pack(&dir.join("root"), &initrd)?;
    let kernel = root.join("boot").join(format!("vmlinuz-{version}"));
    Ok(Plain { kernel, initrd, version })
}
