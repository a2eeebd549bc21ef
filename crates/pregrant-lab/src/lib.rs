//! Pregrant's laboratory: it tries and measures the drivers, and needs no Xen.
//!
//! ```text
//!   demo    bench          what the program runs           loopback, front, frames, store      by hand
//!     |       |  '------> report      records to one HTML page
//!     v       v
//!   pregrant-testbed       a machine and the domains on it; what the bare machine can do
//!
//!   record                 one measurement as a line of JSON; what others published
//! ```
//! It is based on the loopback, and names nothing of a real Xen except by `pregrant-cli`, whose
//! commands it calls: `pregrant-lab front` joins its vif as `pregrant front` does. No driver needs
//! it.
#![deny(unsafe_code)]

pub mod bench;
mod columns;
pub mod demo;
pub mod frames;
pub mod front;
pub(crate) mod load;
pub mod loopback;
pub(crate) mod record;
pub mod report;
pub(crate) mod stage;
pub mod store;
