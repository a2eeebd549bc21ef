//! `map`: the pages of a request are mapped while the disk uses them.
//!
//! ```text
//!   guest's pages --map--> disk reads or writes them --unmap--> answer
//! ```
//! It has no key: every front and back supports it. Cost: a map and an unmap per request, with the
//! TLB flush of the latter; the pages of a batch of requests are unmapped together. What a guest
//! may do: change its pages while they are written (either version ends up on its disk), or name a
//! page that cannot be mapped (the request fails).

pub mod back;
