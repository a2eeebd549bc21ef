//! The keys of data rings (docs/protocol 4.5.1).
//!
//! ```text
//!   back's directory:   feature-data-ring = "1", max-data-ring-order = "9"
//!   front's directory:  data-ring-ref, beside its rings' keys
//!   back's directory:   data-ring-active = "1", "tx", "rx" or "0", at the same relative place
//! ```
//! What a peer may do: write anything. If a value is invalid, that queue gets no data ring, and the
//! vif is connected nevertheless.

use super::index::IndexFault;
use crate::net::path::keys::{KeyPlace, PathKeys};
use crate::platform::MapError;
use crate::wire::data_ring::{ORDER_MAX, ORDER_MIN};
use crate::xenbus::connect_error::TooManyPages;
use crate::xenbus::key_source::{KeySink, KeySource, decimal, flag, put};
use crate::xenbus::ring_keys::queue_prefix;
use crate::xenbus::{KeyError, KeyName};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The front's key, where its `tx-ring-ref` is: the grant of the index page.
pub const INDEX_REF: &str = "data-ring-ref";
/// Key of the back, below its queue's directory: the directions in which frames use the data ring,
/// "tx", "rx", "1" for both or "0" for none.
pub const ACTIVE: &str = "data-ring-active";
/// Key of the back, which says that it offers data rings.
pub const FEATURE: &str = "feature-data-ring";
/// Key of the back: the largest order that it maps.
pub const MAX_ORDER: &str = "max-data-ring-order";

/// The keys of this path.
pub const KEYS: PathKeys = PathKeys {
    offers: &[FEATURE, MAX_ORDER],
    active: &[ACTIVE],
    directions: Some(ACTIVE),
    front: &[INDEX_REF],
};

/// Writes what a back offers: rings of up to this order. With order 0 it offers none.
pub(super) fn put_offer(p: &mut dyn KeySink, max_order: u32) {
    if max_order >= ORDER_MIN {
        put(p, FEATURE, 1);
        put(p, MAX_ORDER, max_order);
    }
}

/// Reads the largest order that a back offers.
#[inline(never)] // a kernel's stack has no room for those of all paths at once
pub(super) fn read_offer<S: KeySource>(keys: &mut S) -> Result<u32, S::Error> {
    if !flag(keys, FEATURE)? {
        return Ok(0);
    }
    let said = keys.text(MAX_ORDER)?.as_deref().and_then(decimal);
    Ok(said.unwrap_or(0).min(ORDER_MAX))
}

/// Path of the back's key that says which halves of a queue's data ring it accepted.
pub fn active_key(i: usize, n: usize) -> KeyName {
    queue_prefix(i, n) + ACTIVE
}

/// Why the back refused a half of a data ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HalfRefusal {
    /// The key of the index page is of no use.
    Key(KeyError),
    /// The index page could not be mapped.
    Index(MapError),
    /// The index page is wrong.
    Fault(IndexFault),
    /// A page of the data ring's half could not be mapped.
    Map(MapError),
    /// This half of the data ring has more pages than the back maps for one guest.
    TooManyPages(TooManyPages),
}

impl HalfRefusal {
    /// The line for the log.
    pub fn line(&self, at: KeyPlace<'_>) -> String {
        let (key, queue, dir) = (at.key(INDEX_REF), at.queue, at.dir);
        format!(
            "the {dir} half of the data ring {key} is not used, queue {queue} goes on without it: {self}; \
             correct the front's index page and connect it again"
        )
    }

    /// The reason, as a table of vifs shows it.
    pub fn shown(&self) -> String {
        format!("data ring: {self}")
    }
}

impl fmt::Display for HalfRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(e) => e.fmt(f),
            Self::Index(e) => write!(f, "the index page cannot be mapped: {}", e.status),
            Self::Fault(e) => e.fmt(f),
            Self::Map(MapError { index: Some(i), status }) => {
                write!(f, "page {i} of this half cannot be mapped: {status}")
            }
            Self::Map(MapError { index: None, status }) => {
                write!(f, "a page of this half cannot be mapped: {status}")
            }
            Self::TooManyPages(e) => e.fmt(f),
        }
    }
}
