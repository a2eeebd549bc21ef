//! The modules that are packaged.

use super::dkms::Own;

/// A kernel module, and the driver of Linux that it stands in for.
#[derive(Debug)]
pub(super) struct Module {
    /// The package's name without `-dkms`: of its sources, its scripts, and to DKMS.
    pub(super) name: &'static str,
    /// The folder of `dist` with the package's own files.
    pub(super) folder: &'static str,
    /// The module's name, as modprobe prints it.
    pub(super) module: &'static str,
    /// The name of Linux's driver for the same devices.
    pub(super) other: &'static str,
    /// By this the kernel asks for a driver of a vif.
    pub(super) alias: &'static str,
    /// Debian's kernels that it is built for.
    pub(super) kernels: Kernels,
    /// Files that other modules' packages do not have.
    pub(super) own: &'static [Own],
    /// The initial file system has the module, too.
    pub(super) starts_early: bool,
}

/// The first numbers of kernels' releases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels(&'static [&'static str]);

impl Kernels {
    pub(super) fn joined(self, each: impl Fn(&'static str) -> String, between: &str) -> String {
        self.0.iter().map(|kernel| each(kernel)).collect::<Vec<_>>().join(between)
    }
}

impl Module {
    /// The name of the package.
    pub(super) fn package(&self) -> String {
        format!("{}-dkms", self.name)
    }
}

pub(super) const GUEST: Module = Module {
    name: "pregrant-guest",
    folder: "guest",
    module: "pregrant",
    other: "xen-netfront",
    alias: "xen:vif",
    kernels: Kernels(&["5.10", "6.1", "6.12", "7.2", "7.3"]),
    own: &[
        ("modprobe.conf", "etc/modprobe.d/pregrant-guest.conf", 0o644),
        ("initramfs-hook", "usr/share/initramfs-tools/hooks/zz-pregrant-guest", 0o755),
        ("dracut-module", "usr/lib/dracut/modules.d/90pregrant-guest/module-setup.sh", 0o755),
        ("initial-file-systems", "usr/share/pregrant-guest/initial-file-systems", 0o755),
    ],
    starts_early: true,
};

pub(super) const BACK: Module = Module {
    name: "pregrant-back",
    folder: "back",
    module: "pregrant_back",
    other: "xen-netback",
    alias: "xen-backend:vif",
    kernels: Kernels(&["6.1", "6.12", "7.2", "7.3"]),
    // Not in /etc: there it would stay when the package is removed.
    own: &[
        ("modprobe.conf", "usr/lib/modprobe.d/pregrant-back.conf", 0o644),
        ("says-loaded", "usr/share/pregrant-back/says-loaded", 0o755),
    ],
    starts_early: false,
};
