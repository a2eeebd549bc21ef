//! Pregrant on a Linux machine: the loopback Xen, xenstored on a unix socket, frame ports.
#![deny(missing_docs)]

mod clock;
pub mod conformance;
pub mod counters;
pub mod drivers;
pub mod limit;
pub mod linux;
pub mod listener;
pub mod loopback;
mod mapping;
pub mod ports;
pub mod wake;
pub mod xenstored;

pub use clock::MonotonicClock;
