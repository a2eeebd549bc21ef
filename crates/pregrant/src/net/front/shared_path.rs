//! The memory of one path that a queue shared with its back: in which directions, and which the
//! back accepted.

use crate::net::features::ActiveLists;
use crate::net::path::PathName;

/// The memory that a queue shared for one path, and what the back accepted of it.
pub(super) struct SharedPath {
    pub path: PathName,
    /// The directions for which memory was shared.
    pub shared: ActiveLists,
    /// The directions for which the back accepted the memory.
    pub taken: ActiveLists,
}
