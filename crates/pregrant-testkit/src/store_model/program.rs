//! A random program of requests from several connections of several domains, run on a real store
//! and on the model.
//!
//! Replies and events must be equal, one by one and in order; at the end every node must be.
//! proptest prints the shortest program that fails, and keeps it in `proptest-regressions` beside
//! the test.

use super::nodes::{NodeOp, Perm};
use super::{Model, Reply, err, ok};
use pregrant::wire::xs::MsgType;
use pregrant_xenstored::Limits;
use proptest::prelude::*;

/// The store that is tested, with clients that exchange bytes with it.
pub trait Store {
    /// True if the server sends events at once; false if it sends them when the client makes its
    /// next request.
    const SENDS_AT_ONCE: bool;

    /// Opens a connection for a domain. Connections are numbered from 0.
    fn connect(&mut self, domid: u16);

    fn disconnect(&mut self, conn: usize);

    /// Sends a request and waits for its reply.
    fn ask(&mut self, conn: usize, tx: u32, kind: MsgType, payload: &[u8]) -> Reply;

    /// Takes the events that have arrived on a connection: paths and tokens.
    fn take_events(&mut self, conn: usize) -> Vec<(String, String)>;
}

/// The domain of each connection. Domain 9 may act for domain 7.
const DOMIDS: [u16; 6] = [0, 0, 7, 7, 8, 9];

const PATHS: [&str; 21] = [
    "/",
    "/m",
    "/m/a",
    "/m/a/b",
    "/m/a/b/c",
    "/m/d",
    "/m-",
    "/local",
    "/local/domain/7",
    "/local/domain/7/data",
    "/local/domain/7/data/x",
    "/local/domain/7/data/x/y",
    "/local/domain/8/data/z",
    "/local/domain/9",
    "data",
    "data/x",
    "data/x/y",
    "@introduceDomain",
    "@releaseDomain",
    "@releaseDomain/8",
    "/m//a",
];

const PERMS: [&[Perm]; 10] = [
    &[('n', 0)],
    &[('r', 0)],
    &[('b', 0)],
    &[('b', 7)],
    &[('n', 7), ('r', 8)],
    &[('r', 7), ('n', 8), ('b', 9)],
    &[('n', 8), ('w', 9)],
    &[('b', 8), ('n', 7)],
    &[('w', 9), ('r', 7)],
    &[('n', 0), ('r', 7), ('w', 8), ('b', 9)],
];

/// The quotas, which are small, so that random programs reach them.
pub const LIMITS: Limits = Limits {
    nodes: 6,
    value_bytes: 3,
    perms: 3,
    watches: 4,
    transactions: 2,
    transaction_nodes: 1024,
    transaction_bytes: 256 * 1024,
    pending_events: 3,
    pending_bytes: 40,
    buffered_bytes: 64 * 1024,
};

#[derive(Clone, Debug)]
pub enum Op {
    /// An operation on a node; the number selects one of the connection's transactions, none, or
    /// one that does not exist.
    Node(usize, usize, NodeOp),
    Start(usize),
    End(usize, bool),
    Watch(usize, usize, Option<usize>),
    Unwatch(usize, usize),
    Reset,
    Introduce(u16),
    Release(u16),
    SetTarget(u16, u16),
    SetQuota(u16, usize),
    IsIntroduced(u16),
    /// Closes the connection, and opens another one for the same domain.
    Reconnect,
    /// Makes a request without an effect, so that the client reads its events.
    Check,
}

pub fn program(length: usize) -> impl Strategy<Value = Vec<(usize, Op)>> {
    prop::collection::vec((0..DOMIDS.len(), op()), 1..length)
}

fn op() -> impl Strategy<Value = Op> {
    let node = prop_oneof![
        3 => Just(NodeOp::Read),
        2 => Just(NodeOp::Directory),
        1 => Just(NodeOp::GetPerms),
        6 => prop::collection::vec(b'a'..b'd', 0..5).prop_map(NodeOp::Write),
        2 => Just(NodeOp::Mkdir),
        2 => Just(NodeOp::Rm),
        3 => prop::sample::select(PERMS.to_vec()).prop_map(|p| NodeOp::SetPerms(p.to_vec())),
    ];
    let (path, domid, tx) = (0..PATHS.len(), prop::sample::select(vec![0u16, 7, 8, 9]), 0usize..4);
    prop_oneof![
        30 => (tx.clone(), path.clone(), node).prop_map(|(t, p, n)| Op::Node(t, p, n)),
        4 => (0usize..8).prop_map(Op::Start),
        4 => (tx, prop::bool::weighted(0.8)).prop_map(|(t, commit)| Op::End(t, commit)),
        5 => (path.clone(), 0usize..2, prop::option::weighted(0.3, 0usize..3)).prop_map(|(p, t, d)| Op::Watch(p, t, d)),
        2 => (path, 0usize..2).prop_map(|(p, t)| Op::Unwatch(p, t)),
        1 => Just(Op::Reset),
        2 => domid.clone().prop_map(Op::Introduce),
        1 => domid.clone().prop_map(Op::Release),
        1 => (domid.clone(), domid.clone()).prop_map(|(d, t)| Op::SetTarget(d, t)),
        1 => (domid.clone(), 0usize..9).prop_map(|(d, n)| Op::SetQuota(d, n)),
        1 => domid.prop_map(Op::IsIntroduced),
        1 => Just(Op::Reconnect),
        2 => Just(Op::Check),
    ]
}

struct Run<S> {
    store: S,
    model: Model,
    /// For each entry of [`DOMIDS`] the number of its current connection.
    current: Vec<usize>,
    connected: usize,
}

/// Runs a program on a new store and on a new model, and panics where they differ.
pub fn run<S: Store>(store: S, program: &[(usize, Op)]) -> S {
    let model = Model::new(LIMITS);
    let mut run = Run { store, model, current: vec![], connected: 0 };
    for domid in DOMIDS {
        let conn = run.connect(domid);
        run.current.push(conn);
    }
    for domid in [7, 8, 9] {
        run.step(0, &Op::Introduce(domid));
    }
    for (who, op) in program {
        run.step(*who, op);
    }
    // Whatever is left of domain 0's transactions does not matter here.
    let last = run.connect(0);
    let nodes: Vec<String> = run.model.tree.keys().cloned().collect();
    for path in nodes {
        for op in [NodeOp::Read, NodeOp::Directory, NodeOp::GetPerms] {
            run.node(last, 0, &path, &op);
        }
    }
    for who in 0..run.current.len() {
        run.step(who, &Op::Check);
    }
    run.store
}

impl<S: Store> Run<S> {
    fn connect(&mut self, domid: u16) -> usize {
        self.store.connect(domid);
        let conn = self.model.connect(domid);
        assert_eq!(conn, self.connected);
        self.connected += 1;
        conn
    }

    fn step(&mut self, who: usize, op: &Op) {
        let mut conn = self.current[who];
        // The store has ended the connections of a domain that was released.
        if matches!(op, Op::Reconnect) || !self.model.is_alive(conn) {
            let domid = self.model.domid(conn);
            self.model.disconnect(conn);
            self.store.disconnect(conn);
            conn = self.connect(domid);
            self.current[who] = conn;
        }
        let domid_text = |domid: &u16| format!("{domid}\0");
        match op {
            Op::Node(tx, path, op) => self.node(conn, self.tx(conn, *tx), PATHS[*path], op),
            Op::Start(tx) => {
                // Now and then within another one.
                let tx = if *tx == 1 { self.tx(conn, 1) } else { 0 };
                let reply = self.store.ask(conn, tx, MsgType::TransactionStart, b"\0");
                match self.model.may_start(conn, tx) {
                    Err(e) => assert_eq!(reply, err(&e)),
                    Ok(()) => {
                        let number = String::from_utf8(reply.unwrap()).unwrap();
                        self.model.start(conn, number.strip_suffix('\0').unwrap().parse().unwrap());
                    }
                }
            }
            Op::End(tx, commit) => {
                let tx = self.tx(conn, *tx);
                let end: &[u8] = if *commit { b"T\0" } else { b"F\0" };
                let expected = self.model.end(conn, tx, *commit);
                self.expect(conn, tx, MsgType::TransactionEnd, end, expected);
            }
            Op::Watch(path, token, depth) => {
                let path = PATHS[*path];
                let depth_text = depth.map(|d| format!("{d}\0")).unwrap_or_default();
                let payload = format!("{path}\0t{token}\0{depth_text}");
                let expected = self.model.watch(conn, path, &format!("t{token}"), *depth);
                self.expect(conn, 0, MsgType::Watch, payload.as_bytes(), expected);
            }
            Op::Unwatch(path, token) => {
                let path = PATHS[*path];
                let expected = self.model.unwatch(conn, path, &format!("t{token}"));
                self.expect(conn, 0, MsgType::Unwatch, format!("{path}\0t{token}\0").as_bytes(), expected);
            }
            Op::Reset => {
                self.model.reset(conn);
                self.expect(conn, 0, MsgType::ResetWatches, b"\0", ok());
            }
            Op::Introduce(domid) => {
                // 0 is there, and cannot be named.
                let expected = match self.model.introduce_request(conn, *domid) {
                    Ok(_) if *domid == 0 => err("EINVAL"),
                    other => other,
                };
                self.expect(conn, 0, MsgType::Introduce, format!("{domid}\x001\x001\0").as_bytes(), expected);
            }
            Op::Release(domid) => {
                let expected = self.model.release(conn, *domid);
                self.expect(conn, 0, MsgType::Release, domid_text(domid).as_bytes(), expected);
            }
            Op::SetTarget(domid, target) => {
                let expected = self.model.set_target(conn, *domid, *target);
                self.expect(conn, 0, MsgType::SetTarget, format!("{domid}\0{target}\0").as_bytes(), expected);
            }
            Op::SetQuota(domid, nodes) => {
                let expected = self.model.set_quota(conn, *domid, *nodes);
                let payload = format!("{domid}\0nodes\0{nodes}\0");
                self.expect(conn, 0, MsgType::SetQuota, payload.as_bytes(), expected);
            }
            Op::IsIntroduced(domid) => {
                let expected = self.model.is_introduced(*domid);
                self.expect(conn, 0, MsgType::IsDomainIntroduced, domid_text(domid).as_bytes(), expected);
            }
            Op::Reconnect | Op::Check => {
                let domid = self.model.domid(conn);
                let expected = Ok(format!("/local/domain/{domid}\0").into_bytes());
                self.expect(conn, 0, MsgType::GetDomainPath, domid_text(&domid).as_bytes(), expected);
            }
        }
        self.compare_events(conn);
    }

    /// Selects no transaction, one of the connection's own, or one that does not exist.
    fn tx(&self, conn: usize, choice: usize) -> u32 {
        let open = self.model.transactions(conn);
        match choice {
            0 => 0,
            3 if open.is_empty() => 99,
            _ => open.get(choice % open.len().max(1)).copied().unwrap_or(0),
        }
    }

    fn node(&mut self, conn: usize, tx: u32, path: &str, op: &NodeOp) {
        let mut payload = format!("{path}\0").into_bytes();
        let kind = match op {
            NodeOp::Read => MsgType::Read,
            NodeOp::Directory => MsgType::Directory,
            NodeOp::GetPerms => MsgType::GetPerms,
            NodeOp::Mkdir => MsgType::Mkdir,
            NodeOp::Rm => MsgType::Rm,
            NodeOp::Write(value) => {
                payload.extend_from_slice(value);
                MsgType::Write
            }
            NodeOp::SetPerms(perms) => {
                payload.extend(super::nodes::perms_to_bytes(perms));
                MsgType::SetPerms
            }
        };
        let expected = self.model.node(conn, tx, path, op);
        self.expect(conn, tx, kind, &payload, expected);
    }

    fn expect(&mut self, conn: usize, tx: u32, kind: MsgType, payload: &[u8], expected: Reply) {
        let reply = self.store.ask(conn, tx, kind, payload);
        let shown = String::from_utf8_lossy(payload);
        let domid = self.model.domid(conn);
        assert_eq!(reply, expected, "domain {domid}, connection {conn}, transaction {tx}: {kind} {shown:?}");
    }

    /// Compares the events of connection `asked`, whose client has read the events that waited for
    /// it. Other clients have read theirs only if the server sends events at once.
    fn compare_events(&mut self, asked: usize) {
        if S::SENDS_AT_ONCE {
            (0..self.connected).for_each(|conn| self.model.send(conn));
        } else {
            self.model.send(asked);
        }
        if self.model.is_alive(asked) {
            let domid = self.model.domid(asked);
            let (events, expected) = (self.store.take_events(asked), self.model.take_events(asked));
            assert_eq!(events, expected, "events of domain {domid}, connection {asked}");
        }
    }
}
