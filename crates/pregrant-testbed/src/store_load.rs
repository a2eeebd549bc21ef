//! The loop of `pregrant-lab bench store`: makes requests to a store, byte by byte, and sends them
//! by sockets or to the server's core alone.
//!
//! No function here is generic over what the caller chooses: it would be compiled with the caller,
//! which is not optimized.

use crate::{cpu_time, named};
use pregrant::wire::xs::{Header, MsgType, TX_NONE};
use pregrant::xenstore::codec;
use pregrant_xenstored::{ConnId, Server};
use std::error::Error;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const WARM_UP: Duration = Duration::from_millis(20);

/// Bytes of the values that are read and written.
pub const VALUE_BYTES: usize = 16;
/// Number of children of the node that is listed.
pub const CHILDREN: usize = 8;

named! {
    pub enum Op {
        /// READ of a value
        Read = "read",
        /// WRITE of a value
        Write = "write",
        /// DIRECTORY of a node with 8 children
        Directory = "directory",
        /// START, READ, WRITE and END
        Transaction = "transaction",
        /// WRITE of a node that the connection watches, and the event
        Watch = "watch",
    }
}

impl Op {
    /// Returns the number of messages that the server sends for one operation.
    pub fn answers(self) -> usize {
        match self {
            Self::Transaction => 4,
            Self::Watch => 2,
            _ => 1,
        }
    }
}

/// A client of a store with several connections: by sockets, or of the server's core in this
/// thread.
pub trait Way {
    /// Sends requests on connection `conn`.
    fn send(&mut self, conn: usize, requests: &[u8]) -> io::Result<()>;

    /// Waits for `answers` messages on connection `conn`.
    fn receive(&mut self, conn: usize, answers: usize, into: &mut Answers) -> io::Result<()>;
}

#[derive(Default)]
pub struct Answers {
    bytes: Vec<u8>,
    filled: usize,
}

impl Answers {
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() < self.filled + 4096 {
            self.bytes.resize(self.filled + 64 * 1024, 0);
        }
        &mut self.bytes[self.filled..]
    }

    /// Returns the messages' headers and payloads.
    fn messages(&self) -> impl Iterator<Item = (Header, &[u8])> {
        let mut rest = &self.bytes[..self.filled];
        std::iter::from_fn(move || {
            let (head, body) = rest.split_first_chunk::<{ Header::SIZE }>()?;
            let header = Header::from_bytes(*head);
            let payload = body.get(..header.len_bytes as usize)?;
            rest = &body[payload.len()..];
            Some((header, payload))
        })
    }

    /// True if that many answers have arrived. An error reply among them is an error.
    fn complete(&self, answers: usize) -> io::Result<bool> {
        let mut count = 0;
        for (header, payload) in self.messages() {
            if header.msg_type == MsgType::Error.raw() {
                let name = String::from_utf8_lossy(payload);
                return Err(io::Error::other(format!(
                    "xenstored answered {}; this is a fault of pregrant, please report it",
                    name.trim_end_matches('\0')
                )));
            }
            count += 1;
        }
        Ok(count >= answers)
    }
}

/// Connections to a server in another thread or process.
pub struct Sockets(pub Vec<UnixStream>);

impl Way for Sockets {
    fn send(&mut self, conn: usize, requests: &[u8]) -> io::Result<()> {
        self.0[conn].write_all(requests)
    }

    fn receive(&mut self, conn: usize, answers: usize, into: &mut Answers) -> io::Result<()> {
        while !into.complete(answers)? {
            let n = self.0[conn].read(into.room())?;
            if n == 0 {
                return Err(io::Error::other("xenstored closed the connection"));
            }
            into.filled += n;
        }
        Ok(())
    }
}

/// The server's core, called in this thread.
pub struct Core {
    pub server: Server,
    pub conns: Vec<ConnId>,
}

impl Way for Core {
    fn send(&mut self, conn: usize, requests: &[u8]) -> io::Result<()> {
        self.server.feed(self.conns[conn], requests);
        Ok(())
    }

    fn receive(&mut self, conn: usize, answers: usize, into: &mut Answers) -> io::Result<()> {
        into.bytes.truncate(into.filled);
        while !into.complete(answers)? {
            self.server.take_output(self.conns[conn], &mut into.bytes);
            if into.bytes.len() == into.filled {
                return Err(io::Error::other("a request was not answered"));
            }
            into.filled = into.bytes.len();
        }
        Ok(())
    }
}

/// The requests that one connection sends in one round: those of `depth` operations at once.
struct Load {
    op: Op,
    requests: Vec<u8>,
    depth: usize,
}

fn request(out: &mut Vec<u8>, kind: MsgType, tx: u32, slot: usize, payload: &[&[u8]]) {
    codec::encode(out, kind.raw(), slot as u32, tx, payload);
}

/// Returns the node of an operation. Each operation of a round has its own node, so that the
/// operations do not conflict.
fn node(slot: usize) -> String {
    format!("data/{slot}\0")
}

impl Load {
    /// Creates a load for a connection of a guest that owns its `data` node.
    fn new(op: Op, depth: usize) -> Self {
        let mut requests = vec![];
        for slot in 0..depth {
            let out = &mut requests;
            match op {
                Op::Read => request(out, MsgType::Read, TX_NONE, slot, &[node(slot).as_bytes()]),
                Op::Write | Op::Watch => {
                    let value = [b'w'; VALUE_BYTES];
                    request(out, MsgType::Write, TX_NONE, slot, &[node(slot).as_bytes(), &value]);
                }
                Op::Directory => request(out, MsgType::Directory, TX_NONE, slot, &[b"data/list\0"]),
                Op::Transaction => request(out, MsgType::TransactionStart, TX_NONE, slot, &[b"\0"]),
            }
        }
        Self { op, requests, depth }
    }

    /// Returns the requests that prepare the store, and the number of their answers.
    fn set_up(&self) -> (Vec<u8>, usize) {
        let (mut out, mut answers) = (vec![], 0);
        for slot in 0..self.depth {
            request(&mut out, MsgType::Write, TX_NONE, slot, &[node(slot).as_bytes(), &[b's'; VALUE_BYTES]]);
        }
        for child in 0..CHILDREN {
            let at = format!("data/list/child-{child}\0");
            request(&mut out, MsgType::Mkdir, TX_NONE, child, &[at.as_bytes()]);
        }
        answers += self.depth + CHILDREN;
        if self.op == Op::Watch {
            request(&mut out, MsgType::Watch, TX_NONE, 0, &[b"data\0bench\0"]);
            answers += 2;
        }
        (out, answers)
    }

    fn tear_down(&self) -> (Vec<u8>, usize) {
        let mut out = vec![];
        request(&mut out, MsgType::ResetWatches, TX_NONE, 0, &[b"\0"]);
        (out, 1)
    }

    /// Runs one round over all connections, each with a load of its own: all requests are sent,
    /// then all replies are read. Returns the number of operations.
    fn round(loads: &mut [Load], way: &mut dyn Way, answers: &mut Answers) -> io::Result<u64> {
        for (conn, load) in loads.iter().enumerate() {
            way.send(conn, &load.requests)?;
        }
        let mut done = 0;
        for (conn, load) in loads.iter_mut().enumerate() {
            answers.clear();
            match load.op {
                Op::Transaction => {
                    way.receive(conn, load.depth, answers)?;
                    way.send(conn, &load.in_transactions(answers)?)?;
                    answers.clear();
                    way.receive(conn, 3 * load.depth, answers)?;
                }
                op => way.receive(conn, op.answers() * load.depth, answers)?,
            }
            done += load.depth as u64;
        }
        Ok(done)
    }

    /// Returns the requests, in the transactions that were just opened.
    fn in_transactions(&self, opened: &Answers) -> io::Result<Vec<u8>> {
        let mut out = vec![];
        for (slot, (_, payload)) in opened.messages().enumerate() {
            let number = codec::exactly(payload).and_then(|[n]| codec::decimal(n));
            let tx = number.and_then(|n| u32::try_from(n).ok());
            let tx = tx.ok_or_else(|| io::Error::other("xenstored gave a transaction without a number"))?;
            let node = node(slot);
            request(&mut out, MsgType::Read, tx, slot, &[node.as_bytes()]);
            request(&mut out, MsgType::Write, tx, slot, &[node.as_bytes(), &[b't'; VALUE_BYTES]]);
            request(&mut out, MsgType::TransactionEnd, tx, slot, &[b"T\0"]);
        }
        Ok(out)
    }
}

/// The result of measuring a row once.
pub struct Measured {
    pub ops: u64,
    pub seconds: f64,
    pub client_cpu_ns: u64,
    pub server_cpu_ns: u64,
}

/// Runs rounds for some time. `server_cpu` returns the CPU time that the server has used so far.
pub fn rounds(
    way: &mut dyn Way,
    (op, depth, connections): (Op, u32, u16),
    seconds: f64,
    server_cpu: &mut dyn FnMut() -> Result<u64>,
) -> Result<Measured> {
    let mut loads: Vec<_> = (0..connections).map(|_| Load::new(op, depth as usize)).collect();
    let mut answers = Answers::default();
    for (conn, load) in loads.iter().enumerate() {
        let (requests, count) = load.set_up();
        answers.clear();
        way.send(conn, &requests)?;
        way.receive(conn, count, &mut answers)?;
    }
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        Load::round(&mut loads, way, &mut answers)?;
    }
    let (client, server, start) = (cpu_time::of_this_thread(), server_cpu()?, Instant::now());
    let (mut ops, mut rounds) = (0, 0u32);
    let limit = Duration::from_secs_f64(seconds);
    // The clock is not asked in each round: for the core alone it would be a part of the figure.
    while !rounds.is_multiple_of(64) || start.elapsed() < limit {
        ops += Load::round(&mut loads, way, &mut answers)?;
        rounds += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let (client_cpu_ns, server_cpu_ns) = (cpu_time::of_this_thread() - client, server_cpu()? - server);
    for (conn, load) in loads.iter().enumerate() {
        let (requests, count) = load.tear_down();
        answers.clear();
        way.send(conn, &requests)?;
        way.receive(conn, count, &mut answers)?;
    }
    Ok(Measured { ops, seconds, client_cpu_ns, server_cpu_ns })
}
