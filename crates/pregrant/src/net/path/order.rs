//! The order in which a queue's paths are asked.

use super::path_name::PathName;
use super::path_name::PathName::{Copy, DataRing, Foreign, GrefMapping, GuestCopy, Map, Persistent, Staging};

/// TX: first those that know their requests by a flag, since what these requests name is no grant.
pub const TX_ORDER: &[PathName; PathName::COUNT] =
    &[DataRing, Foreign, Staging, GuestCopy, GrefMapping, Persistent, Map, Copy];

/// RX: memory that both ends have, first.
pub const RX_ORDER: &[PathName; PathName::COUNT] =
    &[Staging, DataRing, Foreign, GuestCopy, GrefMapping, Persistent, Map, Copy];
