//! The server: one tree, many connections, no I/O.
//!
//! ```text
//!   feed(conn, bytes) ──► connection ──► request ──► view ──► tree
//!                             ▲                       │
//!   take_output(conn) ◄── replies, events ◄── watch ◄─┴─ changes      transaction: a view on a snapshot
//! ```
//! The caller owns the sockets: it passes received bytes to [`Server::feed`], and for each
//! connection that [`Server::pop_ready`] returns it sends what [`Server::take_output`] yields.
//!
//! What a client may do: send anything. Malformed requests are answered with an error; a message
//! that is too long ends the connection ([`Server::is_ended`]). If a client does not read, its
//! input is not read any more ([`Server::wants_input`]), so that its replies stay bounded; `watch`
//! bounds its events, and [`quota`] everything else. A request costs at most as much as the size of
//! what its domain's quotas let it store.

mod connection;
mod domain;
mod permission;
pub mod quota;
mod request;
mod transaction;
mod tree;
mod view;
mod watch;

use connection::Connection;
use domain::Domain;
pub use domain::DomainError;
use permission::{Caller, Need};
use pregrant::DomId;
use pregrant::xenstore::path;
use pregrant::xenstore::permission::{Access, Permission};
pub use quota::Limits;
use quota::Usage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tree::{Perms, Tree};
use view::{Change, ChangeKind};
use watch::{WatchKey, Watches};

/// The number of a connection, which is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(u64);

/// A xenstored without I/O.
#[derive(Debug)]
pub struct Server {
    tree: Tree,
    /// The quotas of domains that are introduced from now on.
    limits: Limits,
    connections: BTreeMap<ConnId, Connection>,
    domains: BTreeMap<DomId, Domain>,
    usage: BTreeMap<DomId, Usage>,
    /// The features that a domain may use, where they were set.
    features: BTreeMap<DomId, u32>,
    watches: Watches,
    /// The permissions of the special paths.
    special: BTreeMap<&'static str, Perms>,
    /// Connections with output, or to be closed.
    ready: BTreeSet<ConnId>,
    last_conn: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Server {
    /// A server with the nodes that all clients expect, and domain 0.
    pub fn new(limits: Limits) -> Self {
        let own: Perms = [Permission::new(Access::None, DomId(0))].into();
        let mut tree = Tree::new(own.clone());
        for above in ["/local", "/local/domain", "/tool", "/tool/xenstored"] {
            tree.insert(above, b"", own.clone());
        }
        let special = path::SPECIAL.into_iter().map(|p| (p, own.clone())).collect();
        let mut server = Self {
            tree,
            limits,
            connections: BTreeMap::new(),
            domains: BTreeMap::new(),
            usage: BTreeMap::new(),
            features: BTreeMap::new(),
            watches: Watches::default(),
            special,
            ready: BTreeSet::new(),
            last_conn: 0,
        };
        server.make_home(DomId(0));
        server.domains.insert(DomId(0), Domain::new(limits));
        server
    }

    /// Adds a connection of a domain. The caller vouches for the domain's number.
    pub fn connect(&mut self, domid: DomId) -> ConnId {
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        self.connections.insert(conn, Connection::new(domid));
        conn
    }

    /// Removes a connection: its watches and transactions end.
    pub fn disconnect(&mut self, conn: ConnId) {
        self.drop_watches_and_transactions(conn);
        self.connections.remove(&conn);
        self.ready.remove(&conn);
    }

    /// Handles bytes that a connection received. Whole requests are answered at once; see
    /// [`Server::pop_ready`].
    pub fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        if let Some(c) = self.connections.get_mut(&conn) {
            if c.ended {
                return;
            }
            c.input.push(bytes);
            self.serve(conn);
        }
    }

    /// Whether more should be read from this connection. False while its replies are not fetched.
    pub fn wants_input(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_some_and(|c| {
            let limit = self.limits.buffered_bytes;
            !c.ended && c.replies.len() < limit && c.input.buffered_bytes() < limit
        })
    }

    /// A connection with output, or to be closed. It is returned again and again until it has
    /// neither.
    pub fn pop_ready(&mut self) -> Option<ConnId> {
        self.ready.pop_first()
    }

    /// Appends output, about [`Limits::buffered_bytes`] per call; call again when it was sent.
    pub fn take_output(&mut self, conn: ConnId, out: &mut Vec<u8>) {
        // Requests that waited for room may be executed now.
        self.serve(conn);
        if let Some(c) = self.connections.get_mut(&conn) {
            c.take_output(out, &self.watches, self.limits.buffered_bytes);
            if c.has_output() || c.ended {
                self.ready.insert(conn);
            } else {
                self.ready.remove(&conn);
            }
        }
    }

    /// Whether the connection must be closed once its output is sent. True for an unknown
    /// connection.
    pub fn is_ended(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_none_or(|c| c.ended)
    }

    /// The value of a node, for the server's owner, who may see everything.
    pub fn value(&self, path: &str) -> Option<&[u8]> {
        self.tree.get(path).map(|n| &*n.value)
    }

    /// Number of nodes, watches and transactions of a domain.
    pub fn usage(&self, domid: DomId) -> (usize, usize, usize) {
        let used = self.usage.get(&domid).copied().unwrap_or_default();
        (self.tree.owned_by(domid), used.watches, used.transactions)
    }

    /// Whether the counts agree with the tree; for tests and for the `check` command.
    pub fn counts_are_right(&self) -> bool {
        self.tree.counts_are_right()
    }

    /// Executes requests while there is room for replies.
    fn serve(&mut self, conn: ConnId) {
        while let Some(c) = self.connections.get_mut(&conn) {
            let Some(message) = c.next_request(self.limits.buffered_bytes) else {
                if c.has_output() || c.ended {
                    self.ready.insert(conn);
                }
                return;
            };
            self.request(conn, &message);
        }
    }

    fn caller(&self, conn: ConnId) -> Caller {
        // An unknown connection cannot make requests; this number has no rights.
        let domid = self.connections.get(&conn).map_or(DomId::SELF, |c| c.domid);
        Caller { domid, target: self.domains.get(&domid).and_then(|d| d.target) }
    }

    fn fire(&mut self, changes: &[Change]) {
        for change in changes {
            for (key, path) in self.watches.matching(change) {
                let caller = self.caller(key.conn);
                let below = match &change.kind {
                    ChangeKind::Removed(node) => path
                        .strip_prefix(&*change.path)
                        .filter(|rest| !rest.is_empty())
                        .and_then(|rest| node.below(rest)),
                    _ => None,
                };
                let may = match below {
                    Some(node) => caller.may(Need::Read, &node.perms),
                    None => {
                        // The parent of each new node but the topmost is also new, and has the same
                        // permissions.
                        let of_its_own =
                            matches!(change.kind, ChangeKind::Made { top, .. } if path.len() > top);
                        let readers = &change.readers[..if of_its_own { 1 } else { 3 }];
                        readers.iter().flatten().any(|perms| caller.may(Need::Read, perms))
                    }
                };
                if may {
                    self.queue_event(key, &path);
                }
            }
        }
    }

    /// Fires the watches on a special path. Watches with a depth, and those on the domain's own
    /// path, get the domain's number.
    fn fire_special(&mut self, path: &'static str, domid: DomId) {
        let plain: Arc<str> = path.into();
        let named: Arc<str> = format!("{path}/{}", domid.0).into();
        let with_depth = |key: &WatchKey| self.watches.get(*key).is_some_and(|w| w.depth.is_some());
        let events: Vec<_> = self.watches.on(&plain).map(|key| (key, with_depth(&key))).collect();
        let of_this_one =
            (path == path::RELEASE_DOMAIN).then(|| self.watches.on(&named)).into_iter().flatten();
        let events: Vec<_> = events.into_iter().chain(of_this_one.map(|key| (key, true))).collect();
        for (key, by_name) in events {
            let caller = self.caller(key.conn);
            if self.special.get(path).is_some_and(|perms| caller.may(Need::Read, perms)) {
                self.queue_event(key, if by_name { &named } else { &plain });
            }
        }
    }

    fn queue_event(&mut self, key: WatchKey, path: &Arc<str>) {
        let (Some(watch), Some(c)) = (self.watches.get(key), self.connections.get_mut(&key.conn)) else {
            return;
        };
        if !c.ended {
            let limits = self.domains.get(&c.domid).map_or(&self.limits, |d| &d.limits);
            c.events.push(key, path, &watch.path, limits);
            self.ready.insert(key.conn);
        }
    }

    fn drop_watches_and_transactions(&mut self, conn: ConnId) {
        let watches = self.watches.remove_all(conn);
        let Some(c) = self.connections.get_mut(&conn) else { return };
        c.events.clear();
        let transactions = core::mem::take(&mut c.transactions).len();
        let domid = c.domid;
        self.count(domid, |used| {
            used.watches -= watches.min(used.watches);
            used.transactions -= transactions.min(used.transactions);
        });
    }

    fn count(&mut self, domid: DomId, change: impl FnOnce(&mut Usage)) {
        let used = self.usage.entry(domid).or_default();
        change(used);
        if *used == Usage::default() {
            self.usage.remove(&domid);
        }
    }
}

// There is no unsafe code here, and the tests are too slow for Miri.
#[cfg(all(test, not(miri)))]
mod tests;
