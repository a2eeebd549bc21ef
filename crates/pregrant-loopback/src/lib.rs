//! Loopback: Xen in user space, for development and for anyone curious.
//!
//! ```text
//!     front's process              broker's thread                 back's process
//!   +-----------------+      +------------------------+      +----------------------+
//!   | grants  (table) |      | domains: memory,ledger |      | pins   (Xen's part)  |
//!   | events          |<---->| broker/ channels       |<---->| copy, map -> window  |
//!   +-----------------+ set- +------------------------+ up   | events               |
//!        |  memfd of the domain: grant table, pages  |       +----------------------+
//!        '----------------- shared ------------------'------------------'
//! ```
//!
//! A **domain** is an object of the broker, with its memory (a sealed memfd, a real grant table, v1
//! or v2, in its first pages), its event channels and its **ledger** (what the hypervisor knows:
//! who uses which grant, pending events). A process, or a thread, **attaches** to a domain with
//! [`Loopback::attach`] and is then a [`Platform`](pregrant::platform::Platform). When it dies,
//! however it dies, the broker undoes what it held.
//!
//! Data never passes through the broker. Operations cost what the same service costs from the Linux
//! kernel: a copy is `process_vm_readv`, a mapping is page-table work; every one is counted
//! ([`Counters`](pregrant_host::counters::Counters)). Rules are stricter than Xen's: what is wrong
//! fails, and touching a page after its unmap is a signal.
//!
//! This is no security boundary: who can reach the broker's socket may read every domain.
//!
//! | module | has |
//! |---|---|
//! | `loopback`, `attachment`, `control` | the client's end: what a process needs to attach |
//! | `grants`, `reach`, `map`, `copy`, `events`, `window` | the platform's four parts |
//! | `broker`, `xenstored` (feature `broker`) | the machine: its domains, its store on sockets |
//! | `conformance` | the suite that this platform and a real Xen pass |
//! | `recovery` | what a backend keeps with the broker for its successor |
//! | `instances` | the drivers' code, compiled here for this platform |
//!
//! # Example
//! Two domains of the loopback in one process: one grants a page, the other maps it.
//! ```no_run
//! use pregrant::DomId;
//! use pregrant::GrantRef;
//! use pregrant::platform::{Access, GrantPool, PeerMem, Platform};
//! use pregrant_loopback::{Broker, DomainSpec, Hooks};
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
#![cfg_attr(
    not(feature = "broker"),
    expect(
        dead_code,
        reason = "the broker's part of the ledger and of the grant table stands beside a process' part"
    )
)]

mod attachment;
mod audit;
#[cfg(feature = "broker")]
mod broker;
pub mod conformance;
mod control;
mod copy;
mod domain_spec;
mod error;
mod events;
mod grant_summary;
mod grant_table_version;
mod grants;
pub mod instances;
mod ledger;
mod loopback;
mod map;
mod peer;
mod peer_mappings;
mod persist;
mod pins;
mod process;
mod protocol;
mod reach;
mod recovery;
mod span;
mod table;
mod uffd;
mod window;
#[cfg(feature = "broker")]
pub mod xenstored;

pub use audit::Audit;
#[cfg(feature = "broker")]
pub use broker::{Broker, DomainHook, Hooks, StoreHook};
pub use control::{BROKER_SOCKET, Control};
pub use domain_spec::DomainSpec;
pub use error::LoopbackError;
pub use events::Channel;
pub use grant_summary::GrantSummary;
pub use grant_table_version::GrantTableVersion;
pub use grants::{LoopbackGrants, Region};
pub use loopback::Loopback;
pub use map::PeerMap;
pub use persist::{Owned, Persistent};
pub use process::ProcessCounts;
pub use reach::Reach;
pub use recovery::BrokerRecovery;
