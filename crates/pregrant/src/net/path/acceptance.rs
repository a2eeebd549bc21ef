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
use super::path_name::PathName;
use super::refusal::Refusal;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::memory;
use crate::net::features::{BackFeatures, FrontRequest, QueueKeys};
use crate::platform::Platform;
use crate::units::DomId;
use alloc::string::String;
use core::fmt;

/// How a back may answer a queue's request for one path: freely, or as its predecessor answered in
/// the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said<'a> {
    /// The back connects to this front for the first time: it writes the key when it accepts the
    /// paths.
    Fresh,
    /// The back succeeds one that died: this value, which the predecessor wrote, still holds. None:
    /// the predecessor wrote no such key.
    Reattach(Option<&'a str>),
}

impl Said<'_> {
    /// Those of the directions (TX, RX) in `asked` that the back may accept: all for a new
    /// connection, and for a predecessor's those that it had accepted.
    pub fn lists(self, asked: ActiveLists) -> ActiveLists {
        match self {
            Self::Fresh => asked,
            Self::Reattach(text) => ActiveLists::parse(text, asked),
        }
    }

    /// For a path whose key is 1 or 0: true if the front asks for it (`asks`), and no predecessor
    /// has refused it.
    pub fn whole(self, asks: bool) -> bool {
        match self {
            Self::Fresh => asks,
            Self::Reattach(text) => text == Some("1"),
        }
    }

    /// True if a predecessor wrote the key.
    pub fn is_reattach(self) -> bool {
        matches!(self, Self::Reattach(_))
    }
}

/// There is no memory for a path that the front asks for.
impl From<PlatformError> for Lost {
    fn from(e: PlatformError) -> Self {
        Self::of(format_args!("{e}"))
    }
}

/// The front that connects, and the limits of the back, while the back decides which paths it
/// accepts.
pub struct Accepting<'a, P: Platform> {
    /// The platform.
    pub p: &'a P,
    /// The front's domain.
    pub of: DomId,
    /// The features that the back offered to the front.
    pub offered: &'a BackFeatures,
    /// The connection that the front requests.
    pub front: &'a FrontRequest,
    /// Number of pages that the back may still map, or may still grant to the front.
    pub left: usize,
    /// Number of pages that the back granted in a former connection and that the front still has
    /// mapped.
    pub held: usize,
    /// Refused requests: queue, direction, why.
    pub refused: &'a mut Refusals,
}

/// Largest number of requests of one queue that can be refused: of each path two, by direction.
pub const REFUSALS: usize = 2 * PathName::COUNT;

/// Refused requests: queue, direction, why.
pub type Refusals = Bounded<(usize, &'static str, Refusal)>;

impl<'a, P: Platform> Accepting<'a, P> {
    /// The request of queue `queue`.
    pub fn queue(&self, queue: usize) -> Option<&'a QueueKeys> {
        self.front.queues.get(queue)
    }

    /// Notes a refused request.
    pub fn refuse(&mut self, queue: usize, dir: &'static str, why: Refusal) {
        self.refused.put((queue, dir, why)); // there is room for REFUSALS of each queue
    }
}

/// The back's answer to a queue's request for one path.
pub struct Accepted<P: Platform> {
    /// The path for TX, if the back accepted it.
    pub tx: Option<AnyPath<P>>,
    /// The path for RX, if the back accepted it.
    pub rx: Option<AnyPath<P>>,
    /// Number of pages that the accepted paths use, to be subtracted from [`Accepting::left`].
    pub pages: usize,
    /// The value of the [key](super::Negotiate::active_key) by which the front learns what was
    /// accepted; None: no key is written.
    pub active: Option<&'static str>,
}

impl<P: Platform> Accepted<P> {
    /// The back accepts nothing.
    pub const NONE: Self = Self { tx: None, rx: None, pages: 0, active: None };
}

/// A path that a predecessor accepted, and that the front uses, cannot be set up again. The text
/// says which path and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost(pub String);

impl Lost {
    /// The error for a path `what` that cannot be set up again, with the reason `why`.
    pub fn again(what: fmt::Arguments<'_>, why: &dyn fmt::Display) -> Self {
        Self::of(format_args!("the {what}, which a predecessor accepted, cannot be taken again: {why}"))
    }

    /// The error with this text.
    pub fn of(text: fmt::Arguments<'_>) -> Self {
        Self(memory::text(text).unwrap_or_default())
    }
}
