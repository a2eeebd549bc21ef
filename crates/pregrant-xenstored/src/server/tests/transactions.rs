//! Tests of what a transaction sees, its conflicts, and its effects for others.

use super::*;
use MsgType::*;

#[test]
fn own_writes_are_seen_inside_and_nothing_outside_until_the_end() {
    let (mut s, mut d, mut g) = server();
    assert_eq!(d.ask(&mut s, Watch, b"/local/domain/7/data\0t\0"), ok());
    d.events(&mut s);
    let tx = g.start(&mut s);
    assert_eq!(g.ask_in(&mut s, tx, Write, b"data/x\x001"), ok());
    assert_eq!(g.ask_in(&mut s, tx, Read, b"data/x\0"), Ok(b"1".to_vec()));
    assert_eq!(g.ask_in(&mut s, tx, TransactionStart, b"\0"), err("EBUSY"));
    assert_eq!(d.ask(&mut s, Read, b"/local/domain/7/data/x\0"), err("ENOENT"));
    assert_eq!(d.events(&mut s), [""; 0]);
    assert_eq!(g.ask_in(&mut s, tx, TransactionEnd, b"T\0"), ok());
    assert_eq!(d.ask(&mut s, Read, b"/local/domain/7/data/x\0"), Ok(b"1".to_vec()));
    assert_eq!(d.events(&mut s), ["/local/domain/7/data/x t"]);

    let tx = g.start(&mut s);
    assert_eq!(g.ask_in(&mut s, tx, Rm, b"data/x\0"), ok());
    assert_eq!(g.ask_in(&mut s, tx, TransactionEnd, b"F\0"), ok());
    assert_eq!(d.ask(&mut s, Read, b"/local/domain/7/data/x\0"), Ok(b"1".to_vec()));
    assert_eq!(d.events(&mut s), [""; 0]);
    assert!(s.counts_are_right());
}

/// Whether `inside`, in a transaction, conflicts with `outside`, which happens before its end.
fn conflicts(inside: (MsgType, &[u8]), outside: (MsgType, &[u8])) -> bool {
    let (mut s, mut d, _) = server();
    let mut other = Wire::new(&mut s, 0);
    for node in [&b"/c/a\0v"[..], b"/c/b\0v"] {
        assert_eq!(d.ask(&mut s, Write, node), ok());
    }
    let tx = d.start(&mut s);
    let _ = d.ask_in(&mut s, tx, inside.0, inside.1);
    assert_eq!(d.ask_in(&mut s, tx, Write, b"/result\0x"), ok());
    assert_eq!(other.ask(&mut s, outside.0, outside.1), ok());
    let end = d.ask_in(&mut s, tx, TransactionEnd, b"T\0");
    assert!(s.counts_are_right());
    let kept = s.value("/result").is_some();
    assert_eq!(kept, end == ok());
    assert!(end == ok() || end == err("EAGAIN"), "{end:?}");
    !kept
}

#[test]
fn a_conflict_is_a_change_of_what_the_outcome_depended_on() {
    let read_a = (Read, &b"/c/a\0"[..]);
    assert!(conflicts(read_a, (Write, b"/c/a\0w")));
    assert!(conflicts(read_a, (Write, b"/c/a\0v")), "the same value again is a change");
    assert!(conflicts(read_a, (Rm, b"/c/a\0")));
    assert!(conflicts(read_a, (Rm, b"/c\0")));
    assert!(conflicts(read_a, (SetPerms, b"/c/a\0n0\0")));
    assert!(!conflicts(read_a, (Write, b"/c/b\0w")));
    assert!(!conflicts(read_a, (Write, b"/c/a/below\0w")));

    let list = (Directory, &b"/c\0"[..]);
    assert!(conflicts(list, (Mkdir, b"/c/new\0")));
    assert!(conflicts(list, (Rm, b"/c/a\0")));
    assert!(!conflicts(list, (Write, b"/c/a\0w")));

    let missing = (Read, &b"/c/x/y\0"[..]);
    assert!(conflicts(missing, (Write, b"/c/x/y\0v")));
    assert!(conflicts(missing, (Mkdir, b"/c/x\0")));
    assert!(!conflicts(missing, (Mkdir, b"/c/z\0")));

    let make = (Write, &b"/c/new\0v"[..]);
    assert!(conflicts(make, (Write, b"/c/new\0other")));
    assert!(conflicts(make, (Rm, b"/c\0")));
    assert!(
        !conflicts(make, (Mkdir, b"/c/sibling\0")),
        "two backs that write their own keys do not disturb each other"
    );
    assert!(conflicts((Rm, b"/c/a\0"), (Write, b"/c/a\0w")));
}

#[test]
fn transactions_end_with_their_connection() {
    let (mut s, _, mut g) = server();
    g.start(&mut s);
    g.start(&mut s);
    assert_eq!(s.usage(DomId(7)).2, 2);
    s.disconnect(g.conn);
    assert_eq!(s.usage(DomId(7)).2, 0);
}
