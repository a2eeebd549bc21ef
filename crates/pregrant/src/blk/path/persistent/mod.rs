//! `persistent`: the front uses the same granted pages again and again, the last that came back
//! first, and the back maps each when it first sees it (docs/protocol 5.2).
//!
//! ```text
//!   front: a page for each part of a request, the one freed last; data copied in and out
//!   back:  a store by reference for each queue: there --> the disk uses it        not there --> mapped, and kept
//!                                               store full --> mapped for this request; then the least recently used are let go
//! ```
//! Keys: `feature-persistent` = "1" in both directories; where either is missing the bytes go by
//! `copy` or `map`. Costs: a memory copy at the front, and no grant operation once the pages were
//! seen.
//!
//! A guest's pages are mapped, to be written too, until they are purged, the disk is closed or the
//! back ends. A front that gives a reference to another page meanwhile breaks the agreement: the
//! back still reads and writes the old one.

pub mod back;

/// Pages of each queue, unless the operator says otherwise: a ring of one page, each request with
/// three pages to each slot, as Linux has it.
pub const DEFAULT_LIMIT: usize = 1056;
