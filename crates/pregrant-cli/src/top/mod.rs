//! `pregrant top`: what the backends of a machine do, as a live table, as JSON, or for Prometheus.
//!
//! ```text
//!   DIR/*.status, the module's files in sysfs
//!                --read--> Daemon --two readings--> flow::Flow, load::Load --> table, JSON lines
//!                            '---------------------------------------------> prometheus (text, http)
//! ```
//! It only reads: backends are asked once an interval, and answer between batches.

mod flow;
mod http;
mod load;
mod prometheus;
#[cfg(test)]
pub(crate) mod sample;
mod table;
mod terminal;

use crate::daemon::{RUN_DIR, Serves};
use crate::loopback_machine::shell_word;
use crate::module_status;
use crate::screen;
use crate::status_reader::{self, AS_ITS_USER, Daemon, answers};
use crate::stop::Stop;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::error::Error;
use std::io::{ErrorKind, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terminal::Terminal;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant top`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant top --loopback /tmp/xen
  pregrant top --loopback /tmp/xen --once
  pregrant top --loopback /tmp/xen --json | jq .frames_per_s
  pregrant top --loopback /tmp/xen --prometheus - | grep dropped
  pregrant top --loopback /tmp/xen --prometheus 127.0.0.1:9912

Two lines for each vif, also of those that the kernel's module pregrant_back has: tx is what its guest sends. One for each disk: latency is from when a request is taken to its answer, depth how
many are under way, both the mean of the time between two readings, as all rates are. JSON also has the counters since the device
connected. Keys: q ends.")]
pub struct TopArgs {
    /// The loopback machine in this directory; without it the backends of this Xen, in
    /// /run/pregrant-back and /run/pregrant-blkback
    #[arg(long, value_name = "DIR")]
    loopback: Option<PathBuf>,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Take two readings, print one table and exit
    #[arg(long)]
    once: bool,
    /// An object for each vif and direction, and for each disk, one a line
    #[arg(long)]
    json: bool,
    /// Prometheus' text format: once to standard output (-), or over HTTP at a loopback address
    #[arg(long, value_name = "ADDR|-", num_args = 0..=1, default_missing_value = "-",
        conflicts_with_all = ["json", "once", "interval"])]
    prometheus: Option<String>,
}

fn interval(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds, 0.1 to 3600".into()),
    }
}

pub fn run(args: TopArgs) -> Result<()> {
    let dir = args.loopback.as_deref().unwrap_or(Path::new(RUN_DIR));
    let stop = Stop::on_signals()?;
    match args.prometheus.as_deref() {
        Some("-") => {
            let daemons = read(dir)?;
            if daemons.is_empty() {
                return Err(no_backend(dir).into());
            }
            Ok(screen::print(prometheus::text(&daemons).trim_end())?)
        }
        Some(at) => {
            let at: SocketAddr = at.parse().map_err(|_| {
                format!("{at}: not an address and port such as 127.0.0.1:9912, and not - for standard output")
            })?;
            read(dir)?;
            // No backend, for a moment or for longer, is a scrape without samples and not a
            // failure.
            http::serve(at, &stop, || Ok(prometheus::text(&read(dir).map_err(|e| e.to_string())?)))
        }
        None => show(dir, &args, &stop),
    }
}

/// Reads the backends in `dir`, including those that do not answer; on Xen also the kernel's
/// module.
fn read(dir: &Path) -> Result<Vec<Daemon>> {
    if dir != Path::new(RUN_DIR) {
        return status_reader::read_all(&[dir]).map_err(|e| unreadable(dir, &e).into());
    }
    let processes = status_reader::read_all(&[Serves::Vifs.own_dir(), Serves::Vbds.own_dir()]);
    beside_module(processes, module_status::read()).map_err(|e| unreadable(dir, &e).into())
}

/// Returns the processes, and the module behind them if it has vifs. No process need have run then.
fn beside_module(
    processes: std::io::Result<Vec<Daemon>>,
    module: Option<Daemon>,
) -> std::io::Result<Vec<Daemon>> {
    match (processes, module) {
        (Ok(processes), module) => Ok(processes.into_iter().chain(module).collect()),
        (Err(e), Some(module)) if e.kind() == ErrorKind::NotFound => Ok(vec![module]),
        (Err(e), _) => Err(e),
    }
}

/// Describes why nothing is known of the backends in `dir`, and what to do.
fn unreadable(dir: &Path, e: &std::io::Error) -> String {
    let remedy = match e.kind() {
        ErrorKind::PermissionDenied => AS_ITS_USER.into(),
        ErrorKind::NotFound if dir != Path::new(RUN_DIR) => {
            format!("start a machine first: pregrant-lab loopback serve --dir {}", shell_word(dir))
        }
        _ => start(dir),
    };
    format!("cannot read {}: {e}; {remedy}", dir.display())
}

/// Returns the command that starts a backend whose status is read from `dir`.
fn start(dir: &Path) -> String {
    if dir == Path::new(RUN_DIR) {
        "start a backend first, as root: systemctl start pregrant-back, or pregrant back; for disks pregrant blkback".into()
    } else {
        format!(
            "start a backend first: pregrant back --loopback {0}; for disks pregrant blkback --loopback {0}",
            shell_word(dir)
        )
    }
}

fn no_backend(dir: &Path) -> String {
    if dir == Path::new(RUN_DIR) {
        return format!("no backend runs here ({RUN_DIR} has no status socket); {}", start(dir));
    }
    format!("no backend runs on the machine in {}; {}", dir.display(), start(dir))
}

/// Returns the backends in `dir`, or an error if none of them answers. Those that do not answer are
/// reported on standard error.
fn some(dir: &Path) -> Result<Vec<Daemon>> {
    let daemons = read(dir)?;
    if daemons.iter().any(|daemon| daemon.answer().is_some()) {
        for (daemon, why) in silent(&daemons) {
            log::warn!("{}: {why}", daemon.words());
        }
        return Ok(daemons);
    }
    let each: Vec<_> = silent(&daemons).map(|(daemon, why)| format!("{}: {why}", daemon.words())).collect();
    Err(match &each[..] {
        [] => no_backend(dir).into(),
        _ => format!("no backend answers in {}: {}", dir.display(), each.join("; ")).into(),
    })
}

/// Returns the backends that do not answer, each with the reason.
fn silent(daemons: &[Daemon]) -> impl Iterator<Item = (&Daemon, &status_reader::NoStatus)> {
    daemons.iter().filter_map(|daemon| daemon.status.as_ref().err().map(|why| (daemon, why)))
}

fn show(dir: &Path, args: &TopArgs, stop: &Stop) -> Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let mut before = if args.once { some(dir)? } else { read(dir)? };
    let live = std::io::stdout().is_terminal() && !args.once && !args.json;
    let terminal = live.then(Terminal::begin);
    if let Some(terminal) = &terminal {
        // The counters at once; rates from the second reading on.
        terminal.show(&picture(&[], &before))?;
    }
    loop {
        let quit = match &terminal {
            Some(terminal) => terminal.quit_within(interval, stop),
            None => {
                nap(interval, stop);
                false
            }
        };
        if quit || stop.asked() {
            return Ok(());
        }
        let now = if args.once { some(dir)? } else { read(dir)? };
        match &terminal {
            Some(terminal) => terminal.show(&picture(&before, &now))?,
            None if args.json => {
                let (before, now) = (answers(&before), answers(&now));
                for flow in flow::flows(&before, &now) {
                    screen::print(serde_json::to_string(&flow)?)?;
                }
                for load in load::loads(&before, &now) {
                    screen::print(serde_json::to_string(&load)?)?;
                }
            }
            None => {
                let lines = table::render(&Rates::between(&before, &now), usize::MAX, usize::MAX);
                screen::print(lines.join("\n") + if args.once { "" } else { "\n" })?;
            }
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

/// Formats the view for a terminal of the present size.
fn picture(before: &[Daemon], now: &[Daemon]) -> Vec<String> {
    let (columns, rows) = Terminal::size();
    table::render(&Rates::between(before, now), columns, rows)
}

/// A reading of the statuses, with rates since the reading before.
struct Rates<'a> {
    daemons: &'a [Daemon],
    flows: Vec<flow::Flow>,
    loads: Vec<load::Load>,
}

impl<'a> Rates<'a> {
    fn between(before: &[Daemon], now: &'a [Daemon]) -> Self {
        let (old, new) = (answers(before), answers(now));
        Self { daemons: now, flows: flow::flows(&old, &new), loads: load::loads(&old, &new) }
    }
}

/// Sleeps for this time, or until a signal arrives.
fn nap(time: Duration, stop: &Stop) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let _ = rustix::event::poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&time));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn what_to_do_is_what_helps_there() {
        let (xen, machine) = (Path::new(RUN_DIR), Path::new("/tmp/xen"));
        let of = |dir, kind| unreadable(dir, &io::Error::from(kind));
        for said in [of(xen, ErrorKind::NotFound), no_backend(xen), of(xen, ErrorKind::PermissionDenied)] {
            assert!(said.contains(RUN_DIR) && !said.contains("loopback"), "{said}");
            assert!(said.contains("root"), "{said}");
        }
        assert!(no_backend(machine).contains("pregrant back --loopback /tmp/xen"));
        assert!(of(machine, ErrorKind::NotFound).contains("pregrant-lab loopback serve --dir /tmp/xen"));
        let denied = of(machine, ErrorKind::PermissionDenied);
        assert!(denied.contains("/tmp/xen") && !denied.contains("start"), "{denied}");
    }

    #[test]
    fn the_module_stands_beside_processes_or_alone() {
        let module = module_status::sample::daemon;
        let names = |daemons: io::Result<Vec<Daemon>>| -> Vec<_> {
            daemons.unwrap().iter().map(|daemon| daemon.name).collect()
        };
        let processes = sample::daemons()[..2].to_vec();
        assert_eq!(names(beside_module(Ok(processes), Some(module()))), ["back", "blkback", "pregrant_back"]);
        let none = |kind: ErrorKind| Err(io::Error::from(kind));
        assert_eq!(names(beside_module(none(ErrorKind::NotFound), Some(module()))), ["pregrant_back"]);
        assert!(beside_module(none(ErrorKind::NotFound), None).is_err());
        assert!(beside_module(none(ErrorKind::PermissionDenied), Some(module())).is_err());
    }
}
