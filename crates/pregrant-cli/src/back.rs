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

mod hold;
mod loopback;
mod xen;

pub use xen::RUN_DIR;

use crate::status_teller::StatusTeller;
use crate::stop::Stop;
use clap::{Args, ValueEnum};
use pregrant::net::back::Ordinary;
use pregrant::platform::{Clock, Events, Platform, ReadySet};
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::pace::CONTROL_EVERY;
use pregrant_host::drivers::taps::unplugged;
use pregrant_host::drivers::{Backend, Chosen, FarSide, Hotplug, Mode, Next, Pace};
use pregrant_host::ports::switch::Switch;
use pregrant_host::ports::tap::TapWay;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant back`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant back
  pregrant back --vif 5 --vif 6.1
  pregrant back --take 5.0
  pregrant back --take 5.0 --give-back 5.0
  pregrant back --give-back 5.0
  pregrant back --port switch
  pregrant back --loopback /tmp/xen

On Xen it serves the vifs of the domain in which it runs (dom0 or a driver domain), each as a tap, vif5.0; on the
loopback through one learning switch. SIGTERM and SIGINT end it in good order: what guests sent is answered, and their
vifs stay connected (state 4) for the next backend, which goes on with the live rings; so it does after kill -9. With
--close the vifs are closed instead (states 5 and 6): Linux guests need a new vif then. `pregrant top` shows what it
does, `pregrant doctor` what is missing.")]
pub struct BackArgs {
    /// Serve on the loopback machine in this directory (pregrant loopback serve)
    #[arg(long, value_name = "DIR")]
    loopback: Option<PathBuf>,
    /// Serve this guest's vifs alone, or this one of them, and leave the others to the kernel's netback; may be repeated
    #[arg(long, value_name = "DOMID[.HANDLE]", value_parser = chosen)]
    vif: Vec<Chosen>,
    /// Take a running guest's vif from the kernel's netback and serve it; may be repeated
    #[arg(long, value_name = "DOMID[.HANDLE]", value_parser = chosen, conflicts_with = "loopback")]
    take: Vec<Chosen>,
    /// Give vifs to the kernel's netback: with --take at the end, else at once those that a stopped backend left connected
    #[arg(long, value_name = "DOMID[.HANDLE]", value_parser = chosen, conflicts_with_all = ["loopback", "vif", "close"])]
    give_back: Vec<Chosen>,
    /// What stands behind the vifs: an interface for each, or one switch in this process
    #[arg(long, value_name = "PORT", conflicts_with = "loopback")]
    port: Option<Port>,
    /// How frames travel to a tap and from it
    #[arg(long, value_name = "WAY", default_value = "cheaper", conflicts_with = "loopback")]
    tap_way: Way,
    /// Who runs the vifs' scripts; without it the toolstack in dom0, and this process elsewhere
    #[arg(long, value_name = "WHO", conflicts_with = "loopback")]
    hotplug: Option<Plugging>,
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Port {
    /// A tap, vifDOMID.HANDLE, which the kernel routes or bridges
    Tap,
    /// A learning switch
    Switch,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// What is cheaper on this machine, which is tried at the first tap
    Cheaper,
    /// A system call for each burst, by io_uring
    Burst,
    /// A system call for each frame
    Frame,
}

impl From<Way> for TapWay {
    fn from(way: Way) -> Self {
        match way {
            Way::Cheaper => Self::Cheaper,
            Way::Burst => Self::Burst,
            Way::Frame => Self::Frame,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Plugging {
    /// xl's: vifs are connected when `hotplug-status` says "connected"
    Toolstack,
    /// This process: runs the vif's `script`, or joins its `bridge`
    #[value(name = "self")]
    Own,
    /// Nobody
    None,
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

/// `5` or `5.0`, as a guest's vifs or one of them.
fn chosen(text: &str) -> std::result::Result<Chosen, String> {
    let (front, handle) = match text.trim_start_matches("vif").split_once('.') {
        Some((front, handle)) => (front, Some(handle)),
        None => (text, None),
    };
    let parsed = front.parse().ok().zip(handle.map(|h| h.parse().ok()).map_or(Some(None), |h| h.map(Some)));
    let (front, handle) = parsed.ok_or("a domain's number, and a vif of it if there are several: 5, 5.0")?;
    Ok(Chosen { front, handle })
}

/// Runs `pregrant back`.
pub fn run(args: BackArgs) -> Result<()> {
    match &args.loopback {
        Some(dir) => loopback::run(dir, &args),
        None => xen::run(&args),
    }
}

impl From<Plugging> for Hotplug {
    fn from(plugging: Plugging) -> Self {
        match plugging {
            Plugging::Toolstack => Self::Toolstack,
            Plugging::Own => Self::Own,
            Plugging::None => Self::None,
        }
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
            unplugged(n)
        }
    }
}

/// The switch, as a far side.
fn at_switch(switch: &Switch) -> Box<dyn FarSide> {
    let switch = switch.clone();
    Box::new(move |id: &DeviceId, n: usize, caps: Offloads| ports(&switch, id, n, caps))
}

/// A backend with what belongs to its process.
struct Daemon<P: Platform, T: Transport> {
    backend: Backend<P, T>,
    switch: Switch,
    status: StatusTeller<P>,
    stop: Stop,
    /// What else is to be looked after in control turns.
    between: Box<dyn FnMut()>,
}

/// Longest sleep: how late a reader of the status may be heard.
const NAP: Duration = Duration::from_millis(100);

impl<P: Platform, T: Transport> Daemon<P, T> {
    /// Serves until a signal, and ends as `close` says.
    fn run(&mut self, mode: Mode, close: bool) -> Result<()> {
        let mut pace = Pace::new(mode);
        let mut ready = ReadySet::default();
        let mut controlled = Instant::now();
        while !self.stop.asked() {
            match pace.after(self.backend.round()) {
                Next::Again => continue,
                Next::Control => {}
                Next::Sleep => {
                    if !self.backend.control()? && !self.backend.arm() {
                        let nap = self.backend.nap(NAP);
                        self.backend.platform().events().wait(&mut ready, Some(nap));
                    }
                    // Frames woke it, mostly: control had its turn before the sleep, and has the next before the next.
                    if controlled.elapsed() < CONTROL_EVERY {
                        continue;
                    }
                }
            }
            self.control()?;
            controlled = Instant::now();
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
        (self.between)();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vifs_are_chosen_by_guest_or_one_by_one() {
        assert_eq!(chosen("5"), Ok(Chosen { front: 5, handle: None }));
        assert_eq!(chosen("vif5.1"), Ok(Chosen { front: 5, handle: Some(1) }));
        for bad in ["", "5.", ".0", "x", "70000", "5.0.0"] {
            assert!(chosen(bad).is_err(), "{bad}");
        }
    }
}
