//! Two paths that were measured and that real Xen refuses: a build has them with the feature
//! `research` alone. The laboratory (`pregrant-lab`), tests and fuzz targets have it; the program
//! `pregrant` and the kernel module have not.
//!
//! | module | is | refused on Xen, or kept in every build, because |
//! |---|---|---|
//! | `foreign` | a path: the back maps all of a guest | it takes a privileged domain, and no isolation is left |
//! | `guest_copy` | a path: the back lends pages to a guest | Linux's gntalloc takes back pages that are still mapped |
//! | [`keys`] | the names of their keys | a build without them writes over what another one left, and shows it |
//! | `absent` | the back of a build without them | it offers neither, and takes up no rings that use one |
//!
//! Cargo builds a crate with the features of all that is built together, so the product is built
//! alone, as a plain `cargo build` does. [`PathName`](super::PathName) has both names in every
//! build: status, records and tables of other programs have them.

#[cfg(any(test, not(feature = "research")))]
pub mod absent;
#[cfg(feature = "research")]
pub mod foreign;
#[cfg(feature = "research")]
pub mod guest_copy;
pub mod keys;
