//! Why a request for foreign frames is refused. The keys are in
//! [`research::keys`](super::super::keys).
//!
//! What a peer may do: write anything. If a value is invalid, ordinary grants are used, and the vif
//! is connected nevertheless.

pub use crate::net::path::research::keys::{
    FEATURE_FOREIGN as FEATURE, FOREIGN_ACTIVE as ACTIVE, REQUEST_FOREIGN as REQUEST,
};

use crate::error::PlatformError;
use crate::net::path::keys::KeyPlace;
use alloc::format;
use alloc::string::String;
use core::fmt;

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
