//! The key, in both directories: `feature-persistent-again` = "1".

use crate::net::path::keys::PathKeys;

/// Either end's key.
pub const FEATURE: &str = "feature-persistent-again";

/// All of them.
pub const KEYS: PathKeys = PathKeys { offers: &[FEATURE], active: &[], directions: None, front: &[FEATURE] };
