//! `pregrant back --loopback DIR`: serves vifs in domain 0 of a software Xen. The vifs are ports of
//! a switch, or with `--port tap` taps of this machine, as on Xen.

use super::{BackArgs, Port, Result, at_switch, capture_files, captured, classes, taps};
use crate::daemon::Serves;
use crate::daemon::attachment::Attached;
use crate::loopback_machine;
use crate::loopback_machine::{RUN_PROGRAMS, only_ours};
use crate::stop::Stop;
use pregrant_host::drivers::Hotplug;
use pregrant_host::ports::switch::Switch;
use std::path::Path;

pub(super) fn run(dir: &Path, args: &BackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let port = args.port(true);
    if port == Port::Tap {
        // Scripts that this process runs, as root, are named in that machine's store.
        only_ours(dir, RUN_PROGRAMS)?;
    }
    let files = capture_files(args)?;
    let attached = Attached::on_loopback(dir, Serves::Vifs, &args.daemon, stop)?;
    let Some((mut attached, _owner)) = attached else { return Ok(()) };
    attached.say_missing(&args.vif)?;
    let switch = Switch::new();
    // No toolstack runs scripts here, unless the operator does what one would.
    let usual = if port == Port::Tap { Hotplug::Own } else { Hotplug::None };
    let hotplug = args.hotplug.map_or(usual, Into::into);
    let provider = match port {
        Port::Switch => at_switch(&switch, args),
        Port::Tap => taps(args, hotplug)?,
    };
    let classes = classes(args, hotplug, args.vif.clone(), captured(provider, files, args)?);
    let mut daemon = attached.daemon(&args.daemon, classes, Some(switch), None)?;
    daemon.run(args.daemon.close).map_err(|e| loopback_machine::ended_or(dir, e))
}
