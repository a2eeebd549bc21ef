//! Several domains talk to the xenstore server: well-formed requests, malformed ones, bytes of any
//! kind, connections that come, go, and do not read.
//!
//! After each operation: quotas hold, the tree's counts are right, what waits for a connection is
//! bounded. Each whole request has one reply, in order. While no connection speaks for domain 0, a
//! domain that no one speaks for keeps its keys, and no one else sees them. When all connections
//! are gone, so are their watches and transactions.

use crate::tape::Tape;
use pregrant::DomId;
use pregrant::wire::xs::{Errno, Header, MsgType, PAYLOAD_MAX};
use pregrant::xenstore::codec::{self, Parser};
use pregrant_xenstored::{ConnId, Limits, Server};
use std::collections::VecDeque;

/// Largest number of operations of one input.
const OPS: usize = 400;
const GUESTS: [DomId; 2] = [DomId(5), DomId(7)];
/// A domain without connection.
const SILENT: DomId = DomId(9);
const SECRET: &[u8] = b"only domain 9 may know this";
/// Small, so that an input reaches them.
const LIMITS: Limits = Limits {
    nodes: 24,
    value_bytes: 64,
    perms: 3,
    watches: 4,
    transactions: 3,
    transaction_nodes: 24,
    transaction_bytes: 1024,
    pending_events: 8,
    pending_bytes: 256,
    buffered_bytes: 1024,
};

const PATHS: [&str; 20] = [
    "/",
    "/local/domain/5",
    "/local/domain/5/data",
    "/local/domain/5/data/a",
    "/local/domain/5/data/a/b/c",
    "/local/domain/7/data",
    "/local/domain/7/data/a",
    "/local/domain/9",
    "/local/domain/9/data/secret",
    "data",
    "data/a",
    "data/a/b",
    "data/d",
    "error/x/y",
    "domid",
    "../9/data",
    "data//a",
    "@introduceDomain",
    "@releaseDomain",
    "/tool/xenstored",
];

const KINDS: [MsgType; 21] = [
    MsgType::Write,
    MsgType::Read,
    MsgType::Mkdir,
    MsgType::Rm,
    MsgType::Directory,
    MsgType::DirectoryPart,
    MsgType::GetPerms,
    MsgType::SetPerms,
    MsgType::Watch,
    MsgType::Unwatch,
    MsgType::TransactionStart,
    MsgType::TransactionEnd,
    MsgType::ResetWatches,
    MsgType::GetDomainPath,
    MsgType::IsDomainIntroduced,
    MsgType::Control,
    MsgType::SetTarget,
    MsgType::GetFeature,
    MsgType::SetFeature,
    MsgType::GetQuota,
    MsgType::SetQuota,
];

/// One client, which counts the replies that it must get.
struct Wire {
    conn: ConnId,
    domid: DomId,
    /// The server's input, to count whole requests.
    asked: Parser,
    /// Types and numbers of requests without a reply.
    owed: VecDeque<(u32, u32)>,
    events: Parser,
    /// The client sent a message that cannot be parsed.
    lost: bool,
}

struct Game {
    server: Server,
    wires: Vec<Wire>,
    /// A connection speaks for domain 0, and may do anything.
    privileged: bool,
}

pub fn xs_server(data: &[u8]) {
    let mut tape = Tape::new(data);
    let privileged = tape.below(2) == 1;
    let mut server = Server::new(LIMITS);
    for domid in GUESTS.into_iter().chain([SILENT]) {
        server.introduce(domid).expect("a new domain");
    }
    let mut game = Game { server, wires: Vec::new(), privileged };
    game.keep_secret();
    while tape.more(OPS) {
        game.play(&mut tape);
        game.check();
    }
    game.close();
}

impl Game {
    fn keep_secret(&mut self) {
        let conn = self.server.connect(SILENT);
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, MsgType::Write.raw(), 1, 0, &[b"data/secret\0", SECRET]);
        self.server.feed(conn, &bytes);
        self.server.take_output(conn, &mut Vec::new());
        self.server.disconnect(conn);
        assert_eq!(self.server.value("/local/domain/9/data/secret"), Some(SECRET));
    }

    fn play(&mut self, tape: &mut Tape<'_>) {
        let op = tape.u8();
        let who = usize::from(op >> 4);
        if self.wires.is_empty() || op & 15 == 0 {
            return self.connect(who);
        }
        let who = who % self.wires.len();
        match op & 15 {
            1 => {
                let wire = self.wires.remove(who);
                self.server.disconnect(wire.conn);
            }
            2 => self.feed(who, tape.string()),
            // A header that announces what the tape likes.
            3 => {
                let header = Header {
                    msg_type: u32::from(tape.u8()),
                    req_id: 3,
                    tx_id: u32::from(tape.u8()),
                    len_bytes: u32::from(tape.u16()) & 0x1FFF,
                };
                self.feed(who, &header.to_bytes());
            }
            4 => self.read(who, usize::MAX),
            5 if self.privileged => {
                let domid = tape.one_of(&[DomId(5), DomId(7), DomId(11), DomId(0)]);
                let done = if tape.below(2) == 0 {
                    self.server.introduce(domid)
                } else {
                    self.server.release(domid)
                };
                if let Err(e) = done {
                    assert!(e.to_string().len() < 200);
                }
            }
            _ => self.request(who, tape),
        }
        // Some read at once, as honest clients do; others only when asked to.
        if op & 8 != 0 {
            self.read(who, usize::MAX);
        }
    }

    fn connect(&mut self, who: usize) {
        if self.wires.len() < 6 {
            let domid = if self.privileged && who.is_multiple_of(3) { DomId(0) } else { GUESTS[who % 2] };
            let conn = self.server.connect(domid);
            let (asked, events) = (Parser::new(), Parser::new());
            self.wires.push(Wire { conn, domid, asked, owed: VecDeque::new(), events, lost: false });
        }
    }

    fn request(&mut self, who: usize, tape: &mut Tape<'_>) {
        let (kind, tx) = (tape.one_of(&KINDS), u32::from(tape.u8() & 3));
        let path = PATHS[tape.below(PATHS.len())].as_bytes();
        let end: &[u8] = if tape.below(2) == 0 { b"T\0" } else { b"F\0" };
        let value = [tape.u8(); 70];
        let value = &value[..usize::from(value[0]) % 70];
        let perms: &[u8] = tape.one_of(&[
            b"n5\0" as &[u8],
            b"b7\0",
            b"n5\0r7\0",
            b"r0\0",
            b"b5\0n7\0w0\0r1\0",
            b"x1\0",
            b"",
        ]);
        let token: &[u8] = tape.one_of(&[b"t\0" as &[u8], b"u\0", b"t\x001\0", b"", b"u\0x\0"]);
        let parts: Vec<&[u8]> = match kind {
            MsgType::Write => vec![path, b"\0", value],
            MsgType::SetPerms => vec![path, b"\0", perms],
            MsgType::Watch | MsgType::Unwatch => vec![path, b"\0", token],
            MsgType::DirectoryPart => vec![path, b"\0", b"0\0"],
            MsgType::TransactionStart | MsgType::ResetWatches => vec![b"\0"],
            MsgType::TransactionEnd => vec![end],
            MsgType::GetDomainPath | MsgType::IsDomainIntroduced => vec![b"7\0"],
            MsgType::GetFeature => vec![tape.one_of(&[b"" as &[u8], b"\0", b"5\0"])],
            MsgType::SetFeature => vec![b"5\0", tape.one_of(&[b"0\0" as &[u8], b"7\0", b"x\0"])],
            MsgType::GetQuota => vec![tape.one_of(&[b"" as &[u8], b"\0", b"5\0nodes\0", b"nodes\0", b"5\0"])],
            MsgType::SetQuota => {
                vec![tape.one_of(&[b"5\0nodes\x002\0" as &[u8], b"watches\x001\0", b"5\0outstanding\x000\0"])]
            }
            MsgType::SetTarget => vec![b"5\0", b"7\0"],
            MsgType::Control => vec![tape.one_of(&[b"check\0" as &[u8], b"quota\x005\0", b"help\0"])],
            _ => vec![path, b"\0"],
        };
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, kind.raw(), u32::from(tape.u8()), tx, &parts);
        self.feed(who, &bytes);
    }

    fn feed(&mut self, who: usize, bytes: &[u8]) {
        let wire = &mut self.wires[who];
        if !self.server.wants_input(wire.conn) {
            return; // as the owner of the sockets does
        }
        wire.asked.push(bytes);
        loop {
            match wire.asked.next() {
                Ok(Some(m)) => wire.owed.push_back((m.header.msg_type, m.header.req_id)),
                Ok(None) => break,
                Err(_) => {
                    wire.lost = true;
                    break;
                }
            }
        }
        self.server.feed(wire.conn, bytes);
    }

    /// Reads output at most this many times, and checks it.
    fn read(&mut self, who: usize, times: usize) {
        let wire = &mut self.wires[who];
        for _ in 0..times {
            let mut out = Vec::new();
            self.server.take_output(wire.conn, &mut out);
            if out.is_empty() {
                break;
            }
            assert!(
                out.len() <= 2 * (LIMITS.buffered_bytes + Header::SIZE + PAYLOAD_MAX),
                "output is bounded"
            );
            wire.events.push(&out);
        }
        while let Some(m) = wire.events.next().expect("a server writes by the rules") {
            let secret = m.payload.windows(SECRET.len()).any(|w| w == SECRET);
            assert!(self.privileged || !secret, "a key of another domain's, read by {}", wire.domid);
            let (kind, req_id) = (MsgType::from_raw(m.header.msg_type), m.header.req_id);
            if kind == Some(MsgType::WatchEvent) {
                assert_eq!((req_id, m.header.tx_id), (0, 0));
                assert!(codec::exactly::<2>(&m.payload).is_some());
                continue;
            }
            let asked = wire.owed.pop_front().expect("a reply to nothing");
            assert_eq!(req_id, asked.1, "replies in the order of the requests");
            match kind {
                Some(MsgType::Error) => assert!(Errno::from_payload(&m.payload).is_some()),
                _ => assert_eq!(m.header.msg_type, asked.0),
            }
        }
        if times == usize::MAX && !self.server.is_ended(wire.conn) {
            assert!(wire.owed.is_empty(), "a request without a reply");
        }
    }

    fn check(&mut self) {
        assert!(self.server.counts_are_right());
        for domid in GUESTS {
            let (nodes, watches, transactions) = self.server.usage(domid);
            // Domain 0 may make nodes below a guest's, and they count for the guest.
            assert!(self.privileged || nodes <= LIMITS.nodes, "{nodes} nodes of {domid}");
            // And it may change the quotas.
            assert!(self.privileged || watches <= LIMITS.watches && transactions <= LIMITS.transactions);
        }
        if !self.privileged {
            assert_eq!(self.server.value("/local/domain/9/data/secret"), Some(SECRET));
            assert_eq!(self.server.value("/local/domain/9/domid"), Some(&b"9"[..]));
        }
        // Each that is named has something, or is over; and no one is named for ever.
        let mut named = Vec::new();
        while let Some(conn) = self.server.pop_ready() {
            named.push(conn);
            assert!(named.len() <= self.wires.len() + 2, "ready without end");
        }
    }

    fn close(mut self) {
        for who in 0..self.wires.len() {
            self.read(who, usize::MAX);
            let wire = &self.wires[who];
            assert!(
                !wire.lost || self.server.is_ended(wire.conn),
                "a stream that cannot be followed goes on"
            );
        }
        for wire in std::mem::take(&mut self.wires) {
            self.server.disconnect(wire.conn);
        }
        for domid in GUESTS.into_iter().chain([DomId(0), SILENT]) {
            let (_, watches, transactions) = self.server.usage(domid);
            assert_eq!((watches, transactions), (0, 0), "of {domid}, whose connections are gone");
        }
        assert!(self.server.counts_are_right() && self.server.pop_ready().is_none());
    }
}
