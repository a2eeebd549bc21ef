//! `pregrant front --loopback DIR`: a guest of a software Xen.

use super::{FrontArgs, Result, run_guest};
use crate::loopback_guest::{Wanted, join};
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenbus::Class;
use pregrant_host::drivers::{Defaults, Frontend};
use pregrant_host::wake::WakeOn;
use pregrant_lab::machine;
use std::os::fd::AsFd;
use std::path::Path;

/// Bytes of a staging buffer, where nothing is asked for.
const DATA_LEN: u32 = 2048;

pub(super) fn run(dir: &Path, args: &FrontArgs, defaults: Defaults) -> Result<()> {
    let stop = Stop::on_signals()?;
    let domid = DomId(args.domain.ok_or("--loopback needs --domain; add --domain N, the guest's number")?);
    let wanted = Wanted { dir, domid, class: Class::VIF };
    let (guest, _owned) = join(
        wanted,
        &stop,
        |_| Ok(args.vif),
        |platform, xs, vif| {
            platform.events().also_wake_on(stop.as_fd())?;
            let mut guest = Frontend::new(platform, xs, vif, args.config(DATA_LEN, None), true)?;
            guest.set_defaults(defaults);
            Ok(guest)
        },
    )?;
    run_guest(guest, args, &stop).map_err(|e| machine::ended_or(dir, e))
}
