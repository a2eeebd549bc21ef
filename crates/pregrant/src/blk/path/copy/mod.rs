//! `copy`: the data of a request goes through a buffer of the back, by batched grant copies.
//!
//! ```text
//!   write: guest's pages --grant copy--> buffer --> disk        read: disk --> buffer --grant copy--> guest's pages
//! ```
//! It has no key: every front and back supports it. Cost: a copy by the hypervisor per segment, and
//! no mapping, so no TLB flush. What a guest may do: change its pages meanwhile (what was copied
//! counts), or end a grant (the request fails).

pub mod back;
