//! `pregrant front` in a guest of a real Xen, through /dev/xen: in place of the kernel's netfront.
//!
//! ```text
//!   /dev/xen/gntalloc   rings and buffers      /run/pregrant/front-vif0.lock   one front a vif
//!   /dev/xen/evtchn     events                 /sys/bus/xen/devices/vif-0      whether the kernel has the vif
//!   /dev/xen/xenbus     xenstore
//! ```
//! A front that died leaves the vif connected to no one; the next one closes and reconnects
//! it.

use super::frame_hook::Matching;
use super::{Result, VifArgs, VifUser, exit_config, joined};
use crate::daemon::RUN_DIR;
use crate::daemon::xen::xenstore_of_xen;
use crate::kernel_driver;
use crate::stop::Stop;
use pregrant::net::front::FrontConfig;
use pregrant::platform::Platform;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::recovery::{Lock, LockError};
use pregrant_host::drivers::{Defaults, Frontend};
use pregrant_host::linux::{Gntalloc, Xen};
use pregrant_host::wake::WakeOn;
use std::os::fd::AsFd;
use std::path::Path;

/// Default number of bytes of a staging buffer: enough for a whole frame, so that no other page is
/// needed.
const DATA_LEN: u32 = 65535;

pub(super) fn run(
    args: &VifArgs,
    (exit, matching): (Option<u32>, Matching),
    defaults: Defaults,
    user: &impl VifUser,
) -> Result<()> {
    let stop = Stop::on_signals()?;
    let (mut guest, _only) = attach(args, args.vif, user.queues(), |config| config)?;
    if let Some(action) = args.hook {
        action.exit(Some(guest.platform().domid()), args.vif)?;
    }
    let exit = exit.map(|handle| attach(args, handle, user.queues(), exit_config)).transpose()?;
    let (exit, _only_exit) = exit.unzip();
    guest.platform().events().also_wake_on(stop.as_fd())?;
    guest.set_defaults(defaults);
    user.run(joined((guest, exit), args, matching)?, &stop)
}

/// Connects a vif of this domain, and takes the lock that makes this process its only front.
fn attach(
    args: &VifArgs,
    handle: u32,
    queues: u32,
    of: fn(FrontConfig) -> FrontConfig,
) -> Result<(Frontend<Xen, UnixTransport>, Lock)> {
    let (xs, domid) = xenstore_of_xen(
        "`pregrant-lab loopback serve --dir DIR --guest 5`, then `pregrant front --tap eth0 --loopback DIR --domain 5`",
    )?;
    if let Some(asked) = args.domain.filter(|asked| *asked != domid.0) {
        return Err(format!(
            "--domain {asked}: this is {domid}, and a front serves the domain in which it runs; leave --domain out"
        )
        .into());
    }
    if let Some(driver) = kernel_driver::of(Path::new("/sys"), &format!("vif-{handle}")) {
        return Err(held_by_kernel(handle, &driver).into());
    }
    let path = Path::new(RUN_DIR).join(format!("front-vif{handle}.lock"));
    let only = Lock::take(&path).map_err(|e| match e {
        LockError::Held { owner, .. } => {
            format!("vif {handle} has a front already: process {owner}; stop that one first")
        }
        failed => failed.to_string(),
    })?;
    let platform = Xen::open(domid)?;
    platform.ready_for_front()?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    let config = of(args.config(queues, DATA_LEN, Gntalloc::limit()));
    Ok((Frontend::new(platform, xs, handle, config, true)?, only))
}

fn held_by_kernel(handle: u32, driver: &str) -> String {
    format!(
        "vif {handle} is driven by the kernel's {driver:?} (xen-netfront), whose interface goes away when it is unbound. As root: \
         echo vif-{handle} > /sys/bus/xen/drivers/{driver}/unbind, or for all vifs: modprobe -r xen-netfront"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vif_that_the_kernel_has_is_left_to_it() {
        assert!(held_by_kernel(1, "vif").contains("echo vif-1 > /sys/bus/xen/drivers/vif/unbind"));
    }
}
