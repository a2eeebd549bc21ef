//! The broker: the objects that outlive a process. It sleeps unless asked, and is never on the data
//! path.
//!
//! ```text
//!   process --SEQPACKET--> broker: domains { memfd, ledger, event channels, persistent regions }
//!       '--- EOF (died) -->   drops its pins, closes its ends, and a guest domain with its last process
//! ```
//!
//! It runs in a thread of its starter (the demo, a test, `pregrant-lab store serve`). A process
//! reaches it through the socket's path or through a ready socket pair.
//!
//! What a process may do: see [`machine`]. One that does not read its answers is disconnected.

mod channels;
mod hooks;
mod machine;

pub use hooks::{DomainHook, Hooks, StoreHook};

use crate::audit::Audit;
use crate::domain_spec::DomainSpec;
use crate::error::{LoopbackError, Step};
use crate::grant_table_version::GrantTableVersion;
use crate::protocol::{Reply, Request};
use machine::{ConnId, Machine};
use pregrant::DomId;
use pregrant_host::line_budget::LineBudget;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A running broker. Dropping the value ends it.
pub struct Broker {
    state: Arc<Mutex<State>>,
    wake: Arc<OwnedFd>,
    path: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    machine: Machine,
    stopping: bool,
}

impl Broker {
    /// Starts a broker that listens on `path`. None: processes can attach only through socket pairs
    /// from [`connect`](Self::connect). A stale socket is replaced.
    ///
    /// # Errors
    ///
    /// The path cannot be bound, or another broker listens there.
    pub fn start(path: Option<&Path>, hooks: Hooks) -> Result<Self, LoopbackError> {
        let listener = path.map(listen).transpose()?;
        let wake = Arc::new(
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .step("create an eventfd")?,
        );
        let state = State { machine: Machine::new(hooks), stopping: false };
        let state = Arc::new(Mutex::new(state));
        let thread = {
            let (state, wake) = (Arc::clone(&state), Arc::clone(&wake));
            std::thread::Builder::new()
                .name("loopback-broker".into())
                .spawn(move || serve(&state, &wake, listener.as_ref()))
        };
        let thread = thread.map_err(|e| LoopbackError::Os {
            what: "start the broker's thread",
            source: rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::AGAIN),
        })?;
        Ok(Self { state, wake, path: path.map(Path::to_owned), thread: Some(thread) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the path of the socket on which the broker listens.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Sets the version of grant table that new domains get.
    pub fn use_grant_tables(&self, version: GrantTableVersion) {
        self.lock().machine.use_grant_tables(version);
    }

    /// Creates a domain.
    ///
    /// # Errors
    /// The domain exists already, or its sizes are out of range.
    pub fn create_domain(&self, spec: DomainSpec) -> Result<(), LoopbackError> {
        self.lock().machine.create(spec).map_err(|source| LoopbackError::Refused {
            what: format!("create {} with {} pages", spec.domid, spec.pages),
            at: self.name(),
            source,
        })
    }

    /// Destroys a domain, also one with attached processes.
    ///
    /// # Errors
    ///
    /// There is no domain of this number.
    pub fn destroy_domain(&self, domid: DomId) -> Result<(), LoopbackError> {
        self.lock()
            .machine
            .destroy(domid)
            .map_err(|_| LoopbackError::UnknownDomain { domid, at: self.name() })
    }

    /// Opens a connection for [`crate::Loopback::attach_fd`], to use here or to pass to a child.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn connect(&self) -> Result<OwnedFd, LoopbackError> {
        let theirs = self.lock().machine.connect().step("make a socket pair")?;
        self.wake();
        Ok(theirs)
    }

    /// Attaches the calling thread to a domain.
    ///
    /// # Errors
    /// See [`crate::Loopback::attach_fd`].
    pub fn attach(&self, domid: DomId) -> Result<crate::Loopback, LoopbackError> {
        crate::Loopback::attach_fd(self.connect()?, domid)
    }

    /// Counts the objects that exist now.
    pub fn audit(&self) -> Audit {
        self.lock().machine.audit()
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "this process".into(), |p| p.display().to_string())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.lock().stopping = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen(path: &Path) -> Result<OwnedFd, LoopbackError> {
    let address =
        SocketAddrUnix::new(path).step("make a socket address of the broker's path (108 bytes at most)")?;
    let socket = || {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .step("create the broker's socket")
    };
    if rustix::net::connect(&socket()?, &address).is_ok() {
        return Err(LoopbackError::Refused {
            what: "start a second broker".into(),
            at: path.display().to_string(),
            source: rustix::io::Errno::ADDRINUSE,
        });
    }
    if std::fs::symlink_metadata(path)
        .is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()))
    {
        let _ = std::fs::remove_file(path);
    }
    let fd = socket()?;
    rustix::net::bind(&fd, &address).step("bind the broker's socket")?;
    // No one can connect before `listen`. A process that can connect may read every domain, so only
    // the same user may.
    rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .step("restrict the broker's socket")?;
    rustix::net::listen(&fd, 64).step("listen on the broker's socket")?;
    Ok(fd)
}

/// The broker's thread: handles one message at a time until it is asked to stop.
fn serve(state: &Mutex<State>, wake: &OwnedFd, listener: Option<&OwnedFd>) {
    let mut connections: Vec<(ConnId, OwnedFd)> = Vec::new();
    let mut next: ConnId = 0;
    let mut unswept = false;
    loop {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(listener.map(|l| PollFd::new(l, PollFlags::IN)));
        let first = fds.len();
        fds.extend(connections.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
        // A living process holds an entry that a dead one shared; it releases it within a batch.
        let retry = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        if let Err(e) = rustix::event::poll(&mut fds, unswept.then_some(&retry)) {
            if e != rustix::io::Errno::INTR {
                // LOG: the broker ends with it.
                log::error!("loopback broker: poll() failed, stopping the broker and its domains: {e}");
                return;
            }
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);

        let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.stopping {
            return;
        }
        if ready[0] {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let mut index = first;
        connections.retain(|(conn, fd)| {
            let keep = !ready[index] || serve_one(&mut guard.machine, *conn, fd);
            index += 1;
            if !keep {
                guard.machine.disconnect(*conn);
            }
            keep
        });
        let fresh = guard.machine.take_fresh().into_iter();
        let accepted = (first == 2 && ready[1]).then_some(listener).flatten();
        let accepted = accepted.and_then(|l| {
            rustix::net::accept_with(l, SocketFlags::CLOEXEC)
                .inspect_err(|e| {
                    static LINES: LineBudget = LineBudget::new();
                    LINES.warn(format_args!("loopback broker: cannot accept a client's connection: {e}"));
                    // The connection stays in the backlog, for example because no descriptor is
                    // left: do not spin.
                    std::thread::sleep(std::time::Duration::from_millis(10));
                })
                .ok()
        });
        for fd in fresh.chain(accepted) {
            connections.push((next, fd));
            next += 1;
        }
        unswept = !guard.machine.sweep_if_due();
    }
}

/// Serves one message. Returns false if the connection has ended.
fn serve_one(machine: &mut Machine, conn: ConnId, fd: &OwnedFd) -> bool {
    let answer = match Request::receive(fd.as_fd()) {
        Ok(None) => return false,
        Ok(Some(request)) => machine.answer(conn, &request),
        Err(e @ (rustix::io::Errno::INVAL | rustix::io::Errno::MSGSIZE)) => Err(e),
        Err(_) => return false,
    };
    Reply::send(fd.as_fd(), &answer).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loopback;
    use crate::protocol::Op;
    use rustix::io::Errno;
    use std::io::{Read, Write};
    use std::sync::mpsc;

    #[test]
    fn a_hostile_process_is_answered_or_cut_off_and_disturbs_no_one() {
        let broker = Broker::start(None, Hooks::default()).unwrap();
        broker.create_domain(DomainSpec::driver(DomId(0))).unwrap();
        let hostile = broker.connect().unwrap();
        let send = |bytes: &[u8]| rustix::net::send(&hostile, bytes, rustix::net::SendFlags::NOSIGNAL);
        for garbage in [&[1u8][..], &[0xFF; 24], &[0; 24], &[7; 4000]] {
            send(garbage).unwrap();
            let refusal = Reply::receive(hostile.as_fd()).unwrap().unwrap_err();
            assert!(matches!(refusal, Errno::INVAL | Errno::MSGSIZE), "{refusal}");
        }
        let ask = |op, a, b, c| crate::control::call(&hostile, &Request::new(op, a, b, c)).map(|r| r.words);
        // Not attached: nothing of a domain's.
        let attached =
            [Op::Mapped, Op::Peer, Op::Upcall, Op::Offer, Op::Bind, Op::Close, Op::Persist, Op::Reclaim];
        for op in attached.into_iter().chain([Op::Own, Op::Disown, Op::Forget, Op::Persisted, Op::Another]) {
            assert_eq!(ask(op, 0, 0, 1), Err(Errno::PERM));
        }
        let version = crate::protocol::VERSION;
        assert_eq!(ask(Op::Attach, version + 1, 0, 0), Err(Errno::PROTONOSUPPORT));
        assert_eq!(ask(Op::Attach, version, 0x1_0000, 0), Err(Errno::INVAL));
        assert_eq!(ask(Op::Attach, version, 1, 0), Err(Errno::NOENT));
        assert!(ask(Op::Attach, version, 0, 0).is_ok());
        assert_eq!(ask(Op::Attach, version, 0, 0), Err(Errno::ALREADY));
        // Attached: numbers that are out of range.
        assert_eq!(ask(Op::Upcall, 20, 0, 0), Err(Errno::INVAL));
        assert_eq!(ask(Op::Bind, u32::MAX, 0, 0), Err(Errno::INVAL));
        assert_eq!(ask(Op::Close, u32::MAX, 0, 0), Err(Errno::INVAL));
        assert_eq!(ask(Op::Close, 1, 0, 0), Err(Errno::INVAL));
        assert_eq!(ask(Op::Offer, 0, u32::MAX, 0), Err(Errno::INVAL));
        assert_eq!(ask(Op::Peer, 0, 7, 0), Err(Errno::NOENT));
        assert_eq!(ask(Op::Persisted, u32::MAX, 0, 0), Err(Errno::NOENT));
        for (frames, pages) in [(0, 100), (65, 100), (8, 8), (8, 1 << 40), (8, 1 << 62)] {
            assert_eq!(ask(Op::Create, frames, 3, pages), Err(Errno::INVAL));
        }
        assert_eq!(ask(Op::Create, 1, 0x7FF0, 9), Err(Errno::INVAL));

        // It stops reading its answers: it is cut off, and others are served.
        let question = Request::new(Op::Audit, 0, 0, 0);
        while matches!(question.send(hostile.as_fd()), Ok(()) | Err(Errno::AGAIN)) {}
        let _other = broker.attach(DomId(0)).unwrap();
        while broker.audit().attachments != 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn hooks_see_domains_and_get_a_store_connection_for_each_attachment() {
        let (report, received_lines) = mpsc::channel();
        let (created, destroyed) = (report.clone(), report.clone());
        let hooks = Hooks {
            store: Some(Box::new(move |domid, fd| {
                let mut stream = std::os::unix::net::UnixStream::from(fd);
                stream.write_all(&domid.0.to_le_bytes()).unwrap();
                report.send(format!("connection of {domid}")).unwrap();
            })),
            created: Box::new(move |domid| created.send(format!("created {domid}")).unwrap()),
            destroyed: Box::new(move |domid| destroyed.send(format!("destroyed {domid}")).unwrap()),
        };
        let broker = Broker::start(None, hooks).unwrap();
        broker.create_domain(DomainSpec::guest(DomId(5))).unwrap();
        let guest = Loopback::attach_fd(broker.connect().unwrap(), DomId(5)).unwrap();
        let mut store = std::os::unix::net::UnixStream::from(guest.take_store_fd().unwrap());
        assert!(guest.take_store_fd().is_none(), "taken once");
        let mut bytes = [0; 2];
        store.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [5, 0]);
        drop(guest);
        let received: Vec<String> = received_lines.iter().take(3).collect();
        assert_eq!(received, ["created domain 5", "connection of domain 5", "destroyed domain 5"]);
    }
}
