//! xenstore, both ends, without I/O: what a driver needs to read and write keys, and the server that keeps them.
//!
//! ```text
//!  Client ── Transport ── bytes ── (socket, /dev/xen/xenbus, ring page) ── bytes ── Server
//!    │                                                                        │
//!    └── codec ── path                          tree, transactions, watches, permissions, quotas
//! ```
//! xenstore is a small tree of keys that all domains of a machine share. A toolstack writes there what devices a
//! domain shall have; the two ends of a device tell each other there which rings they use and how far they are
//! ([`crate::xenbus`]). The messages are those of docs/protocol 8.4, [`crate::wire::xs`] has their header.
//!
//! Both ends take bytes and give bytes: [`client::Client`] over a [`client::Transport`], [`server::Server`] by
//! [`server::Server::feed`] and [`server::Server::take_output`].
//!
//! Neither end trusts the other. Whatever arrives is checked before use and memory stays bounded: see the head of
//! each module for what its peer may do.

pub mod client;
pub mod codec;
pub mod error;
#[cfg(any(test, feature = "local"))]
pub mod local;
pub mod path;
pub mod permission;
pub mod server;

pub use client::{Client, Transaction, Transport, WatchEvent};
pub use error::{Cause, Operation, XsError};
pub use path::PathError;
pub use permission::{Access, Permission};
