//! A combination: the kind and the release of dom0 in which scenarios are played, the release of
//! the guests, and who serves their vifs.

use super::release::Release;
use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// A PV kernel: it uses Xen's pages, and hypercalls for its page tables.
    #[default]
    Pv,
    /// A PVH kernel in hardware virtualisation, like a guest of type `pvh`.
    Pvh,
}

impl Kind {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "pv" => Some(Self::Pv),
            "pvh" => Some(Self::Pvh),
            _ => None,
        }
    }
}

/// Who serves vifs where a scenario starts a `back` (rig/net.sh).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Back {
    /// `pregrant back`.
    #[default]
    Process,
    /// linux/back's module, in the kernel of the domain that serves.
    Module,
}

impl Back {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "process" => Some(Self::Process),
            "module" => Some(Self::Module),
            _ => None,
        }
    }
}

/// A kind and a release of dom0, a release for guests, and a back. The default is what CI plays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Combination {
    /// The release of Xen, its tools and dom0's kernel.
    pub(super) dom0: &'static Release,
    pub(super) kind: Kind,
    /// The release of the guests' kernel and programs.
    pub(super) guests: &'static Release,
    pub(super) back: Back,
}

impl Combination {
    /// True if a kernel of it has checks, which make it slow and large.
    pub(super) fn has_debug(&self) -> bool {
        self.dom0.is_debug || self.guests.is_debug
    }

    /// The suffix for a log's name; empty for the default.
    pub(super) fn suffix(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let kind = if self.kind == Kind::Pvh { "-pvh" } else { "" };
        let back = if self.back == Back::Module { "-module" } else { "" };
        format!("-debian{}{kind}-guests{}{back}", self.dom0.name, self.guests.name)
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Pvh { "PVH" } else { "PV" };
        let (dom0, guests) = (self.dom0, self.guests);
        write!(
            f,
            "{kind} dom0 of Debian {} on Xen {}, guests of Debian {}",
            dom0.name, dom0.xen, guests.name
        )?;
        match self.back {
            Back::Process => Ok(()),
            Back::Module => f.write_str(", pregrant_back.ko as back"),
        }
    }
}
