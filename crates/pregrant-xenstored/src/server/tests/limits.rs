//! Tests with a hostile guest: quotas, bounded memory, arbitrary bytes.

use super::*;
use crate::server::tree::STEPS;
use MsgType::*;
use proptest::prelude::*;

fn small() -> Limits {
    Limits {
        nodes: 10,
        watches: 3,
        transactions: 2,
        transaction_nodes: 8,
        pending_events: 4,
        ..Limits::default()
    }
}

#[test]
fn each_quota_is_enforced_and_given_back() {
    let (mut s, mut d, mut g) = with_limits(small());
    // Its `data` and `error` are two of ten.
    for i in 0..8 {
        assert_eq!(g.ask(&mut s, Mkdir, format!("data/{i}\0").as_bytes()), ok());
    }
    assert_eq!(g.ask(&mut s, Mkdir, b"data/x\0"), err("ENOSPC"));
    assert_eq!(g.ask(&mut s, Rm, b"data/0\0"), ok());
    assert_eq!(g.ask(&mut s, Write, b"data/deep/er\0"), err("ENOSPC"), "two do not fit, so none is made");
    assert_eq!(g.ask(&mut s, Mkdir, b"data/x\0"), ok());
    assert_eq!(d.ask(&mut s, Mkdir, b"/local/domain/7/data/by-domain-0\0"), ok());

    let value = [b"data/x\0".as_slice(), &[b'v'; 2049]].concat();
    assert_eq!(g.ask(&mut s, Write, &value), err("ENOSPC"));
    assert_eq!(g.ask(&mut s, Write, &value[..value.len() - 1]), ok());
    assert_eq!(g.ask(&mut s, SetPerms, b"data/x\0n7\0r1\0r2\0r3\0r4\0r5\0"), err("ENOSPC"));

    // Over all connections of the domain.
    let (mut again, mut third) = (Wire::new(&mut s, 7), Wire::new(&mut s, 7));
    for (i, w) in [&mut g, &mut again, &mut third].into_iter().enumerate() {
        assert_eq!(w.ask(&mut s, Watch, format!("data\0{i}\0").as_bytes()), ok());
    }
    assert_eq!(g.ask(&mut s, Watch, b"data\0x\0"), err("ENOSPC"));
    s.disconnect(again.conn);
    assert_eq!(g.ask(&mut s, Watch, b"data\0x\0"), ok());

    let (a, _b) = (g.start(&mut s), g.start(&mut s));
    assert_eq!(g.ask(&mut s, TransactionStart, b"\0"), err("ENOSPC"));
    assert_eq!(g.ask_in(&mut s, a, TransactionEnd, b"F\0"), ok());
    g.start(&mut s);
}

#[test]
fn a_transaction_cannot_pass_the_quotas() {
    let (mut s, _, mut g) = with_limits(small());
    let (a, b) = (g.start(&mut s), g.start(&mut s));
    for i in 0..5 {
        assert_eq!(g.ask_in(&mut s, a, Mkdir, format!("data/a{i}\0").as_bytes()), ok());
        assert_eq!(g.ask_in(&mut s, b, Mkdir, format!("data/b{i}\0").as_bytes()), ok());
    }
    assert_eq!(g.ask_in(&mut s, a, TransactionEnd, b"T\0"), ok());
    assert_eq!(g.ask_in(&mut s, b, TransactionEnd, b"T\0"), err("ENOSPC"));
    assert_eq!(s.usage(DomId(7)), (7, 0, 0));
    assert!(s.counts_are_right());

    let tx = g.start(&mut s);
    let mut refused = 0;
    for i in 0..20 {
        refused += usize::from(g.ask_in(&mut s, tx, Read, format!("data/{i}\0").as_bytes()) == err("ENOSPC"));
    }
    assert!(refused >= 10, "a transaction remembers only so many nodes");
}

#[test]
fn a_transaction_remembers_only_so_many_bytes() {
    let (mut s, mut d, mut g) = with_limits(Limits { transaction_bytes: 3000, ..Limits::default() });
    let tx = g.start(&mut s);
    let long = |i: usize| format!("data/{}{i}\0", "x".repeat(900)).into_bytes();
    let read: Vec<_> = (0..6).map(|i| g.ask_in(&mut s, tx, Read, &long(i))).collect();
    assert_eq!(read.iter().filter(|r| **r == err("ENOENT")).count(), 3);
    assert_eq!(read.last(), Some(&err("ENOSPC")));
    let value = |n: usize| [b"data\0".as_slice(), &vec![b'v'; n]].concat();
    for n in [2000, 1000, 2000] {
        assert_eq!(g.ask_in(&mut s, tx, Write, &value(n)), ok(), "a value that is overwritten is not kept");
    }
    assert_eq!(g.ask_in(&mut s, tx, Rm, b"data/x\0"), ok());
    assert_eq!(g.ask_in(&mut s, tx, Write, &value(2000)), err("ENOSPC"));
    assert_eq!(g.ask_in(&mut s, tx, TransactionEnd, b"T\0"), ok());
    assert_eq!(d.ask(&mut s, Read, b"/local/domain/7/data\0").unwrap().len(), 2000);
}

#[test]
fn events_of_a_client_that_does_not_read_are_bounded() {
    let (mut s, mut d, g) = with_limits(small());
    let mut w = Wire::new(&mut s, 0);
    assert_eq!(w.ask(&mut s, Watch, b"/local/domain/7\0t\0"), ok());
    w.events(&mut s);
    drop(g);
    for i in 0..10_000 {
        assert_eq!(d.ask(&mut s, Write, format!("/local/domain/7/data/{i}\0").as_bytes()), ok());
        assert_eq!(d.ask(&mut s, Rm, format!("/local/domain/7/data/{i}\0").as_bytes()), ok());
    }
    let events = w.events(&mut s);
    assert_eq!(events.len(), 5, "four, and one that says to read all of it");
    assert_eq!(events.last().unwrap(), "/local/domain/7 t");
}

#[test]
fn replies_of_a_client_that_does_not_read_are_bounded() {
    let (mut s, mut d, mut g) = server();
    assert_eq!(d.ask(&mut s, Write, &[b"/local/domain/7/data\0".as_slice(), &[b'v'; 4000]].concat()), ok());
    let mut sent = 0;
    while s.wants_input(g.conn) {
        g.send(&mut s, 0, Read, b"data\0");
        sent += 1;
        assert!(sent < 100_000, "it is read for ever");
    }
    // About the limit and one reply is waiting, and nothing is lost.
    let mut first = vec![];
    s.take_output(g.conn, &mut first);
    assert!(first.len() < Limits::default().buffered_bytes + 8192, "{}", first.len());
    g.input.push(&first);
    g.take(&mut s);
    assert_eq!(g.replies.len(), sent);
    assert!(s.wants_input(g.conn));
}

#[test]
fn the_longest_path_and_token_make_an_event_that_fits() {
    let (mut s, mut d, _) = server();
    let path = "/x".repeat(1024);
    let token = "t".repeat(super::super::watch::TOKEN_MAX);
    assert_eq!(d.ask(&mut s, Watch, format!("/\0{token}\0").as_bytes()), ok());
    assert_eq!(d.ask(&mut s, Watch, format!("/\0{token}t\0").as_bytes()), err("E2BIG"));
    d.events(&mut s);
    assert_eq!(d.ask(&mut s, Mkdir, format!("{path}\0").as_bytes()), ok());
    assert_eq!(d.events(&mut s), [format!("{path} {token}")]);
    assert_eq!(d.ask(&mut s, Rm, b"/x\0"), ok());
}

fn request() -> impl Strategy<Value = (u32, u32, Vec<u8>)> {
    let words: [&[u8]; 11] = [
        b"/",
        b"data",
        b"data/a",
        b"/local/domain/7/data/a/b",
        b"@releaseDomain",
        b"0",
        b"7",
        b"T",
        b"n7",
        b"\xff",
        b"",
    ];
    let word = prop::sample::select(words.to_vec());
    let payload = prop::collection::vec((word, any::<bool>()), 0..4).prop_map(|words| {
        let bytes = words.into_iter().flat_map(|(w, nul)| w.iter().copied().chain(nul.then_some(0)));
        bytes.collect()
    });
    (0u32..30, 0u32..4, payload)
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400), domid in prop_oneof![Just(0), Just(7)]) {
        let (mut s, _, _) = server();
        let c = s.connect(DomId(domid));
        for chunk in bytes.chunks(37) {
            s.feed(c, chunk);
        }
        let mut out = vec![];
        s.take_output(c, &mut out);
        s.disconnect(c);
        prop_assert!(s.counts_are_right());
    }

    #[test]
    fn any_requests_leave_the_counts_right(requests in prop::collection::vec(request(), 1..60), domid in prop_oneof![Just(0), Just(7)]) {
        let (mut s, _, _) = with_limits(small());
        let mut w = Wire::new(&mut s, domid);
        for (kind, tx, payload) in &requests {
            let mut bytes = vec![];
            codec::encode(&mut bytes, *kind, 1, *tx, &[payload]);
            let answered = w.replies.len();
            s.feed(w.conn, &bytes);
            w.take(&mut s);
            prop_assert!(w.replies.len() == answered + 1 || s.is_ended(w.conn), "each request has one reply");
            prop_assert!(s.counts_are_right());
        }
        s.disconnect(w.conn);
        let (nodes, watches, transactions) = s.usage(DomId(7));
        prop_assert_eq!((watches, transactions), (0, 0));
        prop_assert!(domid == 0 || nodes <= small().nodes);
    }
}

#[test]
fn making_nodes_costs_their_depth_and_not_its_square() {
    // The most that one request of a guest can cause, within its quota of nodes.
    let deep = |levels: usize| format!("data{}\0", "/a".repeat(levels));
    for kind in [Mkdir, Write, Read, Rm] {
        let mut cost = [0; 2];
        for (cost, levels) in cost.iter_mut().zip([100, 900]) {
            let (mut s, mut d, mut g) = server();
            for (w, watched) in [(&mut d, "/local/domain/7\0t\0"), (&mut g, "data\0t\0")] {
                assert_eq!(w.ask(&mut s, Watch, watched.as_bytes()), ok());
            }
            if kind == Rm {
                assert_eq!(g.ask(&mut s, Mkdir, deep(levels).as_bytes()), ok());
            }
            let before = STEPS.get();
            let at = if kind == Rm { "data/a\0".into() } else { deep(levels) };
            let done = g.ask(&mut s, kind, at.as_bytes());
            assert_eq!(done, if kind == Read { err("ENOENT") } else { ok() });
            *cost = STEPS.get() - before;
            assert!(s.counts_are_right());
        }
        assert!(cost[1] < 10 * 900 && cost[1] <= 9 * cost[0], "{kind:?}: {cost:?}");
    }
}
