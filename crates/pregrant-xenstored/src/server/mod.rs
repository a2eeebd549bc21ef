//! The server: one tree, many connections, no I/O.
//!
//! ```text
//!   feed(conn, bytes) ──► connection ──► request ──► view ──► tree
//!                             ▲                       │
//!   take_output(conn) ◄── replies, events ◄── watch ◄─┴─ changes      transaction: a view on a snapshot
//! ```
//! The caller owns the sockets: it calls [`Server::feed`] with what came, and for each connection
//! that [`Server::pop_ready`] names sends what [`Server::take_output`] gives.
//!
//! What a client may do: send anything. Malformed requests get an error, an overlong message ends
//! the connection ([`Server::is_ended`]). A client that does not read is not read any more
//! ([`Server::wants_input`]), so that its replies stay bounded; `watch` bounds its events,
//! [`quota`] all else. A request costs at most the size of what its domain's quota lets it keep.

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

/// A connection's number, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(u64);

/// See the module.
#[derive(Debug)]
pub struct Server {
    tree: Tree,
    /// Quotas of domains that are introduced from now on.
    limits: Limits,
    connections: BTreeMap<ConnId, Connection>,
    domains: BTreeMap<DomId, Domain>,
    usage: BTreeMap<DomId, Usage>,
    /// The server's features that a domain may use, where that was set.
    features: BTreeMap<DomId, u32>,
    watches: Watches,
    /// Who may see the special paths, by path.
    special: BTreeMap<&'static str, Perms>,
    /// Connections with something to send or to close.
    ready: BTreeSet<ConnId>,
    last_conn: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Server {
    /// A tree with the nodes that all clients expect, and domain 0.
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

    /// A new connection that speaks for a domain. The caller vouches for the number.
    pub fn connect(&mut self, domid: DomId) -> ConnId {
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        self.connections.insert(conn, Connection::new(domid));
        conn
    }

    /// The connection is closed: its watches and transactions end.
    pub fn disconnect(&mut self, conn: ConnId) {
        self.drop_watches_and_transactions(conn);
        self.connections.remove(&conn);
        self.ready.remove(&conn);
    }

    /// Bytes that came on a connection. Whole requests are answered at once; see
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

    /// Should more be read from this connection? Not while its replies are not fetched.
    pub fn wants_input(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_some_and(|c| {
            let limit = self.limits.buffered_bytes;
            !c.ended && c.replies.len() < limit && c.input.buffered_bytes() < limit
        })
    }

    /// A connection with output to take, or one to close. Each is named until it has neither.
    pub fn pop_ready(&mut self) -> Option<ConnId> {
        self.ready.pop_first()
    }

    /// Appends what is to be sent, about [`Limits::buffered_bytes`] at a time; call again when it
    /// was sent.
    pub fn take_output(&mut self, conn: ConnId, out: &mut Vec<u8>) {
        // Requests that waited for room may be served now.
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

    /// Must the connection be closed, once its output is sent? True for one that is not known.
    pub fn is_ended(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_none_or(|c| c.ended)
    }

    /// The value of a node, for the server's own side, which may see all.
    pub fn value(&self, path: &str) -> Option<&[u8]> {
        self.tree.get(path).map(|n| &*n.value)
    }

    /// Nodes, watches and transactions that a domain has.
    pub fn usage(&self, domid: DomId) -> (usize, usize, usize) {
        let used = self.usage.get(&domid).copied().unwrap_or_default();
        (self.tree.owned_by(domid), used.watches, used.transactions)
    }

    /// Do the counts agree with the tree? For tests, and for the `check` command.
    pub fn counts_are_right(&self) -> bool {
        self.tree.counts_are_right()
    }

    /// Answers requests that are there, as long as there is room for replies.
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
        // An unknown connection cannot ask; the number below has no rights.
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
                        // Above each new node but the topmost is one that is as new, with the same
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

    /// Something happened to a domain. Watches with a depth get its number, and so do those on
    /// its own path.
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

// No unsafe code here, and too slow for Miri.
#[cfg(all(test, not(miri)))]
mod tests;
