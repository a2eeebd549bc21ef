//! The memory of one path that a queue shared with its back: in which directions, and which the
//! back accepted.

use crate::net::features::ActiveLists;
use crate::net::path::PathName;

/// See the module.
pub(super) struct SharedPath {
    pub path: PathName,
    /// In these directions.
    pub shared: ActiveLists,
    /// The directions in which the back accepted it.
    pub taken: ActiveLists,
}
