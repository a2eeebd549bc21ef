//! The ways of a request's bytes between the guest's pages and the disk, one folder each.
//!
//! | path | writes | reads | grant operations of a request |
//! |---|---|---|---|
//! | [`copy`] | grant copy to a buffer, disk | disk, grant copy from the buffer | a copy for each part; one call for many requests |
//! | [`map`] | mapped pages, disk | the same | a map and an unmap, of all its pages |
//! | [`persistent`] | pages that stay mapped, disk | the same | none, once its pages were seen |
//!
//! Where a request's pages would exceed what may be mapped of its guest, `map` and `persistent`
//! copy the request's data (`request_pages`).
//!
//! A queue has one path ([`any_path`]): `persistent` if both ends have its key, else the path that
//! the operator chose.

pub mod any_path;
pub mod back;
pub mod copy;
pub mod map;
pub mod path_name;
pub mod persistent;
mod request_pages;

pub use any_path::AnyPath;
pub use back::{BackPath, Direction, Held, PageTransfer, Part};
pub use path_name::PathName;
