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
use pregrant_host::loopback::{
    BROKER_SOCKET, Broker, Control, DomainSpec, GrantTableVersion, Hooks, Loopback,
};
use pregrant_host::xenstored::{Handle, UnixTransport, Xenstored};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The machine that a process was attached to has ended, which is not the process's fault.
#[derive(Debug)]
pub struct MachineEnded(PathBuf);

/// The exit code for a machine that has ended.
pub const MACHINE_ENDED: u8 = 3;

impl std::fmt::Display for MachineEnded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the machine in {} has ended, and its domains with it; to go on: pregrant loopback serve --dir {}, then this again",
            self.0.display(),
            shell_word(&self.0)
        )
    }
}

impl Error for MachineEnded {}

/// The error of a process on the machine in `dir`: if the machine has ended, that explains more
/// than the process's own error.
pub fn ended_or(dir: &Path, why: Box<dyn Error>) -> Box<dyn Error> {
    // Its owner closes one before the other.
    let store = UnixTransport::connect(store_socket(dir));
    if store.is_err() || Control::connect(&broker_socket(dir)).is_err() {
        return MachineEnded(dir.into()).into();
    }
    why
}

/// Quotes a path so that it can be pasted into a shell.
pub fn shell_word(path: &Path) -> String {
    let shown = path.display().to_string();
    match shlex::try_quote(&shown) {
        Ok(word) => word.into_owned(),
        // With a NUL no command can have it.
        Err(_) => shown,
    }
}

/// The domain that serves devices.
pub const DRIVER: DomId = DomId(0);

pub fn broker_socket(dir: &Path) -> PathBuf {
    dir.join(BROKER_SOCKET)
}

/// The socket of xenstore for domain 0.
pub fn store_socket(dir: &Path) -> PathBuf {
    dir.join("xenstored.sock")
}

/// A running machine; it ends on drop, and everybody on it loses it.
pub struct Machine {
    broker: Broker,
    store: Handle,
    store_thread: Option<JoinHandle<()>>,
    xs: Client<UnixTransport>,
}

impl Machine {
    /// As [`start_with`](Self::start_with), with grant tables of version 1.
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

    /// The toolstack's connection to xenstore: domain 0's.
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

/// The xenstore connection that an attachment brought along; once.
pub fn store_of(platform: &Loopback) -> Result<Client<UnixTransport>> {
    let fd = platform.take_store_fd().ok_or("the broker has no xenstore")?;
    Ok(Client::new(UnixTransport::new(fd)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        let words = ["/tmp/xen", "/tmp/my xen", "/tmp/it's;rm"].map(|path| shell_word(Path::new(path)));
        assert_eq!(words[0], "/tmp/xen");
        for (word, path) in words.iter().zip(["/tmp/xen", "/tmp/my xen", "/tmp/it's;rm"]) {
            assert_eq!(shlex::split(word), Some(vec![path.to_string()]));
        }
    }
}
