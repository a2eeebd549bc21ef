//! The block device: blkif's two ends, and what happens to a request between them
//! (docs/protocol 5).
//!
//! ```text
//!   front: Ask -> FrontQueue -> ring            back: ring -> Job (validated) -> path -> Io -> Disk
//!          Answer <- FrontQueue <- ring                ring <------------------- path <- Done <-'
//! ```
//! Arranged as `net` is: [`features`] has the keys, [`back`] and [`front`] the ends, [`path`] the
//! ways of the bytes, and [`disk`] what stands behind a back, as [`port`](crate::port) does for
//! frames.

pub mod back;
pub mod device_number;
pub mod disk;
pub mod features;
pub mod front;
mod front_rings;
pub mod path;
