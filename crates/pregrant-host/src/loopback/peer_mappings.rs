//! The mapped pages of a peer; `map` changes them.

use super::window::{Hidden, Window};

/// The pages of a peer that one handle has mapped, and its maps' threads unmap.
#[derive(Debug)]
pub(super) struct Maps {
    /// Made at the first map: a process that only copies needs none.
    pub(super) window: Option<Window>,
    /// Mappings of each grant, read-only and writable.
    pub(super) mapped: Vec<[u16; 2]>,
    pub(super) hidden: Hidden,
}

impl Maps {
    pub(super) fn new(grants: usize) -> Self {
        Self { window: None, mapped: vec![[0; 2]; grants], hidden: Hidden::default() }
    }
}
