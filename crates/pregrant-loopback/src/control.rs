//! Creates, destroys and counts domains from another process, through the broker's socket.

use crate::audit::Audit;
use crate::domain_spec::DomainSpec;
use crate::error::LoopbackError;
use crate::grant_summary::GrantSummary;
use crate::grant_table_version::GrantTableVersion;
use crate::protocol::{DURABLE, NO_DESCRIPTOR, Op, Reply, Request};
use pregrant::DomId;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::{Path, PathBuf};

/// A connection to the broker that is attached to no domain.
#[derive(Debug)]
pub struct Control {
    fd: OwnedFd,
    at: String,
}

/// File name of the broker's socket in a machine's directory.
pub const BROKER_SOCKET: &str = "broker.sock";

/// Returns the socket in a machine's directory, or the path itself if it is one.
pub(super) fn socket_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(BROKER_SOCKET) } else { path.to_owned() }
}

impl Control {
    /// Connects to the broker of the machine in the directory `path`, or at the socket `path`.
    ///
    /// # Errors
    ///
    /// Nothing listens there.
    pub fn connect(path: &Path) -> Result<Self, LoopbackError> {
        Ok(Self { fd: connect(path)?, at: socket_of(path).display().to_string() })
    }

    /// Creates a domain.
    ///
    /// # Errors
    /// The domain exists already (`EEXIST`), or its sizes are out of range.
    pub fn create_domain(&self, spec: DomainSpec) -> Result<(), LoopbackError> {
        let durable = if spec.durable { DURABLE } else { 0 };
        let request =
            Request::new(Op::Create, spec.grant_frames, u32::from(spec.domid.0), spec.pages as u64 | durable);
        self.ask(&request, || format!("create {} with {} pages", spec.domid, spec.pages)).map(drop)
    }

    /// Destroys a domain, also one with attached processes.
    ///
    /// # Errors
    ///
    /// There is no domain of this number.
    pub fn destroy_domain(&self, domid: DomId) -> Result<(), LoopbackError> {
        self.ask(&Request::new(Op::Destroy, 0, u32::from(domid.0), 0), || format!("destroy {domid}"))
            .map(drop)
    }

    /// Counts the broker's objects.
    ///
    /// # Errors
    ///
    /// The broker is gone.
    pub fn audit(&self) -> Result<Audit, LoopbackError> {
        let reply = self.ask(&Request::new(Op::Audit, 0, 0, 0), || "count what there is".into())?;
        Ok(Audit::from_words(reply.words))
    }

    /// Returns the version of the domains' grant tables.
    ///
    /// # Errors
    ///
    /// The broker is gone, or has another protocol version.
    pub fn grant_tables(&self) -> Result<GrantTableVersion, LoopbackError> {
        let reply = self.ask(&Request::new(Op::GrantTables, 0, 0, 0), || "name its grant tables".into())?;
        let version = GrantTableVersion::from_word(reply.words[0]);
        version.ok_or_else(|| LoopbackError::Version { at: self.at.clone() })
    }

    /// Summarizes what each domain grants to each other. It is read row by row, so a grant that
    /// changes meanwhile may be missing or appear twice.
    ///
    /// # Errors
    ///
    /// The broker is gone.
    pub fn grants(&self) -> Result<Vec<GrantSummary>, LoopbackError> {
        let mut summaries: Vec<GrantSummary> = Vec::new();
        let (mut from, mut row) = (DomId(0), 0);
        loop {
            let request = Request::new(Op::Grants, row, u32::from(from.0), 0);
            let summary = match self.ask(&request, || "count grants".into()) {
                Ok(reply) => GrantSummary::from_words(reply.words),
                Err(LoopbackError::Refused { source: Errno::NOENT, .. }) => return Ok(summaries),
                Err(e) => return Err(e),
            };
            row = if summary.from == from { row + 1 } else { 1 };
            from = summary.from;
            summaries.push(summary);
        }
    }

    fn ask(&self, request: &Request, what: impl Fn() -> String) -> Result<Reply, LoopbackError> {
        match call(&self.fd, request) {
            Ok(reply) => Ok(reply),
            Err(Errno::PIPE) => Err(LoopbackError::Gone { at: self.at.clone() }),
            Err(NO_DESCRIPTOR) => Err(LoopbackError::NoDescriptor { at: self.at.clone() }),
            Err(source) => Err(LoopbackError::Refused { what: what(), at: self.at.clone(), source }),
        }
    }
}

/// Sends a request and waits for the reply. `PIPE`: the broker is gone. [`NO_DESCRIPTOR`]: this
/// process has no descriptor left for one that the broker sent.
pub(super) fn call(fd: &OwnedFd, request: &Request) -> Result<Reply, Errno> {
    request.send(fd.as_fd()).map_err(|e| if e == Errno::CONNRESET { Errno::PIPE } else { e })?;
    Reply::receive(fd.as_fd()).map_err(|e| if e == NO_DESCRIPTOR { e } else { Errno::PIPE })?
}

/// Connects to a broker, by its socket or by its machine's directory.
pub(super) fn connect(path: &Path) -> Result<OwnedFd, LoopbackError> {
    let path = socket_of(path);
    let failed = |source| LoopbackError::NoBroker { path: path.clone(), source };
    let address = SocketAddrUnix::new(&path).map_err(failed)?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    rustix::net::connect(&fd, &address).map_err(failed)?;
    Ok(fd)
}
