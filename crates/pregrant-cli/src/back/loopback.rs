//! `pregrant back --loopback DIR`: domain 0 of a software Xen.

use super::{BackArgs, Result, at_switch, capture_files, captured, classes};
use crate::daemon::Serves;
use crate::daemon::attachment::Attached;
use crate::stop::Stop;
use pregrant_host::drivers::Hotplug;
use pregrant_host::ports::switch::Switch;
use pregrant_lab::machine;
use std::path::Path;

pub(super) fn run(dir: &Path, args: &BackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let files = capture_files(args)?;
    let attached = Attached::on_loopback(dir, Serves::Vifs, &args.daemon, stop)?;
    let Some((mut attached, _owner)) = attached else { return Ok(()) };
    attached.say_missing(&args.vif)?;
    let switch = Switch::new();
    let provider = captured(at_switch(&switch, args), files, args)?;
    let classes = classes(args, Hotplug::None, args.vif.clone(), provider);
    let mut daemon = attached.daemon(&args.daemon, classes, Some(switch), None)?;
    daemon.run(args.daemon.close).map_err(|e| machine::ended_or(dir, e))
}
