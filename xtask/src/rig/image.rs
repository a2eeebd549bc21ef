//! The initial file systems of dom0 and of the guests, and the kernels as QEMU and `xl` take them.

use super::Rig;
use super::packages;
use super::release::Release;
use super::stand_in;
use crate::workspace::empty_dir;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIBRARIES: [&str; 3] =
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/systemd"];
const DOM0_PROGRAMS: [&str; 12] = [
    "bin/busybox",
    "usr/bin/chrt",
    "usr/bin/iperf3",
    "sbin/ethtool",
    "usr/bin/xenstore-read",
    "usr/bin/xenstore-write",
    "usr/bin/xenstore-ls",
    "usr/bin/xenstore-list",
    "usr/bin/xenstore-rm",
    "usr/bin/xenstore-exists",
    "usr/bin/xenstore-watch",
    "usr/bin/xenstore-chmod",
];
/// Programs in the folder of a release's Xen.
const XEN_PROGRAMS: [&str; 6] =
    ["xl", "xenstored", "xenconsoled", "xen-init-dom0", "libxl-save-helper", "lsevtchn"];
const GUEST_PROGRAMS: [&str; 6] = [
    "bin/busybox",
    "usr/bin/iperf3",
    "sbin/ethtool",
    "usr/bin/xenstore-read",
    "usr/bin/xenstore-write",
    "usr/bin/xenstore-ls",
];
const DOM0_MODULES: [&str; 18] = [
    "xenfs",
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
    "xen-privcmd",
    "xen-netback",
    "xen-blkback",
    "loop",
    "brd",
    "tun",
    "vhost_net",
    "bridge",
    "dummy",
    "veth",
    "pktgen",
    "8021q",
    "vxlan",
    "ip_gre",
];
const GUEST_MODULES: [&str; 13] = [
    "xenfs",
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
    "xen-privcmd",
    "xen-netfront",
    "tun",
    "bridge",
    "pktgen",
    "netconsole",
    "8021q",
    "vxlan",
    "ip_gre",
];

/// Additional programs of a guest with a disk.
const DISK_PROGRAMS: [&str; 3] = ["usr/bin/fio", "sbin/mke2fs", "sbin/e2fsck"];
const DISK_MODULES: [&str; 4] = ["xen-blkfront", "ext4", "fuse", "loop"];
/// A module that ext4 asks for by name; from Linux 6.16 on it is a function of the kernel.
const CRC32C: &str = "crc32c_generic";

/// Additional modules of a driver domain: the kernel's backends.
const DRIVER_MODULES: [&str; 3] = ["xen-netback", "xen-blkback", "loop"];

const SYSTEMD_PROGRAMS: [&str; 2] = ["lib/systemd/systemd", "bin/systemctl"];
/// The program by which newer versions of systemd start services. They expect it, and units, below
/// /usr alone.
const SYSTEMD_EXECUTOR: &str = "lib/systemd/systemd-executor";
/// Units of systemd that others depend on by default. No other unit of systemd is started.
const SYSTEMD_UNITS: [&str; 8] = [
    "sysinit.target",
    "basic.target",
    "sockets.target",
    "slices.target",
    "paths.target",
    "timers.target",
    "shutdown.target",
    "umount.target",
];

pub(super) struct Images {
    pub(super) xen: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) dom0: PathBuf,
    /// The image with systemd as its first process.
    pub(super) systemd: PathBuf,
}

pub(super) fn images(rig: &Rig<'_>) -> Images {
    let dir = rig.dir.join("image");
    Images {
        xen: dir.join("xen"),
        kernel: dir.join("vmlinux-dom0"),
        dom0: dir.join("dom0.cpio"),
        systemd: dir.join("systemd.cpio"),
    }
}

struct Unpacked {
    release: &'static Release,
    /// The release's file system, or for its kernel the programs of the release that is used with
    /// it.
    root: PathBuf,
    xen: &'static str,
    kernel: PathBuf,
    version: String,
}

impl Unpacked {
    fn of(rig: &Rig<'_>, release: &'static Release) -> Result<Self, String> {
        let kernel = packages::root(rig, release);
        let version = kernel_version(&kernel)?;
        // The modules' tools read what this makes.
        tool(Command::new("depmod").arg("-b").arg(&kernel).arg(&version))?;
        let programs = release.programs(rig.combination.dom0);
        Ok(Self { release, root: packages::root(rig, programs), xen: programs.xen, kernel, version })
    }

    fn modprobe(&self, name: &str) -> Command {
        let mut modprobe = Command::new("modprobe");
        modprobe.arg("-d").arg(&self.kernel).args(["-S", &self.version, "--show-depends", name]);
        modprobe
    }

    /// True if the kernel has a module of that name.
    fn has_module(&self, name: &str) -> bool {
        tool(&mut self.modprobe(name)).is_ok()
    }
}

/// Those of our own kernel modules that are for this kernel: the guests', or dom0's, which is a
/// backend.
fn of_kernel(modules: &[PathBuf], version: &str, is_back: bool) -> Result<Vec<PathBuf>, String> {
    // A folder has its kernel's name, and the back's a folder in that.
    let is_of = |module: &&PathBuf| {
        let above = module.ancestors().nth(1 + usize::from(is_back)).and_then(|dir| dir.file_name());
        let in_back = module.parent().is_some_and(|dir| dir.ends_with("back"));
        in_back == is_back && above.is_some_and(|name| name == version)
    };
    let found: Vec<_> = modules.iter().filter(is_of).cloned().collect();
    match modules.is_empty() || !found.is_empty() {
        true => Ok(found),
        false => Err(format!("no module is for the kernel {version}: {modules:?}")),
    }
}

/// Makes all images. `modules` are our own kernel modules.
pub(super) fn make(rig: &Rig<'_>, programs: &[PathBuf], modules: &[PathBuf]) -> Result<(), String> {
    let dir = rig.dir.join("image");
    empty_dir(&dir)?;
    let (of_dom0, of_guests) =
        (Unpacked::of(rig, rig.combination.dom0)?, Unpacked::of(rig, rig.combination.guests)?);
    let guest = Tree::new(&of_guests, dir.join("guest"))?;
    guest.programs(&GUEST_PROGRAMS)?;
    guest.modules(&GUEST_MODULES)?;
    guest.put_all(programs, "usr/bin")?;
    guest.put_all(&of_kernel(modules, &of_guests.version, false)?, "rig")?;
    guest.put_all(&[rig.workspace.root().join("rig/guest-init")], "")?;
    guest.rename("guest-init", "init")?;
    guest.put_all(&listed(&rig.workspace.root().join("rig/jobs"))?, "rig/jobs")?;
    guest.put_all(
        &["rig/say.sh", "rig/checks.sh", "rig/net.sh", "rig/on-disk.sh"]
            .map(|f| rig.workspace.root().join(f)),
        "rig",
    )?;
    let guest_cpio = dir.join("guest.cpio");
    guest.pack(&guest_cpio)?;
    let (disk_cpio, driver_cpio) = (disk(rig, &of_guests)?, driver(rig, &of_guests, modules)?);

    let out = images(rig);
    unpack_xen(&of_dom0, &out.xen)?;
    unpack_kernel(&of_dom0, &out.kernel)?;
    let guest_kernel = dir.join("vmlinux");
    match of_guests.release == of_dom0.release {
        true => copy(&out.kernel, &guest_kernel)?,
        false => unpack_kernel(&of_guests, &guest_kernel)?,
    }
    let dom0 = Tree::new(&of_dom0, dir.join("dom0"))?;
    dom0.programs(&DOM0_PROGRAMS)?;
    dom0.xen_programs(&XEN_PROGRAMS)?;
    dom0.modules(&DOM0_MODULES)?;
    dom0.put_all(programs, "usr/bin")?;
    dom0.put_all(&of_kernel(modules, &of_dom0.version, true)?, "rig")?;
    dom0.put_all(&[rig.workspace.root().join("rig/dom0-init")], "")?;
    dom0.rename("dom0-init", "init")?;
    dom0.put_all(&listed(&rig.workspace.root().join("rig/scenarios"))?, "rig/scenarios")?;
    let scripts = [
        "say.sh",
        "checks.sh",
        "domain.sh",
        "net.sh",
        "disk.sh",
        "mapped.sh",
        "module.sh",
        "saved.sh",
        "store.script",
        "vif-script",
        "block-script",
    ];
    dom0.put_all(&scripts.map(|f| rig.workspace.root().join("rig").join(f)), "rig")?;
    dom0.put_all(&[guest_cpio, disk_cpio, driver_cpio, guest_kernel], "rig")?;
    dom0.put_all(&[rig.workspace.root().join("dist/block-pregrant")], "etc/xen/scripts")?;
    let conf = dom0.dir.join("etc/xen/xl.conf");
    fs::write(&conf, "autoballoon=\"off\"\nclaim_mode=0\n").map_err(|e| at(&conf, e))?;
    dom0.pack(&out.dom0)?;
    systemd(rig, &of_dom0, programs, &out)
}

/// The additional files of a guest with a disk: an archive that dom0 appends to the guests' own,
/// for those guests only.
fn disk(rig: &Rig<'_>, of: &Unpacked) -> Result<PathBuf, String> {
    stand_in::make(&of.root.join(DISK_PROGRAMS[0]), &of.root.join(LIBRARIES[1]))?;
    let tree = Tree::new(of, rig.dir.join("image/disk"))?;
    tree.programs(&DISK_PROGRAMS)?;
    // The lists of modules are of both archives.
    let crc32c = of.has_module(CRC32C).then_some(CRC32C);
    tree.modules(&[&GUEST_MODULES[..], &DISK_MODULES, crc32c.as_slice()].concat())?;
    let cpio = rig.dir.join("image/disk.cpio");
    tree.pack(&cpio)?;
    Ok(cpio)
}

/// The additional files of a driver domain, as [`disk`]'s: `xl devd`, and the scripts that it runs
/// there, and our module of a back, where its kernel has one.
fn driver(rig: &Rig<'_>, of: &Unpacked, modules: &[PathBuf]) -> Result<PathBuf, String> {
    let tree = Tree::new(of, rig.dir.join("image/driver"))?;
    tree.xen_programs(&["xl"])?;
    tree.modules(&[&GUEST_MODULES[..], &DRIVER_MODULES].concat())?;
    tree.put_all(&of_kernel(modules, &of.version, true).unwrap_or_default(), "rig")?;
    tree.put_all(&["rig/vif-script", "rig/block-script"].map(|f| rig.workspace.root().join(f)), "rig")?;
    tree.put_all(&[rig.workspace.root().join("dist/block-pregrant")], "etc/xen/scripts")?;
    let cpio = rig.dir.join("image/driver.cpio");
    tree.pack(&cpio)?;
    Ok(cpio)
}

/// Makes the archive that turns dom0's file system into one with systemd, with the units of `dist`
/// installed as in docs/operate.md. The kernel unpacks it over dom0's own archive.
fn systemd(rig: &Rig<'_>, of: &Unpacked, programs: &[PathBuf], out: &Images) -> Result<(), String> {
    let of_project = |path: &str| rig.workspace.root().join(path);
    let tree = Tree::new(of, rig.dir.join("image/systemd"))?;
    tree.programs(&SYSTEMD_PROGRAMS)?;
    if of.root.join(SYSTEMD_EXECUTOR).exists() {
        tree.programs(&[SYSTEMD_EXECUTOR])?;
        let below_usr = tree.dir.join("usr/lib/systemd");
        fs::create_dir_all(tree.dir.join("usr/lib")).map_err(|e| at(&below_usr, e))?;
        std::os::unix::fs::symlink("../../lib/systemd", &below_usr).map_err(|e| at(&below_usr, e))?;
    }
    let units = SYSTEMD_UNITS.map(|unit| of.root.join("lib/systemd/system").join(unit));
    tree.put_all(&units, "lib/systemd/system")?;
    tree.put_all(&listed(&of_project("rig/systemd"))?, "etc/systemd/system")?;
    let is_unit = |file: &PathBuf| file.extension().is_some_and(|e| e == "service" || e == "socket");
    let units: Vec<PathBuf> = listed(&of_project("dist"))?.into_iter().filter(is_unit).collect();
    tree.put_all(&units, "etc/systemd/system")?;
    for (unit, drop_in) in [("back", "rig.conf"), ("blkback", "blkback.conf")] {
        let drop_in = tree.dir.join("etc/systemd/system").join(drop_in);
        tree.put_all(&[drop_in], &format!("etc/systemd/system/pregrant-{unit}.service.d"))?;
    }
    tree.put_all(&programs[..1], "usr/local/bin")?;
    tree.put_all(&["rig/systemd-init", "rig/dom0-init"].map(of_project), "rig")?;
    copy(&tree.dir.join("rig/systemd-init"), &tree.dir.join("init"))?;
    let over = rig.dir.join("image/over.cpio");
    tree.pack(&over)?;
    let mut both = fs::read(&out.dom0).map_err(|e| at(&out.dom0, e))?;
    both.extend(fs::read(&over).map_err(|e| at(&over, e))?);
    fs::write(&out.systemd, both).map_err(|e| at(&out.systemd, e))
}

/// The version of the one kernel that was unpacked.
pub(super) fn kernel_version(root: &Path) -> Result<String, String> {
    let dir = root.join("lib/modules");
    let mut names = fs::read_dir(&dir).map_err(|e| at(&dir, e))?.flatten().map(|f| f.file_name());
    let name = names.next().ok_or_else(|| format!("no kernel in {}", dir.display()))?;
    Ok(name.to_string_lossy().into_owned())
}

/// The bootable image of a kernel: where its installation would copy it, or next to its modules.
pub(super) fn kernel_image(root: &Path, version: &str) -> PathBuf {
    let beside = root.join("lib/modules").join(version).join("vmlinuz");
    if beside.exists() { beside } else { root.join("boot").join(format!("vmlinuz-{version}")) }
}

/// Unpacks Xen, since QEMU's multiboot loader needs the 32-bit ELF file.
fn unpack_xen(of: &Unpacked, to: &Path) -> Result<(), String> {
    let gz = of.root.join(format!("boot/xen-{}-amd64.gz", of.xen));
    let bytes = tool_output(Command::new("gzip").arg("-dc").arg(&gz))?;
    fs::write(to, bytes).map_err(|e| at(to, e))
}

/// Unpacks a kernel, which then boots seconds faster under emulation.
fn unpack_kernel(of: &Unpacked, to: &Path) -> Result<(), String> {
    let path = kernel_image(&of.kernel, &of.version);
    let image = fs::read(&path).map_err(|e| at(&path, e))?;
    let word =
        |at: usize| image.get(at..at + 4).and_then(|b| b.first_chunk::<4>()).map(|b| u32::from_le_bytes(*b));
    // The boot protocol's setup_sects, payload_offset and payload_length (Linux,
    // Documentation/arch/x86/boot.rst).
    let payload = || {
        let sectors = usize::from(*image.get(0x1f1)?).max(4) + 1;
        let (offset, len) = (word(0x248)? as usize, word(0x24c)? as usize);
        image.get(sectors * 512 + offset..sectors * 512 + offset + len)
    };
    let payload = payload().ok_or_else(|| format!("{} is no bzImage", path.display()))?;
    let (ending, program, args) = packer(payload)
        .ok_or_else(|| format!("{}: its kernel is packed neither by xz nor by zstd", path.display()))?;
    let packed = to.with_extension(ending);
    // The last four bytes are the unpacked size, which no format knows of.
    fs::write(&packed, &payload[..payload.len().saturating_sub(4)]).map_err(|e| at(&packed, e))?;
    let kernel = tool_output(Command::new(program).args(args).arg(&packed))?;
    fs::write(to, kernel).map_err(|e| at(to, e))?;
    fs::remove_file(&packed).map_err(|e| at(&packed, e))?;
    tool(Command::new("strip").arg(to))
}

/// Finds out from its first bytes how a kernel is packed: the suffix of such files, and the command
/// that unpacks one.
fn packer(payload: &[u8]) -> Option<(&'static str, &'static str, &'static [&'static str])> {
    match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(("xz", "xz", &["-dc", "--single-stream"])),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("zst", "zstd", &["-dcq"])),
        _ => None,
    }
}

/// A file system under construction.
struct Tree<'a> {
    of: &'a Unpacked,
    dir: PathBuf,
}

impl<'a> Tree<'a> {
    fn new(of: &'a Unpacked, dir: PathBuf) -> Result<Self, String> {
        for folder in ["bin", "rig", "proc", "sys", "dev", "usr/bin"] {
            fs::create_dir_all(dir.join(folder)).map_err(|e| at(&dir, e))?;
        }
        // The fixed path of the dynamic loader.
        std::os::unix::fs::symlink("lib/x86_64-linux-gnu", dir.join("lib64")).map_err(|e| at(&dir, e))?;
        Ok(Self { of, dir })
    }

    /// Adds Debian programs with all libraries that they need, at Debian's paths.
    fn programs(&self, paths: &[&str]) -> Result<(), String> {
        for path in paths {
            let path =
                if self.of.root.join(path).exists() { path.to_string() } else { format!("usr/{path}") };
            self.put_elf(&path)?;
        }
        // Loaded by name when a thread ends, as xl and iperf3 from 3.17 on have them: without it
        // they abort.
        self.library("libgcc_s.so.1")
    }

    fn xen_programs(&self, names: &[&str]) -> Result<(), String> {
        for name in names {
            self.put_elf(&format!("usr/lib/xen-{}/bin/{name}", self.of.xen))?;
        }
        Ok(())
    }

    fn library(&self, name: &str) -> Result<(), String> {
        match LIBRARIES.iter().map(|dir| format!("{dir}/{name}")).find(|p| self.of.root.join(p).exists()) {
            Some(path) => self.put_elf(&path),
            None => Err(format!("library {name} is in none of the packages of xtask/src/rig/release.rs")),
        }
    }

    fn put_elf(&self, path: &str) -> Result<(), String> {
        let (from, to) = (self.of.root.join(path), self.dir.join(path));
        if to.exists() {
            return Ok(());
        }
        copy(&from, &to)?;
        let dynamic = tool_output(Command::new("readelf").arg("-d").arg(&from))?;
        let dynamic = String::from_utf8_lossy(&dynamic).into_owned();
        let needed = dynamic.lines().filter(|l| l.contains("(NEEDED)"));
        for name in needed.filter_map(|l| l.split_once('[')?.1.split_once(']')) {
            self.library(name.0)?;
        }
        Ok(())
    }

    /// Adds kernel modules and those that they depend on, uncompressed, because a kernel under
    /// emulation takes long to decompress them.
    fn modules(&self, names: &[&str]) -> Result<(), String> {
        let Unpacked { kernel: root, version, .. } = self.of;
        let mut files = BTreeSet::new();
        for name in names {
            let out = tool_output(&mut self.of.modprobe(name))?;
            let out = String::from_utf8_lossy(&out).into_owned();
            // A line has a path, and options from the host's own settings.
            let paths = out.lines().filter_map(|l| l.strip_prefix("insmod ")?.split_whitespace().next());
            files.extend(paths.map(PathBuf::from));
        }
        let meta = ["modules.builtin", "modules.builtin.modinfo", "modules.order"];
        files.extend(meta.map(|m| root.join("lib/modules").join(version).join(m)));
        for file in files {
            let below = file.strip_prefix(root).map_err(|_| format!("{} is not below", file.display()))?;
            let to = self.dir.join(below);
            copy(&file, &to)?;
            if to.extension().is_some_and(|e| e == "xz") {
                tool(Command::new("xz").arg("-df").arg(&to))?;
            }
        }
        tool(Command::new("depmod").arg("-b").arg(&self.dir).arg(version))
    }

    fn put_all(&self, files: &[PathBuf], folder: &str) -> Result<(), String> {
        for file in files {
            let name = file.file_name().unwrap_or_default();
            copy(file, &self.dir.join(folder).join(name))?;
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        fs::rename(self.dir.join(from), self.dir.join(to)).map_err(|e| at(&self.dir, e))
    }

    fn pack(&self, to: &Path) -> Result<(), String> {
        pack(&self.dir, to)
    }
}

/// Packs a folder into an archive that the kernel unpacks.
pub fn pack(dir: &Path, to: &Path) -> Result<(), String> {
    let out = fs::File::create(to).map_err(|e| at(to, e))?;
    let mut find = Command::new("find").arg(".").current_dir(dir).stdout(Stdio::piped()).spawn();
    let names = find.as_mut().ok().and_then(|c| c.stdout.take()).ok_or("`find` does not run")?;
    let mut cpio = Command::new("cpio");
    cpio.args(["-o", "-H", "newc", "-R", "0:0", "--quiet"]).current_dir(dir);
    let status = cpio.stdin(names).stdout(out).status();
    let found = find.and_then(|mut c| c.wait()).is_ok_and(|s| s.success());
    if found && status.is_ok_and(|s| s.success()) {
        Ok(())
    } else {
        Err(format!("cannot pack {} into {}", dir.display(), to.display()))
    }
}

/// Copies a file, and makes the folders above it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let folder = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(|e| at(folder, e))?;
    fs::copy(from, to).map(drop).map_err(|e| at(from, e))
}

/// The files of a folder, by name.
fn listed(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).map_err(|e| at(dir, e))?.flatten().map(|f| f.path()).collect();
    files.sort();
    Ok(files)
}

pub(super) fn tool(command: &mut Command) -> Result<(), String> {
    tool_output(command).map(drop)
}

pub(super) fn tool_output(command: &mut Command) -> Result<Vec<u8>, String> {
    let shown = format!("{command:?}");
    let out = command.stdin(Stdio::null()).output().map_err(|e| format!("{shown}: {e}"))?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    Err(format!("{shown}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim()))
}

pub(super) fn at(path: &Path, e: std::io::Error) -> String {
    format!("{}: {e}", path.display())
}

#[cfg(test)]
mod tests {
    use super::packer;

    #[test]
    fn a_kernel_says_by_what_it_is_packed() {
        let program = |payload: &[u8]| packer(payload).map(|(_, program, _)| program);
        assert_eq!(program(b"\xfd7zXZ\0\0\x04"), Some("xz"));
        assert_eq!(program(b"\x28\xb5\x2f\xfd\x04"), Some("zstd"));
        assert_eq!(program(b"\x1f\x8b\x08"), None);
        assert_eq!(program(b""), None);
    }
}
