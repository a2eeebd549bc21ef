//! A domain whose grants this process uses: its memfd, ledger and grant table, and the process
//! whose memory is read.
//!
//! It belongs to one handle, and only that handle's thread looks it up. Its maps and channels,
//! which may be used on other threads, keep it alive.

use crate::attachment::Core;
use crate::ledger::{Layout, Ledger, SLOTS};
use crate::peer_mappings::Maps;
use crate::pins::Granter;
use crate::protocol::{Op, Request};
use pregrant::{DomId, PAGE_SIZE};
use pregrant_host::backing::Backing;
use pregrant_host::line_budget::LineBudget;
use pregrant_host::mapping::Mapping;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A peer's domain. It stays usable after the domain's death: mapped pages stay mapped.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) core: Arc<Core>,
    pub(super) domid: DomId,
    pub(super) memory: Backing,
    pub(super) ledger: Ledger,
    table: Mapping,
    maps: Mutex<Maps>,
    /// For each slot, the eventfd that wakes it.
    upcalls: [OnceLock<OwnedFd>; SLOTS],
    /// The incarnation that was seen last. Only the handle's thread uses this field and the next
    /// two.
    seen: AtomicU32,
    /// A process that has the domain's memory mapped (0: there is none); `address` is the memory's
    /// address in that process.
    pid: AtomicI32,
    address: AtomicU64,
}

impl Peer {
    pub(super) fn open(
        core: Arc<Core>,
        domid: DomId,
        memory: Backing,
        ledger: &Backing,
        layout: Layout,
    ) -> Result<Self, Errno> {
        let ledger = Ledger::open(ledger, layout)?;
        let table = Mapping::new(&memory, layout.table_frames() * PAGE_SIZE)?;
        Ok(Self {
            core,
            domid,
            memory,
            ledger,
            table,
            maps: Mutex::new(Maps::new(layout.grants)),
            upcalls: [const { OnceLock::new() }; SLOTS],
            seen: AtomicU32::new(0),
            pid: AtomicI32::new(0),
            address: AtomicU64::new(0),
        })
    }

    pub(super) fn granter(&self) -> Granter<'_> {
        Granter { ledger: &self.ledger, table: &self.table }
    }

    /// Locks and returns the pages mapped from this domain. Beside the system call that maps or
    /// unmaps pages the lock costs nothing. It is contended only while a queue moves to another
    /// thread.
    pub(super) fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the domain is alive and has the processes that were seen last.
    #[inline(always)]
    pub(super) fn is_as_seen(&self) -> bool {
        !self.ledger.is_dead() && self.ledger.incarnation() == self.seen.load(Ordering::Relaxed)
    }

    /// Records a process that has the domain's memory mapped, and the memory's address in that
    /// process.
    pub(super) fn saw(&self, incarnation: u32, pid: i32, address: u64) {
        self.pid.store(pid, Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
        self.seen.store(incarnation, Ordering::Relaxed);
    }

    /// Returns a process that has the domain's memory mapped.
    #[inline(always)]
    pub(super) fn pid(&self) -> i32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Returns the address of the memory in that process; 0: there is no such process.
    #[inline(always)]
    pub(super) fn address(&self) -> u64 {
        self.address.load(Ordering::Relaxed)
    }

    /// Wakes the sleeper of one slot.
    pub(super) fn wake(&self, slot: usize) {
        let Some(upcall) = self.upcalls.get(slot) else { return };
        if upcall.get().is_none() {
            let request = Request::new(Op::Upcall, slot as u32, u32::from(self.domid.0), 0);
            match self.core.call(&request) {
                // Another thread may have set it first.
                Ok(mut reply) => drop(reply.fds.pop().map(|fd| upcall.set(fd))),
                Err(e) => {
                    static LINES: LineBudget = LineBudget::new();
                    LINES.warn(format_args!(
                        "loopback: cannot reach the event channels of {domid}, which is not notified: {e}",
                        domid = self.domid
                    ));
                }
            }
        }
        if let Some(fd) = upcall.get() {
            // EAGAIN: the eventfd's counter is at its maximum, so the receiver is awake.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}
