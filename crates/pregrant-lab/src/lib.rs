//! Pregrant's laboratory: it tries and measures the drivers, and needs no Xen.
//!
//! ```text
//!   demo    bench          what the program runs           loopback, front, frames, store      by hand
//!     |       |  '------> report      records to one HTML page
//!     v       v
//!   testbed --------> process         a machine, and the domains on it: each a process of this program
//!     |                  |
//!     v                  v
//!   machine, toolstack   station      broker and xenstored in a directory; a guest's vif with a TCP/IP stack
//!
//!   limit                  what the bare machine can do, with no driver in the way
//!   record                 one measurement as a line of JSON; what others published
//! ```
//! It stands on the loopback, and names nothing of a real Xen but by `pregrant-cli`, whose commands
//! it calls: `pregrant-lab front` joins its vif as `pregrant front` does. No driver needs it.
//!
//! A testbed starts its own program again, as `process ...` and `bench limit-target`: a program
//! that runs [`demo`] or [`mod@bench`] must have these subcommands.
//!
//! # Example
//! A machine with two domains, and an attachment of one:
//! ```no_run
//! use pregrant::DomId;
//! use pregrant_loopback::Loopback;
//! use pregrant_cli::loopback_machine::store_of;
//! use pregrant_lab::machine::Machine;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = std::env::temp_dir().join("machine");
//! std::fs::create_dir_all(&dir)?;
//! let mut machine = Machine::start(&dir, |domain| println!("{domain:?} is gone"))?;
//! machine.guest_domain(DomId(5))?;
//! machine.xs().write("/local/domain/5/name", "guest")?;
//!
//! let guest = Loopback::attach(&dir, DomId(5))?;
//! assert_eq!(store_of(&guest)?.read("name")?, b"guest");
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

pub mod bench;
mod columns;
mod cpu_time;
pub mod demo;
pub mod frames;
pub mod front;
pub(crate) mod limit;
pub(crate) mod load;
pub mod loopback;
pub mod machine;
mod named;
pub mod process;
pub(crate) mod record;
pub mod report;
pub(crate) mod stage;
pub mod station;
pub mod store;
mod testbed;
pub mod toolstack;
