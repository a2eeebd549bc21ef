//! xenstored on real sockets against the core's slow model: the same random programs as in
//! `crates/pregrant-xenstored/tests/store_program.rs`, fewer of them. Here events are sent as they
//! come, and a domain that is released finds its sockets closed.

use pregrant::DomId;
use pregrant::wire::xs::MsgType;
use pregrant::xenstore::codec::{self, Message, Parser};
use pregrant_loopback::xenstored::{Handle, Xenstored};
use pregrant_testkit::store_model::Reply;
use pregrant_testkit::store_model::program::{LIMITS, Store, program, run};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

struct Client {
    socket: UnixStream,
    domid: u16,
    input: Parser,
    events: Vec<(String, String)>,
}

struct Sockets {
    handle: Handle,
    server: Option<JoinHandle<Xenstored>>,
    clients: Vec<Option<Client>>,
    last_req_id: u32,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

impl Client {
    fn send(&mut self, req_id: u32, tx: u32, kind: MsgType, payload: &[u8]) {
        let mut bytes = vec![];
        codec::encode(&mut bytes, kind.raw(), req_id, tx, &[payload]);
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next reply, with the events before it kept; `None` when the server closed.
    fn reply(&mut self) -> Option<Message> {
        loop {
            while let Some(m) = self.input.next().unwrap() {
                if m.header.msg_type != MsgType::WatchEvent.raw() {
                    return Some(m);
                }
                let [path, token] = codec::exactly(&m.payload).unwrap();
                self.events.push((text(path), text(token)));
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.input.push(&bytes[..n]),
            }
        }
    }
}

impl Store for Sockets {
    const SENDS_AT_ONCE: bool = true;

    fn connect(&mut self, domid: u16) {
        let (socket, theirs) = UnixStream::pair().unwrap();
        self.handle.add_connection(theirs.into(), DomId(domid)).unwrap();
        self.clients.push(Some(Client { socket, domid, input: Parser::new(), events: vec![] }));
        // Once it answers, the server knows the connection.
        let conn = self.clients.len() - 1;
        self.ask(conn, 0, MsgType::GetDomainPath, b"0\0").unwrap();
    }

    fn disconnect(&mut self, conn: usize) {
        self.clients[conn] = None;
        // The server has seen it when it has done something after it.
        let _ = self.handle.introduce(DomId(0));
    }

    fn ask(&mut self, conn: usize, tx: u32, kind: MsgType, payload: &[u8]) -> Reply {
        self.last_req_id += 2;
        let client = self.clients[conn].as_mut().unwrap();
        client.send(self.last_req_id, tx, kind, payload);
        let reply = client.reply().expect("each request has a reply");
        assert_eq!((reply.header.req_id, reply.header.tx_id), (self.last_req_id, tx));
        // The request's own events come after its reply, and before the next one.
        client.send(
            self.last_req_id + 1,
            0,
            MsgType::GetDomainPath,
            format!("{}\0", client.domid).as_bytes(),
        );
        let after = client.reply().expect("each request has a reply");
        assert_eq!(after.header.req_id, self.last_req_id + 1);
        match reply.header.msg_type {
            t if t == kind.raw() => Ok(reply.payload),
            _ => Err(text(reply.payload.strip_suffix(b"\0").unwrap())),
        }
    }

    fn take_events(&mut self, conn: usize) -> Vec<(String, String)> {
        self.clients[conn].as_mut().map(|c| std::mem::take(&mut c.events)).unwrap_or_default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 4,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/store_program.proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_server_answers_and_tells_what_the_model_does(program in program(100)) {
        let mut xenstored = Xenstored::with_limits(LIMITS).unwrap();
        let handle = xenstored.handle();
        let server = std::thread::spawn(move || {
            xenstored.run(None).unwrap();
            xenstored
        });
        let sockets = Sockets { handle, server: Some(server), clients: vec![], last_req_id: 0 };
        let mut sockets = run(sockets, &program);
        sockets.clients.clear();
        sockets.handle.stop().unwrap();
        let xenstored = sockets.server.take().unwrap().join().unwrap();
        prop_assert!(xenstored.server().counts_are_right());
    }
}
