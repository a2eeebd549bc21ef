//! `pregrant front --loopback DIR`: serves a vif of a guest of a software Xen.

use super::frame_hook::Matching;
use super::{Result, VifArgs, VifUser, exit_config, joined};
use crate::loopback_guest::{Wanted, join};
use crate::loopback_machine;
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenbus::Class;
use pregrant_host::drivers::{Defaults, Frontend};
use pregrant_host::wake::WakeOn;
use std::os::fd::AsFd;
use std::path::Path;

/// Number of bytes of a staging buffer, unless an option sets another.
const DATA_LEN: u32 = 2048;

pub(super) fn run(
    dir: &Path,
    args: &VifArgs,
    (exit, matching): (Option<u32>, Matching),
    defaults: Defaults,
    user: &impl VifUser,
) -> Result<()> {
    let stop = Stop::on_signals()?;
    let domid = DomId(args.domain.ok_or("--loopback needs --domain; add --domain N, the guest's number")?);
    let wanted = Wanted { dir, domid, class: Class::VIF };
    let (guest, _owned) = join(
        wanted,
        &stop,
        |_| Ok(args.vif),
        |platform, xs, vif| {
            platform.events().also_wake_on(stop.as_fd())?;
            let mut guest =
                Frontend::new(platform, xs, vif, args.config(user.queues(), DATA_LEN, None), true)?;
            guest.set_defaults(defaults);
            Ok(guest)
        },
    )?;
    let exit = match exit {
        Some(handle) => Some(join(
            wanted,
            &stop,
            |_| Ok(handle),
            |platform, xs, vif| {
                let config = exit_config(args.config(user.queues(), DATA_LEN, None));
                Ok(Frontend::new(platform, xs, vif, config, true)?)
            },
        )?),
        None => None,
    };
    let (exit, _also_owned) = exit.unzip();
    joined((guest, exit), args, matching)
        .and_then(|joined| user.run(joined, &stop))
        .map_err(|e| loopback_machine::ended_or(dir, e))
}
