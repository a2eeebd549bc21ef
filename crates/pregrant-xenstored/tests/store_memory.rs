//! Memory that clients can make xenstored keep: watch events that no one reads, replies that no one
//! reads, requests that stop halfway. Bytes on the heap are counted, before and after; nothing
//! depends on time.
#![cfg(not(any(loom, miri)))]

use pregrant::DomId;
use pregrant::wire::xs::{Header, MsgType, PAYLOAD_MAX};
use pregrant::xenstore::codec;
use pregrant_testkit::counting::{Counting, live};
use pregrant_xenstored::{ConnId, Limits, Server};

#[global_allocator]
static COUNTING: Counting = Counting;

const GUEST: DomId = DomId(7);
const EVENTS: usize = 100_000;

fn server() -> (Server, ConnId) {
    let mut server = Server::default();
    server.introduce(GUEST).unwrap();
    let dom0 = server.connect(DomId(0));
    (server, dom0)
}

fn send(server: &mut Server, conn: ConnId, kind: MsgType, payload: &[u8]) {
    let mut bytes = vec![];
    codec::encode(&mut bytes, kind.raw(), 1, 0, &[payload]);
    server.feed(conn, &bytes);
}

/// Sends a request and drops what waits for the client.
fn ask(server: &mut Server, conn: ConnId, kind: MsgType, payload: &[u8]) {
    send(server, conn, kind, payload);
    let mut out = vec![];
    server.take_output(conn, &mut out);
    assert_ne!(out.first(), Some(&(MsgType::Error.raw() as u8)), "{kind} was refused");
}

/// Makes and removes nodes below the guest's `data`, each of another name, so that no two events
/// are equal.
fn make_changes(server: &mut Server, dom0: ConnId, name_bytes: usize, count: usize) {
    for i in 0..count {
        let path = format!("/local/domain/7/data/{i}{}\0", "x".repeat(name_bytes)).into_bytes();
        ask(server, dom0, MsgType::Mkdir, &path);
        ask(server, dom0, MsgType::Rm, &path);
    }
}

/// Bytes that a guest with as many watches as it may have is able to make the server keep, when it
/// reads nothing.
fn kept_for_a_guest_that_reads_nothing(name_bytes: usize, changes: usize) -> isize {
    let (mut server, dom0) = server();
    // Whatever grows on the way is there already.
    make_changes(&mut server, dom0, name_bytes, 10);
    let before = live();
    let guest = server.connect(GUEST);
    for i in 0..Limits::default().watches {
        ask(&mut server, guest, MsgType::Watch, format!("data\0{i}\0").as_bytes());
    }
    make_changes(&mut server, dom0, name_bytes, changes);
    let kept = live() - before;
    assert_eq!(server.usage(GUEST), (2, Limits::default().watches, 0));

    // All of it is given back, and each watch says where to check.
    let (mut events, mut out) = (vec![], vec![]);
    while {
        out.clear();
        server.take_output(guest, &mut out);
        !out.is_empty()
    } {
        events.extend_from_slice(&out);
    }
    for i in 0..Limits::default().watches {
        let own = format!("data\0{i}\0");
        assert!(
            events.windows(own.len()).any(|w| w == own.as_bytes()),
            "watch {i} has an event that says to read all"
        );
    }
    drop((events, out));
    server.disconnect(guest);
    assert!(live() - before < 4096, "{} bytes stay behind", live() - before);
    kept
}

#[test]
fn a_hundred_thousand_events_that_no_one_reads() {
    // An event is kept as key and path in a queue, and in a set that finds equal ones.
    let few = kept_for_a_guest_that_reads_nothing(0, 10);
    // Each change makes two events for each watch.
    let many = kept_for_a_guest_that_reads_nothing(0, EVENTS / 100);
    let long = kept_for_a_guest_that_reads_nothing(2000, 2000);
    println!(
        "bytes kept: {few} after 10 changes, {many} after {}, {long} with names of 2000 bytes",
        EVENTS / 100
    );
    let limits = Limits::default();
    let bound = limits.pending_bytes + (limits.pending_events + limits.watches) * 256 + limits.watches * 512;
    assert!(many <= bound as isize, "{many} bytes kept, {bound} are the limit");
    assert!(long <= bound as isize, "{long} bytes kept, {bound} are the limit");
    assert!(many < 2 * few, "what is kept goes on growing: {few}, then {many}");
}

#[test]
fn requests_that_stop_halfway() {
    let (mut server, _) = server();
    let before = live();
    let half = Header { msg_type: MsgType::Write.raw(), len_bytes: PAYLOAD_MAX as u32, ..Header::default() };
    let conns: Vec<_> = (0..1000).map(|_| server.connect(GUEST)).collect();
    for &conn in &conns {
        server.feed(conn, &half.to_bytes());
        for _ in 0..PAYLOAD_MAX - 1 {
            server.feed(conn, b"x");
        }
    }
    let each = (live() - before) / 1000;
    // A buffer that grows in steps is at most twice as long as what is in it.
    assert!(each < 2 * (Header::SIZE + PAYLOAD_MAX) as isize + 1024, "{each} bytes for each");
    for &conn in &conns {
        server.disconnect(conn);
    }
    drop(conns);
    assert!(live() - before < 1024);
}

#[test]
fn buffers_do_not_stay_as_large_as_they_once_were() {
    let (mut server, dom0) = server();
    ask(&mut server, dom0, MsgType::Write, &[b"/local/domain/7/data\0".as_slice(), &[b'v'; 4000]].concat());
    let before = live();
    let guest = server.connect(GUEST);
    let mut most = 0;
    for _ in 0..10 {
        while server.wants_input(guest) {
            send(&mut server, guest, MsgType::Read, b"data\0");
        }
        most = most.max(live() - before);
        let mut out = vec![];
        while {
            out.clear();
            server.take_output(guest, &mut out);
            !out.is_empty()
        } {}
    }
    let limit = Limits::default().buffered_bytes as isize;
    assert!(most < 4 * limit, "{most} bytes wait, of {limit}");
    assert!(live() - before < 16 * 1024, "{} bytes for a connection with nothing to do", live() - before);
}
