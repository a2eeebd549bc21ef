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
//! A **domain** is an object of the broker, with its memory (a sealed memfd, the real v1 grant table in its first
//! pages), its event channels and its **ledger** (what the hypervisor knows: who uses which grant, pending events). A
//! process, or a thread, **attaches** to a domain with [`Loopback::attach`] and is then a [`Platform`]. When it dies,
//! however it dies, the broker undoes what it held.
//!
//! Data never passes through the broker. Operations cost what the same service costs from the Linux kernel: a copy is
//! `process_vm_readv`, a mapping is page-table work; every one is counted ([`Counters`]). Rules are stricter than Xen's:
//! what is wrong fails, and touching a page after its unmap is a signal.
//!
//! This is no security boundary: who can reach the broker's socket may read every domain.

mod broker;
mod control;
mod copy;
mod error;
mod events;
mod grants;
mod ledger;
mod map;
mod peer;
mod persist;
mod pins;
mod process;
mod protocol;
mod uffd;
mod window;

pub use broker::{Audit, Broker, DomainHook, DomainSpec, Hooks, StoreHook};
pub use control::Control;
pub use error::LoopbackError;
pub use events::{Channel, LoopbackEvents};
pub use grants::{LoopbackGrants, Region};
pub use map::{LoopbackPeer, PeerMap};
pub use persist::{Owned, Persistent};
pub use process::ProcessCounts;

use crate::clock::MonotonicClock;
use crate::counters::{Counters, Tally};
use crate::mapping::Mapping;
use error::Step;
use ledger::{Layout, Ledger, PORTS, SLOTS};
use peer::Peer;
use pins::User;
use pregrant::platform::Platform;
use pregrant::{DomId, PAGE_SIZE, PlatformError};
use protocol::{Op, Reply, Request, VERSION};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use window::{Hidden, Paging};

/// A process or thread attached to a domain. For one thread; another one attaches for itself.
#[derive(Debug)]
pub struct Loopback {
    core: Rc<Core>,
    grants: LoopbackGrants,
    peer: LoopbackPeer,
    events: LoopbackEvents,
    clock: MonotonicClock,
}

/// The attachment itself; everything that it hands out keeps it alive.
#[derive(Debug)]
struct Core {
    broker: OwnedFd,
    at: String,
    user: User,
    /// The domain's whole memory.
    memory: Mapping,
    ledger: Ledger,
    /// Rings when somebody sends us an event while we sleep.
    upcall: OwnedFd,
    store: RefCell<Option<OwnedFd>>,
    tally: Tally,
    open_ports: RefCell<[u64; PORTS / 64]>,
    peers: RefCell<Vec<Rc<Peer>>>,
    last_peer: Cell<usize>,
    paging: Rc<Paging>,
    hidden: RefCell<Hidden>,
    scratch: RefCell<copy::Scratch>,
    copy_access: Cell<copy::Access>,
}

impl Core {
    fn call(&self, request: &Request) -> Result<Reply, Errno> {
        control::call(&self.broker, request)
    }

    fn own_upcall(&self) -> ledger::Upcall<'_> {
        self.ledger.upcall(self.user.slot)
    }
}

impl Loopback {
    /// Attaches to a domain of the broker that listens at `path`.
    ///
    /// # Errors
    /// No broker there, no such domain, twenty attachments already, or another version.
    pub fn attach(path: &Path, domid: DomId) -> Result<Self, LoopbackError> {
        Self::over(control::connect(path)?, path.display().to_string(), domid)
    }

    /// As [`attach`](Self::attach), over a connection from [`Broker::connect`].
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_fd(connection: OwnedFd, domid: DomId) -> Result<Self, LoopbackError> {
        Self::over(connection, "a passed connection".into(), domid)
    }

    fn over(broker: OwnedFd, at: String, domid: DomId) -> Result<Self, LoopbackError> {
        // Yama's scope 1 would keep peers from copying; without Yama this fails, and need not work.
        let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
        let pid = rustix::process::getpid().as_raw_pid() as u64;
        let asked = control::call(&broker, &Request::new(Op::Attach, VERSION, u32::from(domid.0), pid));
        let reply = asked.map_err(|source| match source {
            Errno::NOENT => LoopbackError::UnknownDomain { domid, at: at.clone() },
            Errno::USERS => LoopbackError::TooMany { domid, at: at.clone() },
            Errno::PROTONOSUPPORT => LoopbackError::Version { at: at.clone() },
            Errno::PIPE => LoopbackError::Gone { at: at.clone() },
            source => LoopbackError::Refused { what: format!("attach to {domid}"), at: at.clone(), source },
        })?;
        let [pages, grants, slot, ..] = reply.words;
        let mut fds = reply.fds.into_iter();
        let (Some(memory), Some(ledger), Some(upcall)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(LoopbackError::Version { at });
        };
        let layout = Layout { pages: pages as usize, grants: grants as usize };
        let slot = usize::try_from(slot).ok().filter(|s| *s < SLOTS);
        let slot = slot.ok_or_else(|| LoopbackError::Version { at: at.clone() })?;
        let memory = Mapping::new(memory, layout.pages * PAGE_SIZE).step("map the domain's memory")?;
        memory.keep_resident();
        let ledger = Ledger::open(ledger, layout).step("map the domain's ledger")?;
        control::call(&broker, &Request::new(Op::Mapped, 0, 0, memory.address()))
            .step("tell the broker where the memory is")?;
        let core = Rc::new(Core {
            broker,
            at,
            user: User { domid, slot },
            memory,
            ledger,
            upcall,
            store: RefCell::new(fds.next()),
            tally: Tally::default(),
            open_ports: RefCell::new([0; PORTS / 64]),
            peers: RefCell::new(Vec::new()),
            last_peer: Cell::new(0),
            paging: Rc::new(Paging::probe()),
            hidden: RefCell::default(),
            scratch: RefCell::default(),
            copy_access: Cell::default(),
        });
        Ok(Self {
            grants: LoopbackGrants::new(Rc::clone(&core)),
            peer: LoopbackPeer(Rc::clone(&core)),
            events: LoopbackEvents::new(Rc::clone(&core)),
            clock: MonotonicClock,
            core,
        })
    }

    /// What was asked of the platform so far.
    pub fn counters(&self) -> Counters {
        self.core.tally.snapshot()
    }

    /// This attachment's xenstore connection, bound to its domain; None when the broker has no xenstore, or when it was
    /// taken already.
    pub fn take_store_fd(&self) -> Option<OwnedFd> {
        self.core.store.take()
    }

    /// How copies and mappings are done here, for results: a figure without it means nothing.
    pub fn describe(&self) -> String {
        format!(
            "loopback; grant copy: {}; grant map: {}",
            copy::describe(&self.core.copy_access),
            self.core.paging.describe()
        )
    }
}

impl Platform for Loopback {
    type Grants = LoopbackGrants;
    type Peer = LoopbackPeer;
    type Events = LoopbackEvents;
    type Clock = MonotonicClock;

    fn domid(&self) -> DomId {
        self.core.user.domid
    }
    fn grants(&self) -> &LoopbackGrants {
        &self.grants
    }
    fn peer(&self) -> &LoopbackPeer {
        &self.peer
    }
    fn events(&self) -> &LoopbackEvents {
        &self.events
    }
    fn clock(&self) -> &MonotonicClock {
        &self.clock
    }
}

/// A system call failed on behalf of `op`.
fn errno(op: &'static str, e: Errno) -> PlatformError {
    PlatformError { op, code: e.raw_os_error() }
}
