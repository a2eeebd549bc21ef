//! The server against a model: a sorted map of paths, in which everything happens at once.
//!
//! Several connections do random things. Outside transactions each answer and each event must be the model's. A
//! transaction that commits must be one that could have happened all at once at its end: every answer that it got
//! must be what the model answers then. One that conflicts must have a reason: somebody changed something meanwhile.

use super::*;
use MsgType::*;
use alloc::collections::{BTreeMap, BTreeSet};
use proptest::prelude::*;

const PATHS: [&str; 7] = ["/m", "/m/a", "/m/a/b", "/m/a/b/c", "/m/d", "/m/d/e", "/n"];
const CONNS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    /// A request on a node, in the connection's transaction if it has one.
    Node(MsgType, usize, u8),
    Start,
    End(bool),
    Watch(usize),
    Unwatch(usize),
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let kind =
        prop_oneof![3 => Just(Write), 1 => Just(Mkdir), 1 => Just(Rm), 2 => Just(Read), 1 => Just(Directory)];
    let op = prop_oneof![
        12 => (kind, 0..PATHS.len(), 0u8..3).prop_map(|(k, p, v)| Op::Node(k, p, v)),
        2 => Just(Op::Start),
        2 => any::<bool>().prop_map(Op::End),
        2 => (0..PATHS.len()).prop_map(Op::Watch),
        1 => (0..PATHS.len()).prop_map(Op::Unwatch),
    ];
    (0..CONNS, op)
}

#[derive(Clone, Default)]
struct Model {
    nodes: BTreeMap<String, Vec<u8>>,
    changes: u64,
}

/// What watchers are told of: the path, and the nodes that went with it.
type Change = (String, BTreeSet<String>);

impl Model {
    fn has(&self, path: &str) -> bool {
        path.is_empty() || self.nodes.contains_key(path)
    }

    fn parent(path: &str) -> &str {
        &path[..path.rfind('/').unwrap()]
    }

    fn make(&mut self, path: &str) {
        if !self.has(path) {
            self.make(Self::parent(path));
            self.nodes.insert(path.into(), vec![]);
        }
    }

    fn apply(&mut self, kind: MsgType, path: &str, value: u8) -> (Reply, Option<Change>) {
        let below = alloc::format!("{path}/");
        match kind {
            Read => (self.nodes.get(path).cloned().ok_or("ENOENT".into()), None),
            Directory if !self.has(path) => (err("ENOENT"), None),
            Directory => {
                let names =
                    self.nodes.keys().filter_map(|k| k.strip_prefix(&below)).filter(|n| !n.contains('/'));
                (Ok(names.flat_map(|n| n.bytes().chain([0])).collect()), None)
            }
            Write => {
                self.make(path);
                self.nodes.insert(path.into(), vec![value]);
                self.changes += 1;
                (ok(), Some((path.into(), BTreeSet::new())))
            }
            Mkdir if self.has(path) => (ok(), None),
            Mkdir => {
                self.make(path);
                self.changes += 1;
                (ok(), Some((path.into(), BTreeSet::new())))
            }
            Rm if self.has(path) => {
                let gone: BTreeSet<_> =
                    self.nodes.keys().filter(|k| *k == path || k.starts_with(&below)).cloned().collect();
                self.nodes.retain(|k, _| !gone.contains(k));
                self.changes += 1;
                (ok(), Some((path.into(), gone)))
            }
            Rm if self.has(Self::parent(path)) => (ok(), None),
            _ => (err("ENOENT"), None),
        }
    }
}

/// The events of changes for one connection's watches.
fn expected(watched: &BTreeSet<&str>, changes: &[Change]) -> BTreeSet<String> {
    let mut events = BTreeSet::new();
    for (path, gone) in changes {
        for &watch in watched {
            if path == watch || path.starts_with(&alloc::format!("{watch}/")) {
                events.insert(alloc::format!("{path} {watch}"));
            } else if gone.contains(watch) {
                events.insert(alloc::format!("{watch} {watch}"));
            }
        }
    }
    events
}

fn payload(kind: MsgType, path: &str, value: u8) -> Vec<u8> {
    let mut bytes = path.as_bytes().to_vec();
    bytes.push(0);
    if kind == Write {
        bytes.push(value);
    }
    bytes
}

#[derive(Default)]
struct Open {
    id: u32,
    changes_at_start: u64,
    done: Vec<(MsgType, &'static str, u8, Reply)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_if_everything_happened_at_once(ops in prop::collection::vec(op(), 1..120)) {
        let mut s = Server::default();
        let mut model = Model::default();
        let mut wires: Vec<_> = (0..CONNS).map(|_| Wire::new(&mut s, 0)).collect();
        let mut watched: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); CONNS];
        let mut open: Vec<Option<Open>> = (0..CONNS).map(|_| None).collect();
        for (who, op) in ops {
            let w = &mut wires[who];
            let mut changes: Vec<Change> = vec![];
            let mut first: Option<String> = None;
            match op {
                Op::Node(kind, path, value) => {
                    let (path, body) = (PATHS[path], payload(kind, PATHS[path], value));
                    if let Some(t) = &mut open[who] {
                        let reply = w.ask_in(&mut s, t.id, kind, &body);
                        t.done.push((kind, path, value, reply));
                    } else {
                        let (reply, change) = model.apply(kind, path, value);
                        prop_assert_eq!(w.ask(&mut s, kind, &body), reply);
                        changes.extend(change);
                    }
                }
                Op::Start => {
                    if open[who].is_none() {
                        let id = w.start(&mut s);
                        open[who] = Some(Open { id, changes_at_start: model.changes, done: vec![] });
                    }
                }
                Op::End(commit) => {
                    let Some(t) = open[who].take() else { continue };
                    let verdict: &[u8] = if commit { b"T\0" } else { b"F\0" };
                    let end = w.ask_in(&mut s, t.id, TransactionEnd, verdict);
                    if commit && end == ok() {
                        for (kind, path, value, reply) in t.done {
                            let (now, change) = model.apply(kind, path, value);
                            prop_assert_eq!(reply, now, "{:?} {} could not have been answered so", kind, path);
                            changes.extend(change);
                        }
                    } else if commit {
                        prop_assert_eq!(end, err("EAGAIN"));
                        prop_assert_ne!(t.changes_at_start, model.changes, "a conflict without a change");
                    } else {
                        prop_assert_eq!(end, ok());
                    }
                }
                Op::Watch(path) => {
                    let path = PATHS[path];
                    let body = alloc::format!("{path}\0{path}\0");
                    let fresh = watched[who].insert(path);
                    prop_assert_eq!(w.ask(&mut s, Watch, body.as_bytes()), if fresh { ok() } else { err("EEXIST") });
                    first = fresh.then(|| alloc::format!("{path} {path}"));
                }
                Op::Unwatch(path) => {
                    let path = PATHS[path];
                    let body = alloc::format!("{path}\0{path}\0");
                    let there = watched[who].remove(path);
                    prop_assert_eq!(w.ask(&mut s, Unwatch, body.as_bytes()), if there { ok() } else { err("ENOENT") });
                }
            }
            for (i, w) in wires.iter_mut().enumerate() {
                let mut wanted = expected(&watched[i], &changes);
                wanted.extend(if i == who { first.take() } else { None });
                let told = w.told(&mut s);
                prop_assert_eq!(told.len(), wanted.len(), "an event twice: {:?}", told);
                prop_assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), wanted);
            }
            prop_assert!(s.counts_are_right());
        }
        for path in PATHS {
            prop_assert_eq!(s.value(path), model.nodes.get(path).map(|v| &**v));
        }
    }
}
