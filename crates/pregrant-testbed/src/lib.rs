//! What the laboratory's measurements run: domains without Xen, each a process, and this machine
//! without a driver.
//!
//! ```text
//!   testbed --------> process         a machine, and the domains on it: each a process of the calling program
//!     |                  |
//!     v                  v
//!   machine, toolstack   station      broker and xenstored in a directory; a guest's vif with a TCP/IP stack
//!
//!   limit                  what the bare machine can do, with no driver in the way
//!   grant_cost, store_load grants alone; requests to a store
//! ```
//! All loops of which something is measured are here, and none of the options, tables and pages of
//! `pregrant-lab`: so `Cargo.toml` can have this crate optimized, and that one built quickly.
//!
//! A testbed starts its own program again, as `process ...` and `bench limit-target`: a program
//! that has a [`testbed::Testbed`] must have these subcommands.
//!
//! # Example
//! A machine with two domains, and an attachment of one:
//! ```no_run
//! use pregrant::DomId;
//! use pregrant_loopback::Loopback;
//! use pregrant_cli::loopback_machine::store_of;
//! use pregrant_testbed::machine::Machine;
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

pub mod cpu_time;
pub mod grant_cost;
pub mod limit;
pub mod machine;
mod named;
pub mod process;
pub mod station;
pub mod store_load;
pub mod testbed;
pub mod toolstack;
