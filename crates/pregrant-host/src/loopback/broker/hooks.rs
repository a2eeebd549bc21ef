//! Hooks for domains and for new processes.

use crate::xenstored::Handle;
use pregrant::DomId;
use rustix::fd::OwnedFd;

/// Notifications of the broker to others. The calls come from its thread or from that of the
/// caller, with its state locked: they must neither block nor call the broker.
pub struct Hooks {
    /// A process attached: this end of its xenstore connection, bound to its domain. None: there is
    /// no xenstore.
    pub store: Option<StoreHook>,
    /// A domain was created.
    pub created: DomainHook,
    /// A domain was destroyed.
    pub destroyed: DomainHook,
}

/// Takes a new xenstore connection.
pub type StoreHook = Box<dyn Fn(DomId, OwnedFd) + Send>;
/// Called for a domain.
pub type DomainHook = Box<dyn Fn(DomId) + Send>;

impl Default for Hooks {
    fn default() -> Self {
        Self { store: None, created: Box::new(|_| ()), destroyed: Box::new(|_| ()) }
    }
}

impl Hooks {
    /// A xenstored of this process: it knows each domain while that is there, and has a connection
    /// for each process that attaches. When it has ended no one has one.
    pub fn with_store(store: &Handle) -> Self {
        let (connect, create, destroy) = (store.clone(), store.clone(), store.clone());
        Self {
            store: Some(Box::new(move |domid, fd| connect.add_connection(fd, domid).unwrap_or(()))),
            created: Box::new(move |domid| create.introduce(domid).unwrap_or(())),
            destroyed: Box::new(move |domid| destroy.release(domid).unwrap_or(())),
        }
    }
}
