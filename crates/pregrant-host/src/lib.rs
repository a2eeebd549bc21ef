//! Pregrant on a Linux machine: the loopback Xen, xenstored on a unix socket, frame ports.
#![deny(missing_docs)]

pub mod ports;
pub mod xenstored;
