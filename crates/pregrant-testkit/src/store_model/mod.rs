//! xenstored as it might be written in an afternoon: a flat map of paths, transactions that copy
//! all of it, watches in a list that is gone through for each change. Slow and plain, to compare
//! the real one with.
//!
//! It answers the same requests and keeps the same events for each connection, in the same order.
//! It allows the behaviour of docs/protocol: equal events that wait are one, and beyond a limit a
//! watch's events become one that names the watched node.

mod nodes;
pub mod program;

use nodes::{Caller, Change, NodeOp, Perm, Seen, Tree};
use pregrant_xenstored::Limits;
use std::collections::BTreeMap;

/// A reply's payload, or the error's name.
pub type Reply = Result<Vec<u8>, String>;

fn ok() -> Reply {
    Ok(b"OK\0".to_vec())
}

fn err(name: &str) -> Reply {
    Err(name.into())
}

struct Domain {
    target: Option<u16>,
    limits: Limits,
}

struct Watch {
    conn: usize,
    path: String,
    token: String,
    depth: Option<usize>,
    /// The first part of the watched path, which events do not contain (the home of a relative
    /// path).
    base: String,
    number: usize,
}

/// A transaction: a copy of the store from its start, and another one with the transaction's
/// changes.
struct Transaction {
    snapshot: Tree,
    work: Tree,
    seen: Seen,
    /// Each request of the transaction: its path, its operation, its caller, and the reply.
    log: Vec<(String, NodeOp, Caller, Reply)>,
}

struct Connection {
    domid: u16,
    alive: bool,
    transactions: BTreeMap<u32, Transaction>,
    /// Events that were not sent yet: the watch's number and the path.
    queue: Vec<(usize, String)>,
    /// Events that were sent: the path as the client gets it, and the watch's token.
    sent: Vec<(String, String)>,
}

struct Model {
    tree: Tree,
    clock: u64,
    limits: Limits,
    domains: BTreeMap<u16, Domain>,
    connections: Vec<Connection>,
    watches: Vec<Watch>,
    last_watch: usize,
    special: BTreeMap<String, Vec<Perm>>,
}

impl Model {
    fn new(limits: Limits) -> Self {
        let mut model = Self {
            tree: Tree::new(),
            clock: 0,
            limits,
            domains: BTreeMap::new(),
            connections: vec![],
            watches: vec![],
            last_watch: 0,
            special: ["@introduceDomain", "@releaseDomain"].map(|p| (p.to_string(), vec![('n', 0)])).into(),
        };
        for path in ["/", "/local", "/local/domain", "/tool", "/tool/xenstored"] {
            model.make(path, b"", vec![('n', 0)]);
        }
        model.introduce(0);
        model
    }

    fn connect(&mut self, domid: u16) -> usize {
        let (transactions, queue, sent) = (BTreeMap::new(), vec![], vec![]);
        self.connections.push(Connection { domid, alive: true, transactions, queue, sent });
        self.connections.len() - 1
    }

    fn disconnect(&mut self, conn: usize) {
        self.reset(conn);
        self.connections[conn].alive = false;
    }

    fn is_alive(&self, conn: usize) -> bool {
        self.connections[conn].alive
    }

    fn domid(&self, conn: usize) -> u16 {
        self.connections[conn].domid
    }

    /// The numbers of a connection's transactions.
    fn transactions(&self, conn: usize) -> Vec<u32> {
        self.connections[conn].transactions.keys().copied().collect()
    }

    /// Sends the events that wait for a connection.
    fn send(&mut self, conn: usize) {
        for (number, path) in std::mem::take(&mut self.connections[conn].queue) {
            let watch = self.watches.iter().find(|w| w.number == number).unwrap();
            let shown = path.strip_prefix(&watch.base).unwrap().to_string();
            self.connections[conn].sent.push((shown, watch.token.clone()));
        }
    }

    fn take_events(&mut self, conn: usize) -> Vec<(String, String)> {
        std::mem::take(&mut self.connections[conn].sent)
    }

    fn caller(&self, conn: usize) -> Caller {
        let domid = self.connections[conn].domid;
        let domain = self.domains.get(&domid);
        let limits = domain.map_or(self.limits, |d| d.limits);
        Caller {
            domid,
            target: domain.and_then(|d| d.target),
            limits: if domid == 0 { self.limits.of_domain_0() } else { limits },
        }
    }

    fn is_domain_0(&self, conn: usize) -> bool {
        self.connections[conn].domid == 0
    }

    /// Resolves a path that a client names. Returns the absolute path, and the directory to which
    /// the name was relative. None: the path is invalid.
    fn resolve(&self, conn: usize, path: &str) -> Option<(String, String)> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-/_@".contains(c);
        if path.is_empty() || !path.chars().all(legal) || path.contains("//") {
            return None;
        }
        if path != "/" && path.ends_with('/') {
            return None;
        }
        if path.starts_with(['/', '@']) {
            return Some((path.into(), String::new()));
        }
        let base = format!("/local/domain/{}/", self.connections[conn].domid);
        Some((base.clone() + path, base))
    }

    fn node(&mut self, conn: usize, tx: u32, path: &str, op: &NodeOp) -> Reply {
        let is_domain_0 = self.is_domain_0(conn);
        match (op, self.special.get_mut(path)) {
            (NodeOp::GetPerms, Some(perms)) => return Ok(nodes::perms_to_bytes(perms)),
            (NodeOp::SetPerms(_), Some(_)) if !is_domain_0 => return err("EACCES"),
            (NodeOp::SetPerms(new), Some(_)) if new[0].1 != 0 => return err("EPERM"),
            (NodeOp::SetPerms(new), Some(perms)) => {
                perms.clone_from(new);
                return ok();
            }
            _ => {}
        }
        let Some((path, _)) = self.resolve(conn, path).filter(|(p, _)| p.starts_with('/')) else {
            return err("EINVAL");
        };
        let caller = self.caller(conn);
        if tx == 0 {
            let mut changes = vec![];
            let reply = nodes::apply(
                &mut self.tree,
                &mut self.clock,
                &caller,
                &mut Seen::new(),
                &path,
                op,
                &mut changes,
            );
            self.fire(&changes);
            return reply;
        }
        let Some(t) = self.connections[conn].transactions.get_mut(&tx) else { return err("ENOENT") };
        let reply = nodes::apply(&mut t.work, &mut self.clock, &caller, &mut t.seen, &path, op, &mut vec![]);
        t.log.push((path, op.clone(), caller, reply.clone()));
        reply
    }

    /// Checks whether a transaction can be started. The error is the name of the errno with which
    /// the store must refuse it.
    fn may_start(&self, conn: usize, tx: u32) -> Result<(), String> {
        if tx != 0 {
            let open = self.connections[conn].transactions.contains_key(&tx);
            return Err(if open { "EBUSY" } else { "ENOENT" }.into());
        }
        let caller = self.caller(conn);
        let open: usize =
            self.connections.iter().filter(|c| c.domid == caller.domid).map(|c| c.transactions.len()).sum();
        if open >= caller.limits.transactions { Err("ENOSPC".into()) } else { Ok(()) }
    }

    fn start(&mut self, conn: usize, tx: u32) {
        let (snapshot, work) = (self.tree.clone(), self.tree.clone());
        let opened = Transaction { snapshot, work, seen: Seen::new(), log: vec![] };
        let before = self.connections[conn].transactions.insert(tx, opened);
        assert!(tx != 0 && before.is_none(), "transaction {tx} was given twice");
    }

    fn end(&mut self, conn: usize, tx: u32, commit: bool) -> Reply {
        let Some(t) = self.connections[conn].transactions.remove(&tx) else { return err("ENOENT") };
        if !commit {
            return ok();
        }
        let changed = |(path, children): (&String, &bool)| {
            let stamp =
                |tree: &Tree| tree.get(path).map(|n| (n.changed, n.children_changed * u64::from(*children)));
            stamp(&t.snapshot) != stamp(&self.tree)
        };
        if t.seen.iter().any(changed) {
            return err("EAGAIN");
        }
        // As if all of it had happened now, at once.
        let caller = self.caller(conn);
        let (mut next, mut changes) = (self.tree.clone(), vec![]);
        for (i, (path, op, then, reply)) in t.log.iter().enumerate() {
            let is_edit =
                |(_, op, _, reply): &&(String, NodeOp, Caller, Reply)| op.is_edit() && reply.is_ok();
            let follows = t.log[i + 1..].iter().find(is_edit);
            let overwritten = follows.is_some_and(|(p, o, ..)| p == path && matches!(o, NodeOp::Write(_)));
            let mut events = vec![];
            // A refused request has no effect, even if it were not refused now.
            let mut scratch = reply.is_err().then(|| next.clone());
            let (tree, clock) = (scratch.as_mut().unwrap_or(&mut next), &mut self.clock);
            let now = nodes::apply(tree, clock, &caller, &mut Seen::new(), path, op, &mut events);
            if *then == caller && reply.as_ref().err().is_none_or(|e| e != "ENOSPC") && now != err("ENOSPC") {
                assert_eq!(now, *reply, "a transaction that commits must be one that could happen at once");
            }
            if op.is_edit() && reply.is_ok() {
                now?;
                // Of two writes in a row only the last one happens.
                if !(overwritten && matches!(op, NodeOp::Write(_))) {
                    changes.extend(events);
                } else {
                    changes.extend(events.into_iter().filter(|c| c.path != *path));
                }
            }
        }
        // A node that no one else saw comes and goes without an event.
        changes.retain(|c| self.tree.contains_key(&c.path) || next.contains_key(&c.path));
        self.tree = next;
        self.fire(&changes);
        ok()
    }

    fn watch(&mut self, conn: usize, path: &str, token: &str, depth: Option<usize>) -> Reply {
        let Some((path, base)) = self.resolve(conn, path) else { return err("EINVAL") };
        if path.starts_with('@') && depth.is_some_and(|d| d != 1) {
            return err("EINVAL");
        }
        let caller = self.caller(conn);
        let used = self.watches.iter().filter(|w| self.connections[w.conn].domid == caller.domid).count();
        if used >= caller.limits.watches {
            return err("ENOSPC");
        }
        if self.watches.iter().any(|w| w.conn == conn && w.path == path && w.token == token) {
            return err("EEXIST");
        }
        self.last_watch += 1;
        let number = self.last_watch;
        self.watches.push(Watch { conn, path: path.clone(), token: token.into(), depth, base, number });
        self.queue(number, &path);
        ok()
    }

    fn unwatch(&mut self, conn: usize, path: &str, token: &str) -> Reply {
        let Some((path, _)) = self.resolve(conn, path) else { return err("EINVAL") };
        let is_it = |w: &Watch| w.conn == conn && w.path == path && w.token == token;
        let Some(at) = self.watches.iter().position(is_it) else { return err("ENOENT") };
        let number = self.watches.remove(at).number;
        self.connections[conn].queue.retain(|(n, _)| *n != number);
        ok()
    }

    fn reset(&mut self, conn: usize) {
        self.watches.retain(|w| w.conn != conn);
        self.connections[conn].queue.clear();
        self.connections[conn].transactions.clear();
    }

    fn introduce_request(&mut self, conn: usize, domid: u16) -> Reply {
        if !self.is_domain_0(conn) {
            return err("EACCES");
        }
        self.introduce(domid);
        ok()
    }

    fn introduce(&mut self, domid: u16) {
        if self.domains.contains_key(&domid) {
            return;
        }
        self.domains.insert(domid, Domain { target: None, limits: self.limits });
        let home = format!("/local/domain/{domid}");
        let mut readable = vec![('n', 0)];
        if domid != 0 {
            readable.push(('r', domid));
        }
        self.make("/local", b"", vec![('n', 0)]);
        self.make("/local/domain", b"", vec![('n', 0)]);
        self.make(&home, b"", readable.clone());
        self.make(&format!("{home}/domid"), domid.to_string().as_bytes(), readable);
        self.make(&format!("{home}/data"), b"", vec![('n', domid)]);
        self.make(&format!("{home}/error"), b"", vec![('n', domid)]);
        self.fire_special("@introduceDomain", domid);
    }

    fn make(&mut self, path: &str, value: &[u8], perms: Vec<Perm>) {
        if !self.tree.contains_key(path) {
            nodes::insert(&mut self.tree, &mut self.clock, path, value, perms.clone());
            self.fire(&[Change {
                path: path.into(),
                above: false,
                removed: Tree::new(),
                readers: vec![perms],
            }]);
        }
    }

    fn release(&mut self, conn: usize, domid: u16) -> Reply {
        if !self.is_domain_0(conn) {
            return err("EACCES");
        }
        if domid == 0 {
            return err("EINVAL");
        }
        if self.domains.remove(&domid).is_none() {
            return err("ENOENT");
        }
        for domain in self.domains.values_mut() {
            if domain.target == Some(domid) {
                domain.target = None;
            }
        }
        for conn in 0..self.connections.len() {
            if self.connections[conn].domid == domid {
                self.disconnect(conn);
            }
        }
        let home = format!("/local/domain/{domid}");
        let doomed: Vec<_> =
            self.tree.keys().filter(|p| **p == home || self.tree[*p].owner() == domid).cloned().collect();
        for path in doomed {
            if path != "/" && self.tree.contains_key(&path) {
                let change = nodes::remove(&mut self.tree, &mut self.clock, &path);
                self.fire(&[change]);
            }
        }
        for node in self.tree.values_mut() {
            if node.perms.iter().any(|p| p.1 == domid) {
                self.clock += 1;
                node.changed = self.clock;
                if node.owner() == domid {
                    // The root stays.
                    node.perms.insert(0, ('n', 0));
                }
                node.perms.retain(|p| p.1 != domid);
            }
        }
        for perms in self.special.values_mut() {
            perms.retain(|p| p.1 != domid);
        }
        self.fire_special("@releaseDomain", domid);
        ok()
    }

    fn set_target(&mut self, conn: usize, domid: u16, target: u16) -> Reply {
        if !self.is_domain_0(conn) {
            return err("EACCES");
        }
        if target == 0 {
            return err("EINVAL");
        }
        if !self.domains.contains_key(&target) {
            return err("ENOENT");
        }
        let Some(domain) = self.domains.get_mut(&domid) else { return err("ENOENT") };
        domain.target = Some(target);
        ok()
    }

    fn set_quota(&mut self, conn: usize, domid: u16, nodes: usize) -> Reply {
        if !self.is_domain_0(conn) {
            return err("EACCES");
        }
        if domid == 0 {
            return err("EINVAL");
        }
        let Some(domain) = self.domains.get_mut(&domid) else { return err("ENOENT") };
        domain.limits.nodes = if nodes == 0 { usize::MAX } else { nodes };
        ok()
    }

    fn is_introduced(&self, domid: u16) -> Reply {
        Ok(if self.domains.contains_key(&domid) { b"T\0" } else { b"F\0" }.to_vec())
    }

    fn fire(&mut self, changes: &[Change]) {
        for change in changes {
            // Nearer watches first, then those on nodes that went with it; of each kind in the
            // order in which they were set.
            let mut events: Vec<(usize, String, usize)> = vec![];
            for w in &self.watches {
                let caller = self.caller(w.conn);
                if let Some(levels) = nodes::levels_below(&change.path, &w.path) {
                    let deep_enough = w.depth.is_none_or(|d| levels <= d);
                    // One that sees all gets an event of the node that was asked for, and not of
                    // those made on the way.
                    let named_by_another = change.above && w.depth.is_none();
                    let may = change.readers.iter().any(|perms| caller.reads(perms));
                    if deep_enough && !named_by_another && may {
                        events.push((levels, change.path.clone(), w.number));
                    }
                } else if change.removed.get(&w.path).is_some_and(|node| caller.reads(&node.perms)) {
                    events.push((usize::MAX, w.path.clone(), w.number));
                }
            }
            events.sort();
            for (_, path, number) in events {
                self.queue(number, &path);
            }
        }
    }

    fn fire_special(&mut self, path: &str, domid: u16) {
        let named = format!("{path}/{domid}");
        let mut events = vec![];
        for w in &self.watches {
            if !self.caller(w.conn).reads(&self.special[path]) {
                continue;
            }
            if w.path == path {
                events.push((0, w.number, if w.depth.is_some() { named.clone() } else { path.to_string() }));
            } else if w.path == named && path == "@releaseDomain" {
                events.push((1, w.number, named.clone()));
            }
        }
        events.sort();
        for (_, number, path) in events {
            self.queue(number, &path);
        }
    }

    fn queue(&mut self, number: usize, path: &str) {
        let watch = self.watches.iter().find(|w| w.number == number).unwrap();
        let limits = self.caller(watch.conn).limits;
        let queue = &mut self.connections[watch.conn].queue;
        let waiting_bytes: usize = queue.iter().map(|(_, path)| path.len()).sum();
        let fits = queue.len() < limits.pending_events && waiting_bytes + path.len() <= limits.pending_bytes;
        let event = (number, if fits { path.to_string() } else { watch.path.clone() });
        if !queue.contains(&event) {
            queue.push(event);
        }
    }
}
