//! `guest-copy`, RX: the back lends a page of its own for each slot of the ring. The guest copies
//! its frames from there by grant copy, on its own CPU (HP Labs 2007; docs/protocol 4.7).
//!
//! ```text
//!   back: burst --memcpy--> lent page of the slot         front: response --grant copy, a call for all--> private memory
//!                           posted again: the back's
//! ```
//! Keys: `feature-guest-copy`, and a list page of the guest's in which the back names its pages.
//! Costs: no grant operation at the back, one for each slot at the guest. Lent pages end with the
//! connection, or with the back's process: frames that are not copied by then are lost.

pub mod back;
pub mod front;
pub mod keys;
pub mod lent;
pub mod negotiation;

pub use keys::{ACTIVE, FEATURE, LIST_REF};

pub use negotiation::GuestCopy;

/// Offset in the list page of the generation.
pub const GENERATION: usize = 0;
/// Offset in the list page of the number of references.
pub const COUNT: usize = 4;
/// Offset in the list page of the references.
pub const REFS: usize = 8;

/// Largest number of pages that a list page can name.
pub const LENT_MAX: u32 = ((crate::PAGE_SIZE - REFS) / 4) as u32;

/// The flags of a response of this generation.
#[inline(always)]
pub const fn flags_of(generation: u8) -> u16 {
    (generation as u16) << 8
}

/// The generation in a response's flags; 0: the response names no page of the back.
#[inline(always)]
pub const fn generation_of(flags: u16) -> u8 {
    (flags >> 8) as u8
}
