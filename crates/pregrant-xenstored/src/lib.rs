//! A xenstored without I/O: the store of a machine that has no Xen, and of tests.
//!
//! ```text
//!   server/   bytes of many clients in, bytes out; the host's `xenstored/` puts it on sockets
//!   local.rs  a server and its clients in one process
//! ```
//! A driver only needs a client (`pregrant::xenstore`); on Xen the machine's own xenstored serves
//! it, so nothing of this crate is part of a driver. It follows docs/protocol 8.4, as the client
//! does, and uses the client's types for messages, paths and permissions. Clients are hostile: what
//! one of them can make the server store is bounded by [`Limits`].
//!
//! # Example
//! ```
//! use pregrant::DomId;
//! use pregrant_xenstored::LocalStore;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = LocalStore::new();
//! store.with_server(|server| server.introduce(DomId(7))).map_err(|e| format!("{e:?}"))?;
//! let (mut dom0, mut guest) = (store.client(DomId(0)), store.client(DomId(7)));
//!
//! guest.watch("data", "token")?;
//! dom0.write("/local/domain/7/data/x", "1")?;
//! // A watch fires once when it is set, and then for each change.
//! assert_eq!(guest.next_event(None)?.unwrap().path, "data");
//! assert_eq!(guest.next_event(None)?.unwrap().path, "data/x");
//! assert_eq!(guest.read("data/x")?, b"1");
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod local;
pub mod server;

pub use local::{LocalLink, LocalStore};
pub use server::{ConnId, DomainError, Limits, Server};
