//! The keys of a queue for guest copy, and why a request is refused. The keys' names are in
//! [`research::keys`](super::super::keys).
//!
//! What a peer may do: write anything. If a value is invalid, no pages are granted to that queue,
//! and the vif is connected nevertheless.

pub use crate::net::path::research::keys::{
    FEATURE_GUEST_COPY as FEATURE, GUEST_COPY_ACTIVE as ACTIVE, GUEST_COPY_REF as LIST_REF,
};

use crate::error::PlatformError;
use crate::net::path::keys::KeyPlace;
use crate::platform::MapError;
use crate::xenbus::connect_error::TooManyPages;
use crate::xenbus::ring_keys::queue_prefix;
use crate::xenbus::{KeyError, KeyName};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The back's key that says whether pages are lent to a queue.
pub fn active_key(i: usize, n: usize) -> KeyName {
    queue_prefix(i, n) + ACTIVE
}

/// Why the back grants no pages to a queue that asks for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LendRefusal {
    /// The key of the list page is invalid.
    Key(KeyError),
    /// The list page could not be mapped.
    List(MapError),
    /// One guest would get more pages than this back allows.
    TooManyPages(TooManyPages),
    /// The guest still has this number of pages mapped from a former connection.
    Held(usize),
    /// The platform could not grant pages.
    Grant(PlatformError),
}

impl LendRefusal {
    /// The line for the log.
    pub fn line(&self, at: KeyPlace<'_>) -> String {
        let (key, queue) = (at.key(LIST_REF), at.queue);
        format!("queue {queue} goes on without guest copy (list {key}): {self}")
    }

    /// The reason, as a table of vifs shows it.
    pub fn shown(&self) -> String {
        format!("guest copy: {self}")
    }
}

impl fmt::Display for LendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(e) => e.fmt(f),
            Self::List(e) => write!(f, "the page of this list cannot be mapped: {}", e.status),
            Self::TooManyPages(e) => e.fmt(f),
            Self::Held(pages) => {
                write!(f, "the guest has not yet unmapped all of the {pages} pages of an earlier connection")
            }
            Self::Grant(e) => e.fmt(f),
        }
    }
}
