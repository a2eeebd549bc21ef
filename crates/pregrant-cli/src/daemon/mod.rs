//! The common part of the commands `back` and `blkback`: one process of a driver domain that serves
//! devices until it is asked to end.
//!
//! ```text
//!   attachment   from an attachment to a Daemon, on the loopback; xen: on a real Xen
//!   owner    one owner for each domain and kind of device: the lock dies with its process
//!   Daemon   the control thread's loop: xenstore, status, signals; requests and frames are the workers'
//!   kernel   the kernel's own backends are kept off what is served here
//!   SIGTERM: drain, leave state 4 (or --close: 5, 6)      status socket <-- pregrant top
//! ```
//! A successor takes over after a crash as after an orderly stop, on the live rings
//! (docs/protocol 1.1). The loop is generic over the platform; a platform brings its attachment,
//! its recovery and its directory.

pub mod attachment;
#[cfg(feature = "xen")]
pub mod kernel;
pub mod owner;
#[cfg(feature = "xen")]
pub mod xen;

use crate::choice::choice;
use crate::notify::Notify;
use crate::stop::Stop;
use crate::usage::{Given, Usage};
use clap::Args;
use pregrant::platform::{Clock, Platform};
use pregrant::xenbus::Class;
use pregrant::xenstore::Transport;
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::status::{blk_socket_path, socket_path};
use pregrant_host::drivers::{
    Backend, DeviceChoice, DeviceReport, Mode, Placement, PollLoop, Rest, RxContext, StatusPublisher, Work,
    WorkerConfig,
};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Directory of the locks of backends and fronts on a real Xen, by which each finds the others.
pub const RUN_DIR: &str = "/run/pregrant";
/// The time that a predecessor that was just killed may need to disappear.
const DYING: Duration = Duration::from_secs(1);

/// The class of devices that a backend's process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serves {
    Vifs,
    Vbds,
}

impl Serves {
    /// Returns the class of the devices.
    pub fn class(self) -> Class {
        match self {
            Self::Vifs => Class::VIF,
            Self::Vbds => Class::VBD,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Vifs => "backend",
            Self::Vbds => "disk backend",
        }
    }

    /// Returns the name of the lock file.
    pub fn lock(self) -> &'static str {
        match self {
            Self::Vifs => "backend",
            Self::Vbds => "blkback",
        }
    }

    /// Returns the directory for a backend's own files on a real Xen: its status socket, and what
    /// its successor needs. Under systemd a backend of one kind cannot access the other kind's
    /// directory.
    pub fn own_dir(self) -> &'static Path {
        Path::new(match self {
            Self::Vifs => "/run/pregrant-back",
            Self::Vbds => "/run/pregrant-blkback",
        })
    }

    /// Returns the path of the backend's status socket in a machine's directory.
    pub fn status(self, dir: &Path, domid: u16) -> PathBuf {
        match self {
            Self::Vifs => socket_path(dir, domid),
            Self::Vbds => blk_socket_path(dir, domid),
        }
    }
}

/// Arguments of all backends.
#[derive(Args, Debug)]
pub struct DaemonArgs {
    /// Serve on the loopback machine in this directory
    ///
    /// One that `pregrant-lab loopback serve` runs
    #[arg(long, value_name = "DIR")]
    pub loopback: Option<PathBuf>,
    /// Close the devices on exit, instead of leaving them to the next backend
    #[arg(long)]
    pub close: bool,
    /// If another backend serves this domain, wait until it exits
    #[arg(long)]
    pub wait: bool,
    /// How to wait for work
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = choice(MODES, Mode::name))]
    pub mode: Mode,
    /// Worker threads, each with queues of its own
    ///
    /// On Xen as many as this domain has CPUs, 4 at most, on the loopback 1. Not with --place own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Option<u16>,
    /// Which worker gets a device's queues
    #[arg(long, value_name = "PLACE", default_value = "balanced", value_parser = choice(PLACES, Placement::name))]
    pub place: Placement,
    /// How RX is scheduled; only a backend of vifs sets it.
    #[arg(skip)]
    pub rx_context: RxContext,
}

impl DaemonArgs {
    /// Refuses options that would have no effect.
    pub fn check(&self, given: &Given) -> std::result::Result<(), Usage> {
        if self.place == Placement::Own {
            given.refuse("workers", "--place own gives each device a thread of its own")?;
        }
        Ok(())
    }
}

pub const MODES: &[(Mode, &str)] = &[
    (Mode::Adaptive, "Spin for a short time, then sleep"),
    (Mode::Event, "Sleep at once"),
    (Mode::Poll, "Never sleep; uses a whole core"),
];

const PLACES: &[(Placement, &str)] = &[
    (Placement::Balanced, "The worker with the least load"),
    (Placement::Fixed, "By the guest's number"),
    (Placement::Own, "A thread for each device"),
];

/// Parses `5` (all devices of a guest) or `5.0` (one of them).
pub fn chosen(text: &str) -> std::result::Result<DeviceChoice, String> {
    let text = text.trim_start_matches("vif").trim_start_matches("vbd");
    let (front, handle) = match text.split_once('.') {
        Some((front, handle)) => (front, Some(handle)),
        None => (text, None),
    };
    let parsed = front.parse().ok().zip(handle.map(|h| h.parse().ok()).map_or(Some(None), |h| h.map(Some)));
    let (front, handle) =
        parsed.ok_or("a domain's number, and a device of it if there are several: 5, 5.0")?;
    Ok(DeviceChoice { front, handle })
}

/// Starts the backend's workers, which also set a switch's time.
fn start_workers<P: Platform, T: Transport + 'static>(
    backend: &mut Backend<P, T>,
    args: &DaemonArgs,
    usual: usize,
    switch: Option<&Switch>,
) -> Result<()>
where
    P::Events: WakeOn,
{
    let switch = switch.cloned();
    let each_turn =
        Arc::new(move || switch.iter().for_each(|switch| switch.set_now(MonotonicClock.now_ns())));
    let count = args.workers.map_or(usual, usize::from);
    if count == 1 && args.place == Placement::Fixed {
        // LOG: once, at the start.
        log::warn!(
            "--place fixed has no effect: there is one worker thread; give the backend more by --workers"
        );
    }
    let config = WorkerConfig {
        workers: count,
        place: args.place,
        rx_context: args.rx_context,
        mode: args.mode,
        each_start: Arc::new(|_| {}),
        each_turn,
    };
    let started = backend.start_workers(config);
    Ok(started
        .map_err(|e| format!("cannot start {count} worker thread(s): {e}; choose fewer with --workers"))?)
}

/// A backend, and the parts of its process that it needs to run.
pub struct Daemon<P: Platform, T: Transport + 'static> {
    /// The class of devices that the backend serves.
    pub serves: Serves,
    pub backend: Backend<P, T>,
    /// The switch, if there is one. The daemon must set its time.
    pub switch: Option<Switch>,
    /// Answers the processes that read the status.
    pub status: StatusPublisher<P>,
    pub stop: Stop,
    /// Notifies systemd, if it started this process.
    pub notify: Notify,
    /// Further checks that are made in control turns, and their interval.
    pub between: Option<(Duration, Box<dyn FnMut()>)>,
}

impl<P: Platform, T: Transport + 'static> Daemon<P, T>
where
    P::Events: WakeOn,
{
    /// Serves devices until a signal arrives, and then closes them if `close` is true.
    pub fn run(&mut self, close: bool) -> Result<()> {
        // Devices that a predecessor left are resumed in this turn, or wait for their channels.
        self.control()?;
        self.notify.ready();
        // Its frames and requests are the workers'.
        PollLoop::new(Mode::Event).run(self)?;
        self.notify.stopping();
        // Both say in the log what became of the devices, and how much is lost.
        if close {
            self.backend.close_all();
        } else {
            self.backend.detach();
        }
        Ok(())
    }
}

impl<P: Platform, T: Transport + 'static> Rest for Daemon<P, T>
where
    P::Events: WakeOn,
{
    type Error = Box<dyn Error>;
    // Work wakes it, mostly: control has its turn before the sleep, and the next before the next.
    const CONTROL_AFTER_SLEEP: bool = false;

    fn sleep(&mut self) -> Result<()> {
        if !self.backend.control()? {
            let every = self.between.as_ref().map(|(every, _)| *every);
            let due = [every, self.status.due(), self.notify.due()];
            self.backend.sleep(due.into_iter().flatten().min());
        }
        Ok(())
    }

    /// Does all work outside of the data path.
    fn control(&mut self) -> Result<()> {
        self.backend.control()?;
        if let Some(switch) = &self.switch {
            switch.set_now(self.backend.platform().clock().now_ns());
        }
        self.status.turn(&self.backend);
        let class = self.serves.class();
        self.notify.turn(Instant::now(), || status(class, self.backend.devices().map(|(device, _)| device)));
        if let Some((_, between)) = &mut self.between {
            between();
        }
        Ok(())
    }
}

impl<P: Platform, T: Transport + 'static> Work for Daemon<P, T>
where
    P::Events: WakeOn,
{
    fn round(&mut self) -> Result<bool> {
        Ok(self.backend.round())
    }
    fn is_over(&mut self) -> bool {
        self.stop.asked()
    }
}

/// Describes a backend's work in one line.
fn status(class: Class, devices: impl Iterator<Item = DeviceReport>) -> String {
    let (mut all, mut connected) = (0, 0);
    for device in devices {
        all += 1;
        // A disk is so at Closing, too, while it is in use.
        connected += usize::from(device.connected.is_some());
    }
    format!("{}s: {all}, connected: {connected}", class.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_chosen_by_guest_or_one_by_one() {
        assert_eq!(chosen("5"), Ok(DeviceChoice { front: 5, handle: None }));
        assert_eq!(chosen("vif5.1"), Ok(DeviceChoice { front: 5, handle: Some(1) }));
        assert_eq!(chosen("vbd5.51712"), Ok(DeviceChoice { front: 5, handle: Some(51712) }));
        for bad in ["", "5.", ".0", "x", "70000", "5.0.0"] {
            assert!(chosen(bad).is_err(), "{bad}");
        }
    }
}
