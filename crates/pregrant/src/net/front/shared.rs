//! What a queue shared with its back for a path.

use crate::net::features::ActiveLists;
use crate::net::path::PathName;

/// See the module.
pub(super) struct Shared {
    pub path: PathName,
    /// In these directions.
    pub shared: ActiveLists,
    /// Of these, the back has taken it in those.
    pub taken: ActiveLists,
}
