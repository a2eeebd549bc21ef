//! `pregrant back`: the backend of a driver domain as a process of its own.
//!
//! ```text
//!   vifs of all guests <--> Backend --frames--> learning switch
//!                              |
//!   SIGTERM: drain, leave state 4 (or --close: 5, 6)      status socket <-- pregrant top
//! ```
//! One owner for each domain: the lock dies with its process, so a successor takes over after a crash as after an orderly
//! stop, on the live rings (PROTOCOL.md 1.1). The loop is generic over the platform; a platform brings its attachment, its
//! succession and its directory.

use crate::loopback::no_machine;
use crate::machine::{self, DRIVER};
use crate::screen;
use crate::status_reader::{self, NoStatus};
use crate::status_teller::StatusTeller;
use crate::stop::Stop;
use clap::{Args, ValueEnum};
use pregrant::net::back::Ordinary;
use pregrant::net::features::BackFeatures;
use pregrant::platform::{Clock, Events, Platform, ReadySet};
use pregrant::port::{Arena, Burst, FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::status::socket_path;
use pregrant_host::drivers::{Backend, BrokerSuccession, Mode, Next, Pace};
use pregrant_host::loopback::{Loopback, LoopbackError, Owned};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use std::error::Error;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant back`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant back --loopback /tmp/xen
  pregrant back --loopback /tmp/xen --close
  pregrant back --loopback /tmp/xen --wait

It serves every vif of domain 0 through one learning switch. SIGTERM and SIGINT end it in good order: what guests sent is
answered, and their vifs stay connected (state 4) for the next backend, which goes on with the live rings; so it does
after kill -9. With --close the vifs are closed instead (states 5 and 6). `pregrant top` shows what it does.")]
pub struct BackArgs {
    /// Serve on the loopback machine in this directory (pregrant loopback serve)
    #[arg(long, value_name = "DIR")]
    loopback: Option<PathBuf>,
    /// At the end close the vifs, instead of leaving them to the next backend
    #[arg(long)]
    close: bool,
    /// If the domain has a backend already, wait until that one ends
    #[arg(long)]
    wait: bool,
    /// How to wait for frames
    #[arg(long, value_name = "MODE", default_value = "adaptive")]
    mode: Waiting,
    /// What fetches frames of guests without staging buffers
    #[arg(long, value_name = "PATH", default_value = "copy")]
    path: OrdinaryPath,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Waiting {
    /// Spin for a short time, then sleep
    Adaptive,
    /// Sleep at once
    Event,
    /// Never sleep: a whole core
    Poll,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrdinaryPath {
    /// Batched grant copy
    Copy,
    /// Map and unmap, as Linux's netback does
    Map,
}

/// Runs `pregrant back`.
pub fn run(args: BackArgs) -> Result<()> {
    match &args.loopback {
        Some(dir) => on_loopback(dir, &args),
        None => Err("serving guests of a real Xen comes later; until then use the software Xen: \
             `pregrant loopback serve --dir DIR --guest 5`, then `pregrant back --loopback DIR`"
            .into()),
    }
}

fn on_loopback(dir: &Path, args: &BackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let platform = Loopback::attach(&machine::broker_socket(dir), DRIVER).map_err(|e| no_machine(dir, e))?;
    let xs = machine::store_of(&platform)?;
    let Some(_owner) = own_domain(&platform, dir, args.wait, &stop)? else { return Ok(()) };
    let status = StatusTeller::on_loopback(dir, DRIVER.0)?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    platform.events().also_wake_on(stop.as_fd())?;
    let switch = Switch::new();
    let ports = {
        let switch = switch.clone();
        Box::new(move |id: &DeviceId, n, caps| ports(&switch, id, n, caps))
    };
    let mut backend = Backend::new(platform, xs, BackFeatures::default(), args.path.into(), ports)?;
    backend.succeed(Box::new(BrokerSuccession));
    let who = format!("backend of {DRIVER}, process {}", std::process::id());
    let _ = screen::print(format_args!("{who}: ready; status: pregrant top --loopback {}", dir.display()));
    Daemon { backend, switch, status, stop }.run(args.mode.into(), args.close)
}

/// The name under which the broker keeps the lock of a domain's backend.
const OWNER: &str = "backend";
/// How long a predecessor that was just killed may take to be gone.
const DYING: Duration = Duration::from_secs(1);

/// Makes this process the domain's only backend. None: it was told to stop while it waited.
fn own_domain(platform: &Loopback, dir: &Path, wait: bool, stop: &Stop) -> Result<Option<Owned>> {
    let dying = Instant::now() + DYING;
    let mut said = false;
    loop {
        match platform.own(OWNER) {
            Ok(owned) => return Ok(Some(owned)),
            Err(LoopbackError::Held { .. }) if stop.asked() => return Ok(None),
            Err(LoopbackError::Held { .. }) if wait || Instant::now() < dying => {}
            Err(LoopbackError::Held { .. }) => {
                let who = owner(dir);
                return Err(format!(
                    "{DRIVER} has a backend already: {who}. Stop it first (its vifs stay connected, and the next backend \
                     takes them up), or start this one with --wait"
                )
                .into());
            }
            Err(e) => return Err(e.into()),
        }
        if wait && !said {
            said = true;
            let _ =
                screen::print(format_args!("{DRIVER} has a backend: {}; waiting for its end", owner(dir)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The backend that has the domain, in words.
fn owner(dir: &Path) -> String {
    match status_reader::read(&socket_path(dir, DRIVER.0)) {
        Ok(status) => format!("process {}, for {:.0} s", status.pid, status.uptime_s),
        Err(NoStatus::Dead) => "a process that tells no status".into(),
        Err(NoStatus::Failed(why)) => format!("a process that tells no status ({why})"),
    }
}

impl From<Waiting> for Mode {
    fn from(waiting: Waiting) -> Self {
        match waiting {
            Waiting::Adaptive => Self::Adaptive,
            Waiting::Event => Self::Event,
            Waiting::Poll => Self::Poll,
        }
    }
}

impl From<OrdinaryPath> for Ordinary {
    fn from(path: OrdinaryPath) -> Self {
        match path {
            OrdinaryPath::Copy => Self::Copy,
            OrdinaryPath::Map => Self::Map,
        }
    }
}

/// A vif's place at the switch: one station, whatever its queues.
fn ports(switch: &Switch, id: &DeviceId, n: usize, caps: Offloads) -> Vec<Box<dyn FramePort>> {
    match switch.add_multi_queue_port(n, caps) {
        Ok(ports) => ports.into_iter().map(|p| Box::new(p) as Box<dyn FramePort>).collect(),
        Err(e) => {
            log::warn!("{id}: its frames are dropped: {e}");
            (0..n).map(|_| Box::new(Unplugged) as Box<dyn FramePort>).collect()
        }
    }
}

/// The port of a vif that found no place: refuses every frame.
struct Unplugged;

impl FramePort for Unplugged {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, _frames: &Burst<'_>) -> usize {
        0
    }
    fn rx_burst(&mut self, _into: &mut Arena) -> usize {
        0
    }
}

/// A backend with what belongs to its process.
struct Daemon<P: Platform, T: Transport> {
    backend: Backend<P, T>,
    switch: Switch,
    status: StatusTeller<P>,
    stop: Stop,
}

/// Longest sleep: how late a reader of the status may be heard.
const NAP: Duration = Duration::from_millis(100);

impl<P: Platform, T: Transport> Daemon<P, T> {
    /// Serves until a signal, and ends as `close` says.
    fn run(mut self, mode: Mode, close: bool) -> Result<()> {
        let mut pace = Pace::new(mode);
        let mut ready = ReadySet::default();
        while !self.stop.asked() {
            match pace.after(self.backend.round()) {
                Next::Again => continue,
                Next::Control => {}
                Next::Sleep => {
                    if !self.backend.control()? && !self.backend.arm() {
                        self.backend.platform().events().wait(&mut ready, Some(NAP));
                    }
                }
            }
            self.control()?;
        }
        // Both say in the log what became of the vifs, and how many frames are lost.
        if close {
            self.backend.close_all();
        } else {
            self.backend.leave();
        }
        Ok(())
    }

    /// All that does not belong to the data path.
    fn control(&mut self) -> Result<()> {
        self.backend.control()?;
        self.switch.set_now(self.backend.platform().clock().now_ns());
        self.status.turn(&self.backend);
        Ok(())
    }
}
