//! `pregrant blkback`: the disk backend of a driver domain as a process of its own.
//!
//! ```text
//!   vbds of all guests <--> Backend <--> images: raw files, block devices, memory         (pregrant_host::disks)
//! ```
//! Which image a vbd has is the toolstack's word, in the vbd's directory. Requests move in workers'
//! threads. [`daemon`](crate::daemon) has the part that all backends share; decision 0030 says why
//! it is a process beside `pregrant back`.

use crate::blkfront::ring_order;
use crate::choice::choice;
use crate::daemon::attachment::Attached;
use crate::daemon::kernel::KeptOff;
use crate::daemon::xen::{TOOLSTACKS, xenstore_of_xen};
use crate::daemon::{DaemonArgs, Serves, chosen};
use crate::experiment::{ExperimentArgs, HEADING};
use crate::loopback_machine;
use crate::loopback_machine::only_ours;
use crate::stop::Stop;
use crate::usage::Given;
use clap::{Args, ValueEnum};
use pregrant::blk::back::VbdConfig;
use pregrant::blk::features::{BackFeatures, INDIRECT_SEGMENTS_MAX, MAX_RING_ORDER};
use pregrant::blk::path::{PathName, persistent};
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::disks::{DiskConfig, IoWay};
use pregrant_host::drivers::{Blk, BlkConfig, DeviceChoice};
use pregrant_host::linux::KernelBack;
use std::error::Error;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SERVES: Serves = Serves::Vbds;

/// Arguments of `pregrant blkback`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant blkback
  pregrant blkback --vbd 5 --vbd 6.51712
  pregrant blkback --path map
  pregrant blkback --loopback /tmp/xen

It serves the vbds of the domain in which it runs, each with the image that the toolstack names in the vbd's `params`: a raw file, a
block device, on the loopback also ram:64M. SIGTERM and SIGINT end it in good order: what guests asked for is done and answered, and their
disks stay connected (state 4) for the next one, which goes on with the live rings; so it does after kill -9, as soon as no write
of the dead process can land any more. With --close the disks are closed instead (states 5 and 6).

`pregrant back` beside it serves network interfaces. docs/operate.md has the lines for xl.")]
pub struct BlkBackArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Serve this guest's disks alone, or this one of them
    ///
    /// The others are left to the kernel's blkback. May be repeated
    #[arg(long, value_name = "DOMID[.HANDLE]", value_parser = chosen)]
    vbd: Vec<DeviceChoice>,
    /// Who runs the disks' scripts
    ///
    /// Without it the toolstack in dom0, and no one elsewhere
    #[arg(long, value_name = "WHO", conflicts_with = "loopback")]
    hotplug: Option<Scripts>,
    /// How bytes are moved for guests without feature-persistent
    #[arg(long, value_name = "PATH", default_value = "copy", value_parser = choice(PATHS, |path| path.name()))]
    path: PathName,
    /// Pages of a queue to keep mapped, for feature-persistent
    ///
    /// After their first use, for guests that have it; 0: do not offer it
    #[arg(long, value_name = "PAGES", default_value_t = persistent::DEFAULT_LIMIT as u32, value_parser = clap::value_parser!(u32).range(..=8192))]
    persistent_grants: u32,
    /// How to do I/O on files and block devices
    #[arg(long, help_heading = HEADING, hide = true, value_name = "WAY", default_value = "uring", value_parser = choice(WAYS, IoWay::name))]
    io: IoWay,
    /// Use the kernel's page cache, even for images that support direct I/O
    #[arg(long)]
    page_cache: bool,
    /// Report a device's 4096-byte logical sectors to guests, instead of 512
    ///
    /// Linux guests support it; FreeBSD's front before its fix, and Windows' without
    /// feature-large-sector-size, read and write at wrong places (docs/operate.md)
    #[arg(long)]
    native_sectors: bool,
    /// Maximum number of queues per disk
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    max_queues: u32,
    /// Pages of each ring at most: 1, 2, 4, 8 or 16; a page has 32 requests
    #[arg(long = "max-ring-pages", value_name = "N", default_value = "16", value_parser = ring_order,
        conflicts_with = "max_ring_order")]
    order_of_pages: u32,
    /// Pages of each ring at most, as an exponent of 2: 4 means 16 pages
    #[arg(long, help_heading = HEADING, hide = true, value_name = "ORDER", value_parser = clap::value_parser!(u32).range(..=MAX_RING_ORDER as i64))]
    max_ring_order: Option<u32>,
    /// Maximum segments per indirect request; 0: no indirect requests
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(..=INDIRECT_SEGMENTS_MAX as i64))]
    max_segments: u32,
    #[command(flatten)]
    pub experiment: ExperimentArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Scripts {
    /// xl, or in another domain its `xl devd`: a disk that has a script is connected when
    /// `hotplug-status` says "connected", and directories of disks that are over are left to it
    Toolstack,
    /// No one
    None,
}

const PATHS: &[(PathName, &str)] = &[
    (PathName::Copy, "Batched grant copy, through a buffer of this process"),
    (PathName::Map, "The guest's pages are mapped for each request"),
];

const WAYS: &[(IoWay, &str)] = &[
    (
        IoWay::Uring,
        "io_uring, or threads where the kernel has none; a file in memory (tmpfs) is copied in place",
    ),
    (IoWay::Threads, "Four threads for each image"),
];

impl BlkBackArgs {
    fn config(&self, awaits_scripts: bool) -> BlkConfig {
        let features = BackFeatures {
            max_ring_order: self.max_ring_order.unwrap_or(self.order_of_pages),
            max_queues: self.max_queues,
            max_indirect_segments: self.max_segments,
            ..BackFeatures::default()
        };
        let vbd = VbdConfig {
            features,
            fallback: self.path,
            persistent_pages: self.persistent_grants as usize,
            native_sectors: self.native_sectors,
            ..VbdConfig::default()
        };
        let disk = DiskConfig { io: self.io, direct: !self.page_cache };
        BlkConfig { vbd, disk, awaits_scripts, chosen: self.vbd.clone() }
    }
}

pub fn run(args: &BlkBackArgs, given: &Given) -> Result<()> {
    args.daemon.check(given)?;
    match &args.daemon.loopback {
        Some(dir) => on_loopback(dir, args),
        None => on_xen(args),
    }
}

fn on_loopback(dir: &Path, args: &BlkBackArgs) -> Result<()> {
    // Images that this process opens are named in that machine's store.
    only_ours(dir, "read and write files")?;
    let attached = Attached::on_loopback(dir, SERVES, &args.daemon, Stop::on_signals()?)?;
    let Some((mut attached, _owner)) = attached else { return Ok(()) };
    attached.say_missing(&args.vbd)?;
    let mut daemon =
        attached.daemon(&args.daemon, vec![Box::new(Blk::new(args.config(false)))], None, None)?;
    daemon.run(args.daemon.close).map_err(|e| loopback_machine::ended_or(dir, e))
}

fn on_xen(args: &BlkBackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let (xs, domid) = xenstore_of_xen(
        "`pregrant-lab loopback serve --dir DIR --guest 5 --disk 5=ram:64M`, then `pregrant blkback --loopback DIR`",
    )?;
    let Some((mut attached, mut owner)) = Attached::on_xen((xs, domid), SERVES, &args.daemon, stop)? else {
        return Ok(());
    };
    let kept_off = KeptOff::begin(SERVES, args.vbd.clone())?;
    owner.succeed();
    attached.say_missing(&args.vbd)?;
    attached.leave(Box::new(|id| had_by_kernel(&KernelBack::of(Class::VBD), id)));
    let usual = if domid == TOOLSTACKS { Scripts::Toolstack } else { Scripts::None };
    let scripts = args.hotplug.unwrap_or(usual);
    attached.plugged_by_toolstack(scripts == Scripts::Toolstack);
    let classes = vec![Box::new(Blk::new(args.config(scripts == Scripts::Toolstack))) as _];
    let mut daemon = attached.daemon(&args.daemon, classes, None, KeptOff::watching(&kept_off))?;
    daemon.run(args.daemon.close)
}

/// Returns a reason if the kernel's blkback serves the disk. The disk is then left to the kernel,
/// since the guest would lose it.
fn had_by_kernel(kernel: &KernelBack, id: &DeviceId) -> Option<String> {
    kernel.has(id).then(|| {
        "the kernel's blkback has it, and a disk does not change hands while its guest runs. To have it served here, shut the guest \
         down and start it again while this runs, or detach the disk and attach it"
            .into()
    })
}
