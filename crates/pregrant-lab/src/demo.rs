//! `pregrant-lab demo`: two guests, a backend and a machine between them, in processes of this
//! program.
//!
//! Six acts: the machine; the handshake of two vifs, with its states and keys; a TCP transfer from
//! guest to guest through the backend's switch, its bytes summed at both ends; the same with the
//! backend killed in the middle; a disk whose backend is killed, too; then raw frames, path against
//! path, with one guest and the backend on a core each.

mod disk;
mod restart;

use crate::bench::latency;
use crate::bench::limit::Ceiling;
use crate::bench::net::Row;
use crate::bench::output::{Output, Run};
use crate::bench::stand::Stand;
use crate::columns::Columns;
use crate::record::Record;
use crate::record::published::{self, line_rate};
use crate::record::repeats::Repeats;
use crate::stage::{CLIENT, SERVER, Stage, TRANSFER_BYTES};
use disk::DiskStage;
use pregrant::net::path::PathName;
use pregrant::xenbus::XenbusState;
use pregrant::xenstore::Client;
use pregrant_cli::loopback_machine;
use pregrant_cli::table::{Table, figure};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Mode;
use pregrant_testbed::process::process_command::Dir;
use pregrant_testbed::testbed::Testbed;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant-lab demo`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("json", |a| a.help("Write a JSON object per row and repeat to this file")))]
#[command(after_help = "Examples:
  pregrant-lab demo
  pregrant-lab demo --json out.jsonl
  pregrant-lab demo --report report

Needs no root and no Xen, and takes less than 30 seconds. Results from a loaded machine are meaningless.")]
pub struct DemoArgs {
    #[command(flatten)]
    output: Output,
}

/// The lengths in bytes of the frames that the demo's last act measures.
const SIZES: [usize; 5] = [64, 256, 260, 1500, 65535];
/// The number of seconds for which a row is measured.
const ROW_SECONDS: f64 = 0.07;
/// Largest number of repeats of each row; as many as fit [`BUDGET`].
const REPEATS: u32 = 5;
/// The time after which no further repeat is started.
const BUDGET: Duration = Duration::from_secs(20);

pub fn run(args: DemoArgs) -> Result<()> {
    let start = Instant::now();
    args.output.run_all(|run| acts(run, start))
}

/// Plays all parts of the demo, one after the other.
fn acts(run: &mut Run, start: Instant) -> Result<()> {
    transfer_acts(run)?;
    disk_act(run)?;
    frames_act(run, start)?;
    run.print(format_args!("\nDone in {:.0} s.", start.elapsed().as_secs_f64()))
}

/// Prints the lines of one of the demo's acts, indented.
fn indented(run: &Run, lines: Vec<String>) -> Result<()> {
    lines.iter().try_for_each(|line| run.print(format_args!("   {line}")))
}

fn transfer_acts(run: &mut Run) -> Result<()> {
    run.print("1. The machine: Xen in user space, one process per domain")?;
    let mut stage = Stage::start()?;
    run.print(format_args!(
        "   domain 0  backend with a learning switch and a worker thread, process {}",
        stage.back.pid()
    ))?;
    run.print(format_args!(
        "   domain {CLIENT}  guest with a TCP/IP stack of its own, process {}",
        stage.client.pid()
    ))?;
    run.print(format_args!("   domain {SERVER}  the same, process {}", stage.server.pid()))?;
    run.print(format_args!(
        "   xenstore  XENSTORED_PATH={} xenstore-ls",
        loopback_machine::shell_word(&stage.testbed.store_socket())
    ))?;

    run.print("\n2. The handshake: states and keys in xenstore")?;
    let watcher = StateWatcher::start(&stage.testbed.store_socket(), &[CLIENT, SERVER])?;
    stage.begin(None, || watcher.wait_for_vifs())?;
    indented(run, watcher.finish())?;
    indented(run, keys(&mut stage.testbed, CLIENT)?)?;
    run.print(format_args!("   grants to domain 0: {}", stage.testbed.grants()?))?;

    let mib = TRANSFER_BYTES >> 20;
    run.print(format_args!("\n3. TCP: {mib} MiB from domain {CLIENT} to domain {SERVER}, adaptive mode"))?;
    run.progress.show("   transferring");
    let done = stage.end()?;
    run.print(format_args!("   {}", done.summary()))?;
    let (frames, staged) = (done.frames(), done.staged());
    let events = done.sent.notifications + done.received.notifications;
    run.print(format_args!(
        "   {frames} frames at the guests' vifs, {:.1} % of them through staging buffers; guests' events: {} a frame",
        100.0 * staged as f64 / frames.max(1) as f64,
        figure(events as f64 / frames.max(1) as f64)
    ))?;
    let overflow = done.sent.overflow + done.received.overflow;
    if overflow > 0 {
        run.print(format_args!("   {overflow} frames found a guest's stack full; TCP sent them again"))?;
    }
    run.print(format_args!("   grants when the vifs are closed: {}", stage.testbed.grants()?))?;

    run.print(
        "\n4. The same once more, and in the middle the backend is killed: a new process takes up the live rings",
    )?;
    run.progress.show("   transferring");
    let restarted = restart::play(&mut stage, done.sent.seconds)?;
    indented(run, restarted.lines())?;
    run.write(&restarted.record())
}

fn disk_act(run: &mut Run) -> Result<()> {
    run.progress.show("   connecting a disk");
    let stage = DiskStage::start()?;
    run.print(format_args!(
        "\n5. A disk: domain {} has {} in flight on {} MiB, reads and writes of {} B at random places, and the backend, process \
         {}, is killed",
        disk::GUEST,
        disk::DEPTH,
        disk::DISK_BYTES >> 20,
        disk::SIZE,
        stage.pid()
    ))?;
    let played = stage.play(&run.progress)?;
    indented(run, played.lines())?;
    run.write(&played.record())
}

/// Reads the keys of xenstore that decide how the ends connect, with their values.
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
    /// Signals that all fronts were seen in state 1 and all backs in state 2.
    offered: mpsc::Receiver<()>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

/// The time that the demo waits to see the first states. After that it continues without them.
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
        let (report, offered) = mpsc::channel();
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
                    let _ = report.send(()); // no one listens any more: they connect
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

    /// Returns when all fronts and backs were seen before they connect, so that no state of theirs
    /// is missed.
    fn wait_for_vifs(&self) {
        let _ = self.offered.recv_timeout(SEEN_WITHIN);
    }

    fn finish(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn frames_act(run: &mut Run, start: Instant) -> Result<()> {
    let cores = if pregrant_testbed::limit::cores()?.len() >= 2 {
        "on a core each"
    } else {
        "both on the only core there is"
    };
    run.print(format_args!(
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
    let mut limits: [Repeats; 2] = Default::default();
    let mut repeats = 0;
    while repeats < REPEATS && (repeats == 0 || start.elapsed() < BUDGET.mul_f64(repeats_ratio(repeats))) {
        if let Some(ceiling) = &ceiling {
            for (record, kept) in ceiling.measure(ROW_SECONDS)?.into_iter().zip(&mut limits) {
                run.write(kept.push(record))?;
            }
        }
        for group in &mut groups {
            let (dir, size) = (group[0].dir.name(), group[0].size);
            run.progress.show_long(format_args!("   repeat {}: {dir} {size} B", repeats + 1));
            for row in group {
                run.write(row.measure(&mut stand, ROW_SECONDS, 64, Mode::Poll, 1)?)?;
                run.page.platform(&row.platform);
            }
        }
        repeats += 1;
    }
    let mut latencies: Vec<[Record; 2]> = Vec::new();
    for mode in [Mode::Poll, Mode::Event] {
        for path in [PathName::Copy, PathName::Staging] {
            run.progress.show(format_args!("   latency: {path}"));
            let row = latency::measure(&mut stand, path, mode, 0.2)?;
            row.iter().try_for_each(|record| run.write(record))?;
            latencies.push(row);
        }
    }
    run.print(table(&groups, &limits[0]))?;
    run.print(latency::table(&latencies))?;
    summary(run, &groups, &limits, repeats)?;
    let rows = groups.iter().flatten().flat_map(|row| row.records.iter());
    crate::bench::none_went_wrong(rows.chain(latencies.iter().flatten()))
}

/// Returns the time of `done` repeats, divided by that of one repeat more. A repeat is started only
/// if there is time for all of it.
fn repeats_ratio(done: u32) -> f64 {
    f64::from(done) / f64::from(done + 1)
}

fn table(groups: &[[Row; 3]], headline: &Repeats) -> Table {
    let copy = |row: &Row| groups.iter().flatten().find(|c| (c.size, c.dir) == (row.size, row.dir));
    // The bound is about single cache lines: it does not apply to longer frames or to `copy`.
    let limit = |row: &Row| Some(headline).filter(|_| row.size == 64 && row.path == PathName::Staging);
    Columns::of(groups.iter().flatten())
        .left("dir", |row| row.dir)
        .right("size B", |row| row.size)
        .left("path", |row| row.data_len.map_or(row.path.to_string(), |n| format!("{} {n}", row.path)))
        .ranged("M frames/s", 1e6, |row| row.records.rate())
        .median("Gbit/s", 1e9, |row| row.records.summary(|r| r.bits_per_s))
        .right("grant ops/frame", |row| figure(row.records.each(Record::grant_ops)))
        .right("events/frame", |row| figure(row.records.each(|r| r.notifications)))
        .median("x copy", 1.0, |row| row.records.ratio(&copy(row)?.records))
        .right("published M/s", |row| published::cell(row.records.first()))
        .median("of limit", 1.0, |row| row.records.part_of(limit(row)?))
        .right("lost", |row| row.records.sum(|r| r.lost))
        .grouped(|row| (row.size, row.dir))
}

fn summary(run: &mut Run, groups: &[[Row; 3]], limits: &[Repeats; 2], repeats: u32) -> Result<()> {
    let Some([copy, staging, _]) = groups.first() else { return Ok(()) };
    let (copy, staging) = (&copy.records, &staging.records);
    let (Some(copied), Some(staged), Some(gain)) = (copy.rate(), staging.rate(), staging.ratio(copy)) else {
        return Ok(());
    };
    let m = |v: f64| figure(v / 1e6);
    run.print(format_args!(
        "64 B from the guest: staging moves {} M frames/s, {} times copy ({} M). 40 Gbit/s line rate: {} M.",
        m(staged.median),
        gain.middle(1.0),
        m(copied.median),
        m(line_rate(40.0, 64))
    ))?;
    if let ([Some(lines), Some(remote)], [Some(staged), Some(copied)]) =
        ([limits[0].rate(), limits[1].rate()], [staging.part_of(&limits[0]), copy.part_of(&limits[1])])
    {
        run.print(format_args!(
            "This machine hands {} M cache lines/s from core to core (bench limit): staging reaches {} of that. Bare \
             process_vm_readv reads {} M pieces/s: copy reaches {} of that.",
            m(lines.median),
            staged.middle(1.0),
            m(remote.median),
            copied.middle(1.0)
        ))?;
    } else {
        run.print("This process may use one core only: both ends share it, and the figures say little.")?;
    }
    run.print(format_args!(
        "Medians of {repeats} interleaved repeats of {ROW_SECONDS} s; so few scatter, the range says how much. \"x copy\" is the median of the repeats' ratios, not the ratio of the medians shown. Operations and events a frame are over all repeats: fractions where one serves several frames, or some frames need none. \"staging N\": frames of at most N bytes go through \
         buffers granted at connect, longer ones by grant copy (65535: all of them). Published: staging grants RFC 2016 \
         and persistent grants RFC 2015, real Xen, other machines."
    ))?;
    if groups.iter().flatten().flat_map(|row| row.records.iter()).any(published::is_through_stack) {
        run.print(published::THROUGH_STACK)?;
    }
    if let Some(row) = groups.first().map(|g| &g[0]) {
        run.print(format_args!("Platform: {}.", row.platform))?;
    }
    Ok(())
}
