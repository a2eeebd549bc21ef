//! Debian's releases, and which of their packages run inside.
//!
//! ```text
//!   name           codename   Xen    Linux   files
//!   11             bullseye          5.10    a kernel for guests, whose programs are dom0's release's
//!   12             bookworm   4.17   6.1     below /, /usr and /lib
//!   13             trixie     4.20   6.12    all below /usr
//!   13-backports   trixie     4.20   7.3     13's programs with the newest kernel of its backports
//!   12-debug       bookworm   4.17   6.1     12's programs with the kernel of `cargo xtask linux debug`
//! ```
//! One is dom0's, with Xen; one the guests' (`--debian`, `--guest-debian`). Names of packages
//! change from one to the next where a library's interface did: those are a release's own lists,
//! all others are both releases'.

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Release {
    /// The release's name for users and for folders.
    pub(super) name: &'static str,
    pub(super) codename: &'static str,
    /// Where its kernel is from: the suffix after the codename in the name of the archive.
    pub(super) kernel_from: &'static str,
    /// True if it is from no archive, but built here with checks, and slow.
    pub(super) is_debug: bool,
    /// The version of Xen, as in the names of packages and folders.
    pub(super) xen: &'static str,
    programs: Programs,
}

/// The programs that run with a release's kernel.
#[derive(Debug, PartialEq, Eq)]
enum Programs {
    /// The release's own programs; these packages exist only in it, or have these names only in it.
    Own(&'static [&'static str]),
    Of(&'static Release),
    Dom0s,
}

static BULLSEYE: Release = Release {
    name: "11",
    codename: "bullseye",
    kernel_from: "",
    is_debug: false,
    xen: "",
    programs: Programs::Dom0s,
};
static BOOKWORM: Release = Release {
    name: "12",
    codename: "bookworm",
    kernel_from: "",
    is_debug: false,
    xen: "4.17",
    programs: Programs::Own(&["libaio1", "libext2fs2", "libssl3"]),
};
static TRIXIE: Release = Release {
    name: "13",
    codename: "trixie",
    kernel_from: "",
    is_debug: false,
    xen: "4.20",
    programs: Programs::Own(&["libaio1t64", "libext2fs2t64", "libssl3t64"]),
};
static BACKPORTS: Release = Release {
    name: "13-backports",
    codename: "trixie",
    kernel_from: "-backports",
    is_debug: false,
    xen: "4.20",
    programs: Programs::Of(&TRIXIE),
};

/// The name of the release with the kernel of `cargo xtask linux debug`.
pub const DEBUG: &str = "12-debug";
pub(super) static CHECKED: Release = Release {
    name: DEBUG,
    codename: "bookworm",
    kernel_from: "",
    is_debug: true,
    xen: "4.17",
    programs: Programs::Of(&BOOKWORM),
};

static ALL: [&Release; 5] = [&BULLSEYE, &BOOKWORM, &TRIXIE, &BACKPORTS, &CHECKED];

/// Packages for dom0 and the guests, with Xen and its tools.
const INSIDE: [&str; 24] = [
    "xen-utils-common",
    "xenstore-utils",
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
    "util-linux",
    "iperf3",
    "libiperf0",
    "ethtool",
    "libsctp1",
];
/// Libraries that the last packages of the list need.
const MORE: [&str; 1] = ["libmnl0"];
/// Packages for guests with a disk. [`super::stand_in`] adds the other libraries that fio names;
/// libblkid1 is below.
const DISK: [&str; 4] = ["e2fsprogs", "libcom-err2", "fio", "libnuma1"];
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

impl Release {
    /// The release of this name, which must have a kernel for guests.
    pub(super) fn of_guests(name: &str) -> Result<&'static Self, String> {
        Self::find(name, |_| true)
    }

    /// The release of this name, which must be Debian's.
    pub(super) fn of_debian(name: &str, must_have_xen: bool) -> Result<&'static Self, String> {
        match must_have_xen {
            true => Self::find(name, |release| !release.is_debug && !release.xen.is_empty()),
            false => Self::find(name, |release| !release.is_debug),
        }
    }

    /// The release of this name for dom0, which must have Xen.
    pub(super) fn of_dom0(name: &str) -> Result<&'static Self, String> {
        Self::find(name, |release| !release.xen.is_empty())
    }

    /// Finds a release by its name; the error names those that exist.
    fn find(name: &str, is_meant: fn(&Self) -> bool) -> Result<&'static Self, String> {
        let meant = || ALL.into_iter().filter(|release| is_meant(release));
        meant().find(|release| release.name == name).ok_or_else(|| {
            let known: Vec<_> = meant().map(|release| release.name).collect();
            format!("no Debian {name}; there are {}", known.join(", "))
        })
    }

    /// Returns the release that the programs are from; `dom0` is dom0's release.
    pub(super) fn programs(&'static self, dom0: &'static Self) -> &'static Self {
        match self.programs {
            Programs::Own(_) => self,
            Programs::Of(other) => other,
            Programs::Dom0s => dom0.programs(<&Self>::default()),
        }
    }

    /// Returns all packages except the kernel's, which are named after its version.
    pub(super) fn packages(&self) -> Vec<String> {
        let xen = self.xen;
        let Programs::Own(own) = self.programs else { return Vec::new() };
        let of_xen =
            [format!("xen-hypervisor-{xen}-amd64"), format!("xen-utils-{xen}"), format!("libxenmisc{xen}")];
        let lists = [&INSIDE[..], &MORE, &DISK, &SYSTEMD, own];
        of_xen.into_iter().chain(lists.into_iter().flatten().map(|name| name.to_string())).collect()
    }
}

/// The release that CI plays, and the default.
impl Default for &'static Release {
    fn default() -> Self {
        &BOOKWORM
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_release_names_its_own_xen_and_nothing_twice() {
        for (release, theirs, others) in [(&BOOKWORM, "4.17", "4.20"), (&TRIXIE, "4.20", "4.17")] {
            let packages = release.packages();
            let of_xen = packages.iter().filter(|name| name.contains(theirs)).count();
            assert_eq!(of_xen, 3, "{packages:?}");
            assert!(!packages.iter().any(|name| name.contains(others)), "{packages:?}");
            assert_eq!(packages.iter().collect::<BTreeSet<_>>().len(), packages.len(), "one is named twice");
        }
    }

    #[test]
    fn a_release_without_xen_is_for_guests_alone() {
        let said = Release::of_dom0("11").unwrap_err();
        assert!(said.ends_with("there are 12, 13, 13-backports, 12-debug"), "{said}");
        assert_eq!(Release::of_guests("11"), Ok(&BULLSEYE));
        assert_eq!(Release::of_guests("13"), Release::of_dom0("13"));
        assert!(Release::of_guests("trixie").is_err());
        assert_eq!(Release::of_dom0(DEBUG), Ok(&CHECKED));
        assert!(Release::of_debian(DEBUG, true).is_err() && Release::of_debian(DEBUG, false).is_err());
        assert!(Release::of_debian("11", true).is_err() && Release::of_debian("11", false).is_ok());
    }

    #[test]
    fn a_kernel_alone_has_programs_of_another_release() {
        assert!(BULLSEYE.packages().is_empty() && BACKPORTS.packages().is_empty());
        assert_eq!(BULLSEYE.programs(&BOOKWORM), &BOOKWORM);
        assert_eq!(BULLSEYE.programs(&BACKPORTS), &TRIXIE);
        assert_eq!(BACKPORTS.programs(&BOOKWORM), &TRIXIE);
        assert_eq!(TRIXIE.programs(&BOOKWORM), &TRIXIE);
        // Each release has some packages.
        assert!(ALL.iter().all(|release| !release.programs(&BOOKWORM).packages().is_empty()));
    }

    #[test]
    fn a_library_that_was_renamed_is_asked_for_by_one_name() {
        let (old, new) = (BOOKWORM.packages(), TRIXIE.packages());
        assert!(old.contains(&"libssl3".to_string()));
        assert!(!new.contains(&"libssl3".to_string()));
        assert!(new.contains(&"libssl3t64".to_string()));
        assert_eq!(<&Release>::default(), &BOOKWORM, "what CI plays");
    }
}
