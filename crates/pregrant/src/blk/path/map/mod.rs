//! `map`: the pages of a request are mapped while the disk works with them.
//!
//! ```text
//!   guest's pages --map--> disk reads or writes them --unmap--> answer
//! ```
//! No key: every front and back can. Costs: a map and an unmap for each request, and the flush of
//! TLBs that comes with the latter; those of a batch of requests are unmapped together. What a
//! guest may do: change its pages while they are written (it may find either on its disk), or name
//! one that cannot be mapped (the request fails).

pub mod back;
