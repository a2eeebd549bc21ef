//! `pregrant back --loopback DIR`: domain 0 of a software Xen.

use super::{BackArgs, Result, at_switch, capture_files, captured, classes};
use crate::daemon::owner::own_loopback;
use crate::daemon::{Daemon, Serves, employ};
use crate::loopback::no_machine;
use crate::notify::Notify;
use crate::stop::Stop;
use pregrant::platform::Platform;
use pregrant_host::drivers::StatusTeller;
use pregrant_host::drivers::{Backend, BackendConfig, BrokerRecovery, Hotplug};
use pregrant_host::loopback::Loopback;
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_lab::machine::{self, DRIVER};
use pregrant_lab::screen;
use std::os::fd::AsFd;
use std::path::Path;

const SERVES: Serves = Serves::Vifs;

pub(super) fn run(dir: &Path, args: &BackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let files = capture_files(args)?;
    let platform = Loopback::attach(&machine::broker_socket(dir), DRIVER).map_err(|e| no_machine(dir, e))?;
    let xs = machine::store_of(&platform)?;
    let Some(_owner) = own_loopback(&platform, dir, SERVES, args.daemon.wait, &stop)? else { return Ok(()) };
    let status = StatusTeller::on_loopback_at(&SERVES.status(dir, DRIVER.0))?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    platform.events().also_wake_on(stop.as_fd())?;
    platform.events().also_wake_on(status.as_fd())?;
    let switch = Switch::new();
    let far = captured(at_switch(&switch, args), files)?;
    let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
    let classes = classes(args, Hotplug::None, args.vif.clone(), far);
    let mut backend = Backend::new(platform, xs, config, classes)?;
    employ(&mut backend, &args.daemon, 1, Some(&switch))?;
    let who = format!("backend of {DRIVER}, process {}", std::process::id());
    let _ = screen::print(format_args!("{who}: ready; status: pregrant top --loopback {}", dir.display()));
    let mut daemon = Daemon {
        serves: SERVES,
        backend,
        switch: Some(switch),
        status,
        stop,
        notify: Notify::from_environment(),
        between: None,
    };
    daemon.run(args.daemon.close).map_err(|e| machine::ended_or(dir, e))
}
