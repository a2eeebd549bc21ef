//! `pregrant blkfront --loopback DIR`: serves the disk of a guest of a software Xen.

use super::{BlkFrontArgs, Result, serve};
use crate::loopback_guest::{Wanted, join};
use crate::loopback_machine;
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::xenbus::Class;
use pregrant_host::drivers::BlkFrontend;
use std::path::Path;

pub(super) fn run(dir: &Path, args: &BlkFrontArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let domid = DomId(args.domain.ok_or("--loopback needs --domain; add --domain N, the guest's number")?);
    let wanted = Wanted { dir, domid, class: Class::VBD };
    let (front, _owned) = join(
        wanted,
        &stop,
        |xs| args.handle(xs),
        |platform, xs, handle| Ok(BlkFrontend::new(platform, xs, handle, args.config())?),
    )?;
    serve(front, args, &stop).map_err(|e| loopback_machine::ended_or(dir, e))
}
