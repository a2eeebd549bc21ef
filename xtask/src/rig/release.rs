//! Debian's releases, and which of their packages run inside.
//!
//! ```text
//!   number  codename   Xen    Linux   files
//!   11      bullseye          5.10    a kernel for guests, whose programs are dom0's release's
//!   12      bookworm   4.17   6.1     below /, /usr and /lib
//!   13      trixie     4.20   6.12    all below /usr
//! ```
//! One is dom0's, with Xen; one the guests' (`--debian`, `--guest-debian`). Names of packages
//! change from one to the next where a library's interface did: those are a release's own lists,
//! all others are both releases'.

/// A release.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) number: u32,
    pub(super) codename: &'static str,
    /// Its Xen, as packages and folders are named.
    pub(super) xen: &'static str,
    /// Packages that only this one has, or names so.
    own: &'static [&'static str],
}

pub(super) const RELEASES: [Release; 2] = [
    Release { number: 12, codename: "bookworm", xen: "4.17", own: &["libaio1", "libext2fs2", "libssl3"] },
    Release {
        number: 13,
        codename: "trixie",
        xen: "4.20",
        own: &["libaio1t64", "libext2fs2t64", "libssl3t64"],
    },
];

/// One that guests have the kernel of.
const KERNEL_ALONE: Release = Release { number: 11, codename: "bullseye", xen: "", own: &[] };

/// Xen and its tools, and what dom0 and the guests use.
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
/// Libraries of the last few.
const MORE: [&str; 1] = ["libmnl0"];
/// For guests with a disk. [`super::stand_in`] adds the other libraries that fio names; libblkid1
/// is below.
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
    /// By its number, as a user says it.
    pub(super) fn numbered(number: &str) -> Option<&'static Self> {
        RELEASES.iter().find(|release| release.number.to_string() == number)
    }

    /// The same; an error names those that there are.
    pub(super) fn asked_for(number: &str) -> Result<&'static Self, String> {
        Self::numbered(number).ok_or_else(|| format!("no Debian {number}; there are {}", Self::known()))
    }

    /// The same, for guests.
    pub(super) fn of_guests(number: &str) -> Result<&'static Self, String> {
        let alone = (number == KERNEL_ALONE.number.to_string()).then_some(&KERNEL_ALONE);
        alone.map_or_else(|| Self::asked_for(number), Ok)
    }

    /// Its programs are another one's.
    pub(super) fn is_kernel_alone(&self) -> bool {
        *self == KERNEL_ALONE
    }

    /// The numbers of all.
    fn known() -> String {
        RELEASES.map(|release| release.number.to_string()).join(", ")
    }

    /// All packages but the kernel's, which is named after its version.
    pub(super) fn packages(&self) -> Vec<String> {
        let xen = self.xen;
        if self.is_kernel_alone() {
            return Vec::new();
        }
        let of_xen =
            [format!("xen-hypervisor-{xen}-amd64"), format!("xen-utils-{xen}"), format!("libxenmisc{xen}")];
        let lists = [&INSIDE[..], &MORE, &DISK, &SYSTEMD, self.own];
        of_xen.into_iter().chain(lists.into_iter().flatten().map(|name| name.to_string())).collect()
    }
}

/// The release that CI plays, and the default.
impl Default for &'static Release {
    fn default() -> Self {
        &RELEASES[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_release_names_its_own_xen_and_nothing_twice() {
        for (number, theirs, others) in [("12", "4.17", "4.20"), ("13", "4.20", "4.17")] {
            let packages = Release::numbered(number).unwrap().packages();
            let of_xen = packages.iter().filter(|name| name.contains(theirs)).count();
            assert_eq!(of_xen, 3, "{packages:?}");
            assert!(!packages.iter().any(|name| name.contains(others)), "{packages:?}");
            assert_eq!(packages.iter().collect::<BTreeSet<_>>().len(), packages.len(), "one is named twice");
        }
        assert_eq!(Release::numbered("11"), None);
        assert!(Release::of_guests("11").unwrap().packages().is_empty());
        assert_eq!(Release::of_guests("13"), Release::asked_for("13"));
        assert_eq!(Release::numbered("trixie"), None);
    }

    #[test]
    fn a_library_that_was_renamed_is_asked_for_by_one_name() {
        let [old, new] = &RELEASES;
        assert!(old.packages().contains(&"libssl3".to_string()));
        assert!(!new.packages().contains(&"libssl3".to_string()));
        assert!(new.packages().contains(&"libssl3t64".to_string()));
        assert_eq!(<&Release>::default(), old, "what CI plays");
    }
}
