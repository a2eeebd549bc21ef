//! `staging`: buffers that the front grants, and the back maps, at connect (docs/protocol 3).
//!
//! ```text
//!   front: list pages with an entry (id, gref, offset) for each buffer --keys--> back: reads, validates, maps
//!   a request with reference 0 means: the bytes are in the buffer of its id
//! ```
//! There may be more buffers than slots. Keys ([`keys`]): `feature-staging-grants` and
//! `staging-grants-sizes` of the back; `{tx,rx}-data-ref%u` and `{tx,rx}-data-len` of the front;
//! `staging-grants-active` of the back says which of the lists were accepted. Costs: a memory copy
//! at each end and no grant operation for a frame that fits a buffer. What a peer may do: change a
//! buffer at any time; what was copied counts.

pub mod back;
pub mod front;
pub mod keys;
pub mod list;
pub mod negotiation;
pub mod wanted;

pub use negotiation::Staging;

/// Settings of staging at a back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heads {
    /// If true, the head of a frame that is longer than a staging buffer goes by the buffer (also
    /// on RX if the front supports it), and only the rest by grants.
    pub heads: bool,
}
