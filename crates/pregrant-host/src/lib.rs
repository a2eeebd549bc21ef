//! Pregrant on a Linux machine: the loopback Xen, xenstored on a unix socket, frame ports.
#![deny(missing_docs)]

mod clock;
pub mod conformance;
pub mod counters;
pub mod disks;
pub mod drivers;
pub mod excerpt;
mod line_budget;
pub mod linux;
pub mod listener;
pub mod loopback;
mod mapping;
pub mod ports;
pub mod program;
#[cfg(test)]
#[path = "../../pregrant/tests/skip/mod.rs"]
mod skip;
pub mod wake;
pub mod xenstored;

pub use clock::MonotonicClock;
