//! An attachment to a domain: what the broker gave to this process, and the connection to the
//! broker.
//!
//! Grants, channels, peers and maps hold a reference to it, so it ends with the last of them. Only
//! then does the broker undo what it held.

use crate::control;
use crate::ledger::{Ledger, PORTS, Upcall};
use crate::pins::User;
use crate::protocol::{Reply, Request};
use crate::window::Paging;
use pregrant_host::counters::Tally;
use pregrant_host::mapping::Mapping;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// The attachment itself. Everything handed out from it keeps it alive, on any thread.
#[derive(Debug)]
pub(super) struct Core {
    /// The connection to the broker, locked for a request and its reply. It is used for set-up and
    /// tear-down only.
    pub(super) broker: Mutex<OwnedFd>,
    pub(super) at: String,
    pub(super) user: User,
    pub(super) memory: Mapping,
    pub(super) ledger: Ledger,
    /// An eventfd that becomes readable when another domain sends an event while this one sleeps.
    pub(super) upcall: OwnedFd,
    pub(super) store: Mutex<Option<OwnedFd>>,
    pub(super) tally: Arc<Tally>,
    /// Bit n of this bitmap is set while port n is open.
    pub(super) open_ports: [AtomicU64; PORTS / 64],
    pub(super) paging: Arc<Paging>,
}

impl Core {
    pub(super) fn call(&self, request: &Request) -> Result<Reply, Errno> {
        control::call(&self.broker.lock().unwrap_or_else(PoisonError::into_inner), request)
    }

    pub(super) fn own_upcall(&self) -> Upcall<'_> {
        self.ledger.upcall(self.user.slot)
    }
}
