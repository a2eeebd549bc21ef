//! Xen split drivers for network and block, both ends, around memory that is granted before the data comes.
//!
//! No operating system inside: wire formats, shared rings, the traits of a platform (grants, mappings, events),
//! xenstore and xenbus without I/O, and the two ends of netif and of blkif with one file per way of moving the bytes.
#![no_std]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, loom, feature = "local", feature = "crash-points"))]
extern crate std;

pub mod blk;
pub mod doorbell;
pub mod error;
pub mod grants;
mod kept_checksum;
pub mod latency;
pub mod net;
pub mod platform;
pub mod port;
pub mod ring;
pub mod room;
pub mod shm;
pub mod sync;
pub mod units;
pub mod wire;
pub mod xenbus;
pub mod xenstore;

pub use error::{PeerFault, PlatformError};
pub use units::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
