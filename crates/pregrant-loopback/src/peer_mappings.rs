//! Tracks which pages of a peer are mapped; `map` changes them.

use crate::window::{Hidden, Window};

/// The pages of a peer that one handle has mapped. The threads that drop its maps unmap them.
#[derive(Debug)]
pub(super) struct Maps {
    /// The window, created at the first map, since a process that only copies needs none.
    pub(super) window: Option<Window>,
    /// For each grant, the number of read-only and of writable mappings.
    pub(super) mapped: Vec<[u16; 2]>,
    pub(super) hidden: Hidden,
}

impl Maps {
    pub(super) fn new(grants: usize) -> Self {
        Self { window: None, mapped: vec![[0; 2]; grants], hidden: Hidden::default() }
    }
}
