//! A package in a release of Debian: a file system of its own, made by mmdebstrap, with a kernel
//! and its headers. Nothing of it is kept.
//!
//! ```text
//!   install --> a module for the kernel, which modprobe takes first; a guest's is in its initial file system, beside xen-netfront
//!               '-> a boot of that: the module does not load, and modprobe goes on to Linux's driver
//!   remove  --> none of these; Linux's driver is there as before
//! ```

use super::Package;
use super::module::Module;
use crate::console::Console;
use crate::rig;
use crate::tool;
use crate::workspace::{Workspace, empty_dir, run, write};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout of a boot under emulation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Packages of a trial guest, beside the one that makes its initramfs. DKMS does not install a
/// compiler without recommended packages.
const PACKAGES: &str = "dkms,kmod,gcc,make,libelf-dev";

/// Programs that the host runs: program, package.
const TOOLS: [(&str, &str); 2] = [("mmdebstrap", "mmdebstrap"), ("qemu-system-x86_64", "qemu-system-x86")];

/// The tool that makes the initramfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Initial {
    #[default]
    InitramfsTools,
    Dracut,
}

impl Initial {
    fn package(self) -> &'static str {
        match self {
            Self::InitramfsTools => "initramfs-tools",
            Self::Dracut => "dracut",
        }
    }
}

/// Script that checks the file system after each step. It ends at the first line that fails. Its
/// first lines are variables: `name` of the package, `module`, `other`, `alias`; `early`: the
/// initial file system has the module, too.
const CHECKS: &str = r#"set -e
kernel=$(ls /lib/modules | sort -V | tail -n 1)
image=/boot/initrd.img-$kernel
# is WHAT WANTED FOUND
is() { [ "$2" = "$3" ] || { echo "package: $1: $3, not $2"; exit 1; }; }
quietly() { "$@" > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }
# A line has a path, or a command with the names.
names() { tr - _ | grep -oE "\b($module|$other)\b" | awk '!seen[$0]++' | tr '\n' ' '; }
# What modprobe loads for a vif, in this order: here, and in the initial file system.
loads() { modprobe --show-depends -S "$kernel" $alias 2>&1 | names; }
unpacked() {
	rm -rf /tmp/initrd && mkdir /tmp/initrd && cd /tmp/initrd
	if command -v unmkinitramfs > /dev/null; then unmkinitramfs "$image" .; else lsinitrd --unpack "$image" > /dev/null 2>&1; fi
	dirname "$(find /tmp/initrd -maxdepth 2 -name init)"
}
loads_early() { chroot "$(unpacked)" modprobe --show-depends -S "$kernel" $alias 2>&1 | names; }
there() { modinfo -k "$kernel" $module > /dev/null 2>&1 && echo there || echo none; }
# state WHEN LOADS MODULE
state() {
	[ $early = false ] || _early=$(loads_early)
	echo "package: kernel $kernel, $1, $(cut -d. -f1 /proc/uptime): for $alias modprobe loads $(loads)${_early:+; in the initial file system $_early}"
	is "$1, module" "$3" "$(there)"
	is "$1, loaded for a vif" "$2" "$(loads)"
	[ $early = false ] || is "$1, loaded for a vif in the initial file system" "$2" "$_early"
}
again() { if command -v update-initramfs > /dev/null; then update-initramfs -u -k all; else dracut --force "$image" "$kernel"; fi; }
# A kernel that the package is not for, and one without headers.
mkdir -p /lib/modules/9.9.9-none/kernel /lib/modules/6.1.99-none/kernel
quietly again
state before "$other " none
quietly dpkg -i /tmp/$name.deb
for said in "Linux 9.9.9-none has no module $module" "this version of the package is for Linux" "install linux-headers-6.1.99-none"; do
	grep -q "$said" /tmp/said || { cat /tmp/said; echo "package: installing it does not say: $said"; exit 1; }
done
! grep -q "Linux $kernel has no module" /tmp/said
rm -r /lib/modules/9.9.9-none /lib/modules/6.1.99-none
state installed "$module $other " there
modinfo -k "$kernel" $module | grep -E '^(filename|vermagic|version)'
# For the boot.
[ $early = true ] || quietly again
cp "$image" /tmp/$name-initrd
cp "/lib/modules/$kernel/vmlinuz" /tmp/$name-kernel 2>/dev/null || cp "/boot/vmlinuz-$kernel" /tmp/$name-kernel
quietly dpkg -i /tmp/$name.deb
state "installed again" "$module $other " there
quietly dpkg -r $name-dkms
state removed "$other " none
quietly dpkg -P $name-dkms
is purged "" "$(find /etc /usr/share /usr/src /usr/lib/dracut /usr/lib/modprobe.d /var/lib/dkms -name '*pregrant*' 2>/dev/null)"
"#;

/// Script that runs before the kernel is installed: its initramfs gets only these modules, because
/// the devices of a guest are unknown, and with all drivers the initramfs takes minutes. A host's
/// is there for the boot, as far as it is installed.
const CONF: &str = r#"cd "$1/etc" && mkdir -p initramfs-tools/conf.d dracut.conf.d && echo MODULES=list > initramfs-tools/conf.d/trial &&
printf '%s\n' xen-netfront xen-netback pregrant_back > initramfs-tools/modules && echo 'add_drivers+=" xen-netfront "' > dracut.conf.d/trial.conf"#;

/// Script of the first process in the initramfs: the module finds no Xen and does not load, like
/// one whose signature or parameters a kernel refuses.
const INIT: &str = "#!/bin/sh
mkdir -p /proc /sys
mount -t proc proc /proc
mount -t sysfs sys /sys
export MODPROBE_OPTIONS=-v
modprobe @ALIAS@ 2>&1 | while read -r line; do echo \"TRIAL $line\"; done
echo TRIAL done
echo o > /proc/sysrq-trigger
sleep 60
";

/// Tries packages in Debian `name`, one after another.
pub(super) fn play(w: &Workspace, name: &str, initial: Initial, packages: &[Package]) -> Result<(), String> {
    if !tool::is_root(w) {
        return Err("a package is tried as root, for chroot".into());
    }
    for (program, package) in TOOLS {
        tool::debian(w, program, package)?;
    }
    let start = Instant::now();
    let sources = rig::sources(w, name)?;
    let dir = w.target().join("package").join(format!("debian-{name}"));
    empty_dir(&dir)?;
    let list = dir.join("sources.list");
    write(&list, sources.list)?;
    let copy = |from: &Path, to: &str| format!("--customize-hook=cp '{}' \"$1{to}\"", from.display());
    let taken = |from: &str| format!("--customize-hook=cp \"$1/tmp/{from}\" '{}'", dir.display());
    let mut mmdebstrap = w.program("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=minbase", "--aptopt=APT::Install-Recommends \"false\""]);
    // The list of modules is also a file of the package: the present one is kept.
    mmdebstrap.args(["--dpkgopt=force-unsafe-io", "--dpkgopt=force-confold"]);
    mmdebstrap.arg(format!("--essential-hook={CONF}"));
    mmdebstrap.arg(format!(
        "--include=linux-image-amd64{0},linux-headers-amd64{0},{1},{PACKAGES}",
        sources.kernel_from,
        initial.package()
    ));
    for Package { module, file } in packages {
        let checks = dir.join(format!("{}-checks", module.name));
        write(&checks, variables(module) + CHECKS)?;
        mmdebstrap.args([copy(file, &format!("/tmp/{}.deb", module.name)), copy(&checks, "/tmp/checks")]);
        mmdebstrap.arg("--customize-hook=chroot \"$1\" sh /tmp/checks");
        mmdebstrap.args(["kernel", "initrd"].map(|of| taken(&format!("{}-{of}", module.name))));
    }
    // Nothing else of the archive is kept.
    run(mmdebstrap.args(["--format=null", sources.codename, "-"]).arg(&list))?;
    for Package { module, .. } in packages {
        boot(w, &dir, module)?;
    }
    let initial = initial.package();
    println!("package: tried in Debian {name} with {initial}, {} s", start.elapsed().as_secs());
    Ok(())
}

/// The first lines of `CHECKS`. Here modules are named as the kernel does.
fn variables(module: &Module) -> String {
    let Module { name, module: own, alias, starts_early, .. } = module;
    format!(
        "name={name} module={own} other={} alias={alias} early={starts_early}\n",
        module.other.replace('-', "_")
    )
}

/// Boots the kernel and the initramfs that the trial has made, without Xen.
fn boot(w: &Workspace, dir: &Path, module: &Module) -> Result<(), String> {
    let at = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let beside = dir.join("beside");
    let init = beside.join("trial-init");
    empty_dir(&beside)?;
    write(&init, INIT.replace("@ALIAS@", module.alias))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(|e| at(&init, e))?;
    let (more, initrd) = (dir.join("beside.cpio"), dir.join(format!("{}-initrd", module.name)));
    rig::pack(&beside, &more)?;
    let both = [&initrd, &more].map(|file| fs::read(file).map_err(|e| at(file, e)));
    let both = both.into_iter().collect::<Result<Vec<_>, _>>()?;
    // An archive begins at a multiple of four bytes.
    let gap = vec![0; both[0].len().next_multiple_of(4) - both[0].len()];
    let archive = dir.join("both.cpio");
    write(&archive, [both[0].as_slice(), &gap, &both[1]].concat())?;
    let mut qemu = w.program("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-cpu", "qemu64,+rdrand", "-m", "1024", "-nodefaults", "-display", "none"]);
    qemu.args(["-no-reboot", "-serial", "stdio"])
        .arg("-kernel")
        .arg(dir.join(format!("{}-kernel", module.name)));
    qemu.arg("-initrd").arg(&archive).args(["-append", "console=ttyS0 quiet panic=-1 rdinit=/trial-init"]);
    let start = Instant::now();
    let console = Console::start(&mut qemu)?;
    let mut said = Vec::new();
    while let Ok(line) = console.line(PATIENCE.saturating_sub(start.elapsed())) {
        said.push(line);
        if said.last().is_some_and(|line| line.contains("TRIAL done")) {
            break;
        }
    }
    drop(console);
    let wanted = [module.module, module.other];
    let tried = tried(&said, wanted);
    said.iter().filter(|line| line.contains("TRIAL ")).for_each(|line| println!("package: {line}"));
    if tried.starts_with(&wanted) {
        return Ok(());
    }
    said.iter().rev().take(30).rev().for_each(|line| println!("       | {line}"));
    Err(format!(
        "in the initial file system modprobe tries {tried:?}, not first {} and then {}",
        wanted[0], wanted[1]
    ))
}

/// Those of the modules that modprobe reports as loaded, from a console's lines.
fn tried(said: &[String], modules: [&'static str; 2]) -> Vec<&'static str> {
    let name = |line: &String| {
        let path = line.split_once("TRIAL insmod ")?.1.split(' ').next()?;
        let (file, _) = path.rsplit('/').next()?.split_once(".ko")?;
        modules.into_iter().find(|name| *name == file)
    };
    said.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::tried;

    #[test]
    fn what_is_tried_is_read_from_the_console() {
        let said = [
            "TRIAL insmod /lib/modules/6.1/updates/dkms/pregrant.ko ",
            "TRIAL modprobe: ERROR: could not insert 'pregrant': No such device",
            "[    3.0] TRIAL insmod /lib/modules/6.1/kernel/drivers/net/xen-netfront.ko.xz",
            "TRIAL done",
        ]
        .map(String::from);
        let of = |said| tried(said, ["pregrant", "xen-netfront"]);
        assert_eq!(of(&said), ["pregrant", "xen-netfront"]);
        assert_eq!(of(&said[..2]), ["pregrant"]);
        assert!(tried(&said, ["pregrant_back", "xen-netback"]).is_empty());
    }
}
