//! The key of persistent grants, in both directories: `feature-persistent` = "1".

pub use crate::grants::FEATURE_PERSISTENT as FEATURE;
use crate::net::path::keys::PathKeys;

/// The keys of this path.
pub const KEYS: PathKeys = PathKeys { offers: &[FEATURE], active: &[], directions: None, front: &[FEATURE] };
