//! Pregrant on a Linux machine: the loopback Xen, xenstored on a unix socket, frame ports.
#![deny(missing_docs)]

pub mod conformance;
pub mod drivers;
pub mod limit;
pub mod loopback;
pub mod ports;
pub mod xenstored;
