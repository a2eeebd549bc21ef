//! `pregrant bench store`: operations a second of xenstored, over unix sockets and of its core alone.
//!
//! ```text
//!  this thread, core A                         a thread, core B
//!  for each connection: DEPTH requests  ─────► xenstored (epoll, one thread)
//!  for each connection: their answers   ◄─────
//! ```
//! What counts is the server's own processor time for an operation: what a core of the server can do, whoever asks.

use super::limit::pair;
pub use super::store_load::Op;
use super::store_load::{Answers, CHILDREN, Core, Load, Sockets, VALUE_BYTES, Way};
use crate::cpu_time;
use crate::limit::{cores, pin};

use crate::record::stats::Summary;
use crate::record::{Record, RecordWriter};
use crate::screen::print;
use crate::table::{Align, Table, figure};
use pregrant::DomId;
use pregrant::wire::xs::{MsgType, TX_NONE};
use pregrant::xenstore::codec;
use pregrant_host::xenstored::{Handle, Xenstored};
use pregrant_xenstored::{Limits, Server};
use rustix::thread::Pid;
use std::error::Error;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The guest of the first connection; the others follow.
const FIRST_GUEST: u16 = 1;
/// Nodes of others in the store, and watches on as many of them.
const OTHERS: usize = 10_000;
const OTHERS_WATCHES: usize = 1000;
/// Rounds before the count.
const WARM_UP: Duration = Duration::from_millis(20);

/// Arguments of `bench store`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench store
  pregrant bench store --ops read,write --depth 1,64 --connections 16 --seconds 1
  pregrant bench store --json store.jsonl

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
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 0.2, value_parser = super::net::seconds)]
    pub seconds: f64,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Write a JSON object per row and repeat to this file ("-": standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A server in a thread of its own, on a processor of its own.
struct Running {
    handle: Handle,
    thread: JoinHandle<ThreadResult>,
    /// That thread.
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

    /// Processor time of the server. It sleeps whenever this is asked, so the kernel's account is complete.
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

/// Xen's own quotas, but room for the deepest round.
fn limits() -> Limits {
    Limits { transactions: 256, ..Limits::default() }
}

/// What domain 0 asks for before anything is measured: a store that is not empty.
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

/// What one row measured once.
struct Measured {
    ops: u64,
    seconds: f64,
    client_cpu_ns: u64,
    server_cpu_ns: u64,
}

/// Runs rounds for some time. `server_cpu` gives the server's processor time so far.
fn measure<W: Way>(
    way: &mut W,
    (op, depth, connections): (Op, u32, u16),
    seconds: f64,
    mut server_cpu: impl FnMut() -> Result<u64>,
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

/// The store as it is before a row, reached without sockets.
fn core(connections: u16) -> Result<Core> {
    let mut server = Server::new(limits());
    let dom0 = server.connect(DomId(0));
    for chunk in furniture().0 {
        server.feed(dom0, &chunk);
        // What waits for domain 0 is thrown away as it comes.
        server.take_output(dom0, &mut vec![]);
    }
    let mut conns = vec![];
    for i in 0..connections {
        server.introduce(DomId(FIRST_GUEST + i))?;
        conns.push(server.connect(DomId(FIRST_GUEST + i)));
    }
    Ok(Core { server, conns })
}

/// The same over sockets; the last connection is domain 0's, whose watches stay.
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

/// A row: what is asked, and whether through sockets.
type Row = (Op, u32, bool);

/// Measures every row and prints the table.
pub fn run(args: StoreArgs) -> Result<()> {
    let mut json = RecordWriter::open(args.json.as_deref())?;
    let cores = pair(&cores()?)?;
    let running = Running::start(cores[1])?;
    pin(cores[0])?;
    let (mut sockets, _dom0) = sockets(&running, args.connections)?;
    let mut core = core(args.connections)?;
    let mut rows: Vec<(Row, Vec<Record>)> = vec![];
    for &op in &args.ops {
        for with_sockets in [true, false] {
            rows.extend(args.depth.iter().map(|&depth| ((op, depth, with_sockets), vec![])));
        }
    }
    let heading = table(None).to_string();
    for repeat in 0..args.repeats {
        let mut last = None;
        for ((op, depth, with_sockets), records) in &mut rows {
            let row = (*op, *depth, args.connections);
            let m = if *with_sockets {
                measure(&mut sockets, row, args.seconds, || running.cpu_ns())?
            } else {
                let mut m = measure(&mut core, row, args.seconds, || Ok(0))?;
                // One thread does both; the client's part is next to nothing.
                m.server_cpu_ns = std::mem::take(&mut m.client_cpu_ns);
                m
            };
            let record = record((*op, *depth, *with_sockets), &args, repeat, &m);
            json.write(&record)?;
            records.push(record);
            // The last repeat ends a row, and there may be minutes until the next.
            if repeat + 1 == args.repeats && !json.is_stdout() {
                let text = table(Some((&(*op, *depth, *with_sockets), records))).to_string();
                let row = text.strip_prefix(&heading).unwrap_or(&text).trim_end();
                match last.replace(*op) {
                    None => print(format_args!("{heading}{row}"))?,
                    Some(before) if before != *op => print(format_args!("\n{row}"))?,
                    Some(_) => print(row)?,
                }
            }
        }
    }
    drop(sockets);
    running.stop()?;
    if !json.is_stdout() {
        print(method(&args, cores))?;
    }
    if cores[0] == cores[1] {
        eprintln!("note: client and server share one core, since this process may use no other");
    }
    Ok(())
}

fn record((op, depth, with_sockets): Row, args: &StoreArgs, repeat: u32, m: &Measured) -> Record {
    let dir = if matches!(op, Op::Read | Op::Directory) { "read" } else { "write" };
    let mut r = Record::new("store", op.name(), dir, VALUE_BYTES as u64);
    r.count(m.ops, m.seconds);
    r.queues = args.connections.into();
    r.burst = depth;
    r.depth = Some(depth);
    r.repeat = repeat;
    r.frontend_cpu_ns = m.client_cpu_ns;
    r.backend_cpu_ns = m.server_cpu_ns;
    r.notifications = if op == Op::Watch { m.ops } else { 0 };
    r.platform = if with_sockets { "socket" } else { "core" }.into();
    r.mode = "event".into();
    r
}

/// One row, with its heading.
fn table(row: Option<(&Row, &[Record])>) -> Table {
    let table = Table::new(&[
        ("operation", Align::Left),
        ("through", Align::Left),
        ("depth", Align::Right),
        ("k/s", Align::Right),
        ("(range)", Align::Right),
        ("server ns each", Align::Right),
        ("k/s of a core", Align::Right),
    ]);
    let mut table = table.at_least(&[11, 10, 5, 6, 14, 14, 13]);
    let Some(((op, depth, with_sockets), records)) = row else { return table };
    let rates: Vec<f64> = records.iter().map(|r| r.frames_per_s / 1e3).collect();
    let costs: Vec<f64> = records.iter().map(|r| r.backend_cpu_ns as f64 / r.frames as f64).collect();
    if let (Some(rate), Some(cost)) = (Summary::of(&rates), Summary::of(&costs)) {
        table.row([
            op.name().to_string(),
            if *with_sockets { "socket" } else { "core alone" }.into(),
            depth.to_string(),
            figure(rate.median),
            format!("({} to {})", figure(rate.min), figure(rate.max)),
            figure(cost.median),
            figure(1e6 / cost.median),
        ]);
    }
    table
}

fn method(args: &StoreArgs, cores: [usize; 2]) -> String {
    format!(
        "Medians of {} interleaved repeats of {} s. {} connection(s), each of a guest of its own; DEPTH operations are sent \
         in one piece, then all answers awaited. Client on core {}, xenstored's one thread on core {}; \"core alone\" \
         feeds the server without sockets, in one thread. \"server ns each\": processor time of xenstored's thread, \
         system calls included; \"of a core\": its inverse. Values of {VALUE_BYTES} B, directories of {CHILDREN} names, \
         {OTHERS} nodes and {OTHERS_WATCHES} watches of others in the store.",
        args.repeats, args.seconds, args.connections, cores[0], cores[1]
    )
}
