//! Pregrant on a Linux machine: platforms, drivers' loops, frame ports, disks.
//!
//! ```text
//!   drivers        a driver domain's devices of any class: registry, workers, recovery, status
//!     |   '----->  ports (taps, a learning switch, capture), disks (files, devices, memory)
//!   linux          a real Xen: gntdev, gntalloc, evtchn, xenbus
//!   loopback       Xen in user space, for several processes; xenstored puts its store on sockets
//!   conformance    the suite that both platforms pass
//! ```
//!
//! A backend is [`drivers::Backend`] over a platform ([`linux::Xen`] or [`loopback::Loopback`])
//! with its classes, [`drivers::Net`] and [`drivers::Blk`]; a guest's end is [`drivers::Frontend`]
//! or [`drivers::BlkFrontend`]. A handle of a platform is used by one thread at a time.
//!
//! The loopback is a development platform and no security boundary.
//!
//! # Example
//! Two domains of the loopback in one process: one grants a page, the other maps it.
//! ```no_run
//! use pregrant::DomId;
//! use pregrant::GrantRef;
//! use pregrant::platform::{Access, GrantPool, PeerMem, Platform};
//! use pregrant_host::loopback::{Broker, DomainSpec, Hooks};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Broker::start(None, Hooks::default())?;
//! broker.create_domain(DomainSpec::driver(DomId(0)))?;
//! broker.create_domain(DomainSpec::guest(DomId(5)))?;
//! let (host, guest) = (broker.attach(DomId(0))?, broker.attach(DomId(5))?);
//!
//! let mut gref = [GrantRef::NONE];
//! let page = guest.grants().alloc(DomId(0), Access::ReadOnly, &mut gref)?;
//! let map = host.peer().map(DomId(5), &gref, Access::ReadOnly).map_err(|e| e.status.to_string())?;
//! println!("{} grant operation(s)", host.peer().grant_ops().total());
//!
//! // The host ends its mapping first; only then can the guest end its grant.
//! host.peer().unmap(&mut vec![map]);
//! assert!(guest.grants().release(page).is_ok());
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod backing;
mod byte_lock;
mod choice;
mod clock;
pub mod conformance;
pub mod counters;
pub mod disks;
pub mod drivers;
pub mod excerpt;
pub mod line_budget;
pub mod linux;
pub mod listener;
pub mod loopback;
mod mapping;
pub mod ports;
pub mod program;
pub mod wake;
pub mod xenstored;

pub use clock::MonotonicClock;
