//! Attaches a process to a domain, as a [`Loopback`].

use crate::attachment::Core;
use crate::control;
use crate::error::{LoopbackError, Step, errno};
use crate::grant_table_version::GrantTableVersion;
use crate::grants::LoopbackGrants;
use crate::ledger::{Layout, Ledger, PORTS, SLOTS};
use crate::pins::User;
use crate::protocol::{NO_DESCRIPTOR, Op, Request, VERSION};
use crate::reach::Reach;
use crate::window::Paging;
use pregrant::platform::Platform;
use pregrant::{DomId, PAGE_SIZE, PlatformError};
use pregrant_host::MonotonicClock;
use pregrant_host::backing::Backing;
use pregrant_host::counters::{Counters, Totals};
use pregrant_host::line_budget::LineBudget;
use pregrant_host::mapping::Mapping;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// A process or thread attached to a domain. Only one thread may use it; another thread attaches
/// for itself, or uses [another](Loopback::another) handle of this one.
#[derive(Debug)]
pub struct Loopback {
    pub(crate) core: Arc<Core>,
    grants: LoopbackGrants,
    reach: Reach,
    clock: MonotonicClock,
    totals: Totals,
}

impl Loopback {
    /// Attaches to a domain of the machine in the directory `path` (the `DIR` of `pregrant-lab
    /// loopback serve --dir DIR`), or of the broker that listens at the socket `path`.
    ///
    /// # Errors
    /// No broker there, no such domain, 20 attachments already, or another version.
    pub fn attach(path: &Path, domid: DomId) -> Result<Self, LoopbackError> {
        let at = control::socket_of(path).display().to_string();
        Self::over(control::connect(path)?, at, domid, Paging::probe().into(), Totals::default())
    }

    /// Like [`attach`](Self::attach), over a connection from `Broker::connect`.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_fd(connection: OwnedFd, domid: DomId) -> Result<Self, LoopbackError> {
        let at = "a passed connection".into();
        Self::over(connection, at, domid, Paging::probe().into(), Totals::default())
    }

    /// Attaches another thread of this process to the same domain. It counts among the 20
    /// attachments of the domain, and shares only the method of mapping pages with this one.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub fn another(&self) -> Result<Self, LoopbackError> {
        let Core { at, user: User { domid, .. }, paging, .. } = &*self.core;
        let asked = self.core.call(&Request::new(Op::Another, 0, 0, 0));
        let reply = asked.map_err(|source| match source {
            Errno::PIPE => LoopbackError::Gone { at: at.clone() },
            NO_DESCRIPTOR => LoopbackError::NoDescriptor { at: at.clone() },
            source => {
                LoopbackError::Refused { what: "make one more connection".into(), at: at.clone(), source }
            }
        })?;
        let connection = reply.fds.into_iter().next();
        let connection = connection.ok_or_else(|| LoopbackError::Version { at: at.clone() })?;
        Self::over(connection, at.clone(), *domid, Arc::clone(paging), self.totals.clone())
    }

    fn over(
        broker: OwnedFd,
        at: String,
        domid: DomId,
        paging: Arc<Paging>,
        totals: Totals,
    ) -> Result<Self, LoopbackError> {
        // Yama's scope 1 would keep peers from copying; without Yama this fails, and need not work.
        let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
        let pid = rustix::process::getpid().as_raw_pid() as u64;
        let asked = control::call(&broker, &Request::new(Op::Attach, VERSION, u32::from(domid.0), pid));
        let reply = asked.map_err(|source| match source {
            Errno::NOENT => LoopbackError::UnknownDomain { domid, at: at.clone() },
            Errno::USERS => LoopbackError::TooMany { domid, at: at.clone() },
            Errno::PROTONOSUPPORT => LoopbackError::Version { at: at.clone() },
            Errno::PIPE => LoopbackError::Gone { at: at.clone() },
            NO_DESCRIPTOR => LoopbackError::NoDescriptor { at: at.clone() },
            source => LoopbackError::Refused { what: format!("attach to {domid}"), at: at.clone(), source },
        })?;
        let [slot, pages, grants, version, ..] = reply.words;
        let mut fds = reply.fds.into_iter();
        let (Some(memory), Some(ledger), Some(upcall)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(LoopbackError::Version { at });
        };
        let layout = Layout::from_words([pages, grants, version]);
        let layout = layout.ok_or_else(|| LoopbackError::Version { at: at.clone() })?;
        let slot = usize::try_from(slot).ok().filter(|s| *s < SLOTS);
        let slot = slot.ok_or_else(|| LoopbackError::Version { at: at.clone() })?;
        let memory = Backing::received(memory)
            .and_then(|memory| Mapping::new(&memory, layout.pages * PAGE_SIZE))
            .step("map the domain's memory")?;
        memory.keep_resident();
        let ledger = Backing::received(ledger)
            .and_then(|ledger| Ledger::open(&ledger, layout))
            .step("map the domain's ledger")?;
        control::call(&broker, &Request::new(Op::Mapped, 0, 0, memory.address()))
            .step("tell the broker where the memory is")?;
        let core = Arc::new(Core {
            broker: Mutex::new(broker),
            at,
            user: User { domid, slot },
            memory,
            ledger,
            upcall,
            store: Mutex::new(fds.next()),
            tally: totals.tally(),
            open_ports: [const { AtomicU64::new(0) }; PORTS / 64],
            paging,
        });
        Ok(Self {
            grants: LoopbackGrants::new(Arc::clone(&core)),
            reach: Reach::new(Arc::clone(&core)),
            clock: MonotonicClock,
            core,
            totals,
        })
    }

    /// Returns counts of the operations of this handle and of all handles made from it by
    /// [`another`](Self::another), including those that were dropped.
    pub fn counters(&self) -> Counters {
        self.totals.read()
    }

    /// Returns the counters, for other threads to read.
    pub fn totals(&self) -> Totals {
        self.totals.clone()
    }

    /// Returns this attachment's xenstore connection, which is bound to its domain. None: the
    /// broker has no xenstore, or it was taken before.
    pub fn take_store_fd(&self) -> Option<OwnedFd> {
        self.core.store.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Describes how copies and mappings are done on this machine. Results state it, since they
    /// depend on it.
    pub fn describe(&self) -> String {
        let table = match self.grant_table() {
            GrantTableVersion::V1 => "",
            GrantTableVersion::V2 => "; grant table: v2",
        };
        format!(
            "loopback; grant copy: {}; grant map: {}{table}",
            self.reach.copier.describe(),
            self.core.paging.describe()
        )
    }

    /// Returns the version of the domains' grant tables.
    pub fn grant_table(&self) -> GrantTableVersion {
        self.core.ledger.layout().version
    }
}

impl Platform for Loopback {
    type Grants = LoopbackGrants;
    type Peer = Reach;
    type Events = Reach;
    type Clock = MonotonicClock;

    fn domid(&self) -> DomId {
        self.core.user.domid
    }
    fn grants(&self) -> &LoopbackGrants {
        &self.grants
    }
    fn peer(&self) -> &Reach {
        &self.reach
    }
    fn events(&self) -> &Reach {
        &self.reach
    }
    fn clock(&self) -> &MonotonicClock {
        &self.clock
    }
    fn another(&self) -> Result<Self, PlatformError> {
        Self::another(self).map_err(|e| {
            // With a thread per vif, a guest that connects again and again repeats it.
            static LINES: LineBudget = LineBudget::new();
            let text =
                format_args!("loopback: cannot attach one more thread to {}: {e}", self.core.user.domid);
            LINES.error(text);
            errno("attach one more thread to the domain", e.errno())
        })
    }
}

/// Checks that a handle can move to the thread that uses it; `BackQueue` checks its own.
const fn goes_to_another_thread<T: Send>() {}
const _: () = goes_to_another_thread::<Loopback>();
