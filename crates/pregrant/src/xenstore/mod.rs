//! xenstore, without I/O: what a driver needs to read and write keys.
//!
//! ```text
//!  Client ── Transport ── bytes ── (socket, /dev/xen/xenbus, ring page) ── bytes ── xenstored
//!    │
//!    └── codec ── path, permission
//! ```
//! xenstore is a small tree of keys that all domains of a machine share. A toolstack writes there
//! what devices a domain shall have; the two ends of a device write there which rings they use and
//! their states ([`crate::xenbus`]). The messages are those of docs/protocol 8.4,
//! [`crate::wire::xs`] has their header.
//!
//! [`client::Client`] takes and gives bytes over a [`client::Transport`]. The server is no part of
//! a driver: on Xen it is the machine's, elsewhere the crate `pregrant-xenstored`, which takes
//! messages, paths and permissions from here.
//!
//! Neither end trusts the other. Whatever arrives is checked before use and memory stays bounded:
//! see the head of each module for what its peer may do.

pub mod client;
pub mod codec;
pub mod domain_ring;
pub mod error;
pub mod path;
pub mod permission;

pub use client::{Client, Transaction, Transport, WatchEvent};
pub use domain_ring::{DomainRing, StoreChannel};
pub use error::{Cause, Operation, XsError};
pub use path::PathError;
pub use permission::{Access, Permission};
