//! A crowd: many guests in one process, and their backend in another. For benches that ask what
//! many vifs cost.
//!
//! ```text
//!   pregrant-lab process guest                           pregrant-lab process back
//!     domain 10: vif 0 --ring--.                           worker 0 ---> port of 10.0: checks numbers, or sends back
//!     domain 11: vif 0 --ring--+--- loopback ------------> worker 1 ---> port of 11.0
//!     ...   each filled in turn                            control thread: xenstore, commands
//! ```
//! Each guest is a domain of its own, with its own memory and event channels, and the drivers are
//! those of a guest that has a process to itself. One thread fills all of their rings in turn: no
//! guest waits for a processor that another one has, and what one gets more than another is the
//! backend's doing.
//!
//! [`guests`]: the guests. [`port`]: the back's ports, to which the vifs are connected.

pub(super) mod guests;
pub(super) mod port;
