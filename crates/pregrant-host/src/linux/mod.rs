//! Linux on real Xen: what a process can do through `/dev/xen`, in dom0, in a driver domain or in a
//! guest.
//!
//! ```text
//!   /dev/xen/gntalloc   pages that this domain grants (an allocation is the grant)     a front's, and to itself a PV back's
//!   /dev/xen/gntdev     other domains' pages: map, unmap, copy                         a back's
//!   /dev/xen/evtchn     event channels: bind, send, read what fired, unmask            both
//!   /dev/xen/xenbus     xenstore, as `xenstored::UnixTransport` speaks it              both
//!   /dev/xen/privcmd    how long a domain has run                                      measurements, in dom0
//! ```
//! Every node is opened when it is first needed, so a front never opens gntdev. The ioctls' numbers
//! and layouts are in `ioctl`. The counters count *operations* (copies, pages mapped) and *system
//! calls*. The kernel makes hypercalls of at most 16 operations of them, which it does not report.
//!
//! What a peer may do: nothing to the nodes. It writes to pages that it granted or was granted
//! (`shm` reads them), cannot revoke a grant that is mapped, and may send events at any rate (each
//! port stays masked until it is unmasked).
#![expect(
    unsafe_code,
    reason = "ioctls and mmap of gntdev, gntalloc, evtchn; a hypercall through privcmd; the platform's traits"
)]

mod bounce;
mod burst_buffers;
mod device_node;
mod domain_time;
mod evtchn;
mod gntalloc;
mod gntdev;
pub mod instances;
mod ioctl;
pub mod kernel_back;
pub mod module_back;

pub use device_node::{NODES, NodeError, NodeName};
pub use domain_time::domain_time;
pub use evtchn::{Channel, Evtchn};
pub use gntalloc::{Gntalloc, Region};
pub use gntdev::{Gntdev, PeerMap};
pub use kernel_back::{KernelBack, KernelDriver};
pub use module_back::{ModuleBack, ModuleVif};

use crate::clock::MonotonicClock;
use crate::counters::{Counters, Totals};
use pregrant::platform::Platform;
use pregrant::{DomId, PlatformError};
use std::sync::Arc;

/// A handle of this domain on a real Xen, for one thread. Another thread uses
/// [another](Xen::another) handle.
#[derive(Debug)]
pub struct Xen {
    domid: DomId,
    totals: Totals,
    grants: Gntalloc,
    peer: Gntdev,
    events: Evtchn,
    clock: MonotonicClock,
}

impl Xen {
    /// Opens a handle for this domain, whose number is at the relative xenstore path `domid`. The
    /// number is not checked here, since Xen itself knows the caller.
    ///
    /// # Errors
    ///
    /// `/dev/xen/evtchn`, which both ends need, cannot be opened.
    pub fn open(domid: DomId) -> Result<Self, NodeError> {
        Self::counted(domid, Totals::default())
    }

    fn counted(domid: DomId, totals: Totals) -> Result<Self, NodeError> {
        let tally = totals.tally();
        Ok(Self {
            domid,
            grants: Gntalloc::new(Arc::clone(&tally)),
            peer: Gntdev::new(domid, Arc::clone(&tally)),
            events: Evtchn::open(tally)?,
            clock: MonotonicClock,
            totals,
        })
    }

    /// Opens a handle for another thread, with descriptors of its own. The kernel searches the maps
    /// of a gntdev descriptor under a lock, so threads that share a descriptor would wait for each
    /// other. A map keeps the descriptor that it was made with.
    ///
    /// # Errors
    ///
    /// `/dev/xen/evtchn` cannot be opened again.
    pub fn another(&self) -> Result<Self, NodeError> {
        Self::counted(self.domid, self.totals.clone())
    }

    /// Opens what a back needs, so that a missing module is reported at start and not at the first
    /// guest.
    ///
    /// # Errors
    ///
    /// `/dev/xen/gntdev` cannot be opened.
    pub fn ready_for_back(&self) -> Result<(), NodeError> {
        self.peer.node().map(drop)
    }

    /// Opens the device nodes that a front needs.
    ///
    /// # Errors
    ///
    /// `/dev/xen/gntalloc` cannot be opened.
    pub fn ready_for_front(&self) -> Result<(), NodeError> {
        self.grants.node().map(drop)
    }

    /// Returns the counts of the operations of this handle and of all handles made from it by
    /// [`another`](Self::another), including those that were dropped.
    pub fn counters(&self) -> Counters {
        self.totals.read()
    }

    /// Describes how copies and mappings are done here, for results.
    pub fn describe(&self) -> String {
        "real Xen through /dev/xen; grant copy: gntdev, one ioctl a batch; grant map: gntdev, one ioctl and one mmap a list".into()
    }
}

impl Platform for Xen {
    type Grants = Gntalloc;
    type Peer = Gntdev;
    type Events = Evtchn;
    type Clock = MonotonicClock;

    fn domid(&self) -> DomId {
        self.domid
    }
    fn grants(&self) -> &Gntalloc {
        &self.grants
    }
    fn peer(&self) -> &Gntdev {
        &self.peer
    }
    fn events(&self) -> &Evtchn {
        &self.events
    }
    fn clock(&self) -> &MonotonicClock {
        &self.clock
    }
    fn another(&self) -> Result<Self, PlatformError> {
        Self::another(self).map_err(|e| PlatformError {
            op: "open /dev/xen/evtchn for another thread",
            code: e.errno.raw_os_error(),
        })
    }
}

/// Checks that a queue can move between workers' threads, and a handle to the thread that uses it.
const fn goes_to_another_thread<T: Send>() {}
const _: () = goes_to_another_thread::<Xen>();
const _: () = goes_to_another_thread::<pregrant::net::back::BackQueue<Xen>>();
