//! Xen split drivers for network and block, both ends, around memory that is granted before the
//! data comes. No operating system inside: `no_std` with `alloc`.
//!
//! ```text
//!   net, blk                       the two ends of a vif and of a vbd; path/: how bytes travel
//!      |
//!   xenbus, ring, grants, port     states and keys, shared rings, pages that stay mapped, frame ports
//!      |
//!   wire, shm, units, platform     layouts, memory of a peer, numbers; what a machine must offer
//! ```
//!
//! - A guest's end: [`net::front::FrontVif`], [`blk::front`]. A driver domain's end:
//!   [`net::back::Vif`], [`blk::back`], inside [`xenbus::Back`], which follows xenbus' states.
//! - Ways of moving bytes, and what each costs: [`net::path`], [`blk::path`].
//! - A machine of your own: implement [`platform::Platform`], and [`xenstore::client::Transport`].
//! - A consumer of frames: [`port::FramePort`].
//!
//! The peer is hostile in both directions. Memory that it can write is reached through [`shm`] and
//! [`ring`] alone; each field is read once, the copy is checked, and what the protocol forbids is a
//! [`PeerFault`] that closes this device and nothing else.
//!
//! # Example
//! A request crosses a ring, on a small Xen within this process (`platform::local`, feature
//! `local`):
//! ```
//! use pregrant::platform::local::LocalXen;
//! use pregrant::platform::{Access, GrantPool, PeerMem};
//! use pregrant::ring::{BackRing, FrontRing, NetTx, RingPages};
//! use pregrant::wire::netif::{TxRequest, TxResponse};
//! use pregrant::{DomId, GrantRef};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let xen = LocalXen::new();
//! let (guest, host) = (xen.domain(5), xen.domain(0));
//!
//! // The guest grants a page for the ring, and the host maps it.
//! let mut gref = [GrantRef::NONE];
//! let page = guest.alloc(DomId(0), Access::ReadWrite, &mut gref)?;
//! let pages = RingPages::<NetTx, _>::new(page);
//! pages.init();
//! let mut front = FrontRing::<NetTx, _>::new(pages);
//! let map = host.map(DomId(5), &gref, Access::ReadWrite).map_err(|e| e.status.to_string())?;
//! let (mut back, _) = BackRing::<NetTx, _>::attach(RingPages::new(map), None)?;
//!
//! // One request, copied out of the ring once, and its answer.
//! front.push(&TxRequest { id: 7, size: 60, ..TxRequest::default() });
//! front.publish();
//! assert_eq!(back.available(1)?, 1);
//! let request = back.read(0);
//! assert_eq!((request.id, request.size), (7, 60));
//! back.consume(1);
//! back.answer(&[TxResponse { id: request.id, status: 0 }]);
//! assert_eq!(front.available(1)?, 1);
//! assert_eq!(front.read(0).id, 7);
//! # Ok(())
//! # }
//! ```
//! The examples of the repository go on from here: `first_ring`, `two_paths`, `router`.
#![no_std]
#![deny(missing_docs)]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, loom, feature = "local", feature = "crash-points"))]
extern crate std;

mod array;
pub mod blk;
pub mod bounded;
pub mod burst_buffer;
pub mod doorbell;
mod enum_table;
pub mod error;
pub mod grants;
pub mod latency;
mod linked;
pub mod memory;
pub mod net;
pub mod platform;
pub mod port;
mod record_checksum;
pub mod record_version;
pub mod ring;
pub mod shm;
mod sort;
pub mod sync;
pub mod units;
pub mod wire;
pub mod xenbus;
pub mod xenstore;

pub use error::{PeerFault, PlatformError};
pub use units::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
