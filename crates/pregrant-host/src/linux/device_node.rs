//! The device nodes below `/dev/xen`, and the remedies if they are missing.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A device node that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {errno}; {remedy}")]
pub struct NodeError {
    pub path: &'static str,
    pub errno: Errno,
    /// The remedy that the error's message proposes.
    pub remedy: String,
}

/// A device node that Pregrant uses: its path, the kernel module that creates it, and its purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeName {
    /// Path below `/dev/xen`.
    pub path: &'static str,
    /// The module that `modprobe` must load.
    pub module: &'static str,
    pub purpose: &'static str,
}

pub(super) const EVTCHN: NodeName =
    NodeName { path: "/dev/xen/evtchn", module: "xen-evtchn", purpose: "event channels, for both ends" };
pub(super) const GNTDEV: NodeName =
    NodeName { path: "/dev/xen/gntdev", module: "xen-gntdev", purpose: "other domains' pages, for a back" };
pub(super) const GNTALLOC: NodeName =
    NodeName { path: "/dev/xen/gntalloc", module: "xen-gntalloc", purpose: "pages to grant, for a front" };

/// All nodes that the platform may open.
pub const NODES: [NodeName; 3] = [EVTCHN, GNTDEV, GNTALLOC];

#[derive(Debug)]
pub(super) struct Node(OwnedFd);

impl Node {
    pub(super) fn open(name: NodeName) -> Result<Self, NodeError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(name.path, flags, Mode::empty()).map(Self).map_err(|errno| {
            let remedy = match errno {
                Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                    format!(
                        "on Xen its module is missing (modprobe {}); elsewhere use the loopback",
                        name.module
                    )
                }
                Errno::ACCESS | Errno::PERM => {
                    "run as root, or give this user the node by a udev rule".into()
                }
                Errno::MFILE | Errno::NFILE => "raise ulimit -n".into(),
                _ => "the kernel's log may say more (dmesg)".into(),
            };
            NodeError { path: name.path, errno, remedy }
        })
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
