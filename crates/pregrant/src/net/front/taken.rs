//! What a back takes of one queue's that was shared at set-up, as its keys say.

use crate::net::features::ActiveLists;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Staging lists.
    pub lists: ActiveLists,
    /// Data rings.
    pub rings: ActiveLists,
    /// It lends pages.
    pub lends: bool,
}
