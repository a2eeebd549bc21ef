//! The keys of data rings (docs/protocol 4.5.1).
//!
//! ```text
//!   back's directory:   feature-data-ring = "1", max-data-ring-order = "9"
//!   front's directory:  data-ring-ref, beside its rings' keys
//!   back's directory:   data-ring-active = "1", "tx", "rx" or "0", at the same relative place
//! ```
//! What a peer may do: write anything. What makes no sense means no data ring for that queue, never no vif.

use crate::units::GrantRef;
use crate::xenbus::key_source::{KeySource, decimal, stated};
use alloc::format;
use alloc::string::String;

/// The front's key, where its `tx-ring-ref` is: the grant of the index page.
pub const INDEX_REF: &str = "data-ring-ref";
/// The back's key, at the same relative place: which halves it took.
pub const ACTIVE: &str = "data-ring-active";
/// The back's key: offered.
pub const FEATURE: &str = "feature-data-ring";
/// The back's key: the largest order that it maps.
pub const MAX_ORDER: &str = "max-data-ring-order";

/// A queue's data ring, as its front asks for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RingRequest {
    /// None.
    #[default]
    None,
    /// With this index page.
    Index(GrantRef),
    /// With a key that is of no use: the front has to hear that it does not get it.
    Bad {
        /// Which key, below the front's directory.
        key: String,
        /// What stands there.
        value: String,
    },
}

impl From<Option<GrantRef>> for RingRequest {
    fn from(index: Option<GrantRef>) -> Self {
        index.map_or(Self::None, Self::Index)
    }
}

/// A queue's key, below `at`; `name` is [`INDEX_REF`], or another that names a page of such a kind.
pub(in crate::net) fn ring_request<S: KeySource>(
    keys: &mut S,
    at: &str,
    name: &str,
) -> Result<RingRequest, S::Error> {
    let key = format!("{at}{name}");
    let Some(text) = stated(keys, &key)? else { return Ok(RingRequest::None) };
    Ok(match decimal(&text) {
        Some(gref) => RingRequest::Index(GrantRef(gref)),
        None => RingRequest::Bad { key, value: text },
    })
}
