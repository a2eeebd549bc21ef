//! Pregrant on a Linux machine: a real Xen, drivers' loops, frame ports, disks.
//!
//! ```text
//!   drivers        a driver domain's devices of any class: registry, workers, recovery, status
//!     |   '----->  ports (taps, a learning switch, capture), disks (files, devices, memory)
//!   linux          a real Xen: gntdev, gntalloc, evtchn, xenbus
//! ```
//!
//! A backend is [`drivers::Backend`] over a platform ([`linux::Xen`], or `Loopback` of
//! `pregrant-loopback`, which is made of this crate's parts) with its classes, [`drivers::Net`]
//! and [`drivers::Blk`]; a guest's end is [`drivers::Frontend`] or [`drivers::BlkFrontend`]. A
//! handle of a platform is used by one thread at a time.
#![deny(unsafe_code)]

pub mod backing;
mod byte_lock;
mod choice;
mod clock;
pub mod counters;
pub mod disks;
pub mod drivers;
pub mod excerpt;
pub mod line_budget;
#[cfg(feature = "xen")]
pub mod linux;
pub mod listener;
pub mod mapping;
pub mod ports;
pub mod program;
mod unix_transport;
pub mod wake;

pub use clock::MonotonicClock;
pub use unix_transport::UnixTransport;
