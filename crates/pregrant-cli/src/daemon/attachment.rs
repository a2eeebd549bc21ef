//! How a process becomes its domain's backend of a kind: attached, its only owner, with all that
//! ends its sleep; then its daemon.
//!
//! ```text
//!   on_loopback: the machine in a directory   --.
//!   on_xen: this domain, through /dev/xen     ----> Attached --its classes--> Daemon
//! ```
//! A platform brings its attachment, its recovery and its directory; nothing behind this asks which
//! it is.

use super::kernel::devices_of;
use super::owner::{XenOwner, own_loopback, own_xen};
use super::{Daemon, DaemonArgs, Result, Serves, start_workers, workers_on_xen};
use crate::loopback_machine::no_machine;
use crate::loopback_machine::{self, DRIVER};
use crate::notify::Notify;
use crate::screen;
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use pregrant::xenbus::device::own_domid;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::registry::HadByOthers;
use pregrant_host::drivers::{
    Backend, BackendConfig, DeviceChoice, DeviceClass, FileRecovery, StatusPublisher,
};
use pregrant_host::linux::Xen;
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{BrokerRecovery, Loopback, Owned};
use std::fs::DirBuilder;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

/// The domain id of the toolstack's domain.
pub const TOOLSTACKS: DomId = DomId(0);

/// Connects to the xenstore of this domain, and returns the connection with the domain's number.
/// `elsewhere` is the remedy if this machine is not a Xen guest.
pub fn xenstore_of_xen(elsewhere: &str) -> Result<(Client<UnixTransport>, DomId)> {
    let transport = UnixTransport::find().map_err(|e| match e.is_denied() {
        true => e.to_string(),
        false => format!("{e}. Not on Xen? {elsewhere}"),
    })?;
    let mut xs = Client::new(transport);
    let domid = own_domid(&mut xs)?;
    Ok((xs, domid))
}

pub struct Attached<P: Platform> {
    pub platform: P,
    /// The connection to this domain's xenstore.
    pub xs: Client<UnixTransport>,
    serves: Serves,
    domid: DomId,
    config: BackendConfig<P>,
    /// The number of worker threads that is used unless an option sets another.
    workers: usize,
    /// A command by which the user can read the backend's status.
    hint: String,
    stop: Stop,
    status: StatusPublisher<P>,
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

impl Attached<Xen> {
    /// Attaches in this domain. None: the process was asked to stop while it waited for its
    /// predecessor to end.
    pub fn on_xen(
        (xs, domid): (Client<UnixTransport>, DomId),
        serves: Serves,
        args: &DaemonArgs,
        stop: Stop,
    ) -> Result<Option<(Self, XenOwner)>> {
        let platform = Xen::open(domid)?;
        platform.ready_for_back()?;
        let Some(owner) = own_xen(serves, args.wait, &stop)? else { return Ok(None) };
        make_private(serves.own_dir())?;
        let status =
            StatusPublisher::bind(&serves.status(serves.own_dir(), domid.0), Xen::counters, Xen::describe)?;
        let config = BackendConfig {
            recovery: Some(Box::new(FileRecovery::new(serves.own_dir()))),
            removes: removes_directories(domid, false),
            ..BackendConfig::default()
        };
        let (workers, hint) = (workers_on_xen(), "pregrant top".into());
        let attached = Self { platform, xs, serves, domid, config, workers, hint, stop, status };
        Ok(Some((attached.woken()?, owner)))
    }

    /// Leaves each device for which `had` gives a reason to its owner.
    pub fn leave(&mut self, had: HadByOthers) {
        self.config.had_by_others = Some(had);
    }

    /// Tells whether the toolstack connects devices here: then it also removes the directories of
    /// devices that have ended.
    pub fn plugged_by_toolstack(&mut self, plugs: bool) {
        self.config.removes = removes_directories(self.domid, plugs);
    }
}

/// Makes a directory for this user alone, where systemd did not.
fn make_private(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    Ok(made.map_err(|e| format!("{}: {e}; is its folder writable for this user?", dir.display()))?)
}

/// Returns the choices in `chosen` that match none of these devices.
fn absent(chosen: &[DeviceChoice], there: &[DeviceId]) -> Vec<DeviceChoice> {
    let is_there = |c: &DeviceChoice| there.iter().any(|id| c.names(id.front.0, id.handle));
    chosen.iter().filter(|c| !is_there(c)).copied().collect()
}

/// Returns true if a backend in domain `own` removes the directories of devices that have ended. In
/// dom0 the toolstack removes them. In a driver domain whose toolstack runs hotplug scripts, its
/// daemon (`xl devd`) does, and reads in the directory what it must undo: if that were removed
/// before, it would run no script.
fn removes_directories(own: DomId, toolstack_plugs: bool) -> bool {
    own != TOOLSTACKS && !toolstack_plugs
}

impl<P: Platform> Attached<P>
where
    P::Events: WakeOn,
{
    /// Lets xenstore, signals and requests for the status end a sleep.
    fn woken(self) -> Result<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_a_toolstacks_where_one_cares_for_the_domain() {
        let driver_domain = DomId(7);
        assert!(
            !removes_directories(TOOLSTACKS, true) && !removes_directories(TOOLSTACKS, false),
            "xl's in dom0"
        );
        assert!(!removes_directories(driver_domain, true), "xl devd's");
        assert!(removes_directories(driver_domain, false), "no one else would");
    }

    /// A backend that is started by hand creates its own folder, and each kind of backend has
    /// another one.
    #[test]
    fn a_backend_makes_the_folder_that_is_its_own() {
        use std::os::unix::fs::PermissionsExt;
        assert_ne!(Serves::Vifs.own_dir(), Serves::Vbds.own_dir());
        let dir = std::env::temp_dir().join(format!("pregrant-own-{}", std::process::id()));
        for _ in 0..2 {
            make_private(&dir.join("pregrant-back")).unwrap();
        }
        assert_eq!(dir.join("pregrant-back").metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(dir.join("file"), "").unwrap();
        assert!(make_private(&dir.join("file")).unwrap_err().to_string().contains("file"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
