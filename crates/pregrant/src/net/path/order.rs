//! The order in which a queue's paths are asked.

use super::path_name::PathName;
use super::path_name::PathName::{Copy, DataRing, Foreign, GrefMapping, GuestCopy, Map, Persistent, Staging};

/// TX: paths that recognize their requests by a flag come first, because these requests name no
/// grant.
pub const TX_ORDER: &[PathName; PathName::COUNT] =
    &[DataRing, Foreign, Staging, GuestCopy, GrefMapping, Persistent, Map, Copy];

/// RX: paths with memory that both ends have mapped come first.
pub const RX_ORDER: &[PathName; PathName::COUNT] =
    &[Staging, DataRing, Foreign, GuestCopy, GrefMapping, Persistent, Map, Copy];
