//! Debian's packages, fetched as files and unpacked below `target/rig/root`; and the host's own tools.

use super::Rig;
use crate::tool;
use crate::workspace::run;
use std::fs;
use std::path::{Path, PathBuf};

/// What the host runs: program, package.
const TOOLS: [(&str, &str); 7] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("readelf", "binutils"),
    ("gcc", "gcc"),
    ("xz", "xz-utils"),
    ("dpkg", "dpkg"),
];

/// What runs inside: Xen, its tools, and the libraries that these name.
const INSIDE: [&str; 25] = [
    "xen-hypervisor-4.17-amd64",
    "xen-utils-4.17",
    "xen-utils-common",
    "xenstore-utils",
    "libxenmisc4.17",
    "libxencall1",
    "libxendevicemodel1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxenhypfs1",
    "libxenstore4",
    "libxentoolcore1",
    "libxentoollog1",
    "libgcc-s1",
    "libyajl2",
    "libuuid1",
    "liblzma5",
    "libzstd1",
    "zlib1g",
    "libc6",
    "busybox-static",
    "iperf3",
    "libiperf0",
    "ethtool",
];
/// Libraries of the last few.
const MORE: [&str; 3] = ["libsctp1", "libssl3", "libmnl0"];
/// For guests with a disk. What more fio names is put in by [`super::stand_in`]; libblkid1 is below.
const DISK: [&str; 6] = ["e2fsprogs", "libext2fs2", "libcom-err2", "fio", "libaio1", "libnuma1"];
/// systemd, with its libraries, where it is dom0's first process.
const SYSTEMD: [&str; 19] = [
    "systemd",
    "libsystemd-shared",
    "libacl1",
    "libapparmor1",
    "libaudit1",
    "libblkid1",
    "libcap-ng0",
    "libcap2",
    "libcrypt1",
    "libgcrypt20",
    "libgpg-error0",
    "libip4tc2",
    "libkmod2",
    "liblz4-1",
    "libmount1",
    "libpam0g",
    "libpcre2-8-0",
    "libseccomp2",
    "libselinux1",
];

/// The unpacked packages.
pub(super) fn root(rig: &Rig<'_>) -> PathBuf {
    rig.dir.join("root")
}

/// Fetches and unpacks what is not there yet.
pub(super) fn fetch(rig: &Rig<'_>) -> Result<(), String> {
    for (program, package) in TOOLS {
        tool::debian(rig.workspace, program, package)?;
    }
    let debs = rig.dir.join("debs");
    let done = rig.dir.join("root/.unpacked");
    let wanted = wanted(rig)?;
    if fs::read_to_string(&done).is_ok_and(|d| d == wanted.join("\n")) {
        return Ok(());
    }
    let made = |p: &Path, r: std::io::Result<()>| r.map_err(|e| format!("{}: {e}", p.display()));
    if debs.exists() {
        made(&debs, fs::remove_dir_all(&debs))?;
    }
    if root(rig).exists() {
        made(&root(rig), fs::remove_dir_all(root(rig)))?;
    }
    made(&debs, fs::create_dir_all(&debs))?;
    made(&root(rig), fs::create_dir_all(root(rig)))?;
    println!("rig: fetching {} Debian packages", wanted.len());
    // The sandbox user of apt may not write here.
    let mut apt = rig.workspace.program("apt-get");
    apt.current_dir(&debs).args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(&wanted);
    apt.stdout(std::process::Stdio::null());
    run(&mut apt).map_err(|e| format!("{e}; as root: apt-get update"))?;
    let files = fs::read_dir(&debs).map_err(|e| format!("{}: {e}", debs.display()))?;
    for deb in files.flatten() {
        let mut dpkg = rig.workspace.program("dpkg");
        let status = dpkg.arg("-x").arg(deb.path()).arg(root(rig)).status();
        if !status.is_ok_and(|s| s.success()) {
            return Err(format!("cannot unpack {}", deb.path().display()));
        }
    }
    made(&done, fs::write(&done, wanted.join("\n")))
}

/// All packages, with the kernel that Debian's metapackage stands for.
fn wanted(rig: &Rig<'_>) -> Result<Vec<String>, String> {
    let asked = || rig.workspace.program("apt-cache").args(["depends", "linux-image-amd64"]).output();
    let kernel = |out: std::process::Output| {
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.lines().find_map(|l| Some(l.trim().strip_prefix("Depends: ")?.to_string()))
    };
    let mut found = asked().ok().and_then(kernel);
    if found.is_none() {
        // A machine whose package lists were never fetched.
        run(rig.workspace.program("apt-get").args(["-q", "update"]))?;
        found = asked().ok().and_then(kernel);
    }
    let kernel =
        found.ok_or("apt knows no package linux-image-amd64: is this Debian? as root: apt-get update")?;
    let names = INSIDE.iter().chain(&MORE).chain(&DISK).chain(&SYSTEMD).map(|s| s.to_string());
    Ok(names.chain([kernel]).collect())
}
