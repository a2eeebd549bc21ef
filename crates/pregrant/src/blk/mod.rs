//! The block device: blkif's two ends, and the data paths of requests between them
//! (docs/protocol 5).
//!
//! ```text
//!   front: Ask -> FrontQueue -> ring            back: ring -> Job (validated) -> path -> Io -> Disk
//!          Answer <- FrontQueue <- ring                ring <------------------- path <- Done <-'
//! ```
//! It is organised like `net`: [`features`] has the keys, [`back`] and [`front`] the ends, [`path`]
//! the data paths, and [`disk`] the interface to the storage of a back, as [`port`](crate::port) is
//! for frames.

pub mod back;
pub mod device_number;
pub mod disk;
pub mod features;
pub mod front;
mod front_rings;
pub mod path;
