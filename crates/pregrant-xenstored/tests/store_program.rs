//! xenstored's core against a slow model: random programs of requests from domain 0 and three
//! guests, with transactions that cross, permissions, watches, quotas, domains that go and come
//! again. See `store_model`.
#![cfg(not(any(loom, miri)))]

use pregrant::DomId;
use pregrant::wire::xs::MsgType;
use pregrant::xenstore::codec::{self, Parser};
use pregrant_testkit::store_model::Reply;
use pregrant_testkit::store_model::program::{LIMITS, Store, program, run};
use pregrant_xenstored::{ConnId, Server};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

struct Client {
    conn: ConnId,
    input: Parser,
    events: Vec<(String, String)>,
}

/// The server without I/O. A client's events wait in it until that client asks for something.
struct Core {
    server: Server,
    clients: Vec<Client>,
    last_req_id: u32,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

impl Store for Core {
    const SENDS_AT_ONCE: bool = false;

    fn connect(&mut self, domid: u16) {
        let conn = self.server.connect(DomId(domid));
        self.clients.push(Client { conn, input: Parser::new(), events: vec![] });
    }

    fn disconnect(&mut self, conn: usize) {
        self.server.disconnect(self.clients[conn].conn);
    }

    fn ask(&mut self, conn: usize, tx: u32, kind: MsgType, payload: &[u8]) -> Reply {
        self.last_req_id += 1;
        let client = &mut self.clients[conn];
        let mut bytes = vec![];
        codec::encode(&mut bytes, kind.raw(), self.last_req_id, tx, &[payload]);
        self.server.feed(client.conn, &bytes);
        let mut out = vec![];
        self.server.take_output(client.conn, &mut out);
        client.input.push(&out);
        let mut reply = None;
        while let Some(m) = client.input.next().unwrap() {
            if m.header.msg_type == MsgType::WatchEvent.raw() {
                let [path, token] = codec::exactly(&m.payload).unwrap();
                client.events.push((text(path), text(token)));
                continue;
            }
            assert_eq!((m.header.req_id, m.header.tx_id, &reply), (self.last_req_id, tx, &None));
            reply = Some(match m.header.msg_type {
                t if t == kind.raw() => Ok(m.payload),
                _ => Err(text(m.payload.strip_suffix(b"\0").unwrap())),
            });
        }
        assert!(self.server.counts_are_right());
        reply.expect("each request has a reply")
    }

    fn take_events(&mut self, conn: usize) -> Vec<(String, String)> {
        std::mem::take(&mut self.clients[conn].events)
    }
}

proptest! {
    // Eight times the usual number, 2048; PROPTEST_CASES changes it.
    #![proptest_config(ProptestConfig {
        cases: 8 * ProptestConfig::default().cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/store_program.proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_core_answers_and_tells_what_the_model_does(program in program(150)) {
        run(Core { server: Server::new(LIMITS), clients: vec![], last_req_id: 0 }, &program);
    }
}
