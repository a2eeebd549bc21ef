//! The pages that a vif has granted to its back ([`grants::regions`](crate::grants::regions)), and
//! the rings in them.

pub use crate::grants::regions::{Granted, Granting, Grants, Region, Regions};
use crate::ring::RingPages;

/// The memory of a ring in pages that this domain has granted.
pub type OwnRing<K, P> = RingPages<K, Region<P>>;
