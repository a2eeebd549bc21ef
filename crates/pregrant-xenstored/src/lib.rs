//! A xenstored, without I/O: the store of a machine that has no Xen, and of tests.
//!
//! ```text
//!   server/   bytes of many clients in, bytes out; the host's `xenstored/` puts it on sockets
//!   local.rs  a server and its clients in one process
//! ```
//! A driver needs a client only (`pregrant::xenstore`); on Xen the machine's own xenstored serves it. So nothing of this
//! is part of a driver. It follows docs/protocol 8.4, as the client does, and takes messages, paths and permissions
//! from there.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod local;
pub mod server;

pub use local::{LocalLink, LocalStore};
pub use server::{ConnId, DomainError, Limits, Server};
