//! `persistent`: the front uses the same granted pages again and again, and the back maps each when
//! it first sees it (2015 RFC "Persistent grant maps for xen net drivers"; docs/protocol 5.1).
//!
//! ```text
//!   front: an ordinary page for each id (../copy/front.rs), granted once, never revoked while connected
//!   back:  a store by reference for each queue and direction: there --> memory copy
//!                                                             not there --> grant copy now, mapped for the next time
//! ```
//! Keys: `feature-persistent` = "1" in both directories; where either is missing the frames go by
//! `copy` or `map`. The back maps a limited number of pages for each queue and direction (448 by
//! default; 0: the back does not offer the path); frames on pages beyond them go by grant copy.
//! Costs: a map for each page once, then a memory copy at each end and no grant operation.
//!
//! A guest's pages are mapped until the vif is closed or the back ends: TX pages to be read, RX
//! pages to be written. A front that gives a reference to another page meanwhile breaks the
//! agreement: the back still reads and writes the old one, which Xen does not let go of.

pub mod back;
pub mod keys;
pub mod negotiation;

pub use keys::FEATURE;

pub use negotiation::Persistent;

/// Default number of pages that stay mapped for each queue and direction: half of what a vif may
/// have mapped, so that sixteen vifs of one guest can each have as many. (The RFC allows as many as
/// a ring has slots.)
pub const DEFAULT_LIMIT: usize = 448;
