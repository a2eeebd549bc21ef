//! `pregrant-lab bench store`: operations a second of xenstored, over unix sockets and of its core
//! alone.
//!
//! ```text
//!  this thread, core A                         a thread, core B
//!  for each connection: DEPTH requests  ─────► xenstored (epoll, one thread)
//!  for each connection: their answers   ◄─────
//! ```
//! The figure is the server's own processor time for an operation: the capacity of one core of the
//! server, for any client.

use super::Result;
use super::limit::pair;
use super::output::{Lines, Run};
use super::timing::Timing;
use crate::columns::{Columns, or_dash};
use crate::record::Record;
use crate::record::repeats::Repeats;
use pregrant::DomId;
use pregrant::wire::xs::{MsgType, TX_NONE};
use pregrant::xenstore::codec;
use pregrant_cli::screen;
use pregrant_cli::table::{Table, figure};
use pregrant_loopback::xenstored::{Handle, Xenstored};
use pregrant_testbed::cpu_time;
use pregrant_testbed::limit::{cores, pin};
pub use pregrant_testbed::store_load::Op;
use pregrant_testbed::store_load::{Answers, CHILDREN, Core, Measured, Sockets, VALUE_BYTES, Way, rounds};
use pregrant_xenstored::{Limits, Server};
use rustix::thread::Pid;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// The guest of the first connection; the others follow.
const FIRST_GUEST: u16 = 1;
/// Number of nodes of other guests in the store; the next constant is the number of watches on
/// them.
const OTHERS: usize = 10_000;
const OTHERS_WATCHES: usize = 1000;

/// Arguments of `bench store`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("repeats", |a| a.default_value("3")))]
#[command(after_help = "Examples:
  pregrant-lab bench store
  pregrant-lab bench store --ops read,write --depth 1,64 --connections 16 --seconds 1
  pregrant-lab bench store --json store.jsonl

One transaction is four requests (START, READ, WRITE, END). \"M/s of a core\" is what the server's processor time
for an operation allows; it does not depend on how fast the client asks.")]
pub struct StoreArgs {
    /// Operations, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [Op::Read, Op::Write, Op::Directory, Op::Transaction, Op::Watch])]
    pub ops: Vec<Op>,
    /// Operations that a connection asks for before it waits, with commas between
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16], value_parser = clap::value_parser!(u32).range(1..=256))]
    pub depth: Vec<u32>,
    /// Connections, each of a guest of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub connections: u16,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub lines: Lines,
}

/// A server in a thread that is pinned to a processor of its own.
struct Running {
    handle: Handle,
    thread: JoinHandle<ThreadResult>,
    server: Pid,
}

type ThreadResult = std::result::Result<(), String>;

impl Running {
    fn start(core: usize) -> Result<Self> {
        let mut xenstored = Xenstored::with_limits(limits())?;
        let handle = xenstored.handle();
        let (started, start) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || -> ThreadResult {
            pin(core).map_err(|e| format!("cannot stay on processor {core}: {e}"))?;
            let _ = started.send(rustix::thread::gettid());
            xenstored.run(None).map_err(|e| e.to_string())
        });
        let Ok(server) = start.recv() else {
            return Err(thread
                .join()
                .map_err(|_| "xenstored's thread panicked")?
                .err()
                .unwrap_or_default()
                .into());
        };
        Ok(Self { handle, thread, server })
    }

    /// Returns the processor time that the server has used. It is called while the server sleeps,
    /// so the kernel's account is complete.
    fn cpu_ns(&self) -> Result<u64> {
        Ok(cpu_time::of_thread(self.server)?)
    }

    fn connect(&self, domid: DomId) -> Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.handle.add_connection(theirs.into(), domid)?;
        Ok(ours)
    }

    fn stop(self) -> Result<()> {
        self.handle.stop()?;
        Ok(self.thread.join().map_err(|_| "xenstored's thread panicked")??)
    }
}

/// Returns Xen's own quotas, with more room where the deepest round needs it.
fn limits() -> Limits {
    Limits { transactions: 256, ..Limits::default() }
}

/// Requests with which domain 0 fills the store before the measurement.
fn furniture() -> (Vec<Vec<u8>>, usize) {
    let mut chunks = vec![];
    for i in 0..OTHERS {
        let mut out = vec![];
        let at = format!("/local/domain/{}/device/vif/{}\0", 10_000 + i / 100, i % 100);
        codec::encode(&mut out, MsgType::Write.raw(), 0, TX_NONE, &[at.as_bytes(), b"value"]);
        chunks.push(out);
    }
    for i in 0..OTHERS_WATCHES {
        let mut out = vec![];
        let at = format!("/local/domain/{}/device/vif/{}\0t\0", 10_000 + i / 100, i % 100);
        codec::encode(&mut out, MsgType::Watch.raw(), 0, TX_NONE, &[at.as_bytes()]);
        chunks.push(out);
    }
    (chunks, OTHERS + 2 * OTHERS_WATCHES)
}

/// Creates the store as it is before a row is measured, reached without sockets.
fn core(connections: u16) -> Result<Core> {
    let mut server = Server::new(limits());
    let dom0 = server.connect(DomId(0));
    for chunk in furniture().0 {
        server.feed(dom0, &chunk);
        // Events for domain 0 are dropped as they come.
        server.take_output(dom0, &mut vec![]);
    }
    let mut conns = vec![];
    for i in 0..connections {
        server.introduce(DomId(FIRST_GUEST + i))?;
        conns.push(server.connect(DomId(FIRST_GUEST + i)));
    }
    Ok(Core { server, conns })
}

/// Connects to the server by sockets. The second value is domain 0's connection, which has the
/// watches that stay.
fn sockets(running: &Running, connections: u16) -> Result<(Sockets, UnixStream)> {
    let dom0 = running.connect(DomId(0))?;
    let mut way = Sockets(vec![dom0]);
    let (chunks, count) = furniture();
    let mut answers = Answers::default();
    for batch in chunks.chunks(100) {
        way.send(0, &batch.concat())?;
    }
    way.receive(0, count, &mut answers)?;
    let dom0 = way.0.remove(0);
    for i in 0..connections {
        running.handle.introduce(DomId(FIRST_GUEST + i))?;
        way.0.push(running.connect(DomId(FIRST_GUEST + i))?);
    }
    Ok((way, dom0))
}

/// A row of the table: the requests, and whether they go through sockets.
struct Row {
    op: Op,
    depth: u32,
    with_sockets: bool,
    records: Repeats,
}

/// Measures every row and prints the table.
pub fn measure(args: &StoreArgs, run: &mut Run) -> Result<()> {
    let Timing { seconds, repeats } = args.timing;
    let cores = pair(&cores()?)?;
    let running = Running::start(cores[1])?;
    pin(cores[0])?;
    let (mut sockets, _dom0) = sockets(&running, args.connections)?;
    let mut core = core(args.connections)?;
    let mut rows: Vec<Row> = vec![];
    for &op in &args.ops {
        for with_sockets in [true, false] {
            let row = |&depth| Row { op, depth, with_sockets, records: Repeats::default() };
            rows.extend(args.depth.iter().map(row));
        }
    }
    let heading = table(&[]).to_string();
    for repeat in 1..=repeats {
        let mut last = None;
        for row in &mut rows {
            let asked = (row.op, row.depth, args.connections);
            let m = if row.with_sockets {
                rounds(&mut sockets, asked, seconds, &mut || running.cpu_ns())?
            } else {
                let mut m = rounds(&mut core, asked, seconds, &mut || Ok(0))?;
                // One thread does both; the client's part is next to nothing.
                m.server_cpu_ns = std::mem::take(&mut m.client_cpu_ns);
                m
            };
            let record = row.record(args, &m);
            run.write(row.records.push(record))?;
            // The last repeat ends a row, and there may be minutes until the next.
            if repeat == repeats {
                let text = table(std::slice::from_ref(row)).to_string();
                let text = text.strip_prefix(&heading).unwrap_or(&text).trim_end();
                match last.replace(row.op) {
                    None => run.print(format_args!("{heading}{text}"))?,
                    Some(before) if before != row.op => run.print(format_args!("\n{text}"))?,
                    Some(_) => run.print(text)?,
                }
            }
        }
    }
    drop(sockets);
    running.stop()?;
    run.print(method(args, cores))?;
    if cores[0] == cores[1] {
        screen::say("note: client and server share one core, since this process may use no other");
    }
    Ok(())
}

impl Row {
    fn record(&self, args: &StoreArgs, m: &Measured) -> Record {
        let dir = if matches!(self.op, Op::Read | Op::Directory) { "read" } else { "write" };
        let mut r = Record::new("store", self.op.name(), dir, VALUE_BYTES as u64);
        r.count(m.ops, m.seconds);
        r.queues = args.connections.into();
        r.burst = self.depth;
        r.depth = Some(self.depth);
        r.frontend_cpu_ns = m.client_cpu_ns;
        r.backend_cpu_ns = m.server_cpu_ns;
        r.notifications = if self.op == Op::Watch { m.ops } else { 0 };
        r.platform = if self.with_sockets { "socket" } else { "core" }.into();
        r.mode = "event".into();
        r
    }
}

fn table(rows: &[Row]) -> Table {
    let cost = |row: &Row| row.records.summary(|r| r.backend_cpu_ns as f64 / r.frames as f64);
    let range = |row: &Row| {
        let rate = row.records.rate().map(|rate| rate.per(1e3));
        or_dash(rate.map(|rate| format!("({} to {})", figure(rate.min), figure(rate.max))))
    };
    Columns::of(rows)
        .left("operation", |row| row.op)
        .left("through", |row| if row.with_sockets { "socket" } else { "core alone" })
        .right("depth", |row| row.depth)
        .median("k/s", 1e3, |row| row.records.rate())
        .right("(range)", range)
        .median("server ns each", 1.0, cost)
        .right("k/s of a core", |row| or_dash(cost(row).map(|cost| figure(1e6 / cost.median))))
        .all()
        .at_least(&[11, 10, 5, 6, 14, 14, 13])
}

fn method(args: &StoreArgs, cores: [usize; 2]) -> String {
    format!(
        "Medians of {} interleaved repeats of {} s. {} connection(s), each of a guest of its own; DEPTH operations are sent \
         in one piece, then all answers awaited. Client on core {}, xenstored's one thread on core {}; \"core alone\" \
         feeds the server without sockets, in one thread. \"server ns each\": processor time of xenstored's thread, \
         system calls included; \"of a core\": its inverse. Values of {VALUE_BYTES} B, directories of {CHILDREN} names, \
         {OTHERS} nodes and {OTHERS_WATCHES} watches of others in the store.",
        args.timing.repeats, args.timing.seconds, args.connections, cores[0], cores[1]
    )
}
