//! A loopback machine in a directory: broker and xenstored as threads of this process, with their
//! sockets.
//!
//! ```text
//!   DIR/broker.sock      processes attach to domains
//!   DIR/xenstored.sock   xenstore as domain 0: the toolstack's, and Xen's own tools'
//!   DIR/back-0.status    what the backend of domain 0 tells, while one runs
//! ```

use pregrant::DomId;
use pregrant::xenstore::Client;
use pregrant_cli::loopback_machine::{DRIVER, broker_socket, store_socket};
use pregrant_host::UnixTransport;
use pregrant_loopback::xenstored::{Handle, Xenstored};
use pregrant_loopback::{Broker, DomainSpec, GrantTableVersion, Hooks};
use std::error::Error;
use std::path::Path;
use std::thread::JoinHandle;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A running machine. Dropping it ends the machine for all processes that are attached.
pub struct Machine {
    broker: Broker,
    store: Handle,
    store_thread: Option<JoinHandle<()>>,
    xs: Client<UnixTransport>,
}

impl Machine {
    /// Starts a machine as [`start_with`](Self::start_with) does, with grant tables of version 1.
    pub fn start(dir: &Path, destroyed: impl Fn(DomId) + Send + 'static) -> Result<Self> {
        Self::start_with(dir, GrantTableVersion::V1, destroyed)
    }

    /// Starts broker and xenstored, with domain 0 as the driver domain. `destroyed` is called for
    /// each domain that has ended, after xenstore has forgotten it; it must not block.
    pub fn start_with(
        dir: &Path,
        table: GrantTableVersion,
        destroyed: impl Fn(DomId) + Send + 'static,
    ) -> Result<Self> {
        let mut server = Xenstored::new()?;
        server.listen_unix(store_socket(dir))?;
        server.introduce(DRIVER).ok(); // domain 0 may be known from the start
        let store = server.handle();
        let store_thread = std::thread::Builder::new().name("xenstored".into()).spawn(move || {
            if let Err(e) = server.run(None) {
                log::error!("xenstored: {e}");
            }
        })?;
        let known = Hooks::with_store(&store);
        let release = known.destroyed;
        let destroyed = Box::new(move |domid| {
            release(domid);
            destroyed(domid);
        });
        let hooks = Hooks { destroyed, ..known };
        let broker = Broker::start(Some(&broker_socket(dir)), hooks)?;
        broker.use_grant_tables(table);
        broker.create_domain(DomainSpec::driver(DRIVER))?;
        let xs = Client::new(UnixTransport::connect(store_socket(dir))?);
        Ok(Self { broker, store, store_thread: Some(store_thread), xs })
    }

    /// Returns the toolstack's connection to xenstore, which is domain 0's.
    pub fn xs(&mut self) -> &mut Client<UnixTransport> {
        &mut self.xs
    }

    pub fn guest_domain(&self, domid: DomId) -> Result<()> {
        self.domain(DomainSpec::guest(domid))
    }

    pub fn domain(&self, spec: DomainSpec) -> Result<()> {
        Ok(self.broker.create_domain(spec)?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.store.stop();
        if let Some(thread) = self.store_thread.take() {
            let _ = thread.join();
        }
    }
}
