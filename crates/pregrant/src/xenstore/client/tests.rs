//! Tests the client against a xenstore whose answers the test chooses: right, wrong, in parts.

use super::*;
use crate::wire::xs::Header;
use crate::xenstore::PathError;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Returns prepared bytes in parts, and keeps what was sent.
#[derive(Default)]
struct Script {
    pieces: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
}

impl Transport for Script {
    type Error = &'static str;

    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
        self.sent.extend_from_slice(bytes);
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, Self::Error> {
        match self.pieces.pop_front() {
            Some(piece) => {
                let n = piece.len().min(buf.len());
                buf[..n].copy_from_slice(&piece[..n]);
                if n < piece.len() {
                    self.pieces.push_front(piece[n..].to_vec());
                }
                Ok(n)
            }
            None if wait.is_some() => Ok(0),
            None => Err("the script is over"),
        }
    }
}

fn message(kind: MsgType, req_id: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    codec::encode(&mut bytes, kind.raw(), req_id, 0, &[payload]);
    bytes
}

/// A client that gets these messages. Its first request has number 1.
fn client(messages: &[Vec<u8>]) -> Client<Script> {
    Client::new(Script { pieces: messages.to_vec().into(), ..Script::default() })
}

/// A client with these watches set, all with the token "t".
fn watching(paths: &[&str], each: bool, messages: &[Vec<u8>]) -> Client<Script> {
    let mut c = client(messages);
    let watches = paths.iter().map(|&path| Watch { path: path.into(), each }).collect();
    c.watches.insert("t".into(), watches);
    c
}

/// 100 000 events of as many nodes below `/a/state`, then the value of `/x`.
fn very_many_nodes() -> Vec<Vec<u8>> {
    let node = |n| message(MsgType::WatchEvent, 0, format!("/a/state/{n}\0t\0").as_bytes());
    (0..100_000).map(node).chain([message(MsgType::Read, 1, b"value")]).collect()
}

fn event(path: &str, token: &str) -> WatchEvent {
    WatchEvent { path: path.into(), token: token.into() }
}

#[test]
fn events_before_a_reply_wait_and_equal_ones_wait_once() {
    let mut c = watching(
        &["/a", "/b"],
        false,
        &[
            message(MsgType::WatchEvent, 0, b"/a\0t\0"),
            message(MsgType::WatchEvent, 0, b"/b\0t\0"),
            message(MsgType::WatchEvent, 0, b"/a\0t\0"),
            message(MsgType::Read, 1, b"value"),
        ],
    );
    assert_eq!(c.read("/x").unwrap(), b"value");
    assert_eq!(c.next_event_where(Some(Duration::ZERO), |e| e.path == "/b").unwrap(), Some(event("/b", "t")));
    assert_eq!(c.next_event(None).unwrap(), Some(event("/a", "t")));
    assert_eq!(c.next_event(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(c.transport().sent, message(MsgType::Read, 1, b"/x\0"));
}

/// An event that arrived with a reply is not in the transport any more, so a sleep until that is
/// readable would miss it.
#[test]
fn an_event_that_came_with_a_reply_is_there_before_it_is_taken() {
    let event_of = |path: &[u8]| message(MsgType::WatchEvent, 0, path);
    // Before the reply, after it in the same read, and half of one, whose rest is still unread.
    let behind = [message(MsgType::Read, 2, b"v"), event_of(b"/b\0t\0")].concat();
    let half = [message(MsgType::Read, 3, b"v"), event_of(b"/c\0t\0")[..20].to_vec()].concat();
    let first = [event_of(b"/a\0t\0"), message(MsgType::Read, 1, b"v")];
    let mut c = watching(&["/a", "/b", "/c"], false, &[&first[..], &[behind, half]].concat());
    for (round, path) in [Some("/a"), Some("/b"), None].into_iter().enumerate() {
        assert!(!c.has_events(), "round {round}");
        assert_eq!(c.read("/x").unwrap(), b"v");
        assert_eq!(c.has_events(), path.is_some(), "round {round}");
        let came = c.next_event(Some(Duration::ZERO)).unwrap();
        assert_eq!(came, path.map(|path| event(path, "t")), "round {round}");
    }
}

#[test]
fn xsa_349_a_guest_s_nodes_below_a_watched_one_are_one_event() {
    let mut c = watching(&["/a/state", "/b"], false, &very_many_nodes());
    assert_eq!(c.read("/x").unwrap(), b"value");
    assert_eq!(c.nr_waiting(), 1);
    // The guest chose which; check the watched node.
    assert_eq!(c.next_event(None).unwrap(), Some(event("/a/state", "t")));
    assert!(!c.has_events());
}

#[test]
fn each_path_waits_where_that_was_asked_for_and_not_without_end() {
    let some: Vec<_> = very_many_nodes().drain(..3).collect();
    let read = message(MsgType::Read, 1, b"value");
    let mut c = watching(&["/a/state"], true, &[some, vec![read]].concat());
    c.read("/x").unwrap();
    for path in ["/a/state/0", "/a/state/1", "/a/state/2"] {
        assert_eq!(c.next_event(None).unwrap(), Some(event(path, "t")));
    }
    let mut c = watching(&["/a/state"], true, &very_many_nodes());
    c.read("/x").unwrap();
    assert!(c.nr_waiting() <= EACH_MAX, "{}", c.nr_waiting());
    assert_eq!(c.next_event(None).unwrap(), Some(event("/a/state", "t")));
}

#[test]
fn an_event_of_a_watch_that_was_taken_back_is_dropped() {
    let events =
        ["/a", "/b/x"].map(|path| message(MsgType::WatchEvent, 0, format!("{path}\0t\0").as_bytes()));
    let [a, b] = events.clone();
    let replies = [message(MsgType::Unwatch, 1, b"OK\0"), message(MsgType::Read, 2, b"v")];
    let [unwatched, read] = replies;
    // Before the reply, after it, and while another is awaited.
    let mut c = watching(&["/a", "/b"], false, &[a.clone(), b.clone(), unwatched, b, read, a]);
    c.unwatch("/b", "t").unwrap();
    c.read("/x").unwrap();
    assert_eq!(c.next_event(Some(Duration::ZERO)).unwrap(), Some(event("/a", "t")));
    // It belongs to the only other watch with this token: a xenstored that names nodes in its own
    // way loses nothing.
    assert_eq!(c.next_event(Some(Duration::ZERO)).unwrap(), Some(event("/a", "t")));
    assert_eq!(c.next_event(Some(Duration::ZERO)).unwrap(), None);
    let mut c = client(&events);
    assert_eq!(c.next_event(Some(Duration::ZERO)).unwrap(), None, "no watch at all");
}

#[test]
fn linuxs_own_reply_to_a_watch_has_no_number() {
    let mut c = client(&[message(MsgType::Watch, 0, b"OK\0"), message(MsgType::Read, 2, b"v")]);
    c.watch("/a", "t").unwrap();
    assert_eq!(c.read("/a").unwrap(), b"v");
}

#[test]
fn a_transaction_is_done_again_on_a_conflict_and_given_up_on_an_error() {
    let mut c = client(&[
        message(MsgType::TransactionStart, 1, b"5\0"),
        message(MsgType::Write, 2, b"OK\0"),
        message(MsgType::Error, 3, b"EAGAIN\0"),
        message(MsgType::TransactionStart, 4, b"6\0"),
        message(MsgType::Write, 5, b"OK\0"),
        message(MsgType::TransactionEnd, 6, b"OK\0"),
        message(MsgType::TransactionStart, 7, b"7\0"),
        message(MsgType::Error, 8, b"EACCES\0"),
        message(MsgType::TransactionEnd, 9, b"OK\0"),
    ]);
    let mut rounds = 0;
    c.transaction(|t| {
        rounds += 1;
        t.write("/a", "v")
    })
    .unwrap();
    assert_eq!(rounds, 2);
    let e = c.transaction(|t| t.write("/a", "v")).unwrap_err();
    assert_eq!((e.operation, e.errno(), &*e.path), (Operation::Write, Some(Errno::Eacces), "/a"));
    assert!(c.transport().sent.ends_with(b"F\0"));
}

#[test]
fn a_directory_that_changes_between_its_parts_is_read_again() {
    let mut c = client(&[
        message(MsgType::Error, 1, b"E2BIG\0"),
        message(MsgType::DirectoryPart, 2, b"8\0a\0b\0"),
        message(MsgType::DirectoryPart, 3, b"9\0c\0\0"),
        message(MsgType::DirectoryPart, 4, b"9\0a\0"),
        message(MsgType::DirectoryPart, 5, b"9\0c\0\0"),
    ]);
    assert_eq!(c.directory("/many").unwrap(), ["a", "c"]);
}

#[test]
fn illegal_requests_are_not_sent() {
    let mut c = client(&[]);
    assert_eq!(c.read("/a//b").unwrap_err().cause, Cause::BadPath(PathError::EmptyComponent { at: 3 }));
    assert_eq!(c.watch("/a", "t\0").unwrap_err().cause, Cause::NulInToken);
    assert_eq!(c.write("/a", [0; 4094]).unwrap_err().cause, Cause::TooLong { len_bytes: 4097 });
    assert!(c.transport().sent.is_empty());
}

#[test]
fn an_answer_out_of_protocol_ends_the_connections_use() {
    let long =
        Header { msg_type: MsgType::Read.raw(), req_id: 1, tx_id: 0, len_bytes: 4097 }.to_bytes().to_vec();
    for wrong in [
        message(MsgType::Read, 2, b"v"),
        message(MsgType::Write, 1, b"OK\0"),
        message(MsgType::WatchEvent, 0, b"/a"),
        message(MsgType::WatchEvent, 0, b"/a\0t\0u\0"),
        message(MsgType::WatchEvent, 0, b"/\xff\0t\0"),
        long,
    ] {
        let mut c = client(&[wrong, message(MsgType::Read, 2, b"v")]);
        assert!(matches!(c.read("/a").unwrap_err().cause, Cause::BadReply(_)));
        assert!(matches!(c.read("/a").unwrap_err().cause, Cause::Connection(_)), "never used again");
    }
    let mut c = client(&[message(MsgType::Error, 1, b"EWHAT\0")]);
    assert!(matches!(c.read("/a").unwrap_err().cause, Cause::BadReply(_)));
}

#[test]
fn errors_say_what_where_and_why() {
    let mut c = client(&[message(MsgType::Error, 1, b"ENOSPC\0")]);
    let text = c.write("/local/domain/7/data/x", "1").unwrap_err().to_string();
    assert!(text.starts_with("xenstore write /local/domain/7/data/x: ENOSPC (a quota"), "{text}");
    assert_eq!(c.read("/x").unwrap_err().to_string(), "xenstore read /x: the script is over");
}

proptest! {
    #[test]
    fn any_bytes_from_xenstore_are_survived(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..20)) {
        let mut c = client(&pieces);
        let _ = c.read("/a");
        let _ = c.directory("/a");
        let _ = c.next_event(Some(Duration::ZERO));
        let _ = c.transaction(|t| t.get_perms("/a"));
    }

    #[test]
    fn any_payload_of_a_reply_is_survived(payload in prop::collection::vec(any::<u8>(), 0..40), kind in 0usize..4) {
        let kinds = [MsgType::Directory, MsgType::GetPerms, MsgType::TransactionStart, MsgType::GetDomainPath];
        let mut c = client(&[message(kinds[kind], 1, &payload)]);
        match kind {
            0 => drop(c.directory("/a")),
            1 => drop(c.get_perms("/a")),
            2 => drop(c.transaction(|_| Ok(()))),
            _ => drop(c.get_domain_path(DomId(1))),
        }
    }
}
