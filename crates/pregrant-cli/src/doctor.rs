//! `pregrant doctor`: what this machine has for Xen's devices, what each vif and each vbd does and
//! why, and what to do about it.
//!
//! ```text
//!   machine   is it Xen, which domain, xenstore, /dev/xen, tun, the kernel's own drivers     --+
//!   vifs      both ends' states and keys, who serves them, on which path                      --+--> findings, in words
//!   kernel_module  of these, those that the kernel's module pregrant_back has
//!   pool      how many buffers a vif has, and why no more
//!   vbds      the same of disks; what a front waits for                                       --+
//!   device_policy   the devices of the disks, for systemd's unit
//!   disk_attachment  one disk alone, for the toolstack's script: whether its backend has its image
//! ```
//! It changes nothing. What a guest may do: write anything into its keys; they are shown without
//! control characters, and cut off.

mod device_policy;
mod devices;
mod disk_attachment;
mod finding;
mod kernel_module;
mod keys;
mod machine;
mod pool;
mod vbds;
mod vifs;

use crate::daemon::Serves;
use crate::loopback_machine::no_machine;
use crate::loopback_machine::{broker_socket, store_socket};
use crate::screen;
use clap::Args;
use finding::{Finding, Rank};
use pregrant::xenbus::device::own_domid;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_loopback::Control;
use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant doctor`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant doctor
  pregrant doctor --loopback /tmp/xen
  pregrant doctor --vbd 5.51712
  pregrant doctor --device-policy > /etc/systemd/system/pregrant-blkback.service.d/disks.conf

Each line begins with ok, note or WRONG; what to do stands behind an arrow. The exit code is 1 when something is WRONG.")]
pub struct DoctorArgs {
    /// Check the loopback machine in this directory instead of this Xen
    #[arg(long, value_name = "DIR")]
    loopback: Option<PathBuf>,
    /// Check one disk of a guest: wait until its backend has opened the image; print nothing on
    /// success, the reason on failure (for dist/block-pregrant)
    #[arg(long, value_name = "DOMID.HANDLE", value_parser = disk_attachment::one_vbd)]
    vbd: Option<(u16, u32)>,
    /// Print a systemd drop-in for pregrant-blkback.service that allows the block devices and files
    /// of the disks that this domain serves now
    #[arg(long, conflicts_with_all = ["loopback", "vbd"])]
    device_policy: bool,
}

pub fn run(args: &DoctorArgs) -> Result<()> {
    if let Some(vbd) = args.vbd {
        let transport = match &args.loopback {
            Some(dir) => {
                Control::connect(&broker_socket(dir)).map_err(|e| no_machine(dir, e))?;
                UnixTransport::connect(store_socket(dir))?
            }
            None => UnixTransport::find()?,
        };
        let domid = own_domid(&mut Client::new(transport))?;
        return disk_attachment::wait(&run_dir(args, Serves::Vbds), domid, vbd);
    }
    if args.device_policy {
        let mut xs = Client::new(UnixTransport::find()?);
        let domid = own_domid(&mut xs)?;
        return Ok(screen::print(device_policy::drop_in(&mut xs, domid)?.trim_end())?);
    }
    let mut findings = Vec::new();
    let store = match &args.loopback {
        Some(dir) => {
            let control = Control::connect(&broker_socket(dir)).map_err(|e| no_machine(dir, e))?;
            let tables = control.grant_tables();
            findings.extend(tables.map(|t| Finding::ok(format_args!("loopback, grant tables {}", t.name()))));
            UnixTransport::connect(store_socket(dir))
        }
        None => {
            findings.extend(machine::findings());
            if findings.iter().any(|f| f.rank == Rank::Wrong) {
                return print_findings(&findings);
            }
            UnixTransport::find()
        }
    };
    match store {
        Err(e) if args.loopback.is_some() => return Err(e.into()),
        // The error itself has the remedy.
        Err(e) if e.is_denied() => findings.push(Finding::wrong(e)),
        Err(e) => {
            findings.push(Finding::wrong(e).then("start xenstored, or run this in a domain of a Xen host"))
        }
        Ok(transport) => {
            let mut xs = Client::new(transport);
            let domid = own_domid(&mut xs)?;
            let name = xs.read_if_there(&format!("/local/domain/{}/name", domid.0))?;
            let name = name.map(|n| format!(", {}", finding::plain(&n))).unwrap_or_default();
            findings.push(Finding::ok(format_args!("xenstore answers; this is {domid}{name}")));
            let (vifs, vbds) = (run_dir(args, Serves::Vifs), run_dir(args, Serves::Vbds));
            findings.extend(vifs::served_here(&mut xs, domid, &vifs, args.loopback.is_none())?);
            findings.extend(vbds::served_here(&mut xs, domid, &vbds, args.loopback.is_none())?);
            findings.extend(vifs::of_this_domain(&mut xs, domid, args.loopback.is_none())?);
            findings.extend(vbds::of_this_domain(&mut xs, domid)?);
        }
    }
    print_findings(&findings)
}

/// Returns the directory in which a backend has its status socket.
fn run_dir(args: &DoctorArgs, serves: Serves) -> PathBuf {
    args.loopback.clone().unwrap_or_else(|| serves.own_dir().into())
}

/// Prints the findings; returns an error if something is wrong.
fn print_findings(findings: &[Finding]) -> Result<()> {
    for finding in findings {
        screen::print(format_args!("{finding}"))?;
    }
    let wrong = findings.iter().filter(|f| f.rank == Rank::Wrong).count();
    if wrong == 0 { Ok(()) } else { Err(format!("found {wrong} problem(s), which are marked above").into()) }
}
