//! Pregrant's laboratory: it tries and measures the drivers, and needs no Xen.
//!
//! ```text
//!   demo    bench          what the command runs
//!     |       |  '------> report      records to one HTML page
//!     v       v
//!   testbed --------> process         a machine, and the domains on it: each a process of this program
//!     |                  |
//!     v                  v
//!   machine, toolstack   station      broker and xenstored in a directory; a guest's vif with a TCP/IP stack
//!
//!   limit                  what the bare machine can do, with no driver in the way
//!   record                 one measurement as a line of JSON; what others published
//!   screen, table          what a command prints
//!   signals                what ends a command, whatever its parent left
//! ```
//! It stands on the loopback, and names nothing of a real Xen. The command shares with it what both
//! need: machines (`pregrant loopback`), stations (`pregrant front`), `screen` and `table`. A
//! driver needs none of it.
//!
//! A testbed starts its own program again, as `process ...` and `bench limit-target`: a program
//! that runs [`demo`] or [`mod@bench`] must have these subcommands.
//!
//! # Example
//! A machine with two domains, and an attachment of one:
//! ```no_run
//! use pregrant::DomId;
//! use pregrant_host::loopback::Loopback;
//! use pregrant_lab::machine::{Machine, store_of};
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
pub mod choice;
mod cpu_time;
pub mod demo;
pub(crate) mod limit;
pub(crate) mod load;
pub mod machine;
pub mod process;
pub(crate) mod record;
pub mod report;
pub mod screen;
pub mod signals;
pub(crate) mod stage;
pub mod station;
pub mod table;
mod testbed;
pub mod toolstack;
pub mod usage;
