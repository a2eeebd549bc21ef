//! `persistent`: the front uses the same granted pages again and again, the last that came back
//! first, and the back maps each page when it first sees it (docs/protocol 5.2).
//!
//! ```text
//!   front: a page for each part of a request, the one freed last; data copied in and out
//!   back:  a store by reference for each queue: there --> the disk uses it        not there --> mapped, and kept
//!                                               store full --> mapped for this request; then the least recently used are let go
//! ```
//! Keys: `feature-persistent` = "1" in both directories; if either is missing, the data goes by
//! `copy` or `map`. Cost: a memory copy in the front, and no grant operations once the pages are
//! mapped.
//!
//! A guest's pages stay mapped writable until they are purged, the disk is closed or the back ends.
//! A front that meanwhile reuses a reference for another page breaks the protocol: the back keeps
//! using the old page.

pub mod back;

/// The default number of pages per queue: for a ring of one page with 32 requests, three pages for
/// each of their segments, as in Linux.
pub const DEFAULT_LIMIT: usize = 1056;
