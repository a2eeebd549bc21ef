//! The keys of foreign frames (docs/protocol 4.6.1).
//!
//! ```text
//!   back's directory:   feature-foreign = "1"
//!   front's directory:  request-foreign = "1"
//!   back's directory:   foreign-active = "1" or "0"
//! ```
//! What a peer may do: write anything. What makes no sense means ordinary grants, never no vif.

use crate::error::PlatformError;
use crate::net::path::keys::{KeyPlace, PathKeys};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// Key of the back: it offers to map a guest's whole memory.
pub const FEATURE: &str = "feature-foreign";

/// Key of the front: it consents.
pub const REQUEST: &str = "request-foreign";

/// Key of the back: it has mapped the guest's memory.
pub const ACTIVE: &str = "foreign-active";

/// The keys of this path.
pub const KEYS: PathKeys =
    PathKeys { offers: &[FEATURE], active: &[ACTIVE], directions: None, front: &[REQUEST] };

/// Why a guest's memory is not mapped as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WholeRefusal(pub PlatformError);

impl WholeRefusal {
    /// The line for the log.
    pub fn line(&self, at: KeyPlace<'_>) -> String {
        format!(
            "{}/{REQUEST} is refused, the guest's memory cannot be mapped whole: {self}; frames go by ordinary grants",
            at.front
        )
    }
}

impl fmt::Display for WholeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
