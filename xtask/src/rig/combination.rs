//! Which dom0 the scenarios are played in, and with which guests: a release for each, and dom0's
//! kind.

use super::release::Release;
use std::fmt;

/// How Xen starts dom0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its kernel knows Xen's pages, and calls Xen for its page tables.
    #[default]
    Pv,
    /// In a processor's virtual machine, like a guest of type `pvh`: its memory is translated.
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

/// One of dom0's kind and release, with the guests' release. The default is what CI plays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Combination {
    /// Of Xen, its tools and dom0's kernel.
    pub(super) dom0: &'static Release,
    pub(super) kind: Kind,
    /// Of the guests' kernel and programs.
    pub(super) guests: &'static Release,
}

impl Combination {
    /// As a log's name has it behind the machine's: nothing for the default.
    pub(super) fn suffix(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let kind = if self.kind == Kind::Pvh { "-pvh" } else { "" };
        format!("-debian{}{kind}-guests{}", self.dom0.name, self.guests.name)
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Pvh { "PVH" } else { "PV" };
        let (dom0, guests) = (self.dom0, self.guests);
        write!(f, "{kind} dom0 of Debian {} on Xen {}, guests of Debian {}", dom0.name, dom0.xen, guests.name)
    }
}
