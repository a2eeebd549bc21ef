//! How a queue gets its paths when its front connects: the front requests, the path accepts, a key
//! says which.
//!
//! ```text
//!   front's keys --asks--> accept(Said::Fresh)            --> paths of the chain --> active key: for the front, and a successor
//!   live rings   --asks--> accept(Said::Reattach(active)) --> the same again, or the vif is Lost
//!                                                             behind the rings: lend
//! ```
//! Each path accepts its own requests ([`Negotiate::accept`](super::Negotiate::accept)). One loop
//! (`Vif::connect_queues`) asks them all: it reads the key, counts pages, and writes which are
//! accepted. Invariant: a front uses only the paths that
//! the key names, so a successor accepts these again and no others.
//!
//! What a front may do: request anything. An invalid request is refused, with a line that names its
//! key; the queue goes on without that path.

use super::active_lists::ActiveLists;
use super::any_back::AnyPath;
use super::refusal::Refusal;
use crate::net::features::{BackFeatures, FrontRequest, QueueKeys};
use crate::platform::Platform;
use crate::units::DomId;
use alloc::format;
use alloc::string::String;
use core::fmt;

/// What the back's key says of a path to the front of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said<'a> {
    /// Nothing yet: it is written when the paths are accepted.
    Fresh,
    /// What a predecessor wrote, which still holds; None: the key is not there.
    Reattach(Option<&'a str>),
}

impl Said<'_> {
    /// Which directions a front that asks for `asked` may have.
    pub fn lists(self, asked: ActiveLists) -> ActiveLists {
        match self {
            Self::Fresh => asked,
            Self::Reattach(text) => ActiveLists::parse(text, asked),
        }
    }

    /// Whether a front that asks, or does not, may have the path at all: by a key that is 1 or 0.
    pub fn whole(self, asks: bool) -> bool {
        match self {
            Self::Fresh => asks,
            Self::Reattach(text) => text == Some("1"),
        }
    }

    /// Whether a predecessor said it.
    pub fn is_reattach(self) -> bool {
        matches!(self, Self::Reattach(_))
    }
}

/// A front that connects.
pub struct Accepting<'a, P: Platform> {
    /// The platform.
    pub p: &'a P,
    /// The front's domain.
    pub of: DomId,
    /// What the back offered to it.
    pub offered: &'a BackFeatures,
    /// What the front requests.
    pub front: &'a FrontRequest,
    /// How many more pages the back may map, or lend to the front.
    pub left: usize,
    /// Pages that a former connection lent to the front, which still has them mapped.
    pub held: usize,
    /// Refused requests: queue, direction, why.
    pub refused: &'a mut Refusals,
}

/// Refused requests: queue, direction, why.
pub type Refusals = alloc::vec::Vec<(usize, &'static str, Refusal)>;

impl<'a, P: Platform> Accepting<'a, P> {
    /// What the front requests for one queue.
    pub fn queue(&self, queue: usize) -> &'a QueueKeys {
        &self.front.queues[queue]
    }

    /// Notes a refused request.
    pub fn refuse(&mut self, queue: usize, dir: &'static str, why: Refusal) {
        self.refused.push((queue, dir, why));
    }
}

/// What the back accepts of a queue's request.
pub struct Accepted<P: Platform> {
    /// For TX.
    pub tx: Option<AnyPath<P>>,
    /// For RX.
    pub rx: Option<AnyPath<P>>,
    /// Pages that this uses of those that are left.
    pub pages: usize,
    /// What the [key](super::Negotiate::active_key) is to say; None: nothing.
    pub active: Option<&'static str>,
}

impl<P: Platform> Accepted<P> {
    /// Nothing.
    pub const NONE: Self = Self { tx: None, rx: None, pages: 0, active: None };
}

/// What a predecessor accepted, and the front uses, cannot be had again: what it is, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost(pub String);

impl Lost {
    /// Of something with such a name.
    pub fn again(what: fmt::Arguments<'_>, why: &dyn fmt::Display) -> Self {
        Self(format!("the {what}, which a predecessor accepted, cannot be taken again: {why}"))
    }
}
