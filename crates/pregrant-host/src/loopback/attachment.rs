//! An attachment to a domain: what the broker gave to it, and its connection there.
//!
//! Grants, channels, peers and maps hold it, so it ends with the last of them: the broker undoes
//! what it held then, and not before.

use super::control;
use super::ledger::{Ledger, PORTS, Upcall};
use super::pins::User;
use super::protocol::{Reply, Request};
use super::window::Paging;
use crate::counters::Tally;
use crate::mapping::Mapping;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// The attachment itself; everything that it hands out keeps it alive, on whatever thread that is.
#[derive(Debug)]
pub(super) struct Core {
    /// Requests and replies take turns; locked for set-up and tear-down alone.
    pub(super) broker: Mutex<OwnedFd>,
    pub(super) at: String,
    pub(super) user: User,
    /// The domain's whole memory.
    pub(super) memory: Mapping,
    pub(super) ledger: Ledger,
    /// Rings when somebody sends us an event while we sleep.
    pub(super) upcall: OwnedFd,
    pub(super) store: Mutex<Option<OwnedFd>>,
    pub(super) tally: Arc<Tally>,
    /// A bit for each end that is open: by its number.
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
