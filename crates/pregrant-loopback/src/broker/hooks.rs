//! Callbacks for created and destroyed domains and for new processes.

use crate::xenstored::Handle;
use pregrant::DomId;
use rustix::fd::OwnedFd;

/// Callbacks of the broker. They are called on the broker's thread or the caller's, with the
/// broker's state locked, so they must neither block nor call the broker.
pub struct Hooks {
    /// A process attached. The callback gets the server's end of its xenstore connection, which is
    /// bound to its domain. None: there is no xenstore.
    pub store: Option<StoreHook>,
    pub created: DomainHook,
    pub destroyed: DomainHook,
}

/// A callback that accepts a new xenstore connection for a domain.
pub type StoreHook = Box<dyn Fn(DomId, OwnedFd) + Send>;
/// A callback that receives the number of a domain.
pub type DomainHook = Box<dyn Fn(DomId) + Send>;

impl Default for Hooks {
    fn default() -> Self {
        Self { store: None, created: Box::new(|_| ()), destroyed: Box::new(|_| ()) }
    }
}

impl Hooks {
    /// Creates hooks that connect a xenstored of this process: it is informed of each domain, and
    /// gets a connection for each process that attaches. Once the xenstored has ended, processes
    /// get none.
    pub fn with_store(store: &Handle) -> Self {
        let (connect, create, destroy) = (store.clone(), store.clone(), store.clone());
        Self {
            store: Some(Box::new(move |domid, fd| connect.add_connection(fd, domid).unwrap_or(()))),
            created: Box::new(move |domid| create.introduce(domid).unwrap_or(())),
            destroyed: Box::new(move |domid| destroy.release(domid).unwrap_or(())),
        }
    }
}
