//! A machine without Xen: Debian's kernel and an initial file system with busybox in it, for a test
//! of a kernel module alone.

use super::image::{at, copy, kernel_image, kernel_version, pack};
use super::packages;
use super::release::{CHECKED, Release};
use super::{Rig, Selection};
use crate::workspace::{Workspace, empty_dir};
use std::fs;
use std::path::{Path, PathBuf};

pub struct Plain {
    pub kernel: PathBuf,
    /// The initrd, with the files in its root.
    pub initrd: PathBuf,
    pub version: String,
}

/// The packages that a release's file system is made from.
pub struct Sources {
    pub list: String,
    pub codename: &'static str,
    /// The suffix by which apt selects another archive for the kernel's packages.
    pub kernel_from: String,
}

/// Checks the name of a release of Debian's; the error names those that exist.
pub fn is_release(name: &str) -> Result<(), String> {
    Release::of_debian(name, false).map(drop)
}

/// Checks the name of a release that has Xen.
pub fn is_release_of_dom0(name: &str) -> Result<(), String> {
    Release::of_debian(name, true).map(drop)
}

/// Where the kernel of [`super::DEBUG`] is installed, as another's packages are unpacked.
pub fn root_of_debug(w: &Workspace) -> PathBuf {
    packages::root(&Rig::new(w, &Selection::default()), &CHECKED)
}

pub fn sources(w: &Workspace, name: &str) -> Result<Sources, String> {
    let release = Release::of_guests(name)?;
    let Release { codename, kernel_from, .. } = release;
    let list = packages::sources_of(&Rig::new(w, &Selection::default()), release)?;
    // The release's own kernel may be its updates', or security's.
    let kernel_from = match *kernel_from {
        "" => String::new(),
        archive => format!("/{codename}{archive}"),
    };
    Ok(Sources { list, codename, kernel_from })
}

/// Makes Debian's kernel and an initrd with `files`, of which the first one is the first process.
pub fn plain(w: &Workspace, release: Option<&str>, files: &[PathBuf]) -> Result<Plain, String> {
    let rig = Rig::new(w, &Selection::default());
    let release = release.map_or(Ok(<&Release>::default()), Release::of_guests)?;
    let programs = release.programs(<&Release>::default());
    fs::create_dir_all(&rig.dir).map_err(|e| at(&rig.dir, e))?;
    for release in [programs, release] {
        packages::fetch(&rig, release)?;
    }
    let [root, of_kernel] = [programs, release].map(|release| packages::root(&rig, release));
    let version = kernel_version(&of_kernel)?;
    // A machine of another kernel may be running meanwhile.
    let dir = rig.dir.join("plain").join(&version);
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
    let kernel = kernel_image(&of_kernel, &version);
    Ok(Plain { kernel, initrd, version })
}
