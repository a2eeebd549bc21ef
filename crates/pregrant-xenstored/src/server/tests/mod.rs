//! Tests of the server by its wire protocol.

mod limits;
mod requests;
mod transactions;
mod watches;

use super::{ConnId, Limits, Server};
use pregrant::DomId;
use pregrant::wire::xs::{MsgType, TX_NONE};
use pregrant::xenstore::codec::{self, Parser};
use std::string::{String, ToString};

type Reply = Result<Vec<u8>, String>;

/// A client that sends and receives bytes.
struct Wire {
    conn: ConnId,
    input: Parser,
    replies: Vec<(MsgType, Reply)>,
    /// Paths and tokens of events, in the order of arrival.
    events: Vec<(String, String)>,
}

impl Wire {
    fn new(server: &mut Server, domid: u16) -> Self {
        Self { conn: server.connect(DomId(domid)), input: Parser::new(), replies: vec![], events: vec![] }
    }

    fn take(&mut self, server: &mut Server) {
        loop {
            let mut out = vec![];
            server.take_output(self.conn, &mut out);
            if out.is_empty() {
                break;
            }
            self.input.push(&out);
        }
        while let Some(m) = self.input.next().unwrap() {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match MsgType::from_raw(m.header.msg_type).unwrap() {
                MsgType::WatchEvent => {
                    let [path, token] = codec::exactly(&m.payload).unwrap();
                    self.events.push((text(path), text(token)));
                }
                kind @ MsgType::Error => {
                    self.replies.push((kind, Err(text(m.payload.strip_suffix(b"\0").unwrap()))));
                }
                kind => self.replies.push((kind, Ok(m.payload))),
            }
        }
    }

    fn send(&mut self, server: &mut Server, tx: u32, kind: MsgType, payload: &[u8]) {
        let mut bytes = vec![];
        codec::encode(&mut bytes, kind.raw(), 77, tx, &[payload]);
        server.feed(self.conn, &bytes);
    }

    /// Sends a request in a transaction and returns its reply, or the error's name.
    fn ask_in(&mut self, server: &mut Server, tx: u32, kind: MsgType, payload: &[u8]) -> Reply {
        self.send(server, tx, kind, payload);
        self.take(server);
        let (got, reply) = self.replies.remove(0);
        assert!(self.replies.is_empty() && (got == kind || reply.is_err()));
        reply
    }

    /// Sends a request and returns its reply, or the error's name.
    fn ask(&mut self, server: &mut Server, kind: MsgType, payload: &[u8]) -> Reply {
        self.ask_in(server, TX_NONE, kind, payload)
    }

    /// Opens a transaction.
    fn start(&mut self, server: &mut Server) -> u32 {
        let id = self.ask(server, MsgType::TransactionStart, b"\0").unwrap();
        u32::try_from(codec::decimal(codec::exactly::<1>(&id).unwrap()[0]).unwrap()).unwrap()
    }

    /// All events since the last call, as "path token".
    fn events(&mut self, server: &mut Server) -> Vec<String> {
        self.take(server);
        self.events.drain(..).map(|(path, token)| path + " " + &token).collect()
    }
}

fn ok() -> Reply {
    Ok(b"OK\0".to_vec())
}

fn err(name: &str) -> Reply {
    Err(name.to_string())
}

/// A server, domain 0 and guest 7.
fn server() -> (Server, Wire, Wire) {
    with_limits(Limits::default())
}

fn with_limits(limits: Limits) -> (Server, Wire, Wire) {
    let mut s = Server::new(limits);
    s.introduce(DomId(7)).unwrap();
    let (dom0, guest) = (Wire::new(&mut s, 0), Wire::new(&mut s, 7));
    (s, dom0, guest)
}
