//! `pregrant demo`: two guests, a backend and a machine between them, in processes of this program.
//!
//! Six acts: the machine; the handshake of two vifs, with its states and keys; a TCP transfer from guest to guest
//! through the backend's switch, its bytes summed at both ends; the same with the backend killed in the middle; a disk whose
//! backend is killed, too; then raw frames, path against path, with one guest and the backend on a core each.

mod disk;
mod load;
mod restart;
mod stage;

use crate::bench::latency::{self, Latency};
use crate::bench::limit::Ceiling;
use crate::bench::net::{Row, Stand, ratio};
use crate::process::order::Dir;
use crate::record::published::{self, line_rate};
use crate::record::stats::Summary;
use crate::record::{Record, RecordWriter};
use crate::report::Report as Page;
use crate::screen::{Progress, print};
use crate::table::{Align, Table, figure};
use crate::testbed::Testbed;
use disk::DiskStage;
use load::Load;
use pregrant::net::path::PathName;
use pregrant::xenbus::XenbusState;
use pregrant::xenstore::Client;
use pregrant_host::drivers::Mode;
use pregrant_host::xenstored::UnixTransport;
use stage::{CLIENT, SERVER, Stage, TRANSFER_BYTES};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant demo
  pregrant demo --json out.jsonl
  pregrant demo --report report

Needs no root and no Xen, and takes less than 30 seconds. Figures of a busy machine say little.")]
pub struct DemoArgs {
    /// Write a JSON object per row and repeat to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with plots of the results to this folder, as index.html with the records beside it
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// Bytes of the frames of the last act.
const SIZES: [usize; 5] = [64, 256, 260, 1500, 65535];
/// Seconds of a row.
const ROW_SECONDS: f64 = 0.07;
/// Repeats of each row at most; as many as fit [`BUDGET`].
const REPEATS: u32 = 5;
/// After this no further repeat is begun.
const BUDGET: Duration = Duration::from_secs(20);

/// Runs the demo.
pub fn run(args: DemoArgs) -> Result<()> {
    let start = Instant::now();
    let mut json = RecordWriter::open(args.json.as_deref())?;
    let mut page = Page::open(args.report.as_deref())?;
    let mut out = Screen { quiet: json.is_stdout(), progress: Progress::new() };
    let outcome = acts(&mut out, &mut json, &mut page, start);
    if let Some(place) = page.write(json.written(), &outcome)? {
        out.line(&format!("\nReport: {}", place.display()))?;
    }
    outcome
}

/// All acts, one after the other.
fn acts(out: &mut Screen, json: &mut RecordWriter, page: &mut Page, start: Instant) -> Result<()> {
    let load = Load::now();
    transfer_acts(out, json)?;
    disk_act(out, json)?;
    frames_act(out, json, page, start)?;
    // Its own processes have ended, so what they took is known.
    if let (Some(before), Some(now)) = (load, Load::now())
        && let Some(loaded) = page.others(now.others_since(&before))
    {
        out.warn(&format!("{loaded}. Run it again when nothing else does."))?;
    }
    out.line(&format!("\nDone in {:.0} s.", start.elapsed().as_secs_f64()))
}

/// What the user sees: lines on standard output (not beside JSON lines), progress on standard error.
struct Screen {
    quiet: bool,
    progress: Progress,
}

impl Screen {
    fn line(&mut self, text: &str) -> Result<()> {
        if !self.quiet {
            print(text)?;
        }
        Ok(())
    }

    /// The same of what must be read, also beside JSON lines.
    fn warn(&mut self, text: &str) -> Result<()> {
        if self.quiet {
            eprintln!("pregrant: {text}");
            return Ok(());
        }
        self.line(&format!("\n{text}"))
    }
}

/// Acts 1 to 4.
fn transfer_acts(out: &mut Screen, json: &mut RecordWriter) -> Result<()> {
    out.line("1. The machine: Xen in user space, one process per domain")?;
    let mut stage = Stage::start()?;
    out.line(&format!(
        "   domain 0  backend with a learning switch and a worker thread, process {}",
        stage.back.pid()
    ))?;
    out.line(&format!(
        "   domain {CLIENT}  guest with a TCP/IP stack of its own, process {}",
        stage.client.pid()
    ))?;
    out.line(&format!("   domain {SERVER}  the same, process {}", stage.server.pid()))?;
    out.line(&format!("   xenstore  XENSTORED_PATH={} xenstore-ls", stage.testbed.store_socket().display()))?;

    out.line("\n2. The handshake: states and keys in xenstore")?;
    let watcher = StateWatcher::start(&stage.testbed.store_socket(), &[CLIENT, SERVER])?;
    stage.begin(None, || watcher.wait_for_vifs())?;
    for line in watcher.finish() {
        out.line(&format!("   {line}"))?;
    }
    for line in keys(&mut stage.testbed, CLIENT)? {
        out.line(&format!("   {line}"))?;
    }

    let mib = TRANSFER_BYTES >> 20;
    out.line(&format!("\n3. TCP: {mib} MiB from domain {CLIENT} to domain {SERVER}, adaptive mode"))?;
    out.progress.show("   transferring");
    let done = stage.end()?;
    out.progress.clear();
    out.line(&format!("   {}", done.summary()))?;
    let (frames, staged) = (done.frames(), done.staged());
    let events = done.sent.notifications + done.received.notifications;
    out.line(&format!(
        "   {frames} frames at the guests' vifs, {:.1} % of them through staging buffers; guests' events: {} a frame",
        100.0 * staged as f64 / frames.max(1) as f64,
        figure(events as f64 / frames.max(1) as f64)
    ))?;
    let overflow = done.sent.overflow + done.received.overflow;
    if overflow > 0 {
        out.line(&format!("   {overflow} frames found a guest's stack full; TCP sent them again"))?;
    }

    out.line(
        "\n4. The same once more, and in the middle the backend is killed: a new process takes up the live rings",
    )?;
    out.progress.show("   transferring");
    let restarted = restart::play(&mut stage, done.sent.seconds)?;
    out.progress.clear();
    for line in restarted.lines() {
        out.line(&format!("   {line}"))?;
    }
    json.write(&restarted.record())?;
    Ok(())
}

/// Act 5.
fn disk_act(out: &mut Screen, json: &mut RecordWriter) -> Result<()> {
    out.progress.show("   connecting a disk");
    let stage = DiskStage::start()?;
    out.progress.clear();
    out.line(&format!(
        "\n5. A disk: domain {} has {} in flight on {} MiB, reads and writes of {} B at random places, and the backend, process \
         {}, is killed",
        disk::GUEST,
        disk::DEPTH,
        disk::DISK_BYTES >> 20,
        disk::SIZE,
        stage.pid()
    ))?;
    let played = stage.play(&out.progress)?;
    out.progress.clear();
    for line in played.lines() {
        out.line(&format!("   {line}"))?;
    }
    json.write(&played.record())?;
    Ok(())
}

/// The keys that decide, as they stand in xenstore.
fn keys(testbed: &mut Testbed, front: u16) -> Result<Vec<String>> {
    let front_dir = format!("/local/domain/{front}/device/vif/0");
    let back_dir = format!("/local/domain/0/backend/vif/{front}/0");
    let mut lines = Vec::new();
    let shown = [
        (&back_dir, &["feature-sg", "feature-staging-grants", "staging-grants-sizes"][..]),
        (&front_dir, &["tx-ring-ref", "rx-ring-ref", "event-channel-tx", "event-channel-rx"][..]),
        (&front_dir, &["tx-data-ref0", "tx-data-len", "rx-data-ref0", "rx-data-len"][..]),
        (&back_dir, &["staging-grants-active"][..]),
    ];
    let mut last = None;
    for (dir, keys) in shown {
        if last != Some(dir) {
            lines.push(dir.to_string());
        }
        last = Some(dir);
        let mut pairs = Vec::new();
        for key in keys {
            let value = testbed.xs().read_if_there(&format!("{dir}/{key}"))?;
            let value = value.map_or("(missing)".into(), |v| String::from_utf8_lossy(&v).into_owned());
            pairs.push(format!("{key} = {value}"));
        }
        lines.push(format!("   {}", pairs.join(", ")));
    }
    Ok(lines)
}

/// Watches the states of vifs from a thread, through a connection of its own.
struct StateWatcher {
    stop: Arc<AtomicBool>,
    /// Says that all fronts were seen at 1 and all backs at 2.
    offered: mpsc::Receiver<()>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

/// The story goes on without the first states where they are not seen for so long.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

impl StateWatcher {
    fn start(socket: &Path, fronts: &[u16]) -> Result<Self> {
        let mut xs = Client::new(UnixTransport::connect(socket)?);
        let mut ends = Vec::new();
        for front in fronts {
            ends.push((
                format!("domain {front}, front"),
                format!("/local/domain/{front}/device/vif/0/state"),
            ));
            ends.push((
                format!("domain {front}, back "),
                format!("/local/domain/0/backend/vif/{front}/0/state"),
            ));
        }
        for (_, path) in &ends {
            xs.watch(path, path)?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let (tell, offered) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut seen: Vec<Vec<XenbusState>> = vec![Vec::new(); ends.len()];
            while let Ok(event) = xs.next_event(Some(Duration::from_millis(5))) {
                if event.is_none() && stopping.load(Ordering::Relaxed) {
                    break;
                }
                for ((_, path), seen) in ends.iter().zip(&mut seen) {
                    let value = xs.read_if_there(path).ok().flatten();
                    let state = XenbusState::parse(value.as_deref());
                    if state != XenbusState::Unknown && seen.last() != Some(&state) {
                        seen.push(state);
                    }
                }
                let all = |end: usize, state| {
                    seen.iter().skip(end).step_by(2).all(|states| states.last() == Some(&state))
                };
                if all(0, XenbusState::Initialising) && all(1, XenbusState::InitWait) {
                    let _ = tell.send(()); // nobody listens any more: they connect
                }
            }
            let text = |states: &[XenbusState]| {
                let names: Vec<String> = states.iter().map(|s| format!("{} {s:?}", s.digit())).collect();
                names.join(" -> ")
            };
            ends.iter().zip(&seen).map(|((name, _), seen)| format!("{name}  {}", text(seen))).collect()
        });
        Ok(Self { stop, offered, thread })
    }

    /// Returns when all fronts and backs were seen before they connect, so that no state of theirs is missed.
    fn wait_for_vifs(&self) {
        let _ = self.offered.recv_timeout(SEEN_WITHIN);
    }

    fn finish(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Act 6: raw frames.
fn frames_act(out: &mut Screen, json: &mut RecordWriter, page: &mut Page, start: Instant) -> Result<()> {
    let cores = if Stand::has_two_cores()? { "on a core each" } else { "both on the only core there is" };
    out.line(&format!(
        "\n6. Raw frames: one guest and the backend, {cores}, poll mode, one queue, bursts of 64"
    ))?;
    let mut groups: Vec<[Row; 3]> = Vec::new();
    for size in SIZES {
        for dir in [Dir::Tx, Dir::Rx] {
            groups.push([
                Row::new(PathName::Copy, dir, size, 0),
                Row::new(PathName::Staging, dir, size, 256),
                Row::new(PathName::Staging, dir, size, 65535),
            ]);
        }
    }
    let ceiling = Ceiling::start()?;
    let mut stand = Stand::start()?;
    let mut limits: [Vec<Record>; 2] = Default::default();
    let mut repeats = 0;
    while repeats < REPEATS && (repeats == 0 || start.elapsed() < BUDGET.mul_f64(repeats_ratio(repeats))) {
        if let Some(ceiling) = &ceiling {
            for (record, kept) in ceiling.measure(repeats, ROW_SECONDS)?.into_iter().zip(&mut limits) {
                json.write(&record)?;
                kept.push(record);
            }
        }
        for group in &mut groups {
            let (dir, size) = (group[0].dir.name(), group[0].size);
            out.progress.show_long(format_args!("   repeat {}: {dir} {size} B", repeats + 1));
            for row in group {
                json.write(row.measure(&mut stand, ROW_SECONDS, 64, Mode::Poll, 1)?)?;
                page.platform(&row.platform);
            }
        }
        repeats += 1;
    }
    let mut latencies: Vec<Latency> = Vec::new();
    for mode in [Mode::Poll, Mode::Event] {
        for path in [PathName::Copy, PathName::Staging] {
            out.progress.show(format_args!("   latency: {path}"));
            let row = latency::measure(&mut stand, path, mode, 0.2)?;
            for record in row.records() {
                json.write(&record)?;
            }
            latencies.push(row);
        }
    }
    out.progress.clear();
    let headline = Summary::of(&limits[0].iter().map(|r| r.frames_per_s).collect::<Vec<_>>());
    out.line(&table(&groups, headline).to_string())?;
    out.line(&latency::table(&latencies).to_string())?;
    summary(out, &groups, &limits, repeats)?;
    let latencies: Vec<Record> = latencies.iter().map(|l| l.records()).map(|[tx, _]| tx).collect();
    let rows = groups.iter().flatten().flat_map(|row| &row.records);
    crate::bench::none_went_wrong(rows.chain(&latencies))
}

/// A further repeat is begun only when there is time for the whole of it.
fn repeats_ratio(done: u32) -> f64 {
    f64::from(done) / f64::from(done + 1)
}

fn table(groups: &[[Row; 3]], headline: Option<Summary>) -> Table {
    let mut t = Table::new(&[
        ("dir", Align::Left),
        ("size B", Align::Right),
        ("path", Align::Left),
        ("M frames/s", Align::Right),
        ("(range)", Align::Right),
        ("Gbit/s", Align::Right),
        ("grant ops/frame", Align::Right),
        ("events/frame", Align::Right),
        ("x copy", Align::Right),
        ("published M/s", Align::Right),
        ("of limit", Align::Right),
        ("lost", Align::Right),
    ]);
    for (i, group) in groups.iter().enumerate() {
        if i > 0 {
            t.gap();
        }
        for row in group {
            let Some(rate) = row.rate() else { continue };
            let name = row.data_len.map_or(row.path.to_string(), |n| format!("{} {n}", row.path));
            t.row([
                row.dir.name().into(),
                row.size.to_string(),
                name,
                figure(rate.median / 1e6),
                format!("({}..{})", figure(rate.min / 1e6), figure(rate.max / 1e6)),
                figure(rate.median * row.size as f64 * 8.0 / 1e9),
                figure(row.per_frame(|r| r.grant_copies + r.grant_maps + r.grant_unmaps)),
                figure(row.per_frame(|r| r.notifications)),
                ratio(row, &group[0]).map_or("-".into(), |r| figure(r.median)),
                published::cell(&row.records[0]),
                // The ceiling is of single lines: it says nothing about longer frames, nor about `copy`.
                headline
                    .filter(|_| row.size == 64 && row.path == PathName::Staging)
                    .map_or("-".into(), |h| figure(rate.median / h.median)),
                row.lost().to_string(),
            ]);
        }
    }
    t
}

fn summary(out: &mut Screen, groups: &[[Row; 3]], limits: &[Vec<Record>; 2], repeats: u32) -> Result<()> {
    let median =
        |records: &[Record]| Summary::of(&records.iter().map(|r| r.frames_per_s).collect::<Vec<_>>());
    let Some([copy, staging, _]) = groups.first() else { return Ok(()) };
    let (Some(copied), Some(staged), Some(gain)) = (copy.rate(), staging.rate(), ratio(staging, copy)) else {
        return Ok(());
    };
    let m = |v: f64| figure(v / 1e6);
    out.line(&format!(
        "64 B from the guest: staging moves {} M frames/s, {} times copy ({} M). 40 Gbit/s line rate: {} M.",
        m(staged.median),
        figure(gain.median),
        m(copied.median),
        m(line_rate(40.0, 64))
    ))?;
    if let [Some(lines), Some(remote)] = [median(&limits[0]), median(&limits[1])] {
        out.line(&format!(
            "This machine hands {} M cache lines/s from core to core (bench limit): staging reaches {} of that. Bare \
             process_vm_readv reads {} M pieces/s: copy reaches {} of that.",
            m(lines.median),
            figure(staged.median / lines.median),
            m(remote.median),
            figure(copied.median / remote.median)
        ))?;
    } else {
        out.line("This process may use one core only: both ends share it, and the figures say little.")?;
    }
    out.line(&format!(
        "Medians of {repeats} interleaved repeats of {ROW_SECONDS} s; so few scatter, the range says how far. \"x copy\" is the median of the repeats' ratios, not the ratio of the medians shown. Operations and events a frame are over all repeats: fractions where one serves several frames, or some frames need none. \"staging N\": frames of at most N bytes go through \
         buffers granted at connect, longer ones by grant copy (65535: all of them). Published: staging grants RFC 2016 \
         and persistent grants RFC 2015, real Xen, other machines."
    ))?;
    if groups.iter().flatten().flat_map(|row| &row.records).any(published::is_through_stack) {
        out.line(published::THROUGH_STACK)?;
    }
    if let Some(row) = groups.first().map(|g| &g[0]) {
        out.line(&format!("Platform: {}.", row.platform))?;
    }
    Ok(())
}
