//! xenstored: [`pregrant_xenstored`] on unix sockets.
//!
//! ```text
//!   listen_unix(path) ──► accepted: domain 0   ┐
//!   add_connection(fd, domid): that domain     ├──► epoll ──► Server ──► replies, watch events
//!   Handle, from other threads: channel + wake ┘
//! ```
//! It is one thread with one epoll set. A client that connects to the path is domain 0 and may do
//! anything, so only its user may open the socket (mode 0600). All other domains come through
//! [`Xenstored::add_connection`], whose caller vouches for the domain's number.
//!
//! What a client may do: send anything, never read, connect very often. The server core bounds what
//! one connection holds; beyond [`MAX_CONNECTIONS`] no more are accepted until one closes. The
//! server never waits for a client.

mod handle;

pub use handle::{Handle, HandleError};

use handle::{Command, CommandQueue};
use pregrant::DomId;
use pregrant::xenstore::codec;
use pregrant_host::line_budget::LineBudget;
use pregrant_host::listener::{ListenError, Listener};
use pregrant_xenstored::{ConnId, DomainError, Limits, Server};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Largest number of connections at a time, of all domains together.
pub const MAX_CONNECTIONS: usize = 4096;
/// Largest number of bytes read from one connection before the others get their turn.
const READ_BYTES: usize = 16 * 1024;
/// Events fetched from epoll at a time.
const EVENTS: usize = 64;

/// The epoll token of the eventfd of [`Handle`].
const WAKE: u64 = 0;
/// The epoll token of the descriptor that stops [`Xenstored::run`].
const STOP: u64 = 1;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XenstoredError {
    /// The server cannot listen on its socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A system call failed.
    #[error("xenstored: cannot {what}: {errno}")]
    System { what: &'static str, errno: Errno },
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> XenstoredError {
    move |errno| XenstoredError::System { what, errno }
}

#[derive(Debug)]
struct Peer {
    fd: OwnedFd,
    conn: ConnId,
    /// Output for the client, of which `sent_bytes` are sent.
    output: Vec<u8>,
    sent_bytes: usize,
    /// The events of the connection that epoll reports.
    interest: EventFlags,
}

/// A xenstored with its sockets.
#[derive(Debug)]
pub struct Xenstored {
    server: Server,
    epoll: OwnedFd,
    commands: CommandQueue,
    listeners: HashMap<u64, Listener>,
    peers: HashMap<u64, Peer>,
    by_conn: HashMap<ConnId, u64>,
    last_token: u64,
    /// Listeners are ignored, because there are too many connections or no descriptors left.
    paused: bool,
    stopped: bool,
}

impl Xenstored {
    /// Creates a server with an empty store and no listener.
    pub fn new() -> Result<Self, XenstoredError> {
        Self::with_limits(Limits::default())
    }

    /// Creates a server as [`new`](Self::new) does, with other quotas.
    pub fn with_limits(limits: Limits) -> Result<Self, XenstoredError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll set"))?;
        let commands = CommandQueue::new().map_err(system("make an eventfd"))?;
        epoll::add(&epoll, commands.wake(), EventData::new_u64(WAKE), EventFlags::IN)
            .map_err(system("watch an eventfd"))?;
        Ok(Self {
            server: Server::new(limits),
            epoll,
            commands,
            listeners: HashMap::new(),
            peers: HashMap::new(),
            by_conn: HashMap::new(),
            last_token: STOP,
            paused: false,
            stopped: false,
        })
    }

    /// Returns a handle for commands from other threads.
    pub fn handle(&self) -> Handle {
        self.commands.handle()
    }

    /// Listens on a unix socket, whose clients are domain 0. It replaces a socket that a dead
    /// server left. The socket is removed when the server is dropped.
    pub fn listen_unix(&mut self, path: impl AsRef<Path>) -> Result<(), XenstoredError> {
        let listener = Listener::bind(path.as_ref())?;
        let token = self.new_token();
        epoll::add(&self.epoll, &listener, EventData::new_u64(token), EventFlags::IN)
            .map_err(system("watch a socket"))?;
        self.listeners.insert(token, listener);
        Ok(())
    }

    /// Serves a connected stream socket for a domain. The caller vouches for the domain's number.
    pub fn add_connection(&mut self, fd: OwnedFd, domid: DomId) -> Result<(), XenstoredError> {
        rustix::io::ioctl_fionbio(&fd, true).map_err(system("make a connection non-blocking"))?;
        let token = self.new_token();
        epoll::add(&self.epoll, &fd, EventData::new_u64(token), EventFlags::IN)
            .map_err(system("watch a connection"))?;
        let conn = self.server.connect(domid);
        self.by_conn.insert(conn, token);
        self.peers
            .insert(token, Peer { fd, conn, output: Vec::new(), sent_bytes: 0, interest: EventFlags::IN });
        Ok(())
    }

    /// Introduces a domain and creates its home directory.
    pub fn introduce(&mut self, domid: DomId) -> Result<(), DomainError> {
        let result = self.server.introduce(domid);
        self.flush_ready();
        result
    }

    /// Releases a domain: its home is removed and its connections are closed.
    pub fn release(&mut self, domid: DomId) -> Result<(), DomainError> {
        let result = self.server.release(domid);
        self.flush_ready();
        result
    }

    /// Returns the store itself, for checks.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.peers.len()
    }

    /// Serves until [`Handle::stop`] is called or `stop` becomes readable.
    pub fn run(&mut self, stop: Option<BorrowedFd<'_>>) -> Result<(), XenstoredError> {
        if let Some(stop) = stop {
            epoll::add(&self.epoll, stop, EventData::new_u64(STOP), EventFlags::IN)
                .map_err(system("watch for the end"))?;
        }
        let result = loop {
            match self.poll_once(None) {
                Ok(()) if self.stopped => break Ok(()),
                Ok(()) => {}
                Err(e) => break Err(e),
            }
        };
        if let Some(stop) = stop {
            epoll::delete(&self.epoll, stop).map_err(system("forget the end"))?;
        }
        result
    }

    /// Waits at most for `wait` (`None`: no limit), and serves what is there.
    pub fn poll_once(&mut self, wait: Option<Duration>) -> Result<(), XenstoredError> {
        let wait = wait.and_then(|w| Timespec::try_from(w).ok());
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(system("wait for events")(errno)),
        }
        for event in events {
            match event.data.u64() {
                WAKE => self.take_commands(),
                STOP => self.stopped = true,
                token if self.listeners.contains_key(&token) => self.accept(token),
                token => self.read(token, event.flags),
            }
        }
        self.flush_ready();
        Ok(())
    }

    fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn take_commands(&mut self) {
        while let Some(command) = self.commands.take() {
            match command {
                Command::Connect(fd, domid) => {
                    if let Err(e) = self.add_connection(fd, domid) {
                        static LINES: LineBudget = LineBudget::new();
                        LINES.error(format_args!("xenstored: dropped a new connection of {domid}: {e}"));
                    }
                }
                Command::Introduce(domid, reply) => drop(reply.send(self.introduce(domid))),
                Command::Release(domid, reply) => drop(reply.send(self.release(domid))),
                Command::Stop => self.stopped = true,
            }
        }
    }

    fn accept(&mut self, token: u64) {
        while self.peers.len() < MAX_CONNECTIONS {
            let Some(listener) = self.listeners.get(&token) else { return };
            match listener.accept() {
                Ok(fd) => {
                    if let Err(e) = self.add_connection(fd, DomId(0)) {
                        static LINES: LineBudget = LineBudget::new();
                        LINES.error(format_args!("xenstored: dropped a new client's connection: {e}"));
                    }
                }
                Err(Errno::WOULDBLOCK) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    static LINES: LineBudget = LineBudget::new();
                    LINES.error(format_args!("xenstored: no more connections until one closes: {errno}"));
                    break;
                }
            }
        }
        self.pause_listeners(true);
    }

    /// Pauses the listeners, or continues them. A ready listener that cannot be served would keep
    /// waking epoll.
    fn pause_listeners(&mut self, pause: bool) {
        if self.paused != pause {
            self.paused = pause;
            let interest = if pause { EventFlags::empty() } else { EventFlags::IN };
            for (&token, listener) in &self.listeners {
                if let Err(errno) = epoll::modify(&self.epoll, listener, EventData::new_u64(token), interest)
                {
                    static LINES: LineBudget = LineBudget::new();
                    LINES.error(format_args!("xenstored: epoll_ctl failed for a listening socket: {errno}"));
                }
            }
        }
    }

    fn read(&mut self, token: u64, flags: EventFlags) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let conn = peer.conn;
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
            && self.server.wants_input(conn)
        {
            let mut bytes = Vec::with_capacity(READ_BYTES);
            match rustix::io::read(&peer.fd, spare_capacity(&mut bytes)) {
                Ok(0) => {
                    self.flush(token);
                    return self.close(token);
                }
                Ok(_) => self.server.feed(conn, &bytes),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(_) => return self.close(token),
            }
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // Nothing more is read, and no one is there to read the output.
            return self.close(token);
        }
        self.flush(token);
    }

    fn flush_ready(&mut self) {
        while let Some(conn) = self.server.pop_ready() {
            if let Some(&token) = self.by_conn.get(&conn) {
                self.flush(token);
            }
        }
    }

    /// Sends as much of the output as the socket takes. Closes the connection if it is broken or
    /// has ended.
    fn flush(&mut self, token: u64) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let blocked = loop {
            if peer.sent_bytes == peer.output.len() {
                codec::empty(&mut peer.output);
                peer.sent_bytes = 0;
                self.server.take_output(peer.conn, &mut peer.output);
                if peer.output.is_empty() {
                    break false;
                }
            }
            match rustix::net::send(&peer.fd, &peer.output[peer.sent_bytes..], SendFlags::NOSIGNAL) {
                Ok(n) => peer.sent_bytes += n,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break true,
                Err(_) => return self.close(token),
            }
        };
        if self.server.is_ended(peer.conn) {
            return self.close(token);
        }
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, self.server.wants_input(peer.conn));
        interest.set(EventFlags::OUT, blocked);
        if interest != peer.interest {
            peer.interest = interest;
            if epoll::modify(&self.epoll, &peer.fd, EventData::new_u64(token), interest).is_err() {
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: u64) {
        if let Some(peer) = self.peers.remove(&token) {
            // Closing the last descriptor removes it from the epoll set.
            self.by_conn.remove(&peer.conn);
            self.server.disconnect(peer.conn);
            self.pause_listeners(false);
        }
    }
}
