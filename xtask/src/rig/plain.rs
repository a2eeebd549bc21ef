//! A machine without Xen: Debian's kernel and an initial file system with busybox in it, for a test
//! of a kernel module alone.

use super::image::{at, copy, kernel_version, pack};
use super::packages;
use super::release::Release;
use super::{Rig, Selection};
use crate::workspace::{Workspace, empty_dir};
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

/// Where packages of a release come from: a sources.list(5), and its codename.
pub fn sources(w: &Workspace, number: &str) -> Result<(String, &'static str), String> {
    let release = Release::of_guests(number)?;
    Ok((sources_of(w, release.codename)?, release.codename))
}

/// The same of a release that the rig does not play.
pub fn sources_of(w: &Workspace, codename: &str) -> Result<String, String> {
    packages::sources_of(&Rig::new(w, &Selection::default()), codename)
}

/// Debian's kernel, and `files`, the first as its first process.
pub fn plain(w: &Workspace, number: Option<&str>, files: &[PathBuf]) -> Result<Plain, String> {
    let rig = Rig::new(w, &Selection::default());
    let release = number.map_or(Ok(<&Release>::default()), Release::asked_for)?;
    fs::create_dir_all(&rig.dir).map_err(|e| at(&rig.dir, e))?;
    packages::fetch(&rig, release)?;
    let root = packages::root(&rig, release);
    let version = kernel_version(&root)?;
    let dir = rig.dir.join("plain");
    empty_dir(&dir)?;
    let put = |from: &Path, to: &str| copy(from, &dir.join("root").join(to));
    put(&root.join("bin/busybox"), "bin/busybox")
        .or_else(|_| put(&root.join("usr/bin/busybox"), "bin/busybox"))?;
    for (k, file) in files.iter().enumerate() {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        put(file, if k == 0 { "init" } else { &name })?;
    }
    for folder in ["proc", "sys", "dev"] {
        let folder = dir.join("root").join(folder);
        fs::create_dir_all(&folder).map_err(|e| at(&folder, e))?;
    }
    let initrd = dir.join("plain.cpio");
    pack(&dir.join("root"), &initrd)?;
    let kernel = root.join("boot").join(format!("vmlinuz-{version}"));
    Ok(Plain { kernel, initrd, version })
}
