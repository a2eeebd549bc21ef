//! `pregrant blkfront` in a guest of a real Xen, through /dev/xen: in place of the kernel's
//! blkfront.
//!
//! ```text
//!   /dev/xen/gntalloc   rings and pages        /run/pregrant/front-vbd51712.lock   one front a disk
//!   /dev/xen/evtchn     events                 /sys/bus/xen/devices/vbd-51712      whether the kernel has the disk
//!   /dev/xen/xenbus     xenstore
//! ```
//! A front that died leaves the disk connected to no one; the next one closes and reconnects
//! it.

use super::{BlkFrontArgs, Result, serve};
use crate::daemon::RUN_DIR;
use crate::daemon::xen::xenstore_of_xen;
use crate::kernel_driver;
use crate::stop::Stop;
use pregrant::platform::Platform;
use pregrant_host::drivers::BlkFrontend;
use pregrant_host::drivers::recovery::{Lock, LockError};
use pregrant_host::linux::Xen;
use pregrant_host::wake::WakeOn;
use std::os::fd::AsFd;
use std::path::Path;

pub(super) fn run(args: &BlkFrontArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let (mut xs, domid) = xenstore_of_xen(
        "`pregrant-lab loopback serve --dir DIR`, then `pregrant blkfront --loopback DIR --domain 5`",
    )?;
    if let Some(asked) = args.domain.filter(|asked| *asked != domid.0) {
        return Err(format!(
            "--domain {asked}: this is {domid}, and a front serves the domain in which it runs; leave --domain out"
        )
        .into());
    }
    let handle = args.handle(&mut xs)?;
    if let Some(driver) = kernel_driver::of(Path::new("/sys"), &format!("vbd-{handle}")) {
        return Err(format!(
            "vbd {handle}: the kernel's driver {driver:?} (xen-blkfront) has it. Unmount what is on it; then, as root: \
             echo vbd-{handle} > /sys/bus/xen/drivers/{driver}/unbind"
        )
        .into());
    }
    let path = Path::new(RUN_DIR).join(format!("front-vbd{handle}.lock"));
    let _only = Lock::take(&path).map_err(|e| match e {
        LockError::Held { owner, .. } => {
            format!("vbd {handle} has a front already: process {owner}; stop that one first")
        }
        failed => failed.to_string(),
    })?;
    let platform = Xen::open(domid)?;
    platform.ready_for_front()?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    let front = BlkFrontend::new(platform, xs, handle, args.config())?;
    serve(front, args, &stop)
}
