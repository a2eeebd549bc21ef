//! `pregrant top`: what the backends of a machine do, as a live table, as JSON, or for Prometheus.
//!
//! ```text
//!   DIR/back-*.status --read--> BackStatus --two readings--> flow::Flow --> table, JSON lines
//!                                          '-------------------------------> prometheus (text, http)
//! ```
//! It only reads: backends are asked once an interval, and answer between batches.

mod flow;
mod http;
mod prometheus;
#[cfg(test)]
pub(crate) mod sample;
mod table;
mod terminal;

use crate::daemon::RUN_DIR;
use crate::status_reader;
use crate::stop::Stop;
use clap::Args;
use pregrant_host::drivers::BackStatus;
use pregrant_lab::screen;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::error::Error;
use std::io::IsTerminal;
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

Two lines for each vif: tx is what its guest sends. Rates are of the time between two readings; JSON also has the
counters since the vif connected. Keys: q ends.")]
pub struct TopArgs {
    /// The loopback machine in this directory; without it the backends of this Xen, in /run/pregrant
    #[arg(long, value_name = "DIR")]
    loopback: Option<PathBuf>,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Two readings, one table, and the end
    #[arg(long)]
    once: bool,
    /// An object for each vif and direction, one a line
    #[arg(long)]
    json: bool,
    /// Prometheus' text format: once to standard output (-), or over HTTP at an address of this machine alone
    #[arg(long, value_name = "ADDR|-", num_args = 0..=1, default_missing_value = "-",
        conflicts_with_all = ["json", "once"])]
    prometheus: Option<String>,
}

fn interval(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds, 0.1 to 3600".into()),
    }
}

/// Runs `pregrant top`.
pub fn run(args: TopArgs) -> Result<()> {
    let dir = args.loopback.as_deref().unwrap_or(Path::new(RUN_DIR));
    let stop = Stop::on_signals()?;
    match args.prometheus.as_deref() {
        Some("-") => Ok(screen::print(prometheus::text(&some(dir)?).trim_end())?),
        Some(at) => {
            let at: SocketAddr = at.parse().map_err(|_| {
                format!("{at}: not an address and port such as 127.0.0.1:9912, and not - for standard output")
            })?;
            readable(dir)?;
            // No backend, for a moment or for longer, is a scrape without samples and not a failure.
            http::serve(at, &stop, || Ok(prometheus::text(&read(dir).map_err(|e| e.to_string())?.0)))
        }
        None => show(dir, &args, &stop),
    }
}

/// The backends in `dir`, and what could not be read.
fn read(dir: &Path) -> Result<(Vec<BackStatus>, Vec<String>)> {
    status_reader::read_all(dir).map_err(|e| {
        let hint = "start a backend first: pregrant back --loopback DIR, and give the same DIR here";
        format!("cannot read {}: {e}; {hint}", dir.display()).into()
    })
}

fn readable(dir: &Path) -> Result<()> {
    read(dir).map(drop)
}

/// The backends in `dir`; an error when there is none.
fn some(dir: &Path) -> Result<Vec<BackStatus>> {
    let (backs, failed) = read(dir)?;
    for why in &failed {
        log::warn!("{why}");
    }
    if backs.is_empty() {
        return Err(match failed.into_iter().next() {
            Some(why) => why.into(),
            None => format!(
                "no backend runs on the machine in {0}; start one: pregrant back --loopback {0}",
                dir.display()
            )
            .into(),
        });
    }
    Ok(backs)
}

fn show(dir: &Path, args: &TopArgs, stop: &Stop) -> Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let mut before = if args.once { some(dir)? } else { read(dir)?.0 };
    let live = std::io::stdout().is_terminal() && !args.once && !args.json;
    let terminal = live.then(Terminal::begin);
    if let Some(terminal) = &terminal {
        // The counters at once; rates from the second reading on.
        terminal.show(&picture(&[], &before, &[]))?;
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
        let (now, failed) = if args.once { (some(dir)?, Vec::new()) } else { read(dir)? };
        match &terminal {
            Some(terminal) => terminal.show(&picture(&before, &now, &failed))?,
            None if args.json => {
                for flow in flow::flows(&before, &now) {
                    screen::print(serde_json::to_string(&flow)?)?;
                }
            }
            None => {
                let flows = flow::flows(&before, &now);
                let lines = table::render(&now, &flows, &failed, usize::MAX, usize::MAX);
                screen::print(lines.join("\n") + if args.once { "" } else { "\n" })?;
            }
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

/// What a terminal of the present size shows.
fn picture(before: &[BackStatus], now: &[BackStatus], failed: &[String]) -> Vec<String> {
    let (columns, rows) = Terminal::size();
    table::render(now, &flow::flows(before, now), failed, columns, rows)
}

/// Sleeps, or until a signal.
fn nap(time: Duration, stop: &Stop) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let _ = rustix::event::poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&time));
}
