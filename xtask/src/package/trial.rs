//! A package in a release of Debian: a file system of its own, made by mmdebstrap, with a kernel
//! and its headers. Nothing of it is kept.
//!
//! ```text
//!   install --> a module for the kernel; in its initial file system, without xen-netfront; modprobe takes it first
//!   remove  --> none of these; xen-netfront is there as before
//! ```

use crate::rig;
use crate::tool;
use crate::workspace::{Workspace, empty_dir, run, write};
use std::path::Path;

/// What such a guest has. DKMS asks for no compiler where nothing is recommended.
const PACKAGES: &str = "initramfs-tools,dkms,kmod,gcc,make,libelf-dev";

/// In the file system: what has to be so after each step. A line that fails ends it.
const CHECKS: &str = r#"set -e
kernel=$(ls /lib/modules | sort -V | tail -n 1)
alias=xen:vif
first() { modprobe --show-depends -S "$kernel" $alias 2>&1 | sed -n 's,.*/\([^/ ]*\)\.ko.*,\1,p' | tr - _ | head -n 1; }
in_initrd() { lsinitramfs "/boot/initrd.img-$kernel" | grep -c "/$1\.ko" || true; }
loaded() { rm -rf /tmp/initrd && unmkinitramfs "/boot/initrd.img-$kernel" /tmp/initrd && find /tmp/initrd -path '*conf/modules' -exec grep -hE 'netfront|pregrant' {} + | tr - _ | tr -d ' '; }
there() { modinfo -k "$kernel" pregrant > /dev/null 2>&1 && echo there || echo none; }
# is WHAT WANTED FOUND
is() { [ "$2" = "$3" ] || { echo "package: $1: $3, not $2"; exit 1; }; }
quietly() { "$@" > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }
# state WHEN FIRST PREGRANT NETFRONT MODULE: what modprobe takes first, how often either is in the initial file system, and whether there is a module.
state() {
	echo "package: kernel $kernel, $1: $alias loads $(first) first; initial file system: $(in_initrd pregrant) pregrant, $(in_initrd xen-netfront) xen-netfront"
	is "$1, first" "$2" "$(first)"
	is "$1, pregrant in the initial file system" "$3" "$(in_initrd pregrant)"
	is "$1, xen-netfront there" "$4" "$(in_initrd xen-netfront)"
	is "$1, module" "$5" "$(there)"
	is "$1, loaded at boot" "$2" "$(loaded)"
}
echo xen-netfront >> /etc/initramfs-tools/modules
quietly update-initramfs -u -k all
state before xen_netfront 0 1 none
quietly dpkg -i /tmp/package.deb
state installed pregrant 1 0 there
modinfo -k "$kernel" pregrant | grep -E '^(filename|vermagic)'
quietly dpkg -i /tmp/package.deb
state "installed again" pregrant 1 0 there
quietly dpkg -r pregrant-guest-dkms
state removed xen_netfront 0 1 none
quietly dpkg -P pregrant-guest-dkms
is purged "" "$(ls /etc/modprobe.d /etc/kernel/header_postinst.d | grep pregrant)"
"#;

/// Tries it in Debian `name`.
pub(super) fn play(w: &Workspace, name: &str, package: &Path) -> Result<(), String> {
    if !tool::is_root(w) {
        return Err("a package is tried as root, for chroot".into());
    }
    tool::debian(w, "mmdebstrap", "mmdebstrap")?;
    let sources = rig::sources(w, name)?;
    let dir = w.target().join("package").join(format!("debian-{name}"));
    empty_dir(&dir)?;
    let (list, checks) = (dir.join("sources.list"), dir.join("checks"));
    write(&list, sources.list)?;
    write(&checks, CHECKS)?;
    let copy = |from: &Path, to: &str| format!("--customize-hook=cp '{}' \"$1{to}\"", from.display());
    let mut mmdebstrap = w.program("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=minbase", "--aptopt=APT::Install-Recommends \"false\""]);
    mmdebstrap.arg(format!(
        "--include=linux-image-amd64/{0},linux-headers-amd64/{0},{PACKAGES}",
        sources.kernel_from
    ));
    mmdebstrap.args([copy(package, "/tmp/package.deb"), copy(&checks, "/tmp/checks")]);
    mmdebstrap.arg("--customize-hook=chroot \"$1\" sh /tmp/checks");
    // Nothing of it is kept.
    run(mmdebstrap.args(["--format=null", sources.codename, "-"]).arg(&list))?;
    println!("package: tried in Debian {name}");
    Ok(())
}
