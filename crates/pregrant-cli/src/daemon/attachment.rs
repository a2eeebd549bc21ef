//! How a process becomes its domain's backend of a kind: attached, its only owner, with all that
//! ends its sleep; then its daemon.
//!
//! ```text
//!   on_loopback: the machine in a directory   --.
//!   on_xen: this domain, through /dev/xen     ----> Attached --its classes--> Daemon
//! ```
//! A platform brings its attachment, its recovery and its directory; nothing behind this asks which
//! it is.

use super::owner::own_loopback;
use super::{Daemon, DaemonArgs, Result, Serves, start_workers};
use crate::loopback_machine::no_machine;
use crate::loopback_machine::{self, DRIVER};
use crate::notify::Notify;
use crate::screen;
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::{Client, Transport};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::{Backend, BackendConfig, DeviceChoice, DeviceClass, StatusPublisher};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{BrokerRecovery, Loopback, Owned};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

pub struct Attached<P: Platform> {
    pub platform: P,
    /// The connection to this domain's xenstore.
    pub xs: Client<UnixTransport>,
    pub(super) serves: Serves,
    pub(super) domid: DomId,
    pub(super) config: BackendConfig<P>,
    /// The number of worker threads that is used unless an option sets another.
    pub(super) workers: usize,
    /// A command by which the user can read the backend's status.
    pub(super) hint: String,
    pub(super) stop: Stop,
    pub(super) status: StatusPublisher<P>,
}

impl Attached<Loopback> {
    /// Attaches to the machine in this directory. None: the process was asked to stop while it
    /// waited for its predecessor to end.
    pub fn on_loopback(
        dir: &Path,
        serves: Serves,
        args: &DaemonArgs,
        stop: Stop,
    ) -> Result<Option<(Self, Owned)>> {
        let platform = Loopback::attach(&loopback_machine::broker_socket(dir), DRIVER)
            .map_err(|e| no_machine(dir, e))?;
        let xs = loopback_machine::store_of(&platform)?;
        let Some(owner) = own_loopback(&platform, dir, serves, args.wait, &stop)? else { return Ok(None) };
        let status =
            StatusPublisher::bind(&serves.status(dir, DRIVER.0), Loopback::counters, Loopback::describe)?;
        let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
        let hint = format!("pregrant top --loopback {}", loopback_machine::shell_word(dir));
        let (domid, workers) = (DRIVER, 1);
        let attached = Self { platform, xs, serves, domid, config, workers, hint, stop, status };
        Ok(Some((attached.woken()?, owner)))
    }
}

/// Returns the choices in `chosen` that match none of these devices.
fn absent(chosen: &[DeviceChoice], there: &[DeviceId]) -> Vec<DeviceChoice> {
    let is_there = |c: &DeviceChoice| there.iter().any(|id| c.names(id.front.0, id.handle));
    chosen.iter().filter(|c| !is_there(c)).copied().collect()
}

impl<P: Platform> Attached<P>
where
    P::Events: WakeOn,
{
    /// Lets xenstore, signals and requests for the status end a sleep.
    pub(super) fn woken(self) -> Result<Self> {
        let events = self.platform.events();
        for fd in [self.xs.transport().as_fd(), self.stop.as_fd(), self.status.as_fd()] {
            events.also_wake_on(fd)?;
        }
        Ok(self)
    }

    /// Logs which of the chosen devices do not exist yet; they are awaited.
    pub fn say_missing(&mut self, chosen: &[DeviceChoice]) -> Result<()> {
        let there = devices_of(self.serves, self.domid, &mut self.xs, &[])?;
        for DeviceChoice { front, handle } in absent(chosen, &there) {
            let (class, which) =
                (self.serves.class().name(), handle.map_or(String::new(), |h| format!(" {h}")));
            let others = match there.len() {
                0 => format!("this domain has no {class}"),
                n => format!("this domain has {n}, as: {}", there[0]),
            };
            // LOG: once for each that is chosen.
            log::info!("waiting for {class}{which} of domain {front}, which does not exist yet ({others})");
        }
        Ok(())
    }

    /// Creates the daemon with its classes and workers, so that it is ready to serve.
    pub fn daemon(
        self,
        args: &DaemonArgs,
        classes: Vec<Box<dyn DeviceClass<P, UnixTransport>>>,
        switch: Option<Switch>,
        between: Option<(Duration, Box<dyn FnMut()>)>,
    ) -> Result<Daemon<P, UnixTransport>> {
        let Self { platform, xs, serves, domid, config, workers, hint, stop, status } = self;
        let mut backend = Backend::new(platform, xs, config, classes)?;
        start_workers(&mut backend, args, workers, switch.as_ref())?;
        let (name, process) = (serves.name(), std::process::id());
        let _ = screen::print(format_args!("{name} of {domid}, process {process}: ready; status: {hint}"));
        let notify = Notify::from_environment();
        Ok(Daemon { serves, backend, switch, status, stop, notify, between })
    }
}

/// Returns the chosen devices of the domain, or all devices if none are chosen.
///
/// # Errors
/// xenstore cannot be read.
pub fn devices_of<T: Transport>(
    serves: Serves,
    back: DomId,
    xs: &mut Client<T>,
    chosen: &[DeviceChoice],
) -> Result<Vec<DeviceId>> {
    let mut found = pregrant::xenbus::toolstack::backs_of(xs, back, serves.class())?;
    found.retain(|id| DeviceChoice::serve(chosen, id.front.0, id.handle));
    Ok(found)
}
