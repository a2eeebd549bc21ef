//! Why a vif is not connected, and why a staging list of it is not taken: in words that name the front's key.
//!
//! What a front may do: cause any of these, again and again. The owner of the vif limits what is logged.

use crate::error::{PeerFault, PlatformError};
use crate::net::path::staging::list::ListFault;
use crate::platform::MapError;
use crate::units::{DomId, EvtchnPort, GrantRef};
use crate::xenbus::KeyError;
use alloc::string::String;
use core::fmt;

/// What went wrong while a vif was connected. The vif is closed; others go on.
#[derive(Debug)]
pub enum ConnectError<E> {
    /// Keys: missing, garbled, or the store failed. Says path, key and remedy itself.
    Keys(E),
    /// A grant of the front could not be mapped.
    Map {
        /// Which key named it, below the front's directory.
        key: String,
        /// The guest.
        of: DomId,
        /// The grant.
        gref: GrantRef,
        /// Why.
        error: MapError,
    },
    /// A channel of the front could not be bound.
    Bind {
        /// Which key named it, below the front's directory.
        key: String,
        /// The guest.
        of: DomId,
        /// The front's end.
        port: EvtchnPort,
        /// Why.
        error: PlatformError,
    },
    /// A ring cannot be taken up.
    Ring(PeerFault),
    /// The rings alone pass what this back maps of one guest.
    TooManyPages(TooManyPages),
    /// A staging list that a predecessor accepted, and the front uses, cannot be taken again.
    ListLost {
        /// The queue.
        queue: usize,
        /// `tx` or `rx`.
        dir: &'static str,
        /// Why.
        why: ListRefusal,
    },
}

/// A guest asks to have more mapped than this back allows it (XSA-300).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyPages {
    /// Pages that would be mapped.
    pub asked: usize,
    /// Pages that are left of the guest's share.
    pub left: usize,
}

impl fmt::Display for TooManyPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, left } = self;
        write!(f, "{asked} pages are to be mapped, and {left} are left of what one guest may have mapped")
    }
}

impl<E: fmt::Display> fmt::Display for ConnectError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(e) => e.fmt(f),
            Self::Map { key, of, gref, error } => write!(
                f,
                "{key} names {gref} of {of}, which cannot be mapped: {}; the front must grant it to this domain, \
                 writable, first",
                error.status
            ),
            Self::Bind { key, of, port, error } => write!(
                f,
                "{key} names {port} of {of}, which cannot be bound: {error}; the front must offer it to this domain \
                 first"
            ),
            Self::Ring(fault) => fault.fmt(f),
            Self::TooManyPages(e) => write!(f, "its rings: {e}"),
            Self::ListLost { queue, dir, why } => write!(
                f,
                "the {dir} staging list of queue {queue}, which a predecessor accepted, cannot be taken again: {why}; the front \
                 must connect anew"
            ),
        }
    }
}

impl<E> ConnectError<E> {
    /// Whether the channel may be free in a moment: its last owner is dying.
    pub fn is_too_early(&self) -> bool {
        const EINVAL: i32 = 22;
        matches!(self, Self::Bind { error: PlatformError { code: EINVAL, .. }, .. })
    }
}

impl<E> From<PeerFault> for ConnectError<E> {
    fn from(fault: PeerFault) -> Self {
        Self::Ring(fault)
    }
}

/// Why a staging list was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListRefusal {
    /// Its keys are of no use.
    Key(KeyError),
    /// Its entries are wrong.
    Fault(ListFault),
    /// A page of it, or a buffer, could not be mapped.
    Map(MapError),
    /// Its buffers pass what this back maps of one guest.
    TooManyPages(TooManyPages),
}

impl fmt::Display for ListRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(e) => e.fmt(f),
            Self::Fault(e) => e.fmt(f),
            Self::Map(MapError { index: Some(i), status }) => write!(f, "grant number {i} of it: {status}"),
            Self::Map(MapError { index: None, status }) => write!(f, "a grant of it: {status}"),
            Self::TooManyPages(e) => e.fmt(f),
        }
    }
}
