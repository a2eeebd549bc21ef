//! `pregrant back --loopback DIR`: domain 0 of a software Xen.

use super::{BackArgs, Daemon, Result, at_switch, capture_files, captured, classes, employ};
use crate::loopback::no_machine;
use crate::notify::Notify;
use crate::status_reader::{self, NoStatus};
use crate::stop::Stop;
use pregrant::platform::Platform;
use pregrant_host::drivers::StatusTeller;
use pregrant_host::drivers::status::socket_path;
use pregrant_host::drivers::{Backend, BackendConfig, BrokerRecovery, Hotplug};
use pregrant_host::loopback::{Loopback, LoopbackError, Owned};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_lab::machine::{self, DRIVER};
use pregrant_lab::screen;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

pub(super) fn run(dir: &Path, args: &BackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let files = capture_files(args)?;
    let platform = Loopback::attach(&machine::broker_socket(dir), DRIVER).map_err(|e| no_machine(dir, e))?;
    let xs = machine::store_of(&platform)?;
    let Some(_owner) = own_domain(&platform, dir, args.wait, &stop)? else { return Ok(()) };
    let status = StatusTeller::on_loopback(dir, DRIVER.0)?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    platform.events().also_wake_on(stop.as_fd())?;
    platform.events().also_wake_on(status.as_fd())?;
    let switch = Switch::new();
    let far = captured(at_switch(&switch, args), files)?;
    let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
    let classes = classes(args, Hotplug::None, args.vif.clone(), far);
    let mut backend = Backend::new(platform, xs, config, classes)?;
    employ(&mut backend, args, 1, &switch)?;
    let who = format!("backend of {DRIVER}, process {}", std::process::id());
    let _ = screen::print(format_args!("{who}: ready; status: pregrant top --loopback {}", dir.display()));
    let mut daemon =
        Daemon { backend, switch, status, stop, notify: Notify::from_environment(), between: None };
    daemon.run(args.close).map_err(|e| machine::ended_or(dir, e))
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
