//! `copy`: the bytes of a request go through a buffer of the back's, by one batch of grant copies.
//!
//! ```text
//!   write: guest's pages --grant copy--> buffer --> disk        read: disk --> buffer --grant copy--> guest's pages
//! ```
//! No key: every front and back can. Costs: a copy by the hypervisor for each part, and no mapping,
//! so no flush of a TLB. What a guest may do: change its pages meanwhile (what was copied counts),
//! or end a grant (the request fails).

pub mod back;
