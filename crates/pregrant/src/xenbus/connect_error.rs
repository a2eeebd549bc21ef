//! Why a device is not connected, with the name of the front's key.
//!
//! What a front may do: cause any of these, again and again. The owner of the device limits the log
//! lines.

use super::key_name::KeyName;
use crate::error::{PeerFault, PlatformError};
use crate::platform::MapError;
use crate::record_version::UnknownRecord;
use crate::units::{DomId, EvtchnPort, GrantRef};
use crate::wire::grant::GrantStatus;
use alloc::string::String;
use core::fmt;

/// An error while a device was being connected. The device is closed; others continue.
#[derive(Debug)]
pub enum ConnectError<E> {
    /// A key is missing or invalid, or xenstore failed. The text has path, key and remedy.
    Keys(E),
    /// A grant of the front could not be mapped.
    Map {
        /// The key that named the grant, below the front's directory.
        key: KeyName,
        /// The guest.
        of: DomId,
        /// The grant reference.
        gref: GrantRef,
        /// The reason.
        error: MapError,
    },
    /// A channel of the front could not be bound.
    Bind {
        /// The key that named the channel, below the front's directory.
        key: KeyName,
        /// The guest.
        of: DomId,
        /// The front's port.
        port: EvtchnPort,
        /// The reason.
        error: PlatformError,
    },
    /// There is no memory for the connection.
    Memory(PlatformError),
    /// The rings cannot be attached.
    Ring(PeerFault),
    /// The rings alone exceed the pages that this back maps of one guest.
    TooManyPages(TooManyPages),
    /// The toolstack names no backing yet: the front waits, and no one did anything wrong.
    NotYet,
    /// The backing of the device is not available: which, and why.
    Unready(String),
    /// The backing of the device is not available now, and the device waits for it: another user
    /// has it, or it is absent while a guest is connected to it. The user or the reason, in words.
    Busy(String),
    /// A feature that a predecessor accepted, and the front uses, is not available any more: which,
    /// and why.
    Lost(String),
    /// A predecessor left a record that this program cannot read. Nothing was served, and the
    /// device must be left for a back that can read it.
    Unknown(UnknownRecord),
}

/// A guest would exceed the pages that this back maps of it (XSA-300).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyPages {
    /// Number of pages that would be mapped.
    pub asked: usize,
    /// Number of pages that are left of the guest's limit for this device.
    pub left: usize,
}

impl fmt::Display for TooManyPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, left } = self;
        write!(
            f,
            "it needs {asked} mapped page(s), and {left} of the guest's limit are free; detach another device of this guest, or give it fewer queues or shorter rings"
        )
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
            Self::Bind { key, of, error, .. } if error.is_of_no_domain() => {
                write!(f, "{key} cannot be bound: {of} has ended")
            }
            Self::Bind { key, of, port, error } if error.is_of_no_end() => write!(
                f,
                "{key} names {port} of {of}, which cannot be bound: that domain has no such event channel for this one, or closed it (its \
                 front may have died); the front must offer it first"
            ),
            Self::Bind { key, of, port, error } => write!(
                f,
                "{key} names {port} of {of}, which cannot be bound: {error}; the front must offer it to this domain \
                 first"
            ),
            Self::Memory(e) => e.fmt(f),
            Self::Ring(fault) => fault.fmt(f),
            Self::TooManyPages(e) => write!(f, "the device's rings cannot be mapped: {e}"),
            Self::Unknown(record) => record.fmt(f),
            Self::NotYet => f.write_str("the toolstack has named no backing for the device yet"),
            Self::Unready(why) | Self::Busy(why) => f.write_str(why),
            Self::Lost(what) => {
                write!(f, "{what}; the front must reconnect")
            }
        }
    }
}

impl<E> From<PlatformError> for ConnectError<E> {
    fn from(e: PlatformError) -> Self {
        Self::Memory(e)
    }
}

impl<E> ConnectError<E> {
    /// Whether the channel may be free soon, because its last owner is dying.
    pub fn is_too_early(&self) -> bool {
        matches!(self, Self::Bind { error, .. } if error.is_of_no_end() && !error.is_of_no_domain())
    }

    /// Whether the guest has ended, so that no one is at fault.
    pub fn is_of_ended_guest(&self) -> bool {
        match self {
            Self::Bind { error, .. } => error.is_of_no_domain(),
            Self::Map { error, .. } => error.status == GrantStatus::BAD_DOMAIN,
            _ => false,
        }
    }

    /// Whether another user has the backing, or the backing is absent while a guest is connected to
    /// it: retry for as long as the device waits for it.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }

    /// Whether the device must be left to another back as it is.
    pub fn is_for_another(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// True if the backing, not the front, prevents the device from connecting.
    pub fn is_of_backing(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Unready(_))
    }
}

impl<E> From<UnknownRecord> for ConnectError<E> {
    fn from(record: UnknownRecord) -> Self {
        Self::Unknown(record)
    }
}

impl<E> From<PeerFault> for ConnectError<E> {
    fn from(fault: PeerFault) -> Self {
        Self::Ring(fault)
    }
}
